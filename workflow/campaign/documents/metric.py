"""What a number of a run is: its unit, by the end of its name, and which direction of it is better."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["higher", "lower"]

MEASURED_BY_CAMPAIGN = ("throughput_per_device_per_s", "step_median_s", "step_p95_s", "step_cv_pct", "wall_s")
"""Numbers that this program computes for every run, beside the throughput. No parser may use one of these names."""

_UNITS: Mapping[str, tuple[str, str, Better | None]] = {
    "_gb_per_s": ("GB/s", "1e9 bytes per second", "higher"),
    "_mb_per_s": ("MB/s", "1e6 bytes per second", "higher"),
    "_ns_per_day": ("ns/day", "nanoseconds per day", "higher"),
    "_tau_per_day": ("τ/day", "time units per day", "higher"),
    "_gteps": ("GTEPS", "1e9 edges per second", "higher"),
    "_per_s": ("1/s", "per second", "higher"),
    "_per_j": ("1/J", "per joule", "higher"),
    "_per_h": ("1/h", "per hour", None),
    "_pct": ("%", "percent", None),
    "_mib": ("MiB", "MiB", None),
    "_gib": ("GiB", "GiB", None),
    "_gflops": ("GFLOP/s", "GFLOP/s", "higher"),
    "_tflops": ("TFLOP/s", "TFLOP/s", "higher"),
    "_mhz": ("MHz", "MHz", None),
    "_bytes": ("bytes", "bytes", None),
    "_min": ("min", "minutes", "lower"),
    "_ns": ("ns", "nanoseconds", "lower"),
    "_us": ("µs", "microseconds", "lower"),
    "_ms": ("ms", "milliseconds", "lower"),
    "_s": ("s", "seconds", "lower"),
    "_j": ("J", "joules", "lower"),
    "_w": ("W", "watts", None),
    "_c": ("°C", "degrees Celsius", None),
}
"""End of a name -> symbol of the unit, the unit in words, and the better direction where the unit alone tells it."""

_STATISTIC = re.compile(r"_(p\d+(?:_\d+)?|mean|median|max|min)$")
"""What may stand behind the unit: which statistic of several numbers it is. `p99_9` is the 99.9th percentile; `_min` without a unit
before it is minutes."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a run. name: column of the runs table."""

    name: str
    unit: str
    better: Better

    @property
    def higher(self) -> bool:
        return self.better == "higher"

    @property
    def label(self) -> str:
        """What it is called in sentences: its name without its unit."""
        statistic = _statistic(self.name)
        stem = self.name.removesuffix(statistic)
        return (stem.removesuffix(_suffix(self.name)) + statistic).replace("_", " ")

    @property
    def axis(self) -> str:
        """Label of an axis: 'latency (µs)'."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def heading(self) -> str:
        """Head of a column of its numbers."""
        return "Samples/s" if self == THROUGHPUT else self.axis[:1].upper() + self.axis[1:]

    @property
    def performance(self) -> str:
        """What a ratio of two cells is of: more of it is better."""
        return self.label if self.higher else f"1/{self.label}"

    @property
    def suffix(self) -> str:
        """Unit as names of columns end with it; empty where its name has none."""
        return _suffix(self.name).removeprefix("_")

    def of(self, throughput_per_s: float | None, metrics: Mapping[str, float]) -> float | None:
        """Its number of a run; None for a run that has none, and for what only tables work out."""
        return throughput_per_s if self.name == "throughput_per_s" else metrics.get(self.name)

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "label": self.label, "unit": self.unit, "better": self.better}


THROUGHPUT = Metric("throughput_per_s", "samples/s", "higher")
"""The metric of a campaign that names none."""


def metric(name: str, unit: str | None = None, better: Better | None = None) -> Metric | None:
    """The metric of that name. unit, better: where its name does not tell them; None where nothing tells the direction."""
    if name == THROUGHPUT.name:
        return Metric(name, unit or THROUGHPUT.unit, better or THROUGHPUT.better)
    symbol, _, direction = _UNITS.get(_suffix(name), ("", "", None))
    better = better or direction
    return None if better is None else Metric(name, symbol if unit is None else unit, better)


def from_document(document: Mapping[str, Any]) -> Metric:
    """The metric that `Metric.document` describes; throughput for an empty one."""
    if not document:
        return THROUGHPUT
    return Metric(document["name"], document["unit"], document["better"])


def metric_of(context: Mapping[str, Any]) -> Metric:
    """The primary metric, by the context document of a campaign; throughput where it names none."""
    return from_document(context.get("campaign", {}).get("metric") or {})


def unit_words(name: str) -> str | None:
    """The unit of a number in words, by the end of its name; None where it tells none."""
    return _UNITS[suffix][1] if (suffix := _suffix(name)) else None


def _suffix(name: str) -> str:
    stem = name.removesuffix(_statistic(name))
    return next((suffix for suffix in _UNITS if stem.endswith(suffix)), "")


def _statistic(name: str) -> str:
    found = _STATISTIC.search(name)
    if found is None or (found[0] in _UNITS and not name[: found.start()].endswith(tuple(_UNITS))):
        return ""
    return found[0]
