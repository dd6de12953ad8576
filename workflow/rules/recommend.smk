"""Recommend: what to build, based on the measured cells."""

RECOMMENDATION = f"{RESULTS}/recommendation/recommendation.json"


rule recommend:
    input:
        **TABLES,
    output:
        document=RECOMMENDATION,
    log:
        f"{RESULTS}/logs/recommend.log",
    benchmark:
        f"{RESULTS}/benchmarks/recommend.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output.document).parents[1],
        code=compute_source_hash(),
    message:
        "Recommend what to build"
    shell:
        "campaign recommend {params.results:q} --output {params.results:q}/recommendation > {log:q}"
