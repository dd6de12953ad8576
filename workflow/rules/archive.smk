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
    benchmark:
        f"{REPORT}.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        where=["--where", ASKED.where] if ASKED.where else [],
        code=code_of(REPORTS, SCRIPTS),
    message:
        "Write the report of the archive {input} to {output}"
    shell:
        "campaign report {input:q} {params.where:q} --output {output:q} > {log:q}"
