"""Summary: one screen at the end. Fails where runs are missing, so that the exit code tells; the report is there then too.

REQUIRES: plan/, manifests of all leases, tables/, figures/, recommendation/, report.html
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
        report(
            f"{RESULTS}/summary.txt",
            category="Report",
            labels={"page": "summary", "campaign": NAME},
        ),
    log:
        f"{RESULTS}/logs/summary.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        results=shlex.quote(RESULTS),
    message:
        "Summary"
    shell:
        "{resources.campaign} summary {resources.results} --output {output:q}"
