"""`campaign validate` and `campaign plan`: what would be measured, and at what cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from campaign.cli.options import campaign_argument, format_option, output_option, request_options
from campaign.cli.terminal import Table, say, show
from campaign.config.resolve_slurm_options import given_options
from campaign.errors import ConfigError
from campaign.paths import Results
from campaign.plan.cost.forecast import ASSUMED_COMPOSE_S, ASSUMED_RUN_S
from campaign.plan.dag import Request, read_plan
from campaign.plan.plan import Plan, isolation, within
from campaign.plan.plan_table import counts_per_axis, plan_document, plan_rows
from campaign.plan.repetitions import said
from campaign.plan.write import write_plan, write_tables
from campaign.run.preflight import preflight
from campaign.wording import duration

_ALONE = {
    "machine": "one lease at a time",
    "host": "leases on different hosts at the same time",
    "none": "as many leases at the same time as the pool allows",
}


@click.command()
@campaign_argument
def validate(campaign: Path) -> None:
    """Check a campaign file and everything it names."""
    plan = read_plan(Request(campaign, Path("results")))
    preflight(plan.campaign)
    cells = plan.cell_count
    click.echo(
        f"{campaign}: valid; {cells} cells, {plan.runs} runs in {len(plan.leases)} leases on {plan.campaign.system.name}"
    )


@click.command()
@request_options(costs=True)
@format_option("table", "json", "tsv")
@output_option("Write plan.json and plan.tsv into this directory instead.")
@click.option(
    "--write",
    is_flag=True,
    help="Write the plan into the results, with one document a lease in plan/leases/, which 'campaign measure' reads.",
)
@click.option("--launcher", type=click.Choice(["local", "slurm"]), help="Default: the system's.")
@click.option("--slurm", default="{}", show_default=False, metavar="JSON",
              help='Options of the allocations, such as \'{"partition": "gpu"}\'.')  # fmt: skip
def plan(asked: Request, style: str, output: Path | None, write: bool, launcher: str | None, slurm: str) -> None:
    """Show what would be measured, in which order, and at what cost. Without --write and --output, nothing is written.

    Costs come with 95 % intervals, learned from the runs of all campaigns in the results directory. With --budget, it shows what
    would be measured for it, what would be learned, and what is left out.

    Exits with 1 when a configuration does not fit the system.
    """
    try:
        options = given_options(json.loads(slurm))
    except ValueError as error:
        raise ConfigError(f"--slurm: '{slurm}' is not JSON ({error})") from error
    planned = read_plan(replace(asked, launcher=launcher, slurm=options), allow_unfit=not write)
    if write or output:
        written = write_plan(planned, Results(asked.results, planned.campaign.name)) if write else []
        click.echo("\n".join(map(str, [*written, *(write_tables(planned, output) if output else [])])))
    elif style == "table":
        _show(planned)
    elif style == "json":
        click.echo(json.dumps(plan_document(planned), indent=1))
    else:
        click.echo("\n".join("\t".join(row) for row in plan_rows(planned)))
    if planned.unfit:
        raise ConfigError(
            f"{asked.campaign}: {len(planned.unfit)} configurations do not fit the system; see 'does not fit' in the plan"
        )


def _show(plan: Plan) -> None:
    """Print the plan: axes, what is left out, leases in order, what does not fit, totals."""
    per_axis = [
        (axis, value, counts["cells"], counts["runs"])
        for axis, values in counts_per_axis(plan).items()
        for value, counts in values.items()
    ]
    left_out = [(r.cells, r.rule, r.why) for r in plan.removed] + [("-", i.shape, i.why) for i in plan.impossible]
    leases = [
        (order, lease.name, lease.devices(), lease.runs, _up_to(lease.missing_least, lease.missing),
         f"{duration(lease.expected_s)}{within(lease.expected)}", lease.basis)
        for order, lease in enumerate(plan.leases, 1)
    ]  # fmt: skip
    show(
        Table("Cells and runs by axis", ["axis", "value", "cells", "runs"], per_axis, ["cells", "runs"]),
        Table("Left out", ["cells", "rule", "why"], left_out, ["cells"]),
        Table("Leases in order",
              ["#", "lease", "composition", "runs", "without record", "expected", "estimate from"], leases,
              ["#", "runs", "without record", "expected"]),
        Table("Does not fit", ["configuration", "why"], list(plan.unfit.items())),
    )  # fmt: skip
    _show_choice(plan)
    device, wall = plan.forecast.device_s, plan.wall_range_s
    hours, lasts = f"{plan.device_hours:.4g} device-hours", duration(plan.wall_s)
    if device.low_s is not None and device.high_s is not None and wall is not None and device.expected_s:
        hours += f" ({device.low_s / 3600:.4g} to {device.high_s / 3600:.4g})"
        lasts += f" ({duration(wall[0])} to {duration(wall[1])})"
    repeated = sorted({
        f"cells with {said(replace(s, composition=None)).replace('-', ' to ')} repetitions, until the 95 % interval is within "
        f"±{s.target_half_width_pct:g} % of the mean\n"
        for _, cell in plan.cells
        if (s := cell.settings).target_half_width_pct is not None
    })  # fmt: skip
    learned = f"in brackets: 95 % intervals; learned from {plan.learned_from}"
    assumed = f"{ASSUMED_RUN_S:g} s a run, {ASSUMED_COMPOSE_S:g} s to compose; there are no earlier runs to learn from"
    say(
        f"{plan.cell_count} cells, {plan.runs} runs, "
        f"{_up_to(plan.missing_least, plan.missing)} without a record, in {len(plan.leases)} leases\n{''.join(repeated)}"
        f"{plan.recompositions} recompositions (at least {plan.recompositions_least} are needed)\n"
        f"expected: {hours}, {lasts}; {_ALONE[isolation(plan.campaign)]}\n"
        f"{learned if plan.learned_from else f'assumed: {assumed}'}"
    )


def _show_choice(plan: Plan) -> None:
    """Print what a budget pays for, what would be learned, and what is left out; nothing without a budget."""
    if (choice := plan.budget) is None:
        return
    rows = [(a.axis, a.levels, a.covered, "-" if a.error_pct is None else f"±{a.error_pct:.2g} %") for a in choice.axes]
    columns = ["axis", "levels", "covered", "standard error of differences"]
    show(Table(f"What {choice.budget} pay for", columns, rows, ["levels", "covered"]))
    after = "" if choice.next_cost is None else f"; the next one would cost {choice.next_cost:.3g} more"
    say(
        f"{choice.runs} runs chosen for {choice.cost:.4g} of {choice.budget}; {choice.runs_left_out} runs left out, "
        f"{choice.cells_left_out} cells have none{after}\n"
        f"information on the axes' main effects: {choice.share_pct:.1f} % of what the whole matrix would tell "
        f"({choice.share_before_pct:.1f} % before); the errors follow from the design alone\n"
    )


def _up_to(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"
