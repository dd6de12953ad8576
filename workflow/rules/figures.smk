"""Figures: all in one job, which reads the tables once.

REQUIRES: tables/; scripts/figures/, one file a figure
PROVIDES: figures/{figure}.svg, .csv (its data), .json (caption, alt text, findings)
"""

FIGURES = sorted(path.stem for path in Path(SCRIPTS, "figures").glob("[a-z]*.py"))
FIGURE_CODE = code_of(SCRIPTS / "figures", REPORTS / "style.mplstyle")


rule figures:
    input:
        **TABLES,
    output:
        json=figure_files("json"),
        svg=[
            report(svg, category="Figures", labels={"figure": name, "campaign": NAME})
            for name, svg in zip(FIGURES, figure_files("svg"))
        ],
        csv=figure_files("csv"),
    log:
        f"{RESULTS}/logs/figures.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        results=shlex.quote(RESULTS),
    message:
        "Draw the figures"
    shell:
        "{resources.campaign} figures {resources.results} --for report --output {resources.results}/figures"
        f"{FIGURE_CODE}"
