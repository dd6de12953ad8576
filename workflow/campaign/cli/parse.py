"""The command `campaign parse`: read kept logs again with the current parsers of the workload files."""

from __future__ import annotations

from pathlib import Path

import click

from campaign.cli.options import source_options
from campaign.cli.terminal import say
from campaign.common.files import read_json
from campaign.common.paths import Results
from campaign.common.wording import plural
from campaign.plan.campaign.resolve import load_campaign
from campaign.run.parse_logs import parse_logs
from campaign.spec.record import Store


@click.command()
@source_options(changes=True)
def parse(campaign: Path, results: Path) -> None:
    """Read the kept logs of all runs again, as after a change of `parser`, `parsers` or `test` in a workload file.

    Nothing is measured, and records stay as they are: the numbers are written to readings/ of the results, with the parser and the
    time. From then on tables, reports and archives hold the newest reading of each run, and say so. From a results directory, the
    logs are read as its campaign was planned.
    """
    loaded = load_campaign(campaign, results=results)
    place = Results(results, loaded.name)
    parsed = parse_logs(loaded, Store(place.directory))
    for why, count in parsed.left.items():
        say(f"{plural(count, 'run')} {why}: not read again")
    if parsed.path is None:
        say("no log was read")
        return
    say(f"{plural(parsed.runs, 'log')} read again, {parsed.changed} of them with other numbers: {parsed.path}")
    if place.tables.is_dir():
        from campaign.analysis.tables.collect import collect, gather  # loads pandas

        planned = read_json(place.plan_document)
        shown = loaded if loaded.file.version else loaded.labelled(planned.get("version"))
        collect(gather(shown, place.directory, planned.get("where")), place.tables)
        say(f"{place.tables}: made anew; 'campaign report {campaign}' writes the report")
