"""The command `campaign plan`: the runs of a campaign, their order, and their cost."""

from __future__ import annotations

import json
from pathlib import Path

import click

from campaign.cli.cost_table import cost_table
from campaign.cli.options import format_option, output_option, request_options
from campaign.cli.source import refuse_archive
from campaign.cli.terminal import TextTable, say, show, warn
from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.common.wording import plural, printable
from campaign.plan.concurrency import isolation
from campaign.plan.cost import DEFAULT_FACTOR, MIN_OFFS, Estimate
from campaign.plan.dag import Dag, read_plan
from campaign.plan.plan import Plan, time_words
from campaign.plan.repetitions import said
from campaign.plan.request import PlanRequest
from campaign.plan.write import counts_per_axis, plan_document, plan_rows, write_plan, write_tables
from campaign.run.preflight import missing_software
from campaign.run.since_measured import since_measured
from campaign.spec.run_numbers import compositions_of, runs_of, whole
from campaign.workloads.steady_warmup import least_of

_ALONE = {
    "machine": "one lease at a time",
    "host": "leases on different hosts at the same time",
    "none": "as many leases at the same time as the pool allows",
}
_LEAST = (
    "leases in the order of the file: drift over the campaign cannot be told from differences between "
    "configurations ('lease_order: blocks' can)\n"
)


@click.command()
@request_options("selection", "costs", "allocations")
@format_option("table", "json", "tsv")
@output_option("Write plan.json and plan.tsv into this directory instead.")
@click.option(
    "--write",
    is_flag=True,
    help="Write the plan into the results, with one document a lease in plan/leases/, which 'campaign measure' reads.",
)
def plan(request: PlanRequest, style: str, output: Path | None, write: bool) -> None:
    """Show what would be measured, in which order, and at what cost. Without --write and --output, nothing is written.

    Times are medians of earlier runs and leases of all campaigns in the results directory. Their intervals show how far such
    forecasts were off. 'campaign detect' shows what other numbers of compositions and runs cost, and what they can find.

    Exits with 1 when a configuration does not fit the system.
    """
    if write:
        refuse_archive()
    planned = read_plan(request, allow_unfit=not write)
    results = Results(request.results, planned.campaign.name)
    warn([*planned.warnings, *missing_software(planned.campaign), *since_measured(planned, results)])
    if write or output:
        written = write_plan(planned, results) if write else []
        click.echo(printable("\n".join(map(str, [*written, *(write_tables(planned, output) if output else [])]))))
    elif style == "table":
        _show(planned)
    elif style == "json":
        click.echo(json.dumps(plan_document(planned), indent=1))
    else:
        click.echo(printable("\n".join("\t".join(row) for row in plan_rows(planned))))
    if planned.unfit:
        raise ConfigError(
            f"{request.campaign}: {len(planned.unfit)} configurations do not fit the system; see 'does not fit' in the plan"
        )


def _show(plan: Plan) -> None:
    """Print the plan. It lists misfits, axes, cells that are left out, leases, totals and costs."""
    per_axis = [
        (axis, value, counts["cells"], counts["runs"])
        for axis, values in counts_per_axis(plan).items()
        for value, counts in values.items()
    ]
    left_out = [(r.cells, r.rule, r.why) for r in plan.removed] + [("-", i.shape, i.why) for i in plan.impossible]
    show(
        TextTable("Does not fit", ["configuration", "why"], list(plan.unfit.items())),
        TextTable("Cells and runs by axis", ["axis", "value", "cells", "runs"], per_axis, ["cells", "runs"]),
        TextTable("Left out", ["cells", "rule", "why"], left_out, ["cells"]),
    )
    _show_leases(plan)
    _show_totals(plan)


def end_dry_run(dag: Dag) -> None:
    """Print at the end of a dry run the totals and costs of the plan, and its warnings."""
    plan = dag.plan
    _show_totals(plan)
    warn([*plan.warnings, *missing_software(plan.campaign), *since_measured(plan, dag.results)])


def _show_leases(plan: Plan) -> None:
    """Print the leases of a plan in order."""
    leases = [
        (order, lease.name, lease.devices(), lease.runs, _up_to(lease.missing_least, lease.missing),
         *(("does not fit", "") if lease.configuration.name in plan.unfit else (time_words(lease.expected), lease.basis)))
        for order, lease in enumerate(plan.leases, 1)
    ]  # fmt: skip
    show(
        TextTable("Leases in order",
              ["#", "lease", "composition", "runs", "without record", "expected", "estimate from"], leases,
              ["#", "runs", "without record", "expected"], spare=("estimate from", "runs", "composition")),
    )  # fmt: skip


def _show_totals(plan: Plan) -> None:
    """Print the totals of a plan, its forecast, and the table of costs."""
    repeated = sorted({
        f"cells with {said(whole(s)).replace('-', ' to ')} repetitions, until the 95 % interval is within "
        f"±{s.target_half_width_pct:g} % of the mean\n"
        for _, cell in plan.cells
        if (s := cell.settings).target_half_width_pct is not None
    })  # fmt: skip
    longer = sorted({
        f"warm-ups of {least_of(s.warmup_steps)} to {s.warmup_steps_max} steps, until step times show no trend\n"
        for _, cell in plan.cells
        if (s := cell.settings).warmup_steps_max is not None
    })  # fmt: skip
    notes = [f"{note}\n" for note in plan.notes]
    say(
        f"{plan.cell_count} cells, {plan.runs} runs, "
        f"{_up_to(plan.missing_least, plan.missing)} without a record, in {len(plan.leases)} leases\n"
        f"{''.join([*repeated, *longer, *notes])}{_of_reference(plan)}{_unplanned(plan)}"
        f"{_LEAST if plan.campaign.protocol.lease_order == 'least-recomposition' else ''}"
        f"{plan.recompositions} recompositions (at least {plan.recompositions_least} are needed)\n{_moves(plan)}"
        f"{_expected(plan)}"
        f"compositions: {_compositions(plan)}; 'campaign detect' shows what other numbers cost, and what they can find\n"
    )
    show(cost_table(plan), most=None)


def _moves(plan: Plan) -> str:
    """Return a line with the number of devices that composing attaches, or an empty string if that is zero or unknown."""
    return f"composing attaches {plural(plan.attached, 'device')}\n" if plan.attached else ""


def _expected(plan: Plan) -> str:
    """Return lines with the expected duration and cost of the missing runs, and the origin of the forecast."""
    if not plan.missing:
        return "expected: nothing is left to measure\n"
    alone = f"{_ALONE[isolation(plan.campaign)]}\n"
    if plan.factors_from < MIN_OFFS:
        off = f"a factor of {DEFAULT_FACTOR:g}, until {MIN_OFFS} leases that were forecast have ended"
    else:
        off = f"how far the forecasts of {plan.factors_from} leases were off"
    known = [("learned from", plan.learned_from), ("times of composing from", plan.composing_from)]
    sources = "".join(f"{words} {value}\n" for words, value in known if value)
    if plan.wall_s is None or plan.device_hours is None:
        return f"expected: {plan.unknown.words()}; {alone}{plan.unknown.advice()}\n{sources}"
    lasts = time_words(Estimate(plan.wall_s, *plan.interval(plan.wall_s)))
    hours = f"{_hours(plan, plan.device_hours, 'device-hours')}, {_hours(plan, plan.host_hours, 'host-hours')}"
    price = "" if plan.price is None else f", {plan.price:.2f} {plan.campaign.currency}"
    return f"expected: {hours}{price}, {lasts}; {alone}in brackets: {off}\n{sources}"


def _hours(plan: Plan, hours: float | None, unit: str) -> str:
    """Format hours with their interval, as in '41.2 device-hours (30 to 55)'."""
    low, high = plan.interval(hours)
    return f"{hours or 0.0:.4g} {unit} ({low or 0.0:.4g} to {high or 0.0:.4g})"


def _compositions(plan: Plan) -> str:
    """Return the number of compositions per cell, or its range."""
    counts = sorted({len(compositions_of(whole(cell.settings))) for _, cell in plan.cells})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _of_reference(plan: Plan) -> str:
    """Return a line with the number of runs of the reference, or an empty string if there are none."""
    runs = sum(len(runs_of(cell.settings)) for lease in plan.leases for cell in lease.cells if cell.reference)
    return f"{runs} of these runs are of the reference, which every lease measures\n" if runs else ""


def _unplanned(plan: Plan) -> str:
    """Return a line with the number of cells that have records but are not planned, or an empty string if there are none."""
    if not plan.unplanned:
        return ""
    return (
        f"{plural(plan.unplanned, 'other cell')} with records in these results: measured with other settings, programs or inputs, "
        "or before those were part of a cell's identity; kept, and not used\n"
    )


def _up_to(least: int, most: int) -> str:
    """Format a range of whole numbers, or one number if both ends are equal."""
    return str(most) if least == most else f"{least} to {most}"
