"""Plan: writes down what will be measured, in which order and at what cost.

REQUIRES: ASKED
PROVIDES: CAMPAIGN_DAG (the plan and the paths of its manifests), RESULTS (directory), CORES; plan/plan.json, plan/plan.tsv; plan/budget.json where a budget is given
"""

from campaign.plan.dag import open_dag

CAMPAIGN_DAG = or_exit(open_dag, ASKED)
NAME = CAMPAIGN_DAG.campaign.name
RESULTS = str(CAMPAIGN_DAG.results.directory)
# Not given where nothing is executed, as with --dag.
CORES = workflow.resource_settings.cores or 1


# Not in a dry run; and before any job asks what the budget chose.
onstart:
    CAMPAIGN_DAG.keep_budget()


rule plan:
    output:
        json=f"{RESULTS}/plan/plan.json",
        tsv=f"{RESULTS}/plan/plan.tsv",
    log:
        f"{RESULTS}/logs/plan.log",
    # Progress is told in terms of the plan, so it comes first.
    priority: 1000000
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=str(CAMPAIGN_DAG.asked.campaign),
        where=CAMPAIGN_DAG.asked.where or "",
        results=str(CAMPAIGN_DAG.asked.results),
        run_implied="yes" if CAMPAIGN_DAG.asked.run_implied else "no",
        budget=str(CAMPAIGN_DAG.asked.budget or ""),
        learn_from=",".join(map(str, CAMPAIGN_DAG.asked.learn_from)),
    params:
        runs=CAMPAIGN_DAG.digest,
    message:
        "Plan: write down cells, leases and costs"
    script:
        "../../scripts/plan.py"
