"""Dry run: ends in the leases of the plan.

REQUIRES: CAMPAIGN_DAG
PROVIDES: the plan's table of leases at the end of a dry run
"""

import atexit

from snakemake.settings.enums import Quietness

from campaign.cli.plan import end_dry_run


def end_in_the_leases():
    # Snakemake would list one job for all of them, with reasons of thousands of characters.
    settings = workflow.output_settings
    if isinstance(settings.quiet, set) and not settings.printshellcmds:
        settings.quiet.add(Quietness.RULES)
    if Quietness.ALL not in (settings.quiet or ()):
        atexit.register(end_dry_run, CAMPAIGN_DAG.plan)


if workflow.output_settings.dryrun:
    end_in_the_leases()
