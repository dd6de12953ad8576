"""The command `campaign parse`: read kept logs again with the current parsers of the workload files."""

from __future__ import annotations

from pathlib import Path

import click

from campaign.cli.options import source_options
from campaign.cli.terminal import print_text
from campaign.common.files import read_json
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import load_campaign
from campaign.run.parse_logs import parse_logs
from campaign.spec.record import RecordStore


@click.command()
@source_options(changes_results=True)
def parse(campaign: Path, results: Path) -> None:
    """Read the kept logs of all runs again, as after a change of `parser`, `parsers` or `test` in a workload file.

    Nothing is measured, and records stay as they are: the numbers are written to readings/ of the results, with the parser and the
    time. From then on tables, reports and archives hold the newest reading of each run, and say so. From a results directory, the
    logs are read as its campaign was planned.
    """
    loaded_campaign = load_campaign(campaign, results=results)
    paths = Results(results, loaded_campaign.name)
    result = parse_logs(loaded_campaign, RecordStore(paths.directory))
    for reason, count in result.skipped.items():
        print_text(f"{pluralize(count, 'run')} {reason}: not read again")
    if result.path is None:
        print_text("no log was read")
        return
    print_text(
        f"{pluralize(result.runs, 'log')} read again, {result.changed} of them with other numbers: {result.path}"
    )
    if paths.tables.is_dir():
        from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables  # loads pandas

        plan_document = read_json(paths.plan_file)
        shown_campaign = (
            loaded_campaign
            if loaded_campaign.file.version
            else loaded_campaign.with_version(plan_document.get("version"))
        )
        write_campaign_tables(
            read_campaign_results(shown_campaign, paths.directory, plan_document.get("where")), paths.tables
        )
        print_text(f"{paths.tables}: made anew; 'campaign report {campaign}' writes the report")
