"""Recommend: what to build, by the measurements and a model of what was not measured.

REQUIRES: tables/
PROVIDES: recommendation/recommendation.json (answers and models), .svg and .csv (predicted against measured)
"""

RECOMMENDATION = f"{RESULTS}/recommendation/recommendation"


rule recommend:
    input:
        **TABLES,
    output:
        json=f"{RECOMMENDATION}.json",
        svg=report(
            f"{RECOMMENDATION}.svg",
            category="Recommendation",
            labels={"figure": "predicted against measured", "campaign": NAME},
        ),
        csv=f"{RECOMMENDATION}.csv",
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
        f"{code_of(REPORTS / 'style.mplstyle')}"
