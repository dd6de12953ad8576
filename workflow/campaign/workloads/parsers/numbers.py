"""Numbers as programs print them, and how a reading is put together from what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from campaign.workloads.parsers.reading import Curve, Matrix, Reading, ReadingStatus

F = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|NaN|NAN|Inf|INF)"
"""A number in a regular expression, not a number and infinity included."""

LABEL = rb"(?: *\d{1,6}: |\[[^\]\s]{1,60}\](?:<std(?:out|err)>)?:? ?)?[ \t]*"
"""Where a line of bytes begins: behind the label of its rank."""

_WORST: tuple[ReadingStatus, ...] = ("incomplete", "invalid", "nan")


def number(value: Any) -> float | None:
    """A number of a JSON document, of a string or none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def agree(one: float, other: float, relative: float, absolute: float = 0.0) -> bool:
    """Whether two finite numbers are the same but for rounding."""
    return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= relative * max(one, other) + absolute


class Verdict:
    """What speaks against the numbers; the worst decides, and of several the first."""

    def __init__(self) -> None:
        self._problems: dict[ReadingStatus, str] = {}
        self.flags: list[str] = []

    def incomplete(self, problem: str) -> None:
        self._problems.setdefault("incomplete", problem)

    def invalid(self, problem: str) -> None:
        self._problems.setdefault("invalid", problem)

    def nan(self, problem: str) -> None:
        self._problems.setdefault("nan", problem)

    def flag(self, text: str) -> None:
        if text not in self.flags:
            self.flags.append(text)

    def expect(self, what: str, printed: float | None, known: float | None) -> None:
        """What the program says of its run has to be what the run was given."""
        if printed is not None and known is not None and printed != known:
            self.invalid(f"the program says {what} {printed:g}, the run has {known:g}")

    def reading(
        self,
        *,
        throughput_per_s: float | None = None,
        metrics: Mapping[str, float | None] | None = None,
        matrices: Mapping[str, Matrix] | None = None,
        curves: Mapping[str, Curve] | None = None,
    ) -> Reading:
        """All of it; a rate of a run that is incomplete is none, and numbers that are not finite are none."""
        if throughput_per_s is not None and not (math.isfinite(throughput_per_s) and throughput_per_s > 0):
            self.nan(f"the rate is {throughput_per_s:g}")
            throughput_per_s = None
        status: ReadingStatus = next((status for status in _WORST if status in self._problems), "ok")
        return Reading(
            status=status,
            problem=self._problems.get(status, ""),
            throughput_per_s=None if status == "incomplete" else throughput_per_s,
            metrics={
                name: value for name, value in (metrics or {}).items() if value is not None and math.isfinite(value)
            },
            matrices=matrices or {},
            curves=curves or {},
            flags=tuple(self.flags),
        )


def curve(unit: str, points: Mapping[int, float]) -> Curve:
    return Curve(unit, tuple(sorted(points.items())))


def pairs(values: Sequence[Sequence[float | None]]) -> list[float]:
    """All numbers of a matrix."""
    return [value for row in values for value in row if value is not None]
