"""The command `campaign detect`: how often to compose and run to find a difference of a given size."""

from __future__ import annotations

import click

from campaign.analysis.sample_size import SampleSize, SampleSizes, sample_sizes
from campaign.cli.options import request_options
from campaign.cli.terminal import TextTable, say, show
from campaign.common.errors import ConfigError
from campaign.common.wording import plural
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest

_FURTHER = 3
"""Maximum number of compositions of an alternative beyond the cheapest choice. Such alternatives suit users with time."""


@click.command()
@click.argument("percent")
@request_options("selection", "costs")
@click.option(
    "--spread",
    default="",
    show_default=False,
    metavar="TEXT",
    help="Assume this spread, such as 'composition 1 %, run 0.5 %, step 5 %', instead of the measured one.",
)
def detect(request: PlanRequest, percent: str, spread: str) -> None:
    """Show how many compositions, runs and steps find a difference of PERCENT, such as '3 %', for the least cost.

    The spread is that of the campaign's own runs, else that of other campaigns on its system, else assumed.
    """
    detect_pct = _percent(percent)
    found = sample_sizes(read_plan(request), request, detect_pct, spread)

    def row(name: str, each: SampleSize) -> tuple[object, ...]:
        """Format a choice as a table row."""
        steps = each.steps or "as now"
        return (name, each.compositions, each.runs, steps, _size(each.half_width_pct), _size(each.detectable_pct),
                f"{each.device_hours:.3g}" if found.hours_known else "unknown")  # fmt: skip

    rows = [row(name, each) for name, each in order_choices(found)]
    columns = ["", "compositions", "runs in each", "steps", "half-width", "detectable", "device-hours"]
    show(TextTable(f"To detect a difference of {detect_pct:g} %", columns, rows, columns[1:]))
    measured = found.spread
    say(
        f"Standard deviation from composition to composition {measured.composition_pct:.2g} %, from run to run "
        f"{measured.run_pct:.2g} %, from step to step {measured.step_pct:.2g} % ({measured.source}).\n"
        f"Detectable: found in 80 of 100 simulated campaigns, among {plural(found.comparisons, 'comparison')} with the first "
        "configuration, at 5 % for all together (Holm)."
    )
    if found.cheapest is None:
        say(f"No choice of up to 20 compositions detects {detect_pct:g} %: reduce the spread, or ask for more.")
        return
    best = found.cheapest
    total = best.compositions * best.runs
    steps = f", measured_steps: {best.steps}" if best.steps else ""
    say(f"In the campaign's file: protocol: {{compositions: {best.compositions}, repetitions: {total}{steps}}}")


def order_choices(found: SampleSizes) -> list[tuple[str, SampleSize]]:
    """Return the choices to list, each with its label, sorted by number of compositions.

    Each choice is listed once. Alternatives with far more compositions than the cheapest choice are left out.
    """
    most = found.cheapest.compositions + _FURTHER if found.cheapest else 0
    others = [each for each in found.alternatives if each.compositions <= most]
    choices = {_numbers(each): each for each in (found.now, *found.usual, *others)}
    names: dict[tuple[int, int, int], list[str]] = {numbers: [] for numbers in choices}
    names[_numbers(found.now)].append("as it is")
    if found.cheapest:
        names[_numbers(found.cheapest)].append("cheapest")
    return [(", ".join(names[numbers]), choices[numbers]) for numbers in sorted(choices)]


def _numbers(choice: SampleSize) -> tuple[int, int, int]:
    """Return the numbers of compositions, runs and steps, which identify a choice."""
    return choice.compositions, choice.runs, choice.steps


def _percent(text: str) -> float:
    """Parse a positive percentage such as '3 %' or '3'. Raises ConfigError if it is invalid."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1000:
        raise ConfigError(f"{text}: is not a difference in percent; write it like '3 %'")
    return value


def _size(pct: float) -> str:
    """Format a percentage with two digits, or 'none' if it is 1000 % or more."""
    return f"{pct:.2g} %" if pct < 1000 else "none"
