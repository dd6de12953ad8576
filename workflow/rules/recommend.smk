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
        style=f"{workflow.basedir}/reports/style.mplstyle",
    output:
        json=f"{RESULTS}/recommendation/recommendation.json",
        svg=f"{RESULTS}/recommendation/recommendation.svg",
        csv=f"{RESULTS}/recommendation/recommendation.csv",
    log:
        f"{RESULTS}/logs/recommend.log",
    conda:
        "../../envs/campaign.yaml"
    message:
        "Recommend what to build"
    script:
        "../../scripts/recommend.py"
