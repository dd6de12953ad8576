"""Archive: the report from an archive alone, on any machine. Takes the place of all other stages.

REQUIRES: --config archive=FILE
PROVIDES: results/archives/{name}/report.html
"""

ARCHIVED_REPORT = archived_report()


rule report:
    default_target: True
    input:
        ASKED.archive,
    output:
        ARCHIVED_REPORT,
    log:
        f"{ARCHIVED_REPORT}.log",
    conda:
        "../../envs/campaign.yaml"
    params:
        where=ASKED.where,
    message:
        "Write the report of the archive {input} to {output}"
    script:
        "../../scripts/report_archive.py"
