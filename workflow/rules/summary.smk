"""Summary: one screen at the end. Fails where runs are missing, so that the exit code tells; the report is there then too.

REQUIRES: plan/, manifests/, tables/, figures/, recommendation/, report.html
PROVIDES: summary.txt
"""

SUMMARY = f"{RESULTS}/summary.txt"


rule summary:
    input:
        plan=plan_file,
        measured=MEASURED,
        cells=TABLES["cells_csv"],
        report=REPORT,
        figures=FIGURES,
        recommendation=RECOMMENDATION,
    output:
        report(
            SUMMARY,
            category="Report",
            labels={"page": "summary", "campaign": NAME},
        ),
    log:
        f"{RESULTS}/logs/summary.log",
    benchmark:
        f"{RESULTS}/benchmarks/summary.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output[0]).parent,
    message:
        "Summary"
    shell:
        "campaign summary {params.results:q} --output {output:q}"
