"""Summary: one screen at the end. Fails where runs are missing, so that the exit code tells; the report is there then too.

REQUIRES: plan/, the listing of all manifests, tables/, figures/, recommendation/, report.html
PROVIDES: summary.txt
"""

SUMMARY = f"{RESULTS}/summary.txt"


rule summary:
    input:
        plan=PLAN,
        measured=CAMPAIGN_DAG.measured,
        cells=TABLES["cells_csv"],
        report=REPORT,
        figures=figure_files("json"),
        recommendation=f"{RECOMMENDATION}.json",
    output:
        report(
            SUMMARY,
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
