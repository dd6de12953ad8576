"""Summary: one screen at the end. The rule fails if runs are missing, but the report exists by then."""

SUMMARY = f"{RESULTS}/summary.txt"


rule summary:
    input:
        plan=plan_file,
        missing=MEASURED,
        cells=TABLES["cells_csv"],
        report=REPORT,
        figures=FIGURES,
        recommendation=RECOMMENDATION,
    output:
        text=report(
            SUMMARY, category="Report", labels={"page": "summary", "campaign": NAME}
        ),
    log:
        f"{RESULTS}/logs/summary.log",
    benchmark:
        f"{RESULTS}/benchmarks/summary.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        results=lambda wildcards, output: Path(output.text).parent,
    message:
        "Summarise the campaign"
    shell:
        "campaign summary {params.results:q} --output {output.text:q}"
