"""Measure: a job a lease, which composes it, measures every run that has no record, and releases it.

REQUIRES: plan/leases/; the system's fabric and launcher; prepare_for_signals()
PROVIDES: records/, shared/, leases/, logs/; manifests/{lease}.json, its only declared output: what was measured is not Snakemake's to
delete; manifests/measured.txt, what all of them say, once everything is released
"""

from campaign.plan.concurrency import queues
from campaign.plan.snakemake_order import keep_order

MEASURED = f"{RESULTS}/manifests/measured.txt"

# What the systems have is the limit where the user gave none.
or_exit(CAMPAIGN_DAG.require, with_limits(workflow, CAMPAIGN_DAG.limits))
# Blocks of the campaign stay blocks in time: no lease passes one before it that waits for hosts.
keep_order(queues(CAMPAIGN_DAG.campaign), prepare_for_signals)


rule measure:
    input:
        lease_file,
    output:
        CAMPAIGN_DAG.manifest,
    log:
        f"{RESULTS}/logs/measure/{CAMPAIGN_DAG.pattern}.log",
    benchmark:
        f"{RESULTS}/benchmarks/measure/{CAMPAIGN_DAG.pattern}.tsv"
    wildcard_constraints:
        **CAMPAIGN_DAG.wildcards,
    priority: lambda wildcards: CAMPAIGN_DAG.priority(wildcards)
    conda:
        "../../envs/campaign.yaml"
    threads: lambda wildcards: CAMPAIGN_DAG.threads(wildcards, workflow.resource_settings.cores or 1)
    resources:
        **{
            name: lambda wildcards, name=name: CAMPAIGN_DAG.needs(wildcards)[name]
            for name in CAMPAIGN_DAG.limits
        },
    params:
        lease=lambda wildcards: CAMPAIGN_DAG.named(wildcards),
    message:
        "{params.lease.words}"
    shell:
        "campaign measure {input:q} --manifest {output:q} --log {log:q}"


rule measured:
    input:
        CAMPAIGN_DAG.manifests,
        plan=plan_file,
    output:
        MEASURED,
    log:
        f"{RESULTS}/logs/measured.log",
    benchmark:
        f"{RESULTS}/benchmarks/measured.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        # Asked for by itself, it tells by its exit code; else the summary does, so that there is a report.
        strict=lambda _: "--strict" if asks_for("measured") else "",
    message:
        "Measured: release what is left, and say which runs are missing"
    shell:
        "campaign measured {input.plan:q} {params.strict} --output {output:q} > {log:q}"
