"""Figures: all in one job, which reads the tables once.

REQUIRES: tables/; scripts/figures/, one file a figure
PROVIDES: figures/{figure}.svg, .csv (its data), .json (caption, alt text, findings)
"""

FIGURES = sorted(path.stem for path in Path(SCRIPTS, "figures").glob("[a-z]*.py"))


rule figures:
    input:
        runs=rules.tables.output.runs,
        cells=rules.tables.output.cells,
        telemetry=rules.tables.output.telemetry,
        leases=rules.tables.output.leases,
        links=rules.tables.output.links,
        context=rules.tables.output.context,
    output:
        json=expand(f"{RESULTS}/figures/{{figure}}.json", figure=FIGURES),
        svg=[
            report(
                f"{RESULTS}/figures/{figure}.svg",
                category="Figures",
                labels={"figure": figure.replace("_", " "), "campaign": NAME},
            )
            for figure in FIGURES
        ],
        csv=expand(f"{RESULTS}/figures/{{figure}}.csv", figure=FIGURES),
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
        + code_of(SCRIPTS / "figures", REPORTS / "style.mplstyle")
