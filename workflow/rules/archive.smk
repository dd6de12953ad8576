"""Archive: the report from an archive alone, on any machine. Takes the place of all other stages.

REQUIRES: --config archive=FILE
PROVIDES: results/archives/{name}/report.html
"""

if not ASKED.archive.is_file():
    sys.exit(f"error: {ASKED.archive}: no such archive; 'campaign archive' makes one")


REPORT = f"{ASKED.results}/archives/{ASKED.archive.stem}/report.html"


rule report:
    input:
        ASKED.archive,
    output:
        report(
            REPORT,
            category="Report",
        ),
    log:
        f"{REPORT}.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        where=f"--where {shlex.quote(ASKED.where)}" if ASKED.where else "",
    message:
        "Write the report of the archive {input} to {output}"
    shell:
        "{resources.campaign} report {input:q} {resources.where} --output {output:q}"
