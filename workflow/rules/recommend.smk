"""Recommend: what to build, by the measurements and a model of what was not measured.

REQUIRES: tables/
PROVIDES: recommendation/recommendation.json (answers and models), .svg and .csv (predicted against measured)
"""


rule recommend:
    input:
        runs=rules.tables.output.runs,
        cells=rules.tables.output.cells,
        telemetry=rules.tables.output.telemetry,
        leases=rules.tables.output.leases,
        links=rules.tables.output.links,
        context=rules.tables.output.context,
    output:
        json=f"{RESULTS}/recommendation/recommendation.json",
        svg=report(
            f"{RESULTS}/recommendation/recommendation.svg",
            category="Recommendation",
            labels={"figure": "predicted against measured", "campaign": NAME},
        ),
        csv=f"{RESULTS}/recommendation/recommendation.csv",
    log:
        f"{RESULTS}/logs/recommend.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        results=shlex.quote(RESULTS),
    message:
        "Recommend what to build"
    shell:
        "{resources.campaign} recommend {resources.results} --output {resources.results}/recommendation"
        + code_of(REPORTS / "style.mplstyle")
