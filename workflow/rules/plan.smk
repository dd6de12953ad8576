"""Plan: made while this file is read; its documents are written when the jobs are known, unless this is a dry run.

REQUIRES: ASKED
PROVIDES: CAMPAIGN_DAG (the plan, and of each lease its manifest, its document and what it takes), NAME, RESULTS (directory),
plan_files(), plan_file(), lease_file(); plan/plan.json and plan/plan.tsv; plan/leases/, one document a lease, written anew where a run
or the manifest is missing
"""

import atexit

from campaign.plan.dag import PlanFiles, open_dag

CAMPAIGN_DAG = or_exit(open_dag, ASKED)
NAME = CAMPAIGN_DAG.campaign.name
RESULTS = str(CAMPAIGN_DAG.results.directory)

if workflow.output_settings.dryrun:
    from campaign.cli.plan import end_dry_run

    atexit.register(end_dry_run, CAMPAIGN_DAG)


@cache
def plan_files():
    # Only what executes jobs writes: a dry run, --dag and --report leave no trace.
    executes = (
        workflow.execution_settings is not None and not workflow.output_settings.dryrun
    )
    return or_exit(PlanFiles, CAMPAIGN_DAG, executes)


def plan_file(_):
    return plan_files().plan


def lease_file(wildcards):
    lease = CAMPAIGN_DAG.lease(wildcards)
    path = plan_files().lease(lease)
    # Of a lease without anything missing, only a manifest that is not there is made.
    return ancient(path) if plan_files().is_whole(lease) else path
