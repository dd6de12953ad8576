"""Measure: one job a lease. Composes it, measures every run of it that has no record, and releases it.

REQUIRES: CAMPAIGN_DAG; plan/leases/; the system's fabric and launcher
PROVIDES: records/, shared/, leases/, logs/; manifests/{lease}/{runs}.json, its only declared output: records are not
Snakemake's to delete. {runs} is a digest of the runs, so the job runs exactly when a record is missing. Complete manifests
are no output of this rule: whatever Snakemake remembers, they are not made again.
"""


rule measure:
    input:
        PLAN,
    output:
        f"{RESULTS}/manifests/{{lease}}/{{runs}}.json",
    log:
        f"{RESULTS}/logs/{{lease}}/measure.{{runs}}.log",
    wildcard_constraints:
        lease="[^/]+",
        runs=CAMPAIGN_DAG.to_measure,
    priority: order_of_lease
    conda:
        "../../envs/campaign.yaml"
    threads: cores_of_lease
    resources:
        pool_devices=devices_of_lease,
        pool_hosts=hosts_of_lease,
        # Words are a resource because what is expected to take how long must not count as a change of the job.
        words=words_of_lease,
        campaign=CAMPAIGN,
        plan=plan_of_lease,
        results=shlex.quote(str(CAMPAIGN_DAG.asked.results)),
    message:
        "{resources.words}"
    shell:
        "{resources.campaign} measure {resources.plan:q} --results {resources.results} --manifest {output:q}"
