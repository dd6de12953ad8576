"""Report: one self-contained page.

REQUIRES: tables/, figures/, recommendation/, reports/ (templates and style)
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
        template=f"{workflow.basedir}/reports/report.html.j2",
        claims=f"{workflow.basedir}/reports/published.html.j2",
        advice=f"{workflow.basedir}/reports/recommendations.html.j2",
        css=f"{workflow.basedir}/reports/report.css",
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../../envs/campaign.yaml"
    message:
        "Write the report {output}"
    script:
        "../../scripts/report.py"
