"""Requests for a recommendation: objectives, and constraints on the hardware and the results. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.spec import metric as metrics
from campaign.spec.cell import SHAPE_AXES
from campaign.spec.expression import Expression, parse_expression
from campaign.spec.metric import Metric

THROUGHPUT = "throughput"
TIME = "time"
PER_DEVICE_HOUR = "throughput-per-device-hour"
PER_JOULE = "throughput-per-joule"
PER_PRICE = "throughput-per-price"
CHEAPEST = "cheapest-within"
MIX = "mix"


@dataclass(frozen=True)
class ScoreScale:
    """Scale on which a score (a logarithm, larger is better) is shown: value = exp(sign x score), in a unit."""

    sign: int
    format_number: Callable[[float], str]
    unit: str

    def to_value(self, score: float) -> float:
        """Convert a score to the value that is shown."""
        return math.exp(self.sign * score)

    def format_value(self, value: float) -> str:
        """Format a value with its unit."""
        return f"{self.format_number(value)}\u202f{self.unit}".rstrip()


_OBJECTIVES: Mapping[str, tuple[str, ScoreScale]] = {
    THROUGHPUT: ("the most samples per second", ScoreScale(1, wording.format_rate, "samples/s")),
    TIME: ("the shortest time for a million samples", ScoreScale(-1, wording.format_seconds, "per million samples")),
    PER_DEVICE_HOUR: (
        "the most samples per device-hour, counting all composed devices, also idle ones",
        ScoreScale(1, wording.format_rate, "samples per device-hour"),
    ),
    PER_JOULE: (
        "the most samples per joule of the devices in use, if power was sampled",
        ScoreScale(1, wording.format_rate, "samples/J"),
    ),
    PER_PRICE: (
        "the lowest price of a million samples, from the device prices in the system file",
        ScoreScale(-1, wording.format_rate, "per million samples"),
    ),
    CHEAPEST: (
        "the fewest device-hours among configurations at most so many percent slower than the fastest",
        ScoreScale(-1, wording.format_rate, "device-hours per million samples"),
    ),
    MIX: (
        "the smallest slow-down of a mix of workloads; shares are fractions of time with each workload on its fastest shape",
        ScoreScale(-1, wording.format_ratio, "the time on the fastest shape of each workload"),
    ),
}
"""Objectives by name; `cheapest-within` takes a percentage, `mix` the shares: `cheapest-within:5%`, `mix:a=0.7,b=0.3`."""

RESULT_MEANINGS = {
    "local_devices_per_host": "number of a host's devices that are local",
    "batch": "samples per device and step",
    "precision": "number format",
    "throughput_per_s": "samples per second over all devices",
    "step_s": "seconds per step",
    "device_hours_per_million": "device-hours per million samples",
    "cost_per_million": "price of a million samples; nan if the system file has no prices",
    "energy_per_sample_j": "joules per sample of the devices in use; nan if power was not sampled",
}
"""Meanings of the result columns that a constraint can use, besides axes of the shape and options of the campaign."""

_SHARE_PATTERN = re.compile(r"\s*([^=,]+?)\s*=\s*([0-9.eE+-]+)\s*")


@dataclass(frozen=True)
class RecommendationObjective:
    """Objective to rank configurations by.

    Args:
        name: one of the names above.
        within_pct: tolerance of `cheapest-within`, in percent.
        shares: shares of `mix` by workload, adding up to 1; empty for equal shares.
        metric: primary metric of the campaign, which `throughput` stands for.
        currency: currency of prices in the system file.
    """

    name: str
    within_pct: float = 0.0
    shares: tuple[tuple[str, float], ...] = ()
    metric: Metric = metrics.THROUGHPUT
    currency: str = ""

    @property
    def command_line_text(self) -> str:
        """Text of the objective on the command line."""
        if self.name == CHEAPEST:
            return f"{CHEAPEST}:{self.within_pct:g}%"
        if self.name == MIX and self.shares:
            return f"{MIX}:{','.join(f'{workload}={share:.3g}' for workload, share in self.shares)}"
        return self.name if self.metric == metrics.THROUGHPUT else self.metric.name

    @property
    def meaning(self) -> str:
        """Meaning of the objective in words."""
        if self.metric != metrics.THROUGHPUT:
            return f"the {'highest' if self.metric.is_higher_better else 'lowest'} {self.metric.label}"
        return _OBJECTIVES[self.name][0].replace("so many percent", f"{self.within_pct:g}\u202f%")

    @property
    def scale(self) -> ScoreScale:
        """Scale and unit in which scores of the objective are shown."""
        if self.metric != metrics.THROUGHPUT:
            return ScoreScale(1 if self.metric.is_higher_better else -1, wording.format_rate, self.metric.unit)
        scale = _OBJECTIVES[self.name][1]
        return replace(scale, unit=f"{self.currency} {scale.unit}".lstrip()) if self.name == PER_PRICE else scale


@dataclass(frozen=True)
class RecommendationRequest:
    """Objectives and constraints of a recommendation; `workloads` is empty for all measured ones."""

    objectives: tuple[RecommendationObjective, ...]
    constraints: tuple[Expression, ...] = ()
    workloads: tuple[str, ...] = ()

    def allows(self, values: dict[Any, object]) -> bool:
        """Return whether a row of values fulfils all constraints."""
        return all(constraint(values) for constraint in self.constraints)


DEFAULT_OBJECTIVES = (
    RecommendationObjective(THROUGHPUT),
    RecommendationObjective(PER_DEVICE_HOUR),
    RecommendationObjective(PER_PRICE),
    RecommendationObjective(CHEAPEST, 5.0),
    RecommendationObjective(PER_JOULE),
    RecommendationObjective(MIX),
)
"""Objectives of the report. Prices need those of the system file, energy needs power samples, a mix needs several workloads."""
REPORT_REQUEST = RecommendationRequest(DEFAULT_OBJECTIVES)
"""Request of the report."""


def parse_request(
    objectives: Sequence[str],
    constraints: Sequence[str],
    workloads: Sequence[str],
    measured_workloads: Collection[str],
    options: Sequence[str],
) -> RecommendationRequest:
    """Parse the objectives, constraints and workloads of a command line.

    Raises ConfigError if a text is invalid; its message names the text and the allowed values.

    Args:
        objectives: texts of objectives; empty for the default ones.
        constraints: texts of constraints.
        workloads: names of workloads; empty for all.
        measured_workloads: measured workloads.
        options: names of workload options that are axes.
    """
    if unknown := sorted(set(workloads) - set(measured_workloads)):
        raise ConfigError(
            f"--workload: no cell of {', '.join(unknown)} was measured; measured workloads: {_join_sorted(measured_workloads)}"
        )
    names = [*SHAPE_AXES, *RESULT_MEANINGS, *options]
    expressions = [parse_expression(text, names, "--constraint") for text in constraints]
    return RecommendationRequest(
        tuple(_parse_objective(text, workloads or measured_workloads) for text in objectives) or DEFAULT_OBJECTIVES,
        tuple(expressions),
        tuple(workloads),
    )


def _parse_objective(text: str, measured_workloads: Collection[str]) -> RecommendationObjective:
    name, colon, argument = text.strip().partition(":")
    if name == CHEAPEST:
        return RecommendationObjective(CHEAPEST, within_pct=_parse_percentage(text, argument))
    if name == MIX and (argument.strip() or not colon):
        return RecommendationObjective(MIX, shares=_parse_shares(text, argument, measured_workloads))
    if name in _OBJECTIVES and name != MIX and not colon:
        return RecommendationObjective(name)
    raise ConfigError(
        f"--objective: '{text}' is unknown; use one of {THROUGHPUT}, {TIME}, {PER_DEVICE_HOUR}, {PER_PRICE}, {PER_JOULE}, "
        f"{CHEAPEST}:5%, {MIX}:a=0.7,b=0.3"
    )


def _parse_percentage(text: str, argument: str) -> float:
    value = _parse_number(argument.strip().removesuffix("%"))
    if not 0 <= value < 100:
        raise ConfigError(f"--objective: '{text}' needs a percentage from 0 to below 100, such as {CHEAPEST}:5%")
    return value


def _parse_shares(text: str, argument: str, measured_workloads: Collection[str]) -> tuple[tuple[str, float], ...]:
    if not argument:
        return ()
    shares: dict[str, float] = {}
    for part in argument.split(","):
        match = _SHARE_PATTERN.fullmatch(part)
        value = _parse_number(match[2]) if match else math.nan
        if match is None or not (math.isfinite(value) and value > 0) or match[1] in shares:
            raise ConfigError(
                f"--objective: '{text}' is invalid; name each workload once with a positive share, such as {MIX}:a=0.7,b=0.3"
            )
        shares[match[1]] = value
    if unknown := sorted(set(shares) - set(measured_workloads)):
        raise ConfigError(
            f"--objective: no cell of {', '.join(unknown)} was measured; measured workloads: {_join_sorted(measured_workloads)}"
        )
    total = sum(shares.values())
    return tuple((workload, share / total) for workload, share in shares.items())


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _join_sorted(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
