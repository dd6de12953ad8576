"""Report: one self-contained page, made with the templates and the style in reports/."""

REPORT = f"{RESULTS}/report.html"


rule report:
    input:
        **TABLES,
        figures=FIGURES,
        recommendation=RECOMMENDATION,
    output:
        page=report(
            REPORT, category="Report", labels={"page": "report", "campaign": NAME}
        ),
    log:
        f"{RESULTS}/logs/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/report.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output.page).parent,
        code=compute_source_hash(REPORTS),
    message:
        "Write the report {output.page}"
    shell:
        "campaign report {params.results:q} --output {output.page:q} > {log:q}"
