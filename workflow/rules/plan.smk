"""Plan: writes down what will be measured, in which order and at what cost.

REQUIRES: ASKED
PROVIDES: CAMPAIGN_DAG (the plan, and the path of the listing of its manifests), NAME, RESULTS (directory), PLAN (file), CORES;
plan/plan.{digest}.{n}.json, its only declared output, so that it is written when there is none of what is planned now;
plan/plan.json and plan/plan.tsv for people; plan/leases/, with one document a lease; plan/budget.json where a budget is given;
questions/, with one document a round, where a question is asked: then the plan has the leases of its rounds so far
"""

from campaign.plan.dag import open_dag

CAMPAIGN_DAG = or_exit(open_dag, ASKED)

if ASKED.until and not CAMPAIGN_DAG.plan.is_mid_round:

    from campaign.insight.question_rounds import open_rounds  # it brings pandas

    CAMPAIGN_DAG = or_exit(open_rounds, ASKED)

NAME = CAMPAIGN_DAG.campaign.name
RESULTS = str(CAMPAIGN_DAG.results.directory)
# Rules name files by variables, not by `rules.x.output`, which another workflow's `use rule ... with` cannot follow.
PLAN = CAMPAIGN_DAG.plan_file
# Not given where nothing is executed, as with --dag.
CORES = workflow.resource_settings.cores or 1


rule plan:
    input:
        # Newer than the results, they make Snakemake look for missing records also without what it remembers.
        CAMPAIGN_DAG.files,
    output:
        PLAN,
    log:
        f"{RESULTS}/logs/plan.log",
    conda:
        "../../envs/campaign.yaml"
    resources:
        campaign=CAMPAIGN,
        asked=shlex.join(CAMPAIGN_DAG.asked.arguments()),
        plan=f"{RESULTS}/plan/plan.json",
    message:
        "Plan: write down cells, leases and costs"
    shell:
        "{resources.campaign} plan {resources.asked} --write > {log:q} && cp {resources.plan:q} {output:q}"
