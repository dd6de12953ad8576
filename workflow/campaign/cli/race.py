"""The race of `campaign run --until best`: Snakemake measures blocks until the best configuration is known."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from campaign.common.errors import ConfigError, RecordError
from campaign.common.paths import Results
from campaign.common.processes.signals import list_ending_signals
from campaign.common.wording import escape_control_characters
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.plan.selection import parse_host_expression
from campaign.report.sections.race import format_race_lines
from campaign.spec.race import RaceDocument, write_race
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import list_compositions


def measure_race(request: PlanRequest, within_pct: float, snakemake: Callable[[Sequence[str]], Sequence[str]]) -> None:
    """Measure one block after the other until the race has ended.

    The caller then makes the tables and the report. Exits with Snakemake's exit status if Snakemake fails.

    Args:
        request: the campaign and the selection of its runs.
        within_pct: tolerance in percent of the best configuration.
        snakemake: function that returns the Snakemake command for a list of targets.

    Raises:
        RecordError: runs of a measured block have no record.
    """
    previous_compositions: dict[str, int] = {}
    while not print_race(race := evaluate_race(request, within_pct)).ended:
        if race.compositions == previous_compositions:
            raise RecordError("a block of the race was measured, but has runs without a record; see 'campaign status'")
        previous_compositions = race.compositions
        write_race(get_results(request).race_file, race)
        if status := _run_forwarding_signals(snakemake(["measured"])):
            sys.exit(status)
    write_race(get_results(request).race_file, race)


def print_race(race: RaceDocument) -> RaceDocument:
    """Print the state of the race, and return the race."""
    click.echo(escape_control_characters("\n".join(format_race_lines(race))))
    return race


def get_results(request: PlanRequest) -> Results:
    """Return the results directory of a request."""
    return Results(request.results, request.load_campaign().name)


def evaluate_race(request: PlanRequest, within_pct: float) -> RaceDocument:
    """Evaluate the race from the existing records. Raises ConfigError if the campaign is unsuitable for a race."""
    # Imported late, because it loads pandas.
    from campaign.analysis.racing import evaluate_races
    from campaign.analysis.tables.collect import build_tables, read_campaign_results

    plan = read_plan(replace(request, until=None))
    campaign = plan.campaign
    if request.where and parse_host_expression(campaign, request.where):
        raise ConfigError(
            "--where: with --until, cells can be selected by their axes, but not by the hosts of earlier runs"
        )
    if max(len(list_compositions(cell.settings)) for cell in plan.matrix) < 2:
        location = campaign.format_location("protocol", "compositions")
        raise ConfigError(
            f"{location}: --until needs at least 2 compositions of each configuration to estimate the variation between "
            "compositions; set `compositions: 3` or more"
        )
    results = get_results(request)
    collection = read_campaign_results(campaign, results.directory, request.where, RecordStore(results.directory))
    tables = build_tables(collection) if collection.records else None
    missing = {(lease.configuration.name, lease.composition) for lease in plan.leases if lease.missing}
    race = evaluate_races(plan.matrix, tables, lambda *key: key not in missing, within_pct)
    return race.model_copy(update={"where": request.where, "unit": campaign.metric.unit})


def _run_forwarding_signals(command: Sequence[str]) -> int:
    """Run a command and return its exit status.

    Signals that end this process are forwarded to the command, so that the command can shut down properly.
    """
    child: subprocess.Popen[bytes] | None = None
    pending: list[int] = []

    def forward(number: int, _: object) -> None:
        """Forward a signal to the command, or keep it until the command has started."""
        if child is None:
            pending.append(number)
        else:
            child.send_signal(number)

    previous_handlers = {number: signal.signal(number, forward) for number in list_ending_signals()}
    try:
        child = subprocess.Popen(command)
        for number in pending:
            child.send_signal(number)
        status = child.wait()
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
