"""Figures, and what to build by the measurements and a model of what was not measured: one job, which reads the tables once.

REQUIRES: tables/; scripts/figures/, one file a figure
PROVIDES: figures/{figure}.svg, .csv (its data), .json (caption, alt text, findings); recommendation/recommendation.json (answers
and models), .svg and .csv (predicted against measured)
"""

RECOMMENDATION = f"{RESULTS}/recommendation/recommendation"

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
        recommendation=f"{RECOMMENDATION}.json",
        recommendation_svg=report(
            f"{RECOMMENDATION}.svg",
            category="Recommendation",
            labels={"figure": "predicted against measured", "campaign": NAME},
        ),
        recommendation_csv=f"{RECOMMENDATION}.csv",
    log:
        f"{RESULTS}/logs/figures.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        results=shlex.quote(RESULTS),
    message:
        "Draw the figures, and recommend what to build"
    shell:
        "{resources.campaign} figures {resources.results} --for report --output {resources.results}/figures"
        " --recommendation {resources.results}/recommendation"
        f"{FIGURE_CODE}"
