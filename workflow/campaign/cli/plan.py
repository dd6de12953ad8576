"""The command `campaign plan`: the runs of a campaign, their order, and their cost."""

from __future__ import annotations

import json
from pathlib import Path

import click

from campaign.cli.cost_table import build_cost_table
from campaign.cli.options import add_request_options, build_format_option, build_output_option
from campaign.cli.source import refuse_archive
from campaign.cli.terminal import TextTable, print_tables, print_text, print_warnings
from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.common.wording import escape_control_characters, pluralize
from campaign.plan.concurrency import resolve_isolation
from campaign.plan.cost import DEFAULT_FACTOR, MIN_FORECAST_RATIOS, Estimate
from campaign.plan.dag import Dag, read_plan
from campaign.plan.plan import Plan, format_time_with_interval
from campaign.plan.repetitions import format_repetition_count
from campaign.plan.request import PlanRequest
from campaign.plan.write import build_plan_document, count_per_axis, format_plan_rows, write_plan, write_tables
from campaign.run.preflight import find_missing_software
from campaign.run.since_measured import find_changes
from campaign.spec.run_numbers import list_compositions, list_run_numbers, without_composition
from campaign.workloads.steady_warmup import min_warmup_steps

_CONCURRENCY_TEXTS = {
    "machine": "one lease at a time",
    "host": "leases on different hosts at the same time",
    "none": "as many leases at the same time as the pool allows",
}
_FILE_ORDER_WARNING = (
    "leases are in the order of the file, so drift over the campaign cannot be distinguished from differences between "
    "configurations; 'lease_order: blocks' makes this possible\n"
)


@click.command()
@add_request_options("selection", "costs", "allocations")
@build_format_option("table", "json", "tsv")
@build_output_option("Directory into which plan.json and plan.tsv are written, instead of printing the plan.")
@click.option(
    "--write",
    is_flag=True,
    help="Write the plan into the results, with one document per lease in plan/leases/, which 'campaign measure' reads.",
)
def plan(request: PlanRequest, style: str, output: Path | None, write: bool) -> None:
    """Show what would be measured, in which order, and at what cost. Without --write and --output, nothing is written.

    Expected times are medians of earlier runs and leases of all campaigns in the results directory. Their intervals show the errors
    of such forecasts. 'campaign detect' shows which differences other numbers of compositions and runs detect, and their cost.

    Exits with 1 if a configuration does not fit the system.
    """
    if write:
        refuse_archive()
    measurement_plan = read_plan(request, allow_unfit=not write)
    results = Results(request.results, measurement_plan.campaign.name)
    print_warnings(
        [
            *measurement_plan.warnings,
            *find_missing_software(measurement_plan.campaign),
            *find_changes(measurement_plan, results),
        ]
    )
    if write or output:
        paths = write_plan(measurement_plan, results) if write else []
        click.echo(
            escape_control_characters(
                "\n".join(map(str, [*paths, *(write_tables(measurement_plan, output) if output else [])]))
            )
        )
    elif style == "table":
        _print_plan(measurement_plan)
    elif style == "json":
        click.echo(json.dumps(build_plan_document(measurement_plan), indent=1))
    else:
        click.echo(escape_control_characters("\n".join("\t".join(row) for row in format_plan_rows(measurement_plan))))
    if measurement_plan.unfit:
        raise ConfigError(
            f"{request.campaign}: configurations that do not fit the system: {len(measurement_plan.unfit)}; "
            "see 'does not fit' in the plan"
        )


def _print_plan(plan: Plan) -> None:
    """Print the plan: configurations that do not fit, axes, cells that are left out, leases, totals and costs."""
    per_axis = [
        (axis, value, counts["cells"], counts["runs"])
        for axis, values in count_per_axis(plan).items()
        for value, counts in values.items()
    ]
    left_out = [(r.cells, r.rule, r.why) for r in plan.removed] + [("-", i.shape, i.why) for i in plan.impossible]
    print_tables(
        TextTable("Does not fit", ["configuration", "why"], list(plan.unfit.items())),
        TextTable("Cells and runs by axis", ["axis", "value", "cells", "runs"], per_axis, ["cells", "runs"]),
        TextTable("Left out", ["cells", "rule", "why"], left_out, ["cells"]),
    )
    _print_leases(plan)
    _print_totals(plan)


def end_dry_run(dag: Dag) -> None:
    """Print the totals, costs and warnings of the plan at the end of a dry run."""
    plan = dag.plan
    _print_totals(plan)
    print_warnings([*plan.warnings, *find_missing_software(plan.campaign), *find_changes(plan, dag.results)])


def _print_leases(plan: Plan) -> None:
    """Print the leases of a plan in order."""
    leases = [
        (
            order,
            lease.name,
            lease.describe_devices(),
            lease.runs,
            _format_range(lease.min_missing_runs, lease.missing),
            *(
                ("does not fit", "")
                if lease.configuration.name in plan.unfit
                else (format_time_with_interval(lease.expected), lease.basis)
            ),
        )
        for order, lease in enumerate(plan.leases, 1)
    ]
    print_tables(
        TextTable(
            "Leases in order",
            ["#", "lease", "composition", "runs", "without record", "expected", "estimate from"],
            leases,
            ["#", "runs", "without record", "expected"],
            optional_columns=("estimate from", "runs", "composition"),
        ),
    )


def _print_totals(plan: Plan) -> None:
    """Print the totals of a plan, its forecast, and the table of costs."""
    repetition_notes = sorted(
        {
            f"cells with {format_repetition_count(without_composition(s)).replace('-', ' to ')} repetitions, "
            f"until the 95 % interval is within ±{s.target_half_width_pct:g} % of the mean\n"
            for _, cell in plan.cells
            if (s := cell.settings).target_half_width_pct is not None
        }
    )
    warmup_notes = sorted(
        {
            f"warm-ups of {min_warmup_steps(s.warmup_steps)} to {s.warmup_steps_max} steps, until step times show no trend\n"
            for _, cell in plan.cells
            if (s := cell.settings).warmup_steps_max is not None
        }
    )
    notes = [f"{note}\n" for note in plan.notes]
    print_text(
        f"{pluralize(plan.cell_count, 'cell')}, {pluralize(plan.runs, 'run')}, "
        f"{_format_range(plan.min_missing_runs, plan.missing)} without a record, in {pluralize(len(plan.leases), 'lease')}\n"
        f"{''.join([*repetition_notes, *warmup_notes, *notes])}{_format_reference_runs(plan)}{_format_unplanned(plan)}"
        f"{_FILE_ORDER_WARNING if plan.campaign.protocol.lease_order == 'least-recomposition' else ''}"
        f"{plan.recompositions} recompositions (at least {plan.min_recompositions} are needed)\n{_format_attachments(plan)}"
        f"{_format_forecast(plan)}"
        f"compositions per cell: {_format_compositions(plan)}; 'campaign detect' shows what other numbers detect and cost\n"
    )
    print_tables(build_cost_table(plan), max_rows=None)


def _format_attachments(plan: Plan) -> str:
    """Return a line with the number of devices that composing attaches, or '' if the number is zero or unknown."""
    return f"composing attaches {pluralize(plan.attached_devices, 'device')}\n" if plan.attached_devices else ""


def _format_forecast(plan: Plan) -> str:
    """Return lines with the expected duration and cost of the missing runs, and the origin of the forecast."""
    if not plan.missing:
        return "expected: nothing is left to measure\n"
    concurrency = f"{_CONCURRENCY_TEXTS[resolve_isolation(plan.campaign)]}\n"
    if plan.factors_from < MIN_FORECAST_RATIOS:
        accuracy = f"a factor of {DEFAULT_FACTOR:g}, until {MIN_FORECAST_RATIOS} leases with a forecast have ended"
    else:
        accuracy = f"the forecast errors of {plan.factors_from} earlier leases"
    origins = [("durations learned from", plan.learned_from), ("composing times from", plan.composing_from)]
    sources = "".join(f"{words} {value}\n" for words, value in origins if value)
    if plan.wall_s is None or plan.device_hours is None:
        return f"expected: {plan.unknown.format_summary()}; {concurrency}{plan.unknown.suggest_remedy()}\n{sources}"
    duration = format_time_with_interval(Estimate(plan.wall_s, *plan.estimate_interval(plan.wall_s)))
    hours = f"{_format_hours(plan, plan.device_hours, 'device-hours')}, {_format_hours(plan, plan.host_hours, 'host-hours')}"
    price = "" if plan.price is None else f", {plan.price:.2f} {plan.campaign.currency}"
    return f"expected: {hours}{price}, {duration}; {concurrency}ranges in brackets from: {accuracy}\n{sources}"


def _format_hours(plan: Plan, hours: float | None, unit: str) -> str:
    """Format hours with their interval, as in '41.2 device-hours (30 to 55)'."""
    low, high = plan.estimate_interval(hours)
    return f"{hours or 0.0:.4g} {unit} ({low or 0.0:.4g} to {high or 0.0:.4g})"


def _format_compositions(plan: Plan) -> str:
    """Return the number of compositions per cell, or its range."""
    counts = sorted({len(list_compositions(without_composition(cell.settings))) for _, cell in plan.cells})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _format_reference_runs(plan: Plan) -> str:
    """Return a line with the number of runs of the reference, or '' if there are none."""
    runs = sum(len(list_run_numbers(cell.settings)) for lease in plan.leases for cell in lease.cells if cell.reference)
    return f"{runs} of these runs measure the reference, which is part of every lease\n" if runs else ""


def _format_unplanned(plan: Plan) -> str:
    """Return a line with the number of cells that have records but are not planned, or '' if there are none."""
    if not plan.unplanned:
        return ""
    return (
        f"{pluralize(plan.unplanned, 'other cell')} with records in these results: kept but not used, because of other settings, "
        "programs or inputs, or because an earlier version did not identify cells by these\n"
    )


def _format_range(minimum: int, maximum: int) -> str:
    """Format a range of whole numbers, or one number if both ends are equal."""
    return str(maximum) if minimum == maximum else f"{minimum} to {maximum}"
