"""Recommend: what to build, by the measured cells.

REQUIRES: tables/
PROVIDES: recommendation/recommendation.json
"""

RECOMMENDATION = f"{RESULTS}/recommendation/recommendation.json"


rule recommend:
    input:
        **TABLES,
    output:
        RECOMMENDATION,
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
