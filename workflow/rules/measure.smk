"""Measure: one job a lease. Composes it, measures every run of it that has no record, and releases it.

REQUIRES: CAMPAIGN_DAG; the system's fabric and launcher
PROVIDES: records/, shared/, leases/, logs/; manifests/{lease}/{runs}.json, its only declared output: records are not
Snakemake's to delete. {runs} is a digest of the runs, so the job runs exactly when a record is missing.
"""


rule measure:
    output:
        f"{RESULTS}/manifests/{{lease}}/{{runs}}.json",
    log:
        f"{RESULTS}/logs/{{lease}}/measure.{{runs}}.log",
    priority: order_of_lease
    conda:
        "../../envs/campaign.yaml"
    threads: cores_of_lease
    resources:
        pool_devices=devices_of_lease,
        pool_hosts=hosts_of_lease,
        # Words are a resource because what is expected to take how long must not count as a change of the job.
        words=words_of_lease,
        # What is expected is kept with what it then took.
        forecast=forecast_of_lease,
        # So is who launches: an operation, which makes no measurement another one.
        launcher=CAMPAIGN_DAG.asked.launcher or "",
        slurm=CAMPAIGN_DAG.asked.slurm.model_dump_json(exclude_unset=True),
        command=command_of("measure.py"),
    message:
        "{resources.words}"
    shell:
        # No params: what is measured stands in the name of the manifest.
        "{resources.command} --launcher={resources.launcher} --slurm={resources.slurm:q}"
        " --forecast={resources.forecast:q}"
        " {wildcards.lease:q} {wildcards.runs:q} {output:q} {log:q}"
