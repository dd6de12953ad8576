"""Plan: CAMPAIGN_DAG, which is made while this file is read. Its documents in plan/ are written when the jobs are known."""

import atexit
from functools import cache
from campaign.plan.dag import PlanFiles, open_dag

with exit_on_error():
    CAMPAIGN_DAG = open_dag(REQUEST)
    if workflow.output_settings.dryrun:
        from campaign.cli.plan import end_dry_run

        atexit.register(end_dry_run, CAMPAIGN_DAG)

NAME = CAMPAIGN_DAG.campaign.name
RESULTS = str(CAMPAIGN_DAG.results.directory)


@cache
@exit_on_error()
def plan_files():
    # --dag, --report and similar options have no execution settings. Like a dry run, they write no files.
    if workflow.execution_settings is None:
        return PlanFiles(CAMPAIGN_DAG, executes=False)
    snakemake_config.refuse_executor(workflow)
    snakemake_config.warn_about_scheduler(workflow.scheduling_settings.scheduler)
    return PlanFiles(CAMPAIGN_DAG, executes=not workflow.output_settings.dryrun)


def plan_file(wildcards):
    return plan_files().plan


def lease_file(wildcards):
    lease = CAMPAIGN_DAG.find_lease(wildcards)
    path = plan_files().lease_path(lease)
    # A lease without missing runs has a job only if its manifest does not exist.
    return ancient(path) if plan_files().is_measured(lease) else path
