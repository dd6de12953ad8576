"""Metrics of runs, with the unit that the end of their name implies, their better direction, and their scaling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower"]

Scaling = Literal["total_rate", "rate_per_device", "time_of_fixed_work", "time_per_device_work", "none"]
"""Change of a metric on more devices without losses. A `total_rate` grows, a `rate_per_device` is constant, a `time_of_fixed_work`
falls, a `time_per_device_work` is constant, and `none` makes no prediction."""

MEASURED_BY_CAMPAIGN = ("throughput_per_device_per_s", "step_median_s", "step_p95_s", "step_cv_pct", "wall_s")
"""Metrics that this program computes for every run, in addition to the throughput. Parsers cannot use these names."""

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
"""(symbol of the unit, unit in words, better direction) by the end of a metric's name. The direction is None if the unit does not
determine it."""

_SCALING: Mapping[str, Scaling] = {
    r".* _per_device (_per_s)?": "rate_per_device",
    r"throughput_per_s | (requests | goodput | (output_ | prompt_)? tokens) _per_s": "total_rate",
    r"(hpl | hpl_mxp | hpcg | hpcg_raw) _gflops | (bfs | sssp) _gteps": "total_rate",
    r"simulated_(ns | tau)_per_day | (atom_ | time) steps_per_s": "total_rate",
    r"(read | write) _ (bandwidth (_max)? _gb | operations) _per_s": "total_rate",
    r"(train_io | checkpoint (_save | _load)?) _gb_per_s": "total_rate",
    r"busbw_peak_gb_per_s": "rate_per_device",
    r"step_(median | p95)_s": "time_per_device_work",
    r"wall_s | window_s | algbw_peak_gb_per_s | (bidirectional_)? bandwidth_(peak_)? gb_per_s": "none",
    r"(copy | scale | add | triad) _gb_per_s | .* _(min | max) _gb_per_s": "none",
    r".* latency_ .* | (ttft | tpot | itl | e2e) _ms .*": "none",
    r".* _(pct | mib | gib | mhz | bytes | j | per_j | w | c)": "none",
}
"""Scaling of the metrics of this program and its built-in parsers, by a pattern for their names. The first match is used."""

_STATISTIC = re.compile(r"_(p\d+(?:_\d+)?|mean|median|max|min)$")
"""Statistic that may follow the unit in a name. `p99_9` is the 99.9th percentile. `_min` without a unit before it means minutes."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric of a run.

    Attributes:
        name: column of the runs table.
        unit: symbol of the unit.
        better: better direction.
        scaling: scaling with the number of devices, or None if it is unknown.
    """

    name: str
    unit: str
    better: Better
    scaling: Scaling | None = field(default=None, compare=False)

    @property
    def is_higher_better(self) -> bool:
        """True if higher values are better."""
        return self.better == "higher"

    @property
    def label(self) -> str:
        """Name for sentences, without the unit."""
        statistic = _find_statistic(self.name)
        stem = self.name.removesuffix(statistic)
        return (stem.removesuffix(_find_unit_suffix(self.name)) + statistic).replace("_", " ")

    @property
    def axis_label(self) -> str:
        """Label of an axis, such as 'latency (µs)'."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def heading(self) -> str:
        """Heading of a table column."""
        return "Samples/s" if self == THROUGHPUT else self.axis_label[:1].upper() + self.axis_label[1:]

    @property
    def performance_name(self) -> str:
        """Name of the quantity by which cells are compared as ratios. Higher is always better."""
        return self.label if self.is_higher_better else f"1/{self.label}"

    @property
    def has_efficiency(self) -> bool:
        """True if the metric has an efficiency and an ideal line when the number of devices changes."""
        return self.scaling not in (None, "none")

    @property
    def is_per_device(self) -> bool:
        """True if the metric is constant on more devices without losses."""
        return self.scaling in ("rate_per_device", "time_per_device_work")

    @property
    def total_performance_name(self) -> str:
        """Name of the quantity that speed-ups on more devices compare."""
        if self.scaling == "time_per_device_work":
            return "work per second"
        return f"total {self.label}" if self.scaling == "rate_per_device" else self.performance_name

    @property
    def unit_suffix(self) -> str:
        """Unit at the end of the name, as in column names. Empty if the name has no unit."""
        return _find_unit_suffix(self.name).removeprefix("_")

    def read_value(self, throughput_per_s: float | None, metrics: Mapping[str, float]) -> float | None:
        """Return the value of the metric for a run, or None if the run has none or only tables compute it."""
        return throughput_per_s if self.name == "throughput_per_s" else metrics.get(self.name)

    def document(self) -> dict[str, Any]:
        """Return the metric as a document."""
        declared_scaling = {} if self.scaling == _find_scaling(self.name) else {"scaling": self.scaling}
        return {"name": self.name, "label": self.label, "unit": self.unit, "better": self.better, **declared_scaling}


THROUGHPUT = Metric("throughput_per_s", "samples/s", "higher", "total_rate")
"""Metric of campaigns without `metric`."""


def find_metric(
    name: str, unit: str | None = None, better: Better | None = None, scaling: Scaling | None = None
) -> Metric | None:
    """Return the metric of this name, or None if its better direction is unknown.

    Args:
        name: column of the runs table.
        unit: declared unit. The default is derived from the name.
        better: declared better direction. The default is derived from the unit.
        scaling: declared scaling. The default is derived from the name.
    """
    scaling = scaling or _find_scaling(name)
    if name == THROUGHPUT.name:
        return Metric(name, unit or THROUGHPUT.unit, better or THROUGHPUT.better, scaling)
    symbol, _, direction = _UNITS.get(_find_unit_suffix(name), ("", "", None))
    better = better or direction
    return None if better is None else Metric(name, symbol if unit is None else unit, better, scaling)


def from_document(document: Mapping[str, Any]) -> Metric:
    """Build a metric from its serialized form. An empty document means throughput."""
    if not document:
        return THROUGHPUT
    name = document["name"]
    return Metric(name, document["unit"], document["better"], document.get("scaling", _find_scaling(name)))


def read_primary_metric(context: Mapping[str, Any]) -> Metric:
    """Return the primary metric in the context document of a campaign. The default is the throughput."""
    return from_document(context.get("campaign", {}).get("metric") or {})


def get_unit_words(name: str) -> str | None:
    """Return a metric's unit in words, derived from the end of its name, or None if the name has no unit."""
    return _UNITS[suffix][1] if (suffix := _find_unit_suffix(name)) else None


def _find_scaling(name: str) -> Scaling | None:
    """Return the scaling of a metric with a known name, or None if the name is unknown."""
    return next((scaling for names, scaling in _SCALING.items() if re.fullmatch(names, name, re.VERBOSE)), None)


def _find_unit_suffix(name: str) -> str:
    stem = name.removesuffix(_find_statistic(name))
    return next((suffix for suffix in _UNITS if stem.endswith(suffix)), "")


def _find_statistic(name: str) -> str:
    match = _STATISTIC.search(name)
    if match is None or (match[0] in _UNITS and not name[: match.start()].endswith(tuple(_UNITS))):
        return ""
    return match[0]
