"""Report: one self-contained page.

REQUIRES: tables/, figures/, recommendation/; reports/ (templates and style)
PROVIDES: report.html
"""

REPORT = f"{RESULTS}/report.html"


rule report:
    input:
        **TABLES,
        figures=FIGURES,
        recommendation=RECOMMENDATION,
    output:
        report(
            REPORT,
            category="Report",
            labels={"page": "report", "campaign": NAME},
        ),
    log:
        f"{RESULTS}/logs/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/report.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output[0]).parent,
        code=code_of(REPORTS),
    message:
        "Write the report {output}"
    shell:
        "campaign report {params.results:q} --output {output:q} > {log:q}"
