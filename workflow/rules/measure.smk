"""Measure: one job per lease, which composes it, measures every run that has no record, and releases it.

Records are not outputs, so Snakemake never deletes them. The only output is the manifest, which lists the missing runs.
"""

MEASURED = f"{RESULTS}/manifests/measured.txt"

with exit_on_error():
    CAMPAIGN_DAG.check_limits(
        snakemake_config.register_limits(workflow, CAMPAIGN_DAG.limits)
    )


rule measure:
    input:
        lease=lease_file,
    output:
        manifest=CAMPAIGN_DAG.manifest,
    log:
        f"{RESULTS}/logs/measure/{CAMPAIGN_DAG.pattern}.log",
    benchmark:
        f"{RESULTS}/benchmarks/measure/{CAMPAIGN_DAG.pattern}.tsv"
    wildcard_constraints:
        **CAMPAIGN_DAG.wildcards,
    # The priority gives the order of the plan, which --scheduler campaign keeps.
    priority: lambda wildcards: CAMPAIGN_DAG.job_priority(wildcards)
    conda:
        "../../envs/campaign.yaml"
    threads:
        lambda wildcards: CAMPAIGN_DAG.count_job_threads(
            wildcards, workflow.resource_settings.cores or 1
        )
    resources:
        **{
            name: lambda wildcards, name=name: CAMPAIGN_DAG.job_needs(wildcards)[name]
            for name in CAMPAIGN_DAG.limits
        },
    params:
        lease=lambda wildcards: CAMPAIGN_DAG.lease_parameter(wildcards),
    message:
        "{params.lease.words}"
    shell:
        "campaign measure {input.lease:q} --manifest {output.manifest:q} --log {log:q}"


rule measured:
    input:
        manifests=CAMPAIGN_DAG.manifests,
        plan=plan_file,
    output:
        missing=MEASURED,
    log:
        f"{RESULTS}/logs/measured.log",
    benchmark:
        f"{RESULTS}/benchmarks/measured.tsv"
    conda:
        "../../envs/campaign.yaml"
    params:
        # If this rule is a target, it fails if runs are missing. Otherwise the summary fails, after the report.
        strict=lambda _: "--strict" * snakemake_config.is_target(workflow, "measured"),
    message:
        "Clean up after the leases, and list the missing runs"
    shell:
        "campaign measured {input.plan:q} {params.strict} --output {output.missing:q} > {log:q}"
