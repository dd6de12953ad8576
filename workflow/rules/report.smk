"""Report: one self-contained page.

REQUIRES: tables/, figures/, recommendation/; reports/ (templates and style)
PROVIDES: report.html
"""

REPORT = f"{RESULTS}/report.html"


rule report:
    input:
        **TABLES,
        figures=figure_files("json"),
        svg=figure_files("svg"),
        recommendation=multiext(RECOMMENDATION, ".json", ".svg", ".csv"),
    output:
        report(
            REPORT,
            category="Report",
            labels={"page": "report", "campaign": NAME},
        ),
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        results=shlex.quote(RESULTS),
    message:
        "Write the report {output}"
    shell:
        "{resources.campaign} report {resources.results} --output {output:q}"
        f"{code_of(REPORTS)}"
