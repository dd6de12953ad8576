"""The command `campaign detect`: how many compositions and runs detect a difference of a given size."""

from __future__ import annotations

import click

from campaign.analysis.sample_size import SampleSize, SampleSizes, compute_sample_sizes
from campaign.cli.options import add_request_options
from campaign.cli.terminal import TextTable, print_tables, print_text
from campaign.common.errors import ConfigError
from campaign.common.wording import pluralize
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest

_MAX_FURTHER_COMPOSITIONS = 3
"""Maximum number of compositions of an alternative beyond the cheapest choice. Such alternatives suit users with time."""


@click.command()
@click.argument("percent")
@add_request_options("selection", "costs")
@click.option(
    "--spread",
    default="",
    show_default=False,
    metavar="TEXT",
    help="Assume this spread, such as 'composition 1 %, run 0.5 %, step 5 %', instead of the measured one.",
)
def detect(request: PlanRequest, percent: str, spread: str) -> None:
    """Show how many compositions, runs and steps detect a difference of PERCENT, such as '3 %', at the lowest cost.

    The spread comes from the campaign's own runs, or else from other campaigns on its system, or else from assumptions.
    """
    detect_pct = _parse_percent(percent)
    sizes = compute_sample_sizes(read_plan(request), request, detect_pct, spread)

    def format_row(name: str, choice: SampleSize) -> tuple[object, ...]:
        """Format a choice as a table row."""
        steps = choice.steps or "unchanged"
        return (
            name,
            choice.compositions,
            choice.runs,
            steps,
            _format_percent(choice.half_width_pct),
            _format_percent(choice.detectable_pct),
            f"{choice.device_hours:.3g}" if sizes.hours_known else "unknown",
        )

    rows = [format_row(name, choice) for name, choice in order_choices(sizes)]
    columns = ["", "compositions", "runs in each", "steps", "half-width", "detectable", "device-hours"]
    print_tables(TextTable(f"To detect a difference of {detect_pct:g} %", columns, rows, columns[1:]))
    measured_spread = sizes.spread
    print_text(
        f"The standard deviation is {measured_spread.composition_pct:.2g} % between compositions, {measured_spread.run_pct:.2g} % "
        f"between runs and {measured_spread.step_pct:.2g} % between steps ({measured_spread.source}).\n"
        "A detectable difference is found in 80 of 100 simulated campaigns, with "
        f"{pluralize(sizes.comparisons, 'comparison')} to the first configuration and a joint error of 5 % (Holm)."
    )
    if sizes.cheapest is None:
        print_text(
            f"Up to 20 compositions cannot detect {detect_pct:g} %; reduce the spread, or choose a larger difference."
        )
        return
    best = sizes.cheapest
    total = best.compositions * best.runs
    steps = f", measured_steps: {best.steps}" if best.steps else ""
    print_text(
        f"Set in the campaign file: protocol: {{compositions: {best.compositions}, repetitions: {total}{steps}}}"
    )


def order_choices(sizes: SampleSizes) -> list[tuple[str, SampleSize]]:
    """Return the choices to list, each with its label, sorted by number of compositions.

    Each choice is listed once. Alternatives with far more compositions than the cheapest choice are left out.
    """
    max_compositions = sizes.cheapest.compositions + _MAX_FURTHER_COMPOSITIONS if sizes.cheapest else 0
    alternatives = [choice for choice in sizes.alternatives if choice.compositions <= max_compositions]
    choices = {_get_choice_key(choice): choice for choice in (sizes.now, *sizes.usual, *alternatives)}
    names: dict[tuple[int, int, int], list[str]] = {numbers: [] for numbers in choices}
    names[_get_choice_key(sizes.now)].append("current")
    if sizes.cheapest:
        names[_get_choice_key(sizes.cheapest)].append("cheapest")
    return [(", ".join(names[numbers]), choices[numbers]) for numbers in sorted(choices)]


def _get_choice_key(choice: SampleSize) -> tuple[int, int, int]:
    """Return the numbers of compositions, runs and steps, which identify a choice."""
    return choice.compositions, choice.runs, choice.steps


def _parse_percent(text: str) -> float:
    """Parse a positive percentage such as '3 %' or '3'. Raises ConfigError if it is invalid."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1000:
        raise ConfigError(f"{text} is not a difference in percent; write it like '3 %'")
    return value


def _format_percent(pct: float) -> str:
    """Format a percentage with two digits, or 'none' if it is 1000 % or more."""
    return f"{pct:.2g} %" if pct < 1000 else "none"
