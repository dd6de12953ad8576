"""Recommend: what to build, by the measurements and a model of what was not measured.

REQUIRES: tables/
PROVIDES: recommendation/recommendation.json (answers and models), .svg, .pdf and .csv (predicted against measured)
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
    benchmark:
        f"{RESULTS}/benchmarks/recommend.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output[0]).parents[1],
        code=code_of(),
    message:
        "Recommend what to build"
    shell:
        "campaign recommend {params.results:q} --output {params.results:q}/recommendation > {log:q}"
