"""Plan: writes down what will be measured, in which order and at what cost.

REQUIRES: ASKED
PROVIDES: CAMPAIGN_DAG (the plan and the paths of its manifests), NAME, RESULTS (directory), PLAN (file), CORES; plan/plan.json, plan/plan.tsv; plan/leases/,
with one document a lease, which are not Snakemake's to delete; plan/budget.json where a budget is given
"""

from campaign.plan.dag import open_dag

CAMPAIGN_DAG = or_exit(open_dag, ASKED)
NAME = CAMPAIGN_DAG.campaign.name
RESULTS = str(CAMPAIGN_DAG.results.directory)
# Rules name files by variables, not by `rules.x.output`, which another workflow's `use rule ... with` cannot follow.
PLAN = f"{RESULTS}/plan/plan.json"
# Not given where nothing is executed, as with --dag.
CORES = workflow.resource_settings.cores or 1


rule plan:
    input:
        CAMPAIGN_DAG.files,
    output:
        json=PLAN,
        tsv=f"{RESULTS}/plan/plan.tsv",
    log:
        f"{RESULTS}/logs/plan.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        asked=shlex.join(CAMPAIGN_DAG.asked.arguments()),
    message:
        "Plan: write down cells, leases and costs"
    shell:
        # The plan is written again when its digest changes.
        "{resources.campaign} plan {resources.asked} --write > {log:q}"
        f"  # {CAMPAIGN_DAG.digest}"
