"""The command `campaign parse`: read stored logs again with the current parsers of the workload files."""

from __future__ import annotations

from pathlib import Path

import click

from campaign.cli.options import add_source_options
from campaign.cli.terminal import print_text
from campaign.common.files import read_json
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import load_campaign
from campaign.run.parse_logs import parse_logs
from campaign.spec.record import RecordStore


@click.command()
@add_source_options(changes_results=True)
def parse(campaign: Path, results: Path) -> None:
    """Read the stored logs of all runs again, e.g. after `parser`, `parsers` or `test` in a workload file has changed.

    Nothing is measured, and records are not changed. The numbers are written to readings/ of the results, with the parser and the
    time. From then on, tables, reports and archives contain the newest reading of each run, and state this. For a results
    directory, the parsers are those of its planned campaign.
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
        f"read {pluralize(result.runs, 'log')} again, of which {result.changed} gave other numbers: {result.path}"
    )
    if paths.tables.is_dir():
        # Imported late, because it loads pandas.
        from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables

        plan_document = read_json(paths.plan_file)
        shown_campaign = (
            loaded_campaign
            if loaded_campaign.file.version
            else loaded_campaign.with_version(plan_document.get("version"))
        )
        write_campaign_tables(
            read_campaign_results(shown_campaign, paths.directory, plan_document.get("where")), paths.tables
        )
        print_text(f"{paths.tables}: updated; 'campaign report {campaign}' writes the report")
