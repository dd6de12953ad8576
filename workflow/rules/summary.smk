"""Summary: one screen at the end. Fails where runs are missing, so that the exit code tells; the report is there then too.

REQUIRES: plan/, report.html, tables/, figures/, recommendation/, manifests of all leases
PROVIDES: summary.txt
"""


rule summary:
    input:
        plan=rules.plan.output,
        manifests=CAMPAIGN_DAG.manifests,
        cells=rules.tables.output.cells,
        report=rules.report.output,
        figures=rules.report.input.figures,
        recommendation=rules.recommend.output.json,
    output:
        f"{RESULTS}/summary.txt",
    log:
        f"{RESULTS}/logs/summary.log",
    conda:
        "../../envs/campaign.yaml"
    message:
        "Summary"
    script:
        "../../scripts/summary.py"
