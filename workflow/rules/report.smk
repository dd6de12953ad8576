"""Report: one self-contained page.

REQUIRES: tables/, figures/, recommendation/; reports/ (templates and style)
PROVIDES: report.html
"""


rule report:
    input:
        runs=rules.tables.output.runs,
        cells=rules.tables.output.cells,
        leases=rules.tables.output.leases,
        context=rules.tables.output.context,
        figures=rules.figures.output.json,
        svg=rules.figures.output.svg,
        recommendation=rules.recommend.output,
    output:
        report(
            f"{RESULTS}/report.html",
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
        + code_of(REPORTS)
