"""Measure: composes each lease, measures every run of it that has no record, and releases it; one process does so for all leases.

REQUIRES: plan/plan.{digest}.{n}.json; plan/leases/; the system's fabric and launcher
PROVIDES: records/, shared/, leases/, logs/, manifests/{lease}/{runs}.json; work/measured/{manifests}.json, its only declared
output, which lists the manifests: what was measured is not Snakemake's to delete. {manifests} is a digest of their names, in which
{runs} is a digest of the runs: so the job runs exactly when a record is missing, whatever Snakemake remembers.
"""


rule measure:
    input:
        PLAN,
    output:
        f"{RESULTS}/work/measured/{{manifests}}.json",
    log:
        f"{RESULTS}/logs/measure.{{manifests}}.log",
    wildcard_constraints:
        manifests="(?!)" if CAMPAIGN_DAG.is_measured else "[0-9a-f]+",
    conda:
        "../../envs/campaign.yaml"
    # Waiting for Slurm takes none.
    threads: 1 if CAMPAIGN_DAG.by_slurm else CORES
    resources:
        # Words are a resource because what is expected to take how long must not count as a change of the job.
        words=CAMPAIGN_DAG.describe(),
        campaign=CAMPAIGN,
        results=shlex.quote(str(CAMPAIGN_DAG.asked.results)),
        at_once=CORES,
    message:
        "{resources.words}"
    shell:
        "{resources.campaign} measure {input:q} --results {resources.results} --manifest {output:q} --cores {resources.at_once}"
