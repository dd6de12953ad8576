"""Measured values of published claims, from each pair of cells, cell or group of cells that a claim is about.

Intervals of several values of one claim hold together at 95 % (Bonferroni), so a claim with many cells does
not fail by chance.
throughput_drop_pct, throughput_gain_pct, throughput_ratio: throughput of a cell over that of its reference cell, as
`campaign.analysis.statistics.comparisons` compares them.
time_ratio, time_increase_pct: the inverse, as equal work takes that much longer. metric, metric_ratio: mean over valid runs.
spread_cv_pct: standard deviation over mean of the cells' mean throughputs, with an interval by their errors; with
`against_models`, minus that of the other models.
near_linear_up_to: the smallest efficiency up to the claim's number of devices. link_..: medians over pairs of devices, with
their range instead of an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.published.selection import (
    NotMeasuredError,
    describe_condition_mismatches,
    find_column,
    pair_cells,
    select_cells,
    select_equal_columns,
)
from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparable_cells import list_naming_columns
from campaign.analysis.statistics.comparisons import Design, Ratios
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.common.intervals import CONFIDENCE_LEVEL, Floats, compute_spread_bounds
from campaign.spec.published_file import CampaignMapping, Claim, ReferenceSet

_LINK_MATRICES = {
    "link_gb_per_s": "bidirectional_gb_per_s",
    "link_one_way_gb_per_s": "unidirectional_gb_per_s",
    "link_ratio": "bidirectional_gb_per_s",
    "link_latency_us": "latency_us",
}


@dataclass(frozen=True)
class ClaimValue:
    """Measured value of a claim's quantity.

    low, high: interval, nan if there is none; cells: ids of the cells; words: description of the cells.
    """

    value: float | str
    low: float
    high: float
    words: str
    cells: tuple[str, ...] = ()
    exact: bool = False
    """The value is a count or a description of these cells, not an estimate."""
    tested: bool = True
    """Whether the interval includes the spread of compositions. An interval of one composition decides nothing."""


@dataclass(frozen=True)
class Trend:
    """Trend of a value over pairs of otherwise equal cells.

    pairs: number of pairs; in_order: pairs in the claimed order; opposite: pairs whose intervals are in the opposite order.
    """

    pairs: int
    in_order: int
    opposite: int


@dataclass(frozen=True)
class ClaimValues:
    """Measured values of a claim, the document's conditions that its cells miss, and the trend, if claimed."""

    values: tuple[ClaimValue, ...]
    mismatches: tuple[str, ...] = ()
    trend: Trend | None = None


def evaluate_claim(claim: Claim, references: ReferenceSet, tables: Tables) -> ClaimValues:
    """Compute the measured values of a claim from the tables.

    Raises NotMeasuredError, with the reason, if the tables hold none.
    """
    mapping = claim.here
    if mapping is None:
        raise NotMeasuredError(claim.not_here)
    if mapping.compute.startswith(("link", "host")):
        return _evaluate_links(mapping, tables.links)
    if mapping.compute == "near_linear_up_to":
        return _evaluate_efficiency(claim, mapping, references, tables)
    if mapping.compute == "spread_cv_pct":
        return _evaluate_variation(mapping, references, tables)
    if mapping.compute in ("largest_batch", "outcome", "planned_runs"):
        return _evaluate_outcomes(mapping, references, tables.cells)
    return _evaluate_measurements(mapping, references, tables)


def _evaluate_measurements(mapping: CampaignMapping, references: ReferenceSet, tables: Tables) -> ClaimValues:
    """Compute the throughput, or the claim's metric, for the cells or pairs of cells that the claim applies to."""
    design = (
        _build_metric_design(mapping, tables)
        if mapping.compute.startswith("metric")
        else _build_throughput_design(tables)
    )
    if mapping.compute == "metric":
        rows = select_cells(tables.cells[tables.cells["n_ok"] > 0], references, mapping)
        rows = rows.drop_duplicates("workload") if mapping.columns == ("parameters",) else rows
        rows = _require_rows(rows[design.find_cell_indices(rows["cell_id"]) >= 0].reset_index(drop=True), mapping)
        positions = design.find_cell_indices(rows["cell_id"])
        scale = rows["ranks"].to_numpy() if mapping.times_ranks else 1.0
        value, low, high = (
            bound[positions] * scale
            for bound in design.estimate_locations()[0].compute_bounds(_adjust_confidence(rows))
        )
        # A value that is equal in all runs, such as a number of parameters, is no estimate.
        errors = design.estimate_errors(rows["cell_id"], np.zeros(len(rows), dtype=np.int64))
        is_tested = errors.has_composition_variance | (errors.variance == 0)
    else:
        rows = pair_cells(tables.cells, references, mapping)
        ratios, scale = _compute_ratios(mapping, rows, design)
        value, low, high = _CONVERSIONS[mapping.compute](
            *(bound * scale for bound in ratios.estimate.compute_bounds(_adjust_confidence(rows)))
        )
        is_finite = np.isfinite(value)
        rows, value, low, high = (
            _require_rows(rows[is_finite].reset_index(drop=True), mapping),
            value[is_finite],
            low[is_finite],
            high[is_finite],
        )
        is_tested = ratios.is_tested[is_finite] | (rows["cell_id"] == rows["against_cell_id"]).to_numpy()
    rows = rows.assign(_value=value, _low=low, _high=high, _tested=is_tested)
    trend = _count_trend(rows, mapping, tables) if mapping.along else None
    return ClaimValues(_build_values(rows), describe_condition_mismatches(rows, references, mapping), trend)


def _compute_ratios(mapping: CampaignMapping, rows: pd.DataFrame, design: Design) -> tuple[Ratios, Any]:
    """Compute the ratio of each cell to its reference cell, and the factor by which to scale the ratios."""
    if mapping.compute != "metric_ratio":
        return comparisons.compute_ratios(rows["cell_id"], rows["against_cell_id"], design), 1.0
    scale = (rows["ranks"] / rows["against_ranks"]).to_numpy() if mapping.times_ranks else 1.0
    # For a metric that is not a rate, a larger value is a larger cost. The claim needs the ratio of the metric itself.
    return comparisons.compute_ratios(rows["against_cell_id"], rows["cell_id"], design), scale


def _build_throughput_design(tables: Tables) -> Design:
    """Build the design that compares cells by throughput, even if it is not the primary metric.

    Raises NotMeasuredError if no run has a throughput.
    """
    campaign = tables.context["campaign"]
    name = dict(campaign.get("metric") or {}).get("name", "throughput_per_s")
    if name == "throughput_per_s":
        return tables.design
    if not (tables.runs["throughput_per_s"] > 0).any():
        raise NotMeasuredError(
            f"no run has a throughput, because the campaign measures {name}; use 'metric_ratio' to compare this metric"
        )
    return comparisons.build_design(tables.runs, campaign.get("protocol"), column="throughput_per_s")


_Conversion = Callable[[Floats, Floats, Floats], tuple[Floats, Floats, Floats]]
_CONVERSIONS: Mapping[str, _Conversion] = {
    "throughput_ratio": lambda value, low, high: (value, low, high),
    "metric_ratio": lambda value, low, high: (value, low, high),
    "throughput_drop_pct": lambda value, low, high: (100 * (1 - value), 100 * (1 - high), 100 * (1 - low)),
    "throughput_gain_pct": lambda value, low, high: (100 * (value - 1), 100 * (low - 1), 100 * (high - 1)),
    "time_ratio": lambda value, low, high: (1 / value, 1 / high, 1 / low),
    "time_increase_pct": lambda value, low, high: (100 * (1 / value - 1), 100 * (1 / high - 1), 100 * (1 / low - 1)),
}


def _build_metric_design(mapping: CampaignMapping, tables: Tables) -> Design:
    """Build the design that compares cells by a claim's metric over valid runs.

    Raises NotMeasuredError if no run has the metric.
    """
    protocol = tables.context["campaign"].get("protocol", {})
    runs = tables.runs.assign(_total=_sum_metric(mapping, tables.runs))
    return comparisons.build_design(runs, protocol, column="_total", higher_is_better=False)


def _sum_metric(mapping: CampaignMapping, runs: pd.DataFrame) -> pd.Series[float]:
    """Compute each run's metric: the sum of a claim's columns, or the rate in GB/s from its bytes per step."""
    if missing_columns := [name for name in mapping.columns if name not in runs.columns]:
        if not mapping.bytes_per_step or any(name not in runs.columns for name in mapping.bytes_per_step):
            raise NotMeasuredError(f"no run has the metric '{missing_columns[0]}'")
        steps_per_s = runs["throughput_per_s"] / runs["batch_global"]
        return steps_per_s * _sum_columns(runs, mapping.bytes_per_step) / 1e9
    return _sum_columns(runs, mapping.columns)


def _sum_columns(runs: pd.DataFrame, columns: Sequence[str]) -> pd.Series[float]:
    """Add up columns, counting repeated names repeatedly; the sum is nan if a column is missing."""
    return pd.concat([runs[name].astype("float64") for name in columns], axis=1).sum(axis=1, skipna=False)


def _require_rows(rows: pd.DataFrame, mapping: CampaignMapping) -> pd.DataFrame:
    """Return the rows unchanged. Raises NotMeasuredError if there are none."""
    if rows.empty:
        raise NotMeasuredError(f"no run of these cells has the metric '{' + '.join(mapping.columns)}'")
    return rows


def _adjust_confidence(rows: pd.DataFrame) -> float:
    """Return the confidence level per row that gives all rows a joint confidence of 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE_LEVEL) / max(len(rows), 1)


def _count_trend(rows: pd.DataFrame, mapping: CampaignMapping, tables: Tables) -> Trend:
    """Count the pairs of otherwise equal cells whose values rise along the claim's axis.

    Raises NotMeasuredError if fewer than three pairs exist.
    """
    try:
        axis_values = rows[find_column(rows, mapping.along)].to_numpy(dtype=np.float64)
        equal_axes = [name for name in select_equal_columns(rows, mapping) if name != find_column(rows, mapping.along)]
    except NotMeasuredError:
        metric = _build_metric_design(
            mapping.model_copy(update={"columns": (mapping.along,), "bytes_per_step": ()}), tables
        )
        positions = metric.find_cell_indices(rows["cell_id"])
        axis_values = np.where(positions >= 0, metric.value[positions], np.nan)
        equal_axes = [name for name in select_equal_columns(rows, mapping) if name not in ("workload", "batch")]
    equal_axes += [name for name in mapping.vary if name in rows.columns and name not in ("workload", "batch")]
    count = in_order = opposite = 0
    for _, group in rows[np.isfinite(axis_values)].groupby(equal_axes, sort=False):
        for first_index, second_index in permutations(group.index, 2):
            if axis_values[first_index] < axis_values[second_index]:
                count += 1
                in_order += group["_value"][second_index] > group["_value"][first_index]
                opposite += group["_high"][second_index] < group["_low"][first_index]
    if count < 3:
        raise NotMeasuredError(f"fewer than three pairs of cells differ in '{mapping.along}' alone")
    return Trend(count, int(in_order), int(opposite))


def _evaluate_efficiency(
    claim: Claim, mapping: CampaignMapping, references: ReferenceSet, tables: Tables
) -> ClaimValues:
    """Compute the smallest scaling efficiency up to the claim's number of devices, in percent."""
    rows = select_cells(tables.cells[tables.cells["n_ok"] > 0], references, mapping).sort_values("ranks", kind="stable")
    keys = select_equal_columns(rows, mapping)
    max_devices = claim.value if isinstance(claim.value, float) else math.inf
    rows = rows[rows["ranks"] <= max_devices].drop_duplicates([*keys, "ranks"])
    smallest = rows.drop_duplicates(keys)[[*keys, "ranks", "cell_id"]]
    efficiency_pairs = rows.merge(smallest, on=keys, suffixes=("", "_first"))
    efficiency_pairs = efficiency_pairs[efficiency_pairs["ranks"] > efficiency_pairs["ranks_first"]].reset_index(
        drop=True
    )
    if efficiency_pairs.empty:
        raise NotMeasuredError("only one number of devices was measured")
    design = _build_throughput_design(tables)
    ratios = comparisons.compute_ratios(efficiency_pairs["cell_id"], efficiency_pairs["cell_id_first"], design)
    scale = (100 * efficiency_pairs["ranks_first"] / efficiency_pairs["ranks"]).to_numpy()
    value, low, high = (bound * scale for bound in ratios.estimate.compute_bounds(_adjust_confidence(efficiency_pairs)))
    efficiency_pairs = efficiency_pairs.assign(_value=value, _low=low, _high=high, _tested=ratios.is_tested)
    lowest = efficiency_pairs.loc[efficiency_pairs.groupby(keys, sort=False)["_value"].idxmin()].reset_index(drop=True)
    max_measured = int(efficiency_pairs["ranks"].max())
    shortfall = (f"up to {max_measured} devices instead of {max_devices:g}",) if max_measured < max_devices else ()
    return ClaimValues(_build_values(lowest), (*describe_condition_mismatches(lowest, references, mapping), *shortfall))


def _evaluate_variation(mapping: CampaignMapping, references: ReferenceSet, tables: Tables) -> ClaimValues:
    """Compute the variation of throughput among otherwise equal cells, or its difference between two model sets."""
    measured_cells = tables.cells[tables.cells["n_ok"] > 0]
    rows = select_cells(measured_cells, references, mapping)
    design = _build_throughput_design(tables)
    spread = _compute_variation(rows, mapping, design)
    if mapping.against_models:
        other_mapping = mapping.model_copy(update={"models": mapping.against_models})
        other_rows = select_cells(measured_cells, references, other_mapping)
        if set(other_rows["workload"]) & set(rows["workload"]):
            raise NotMeasuredError("the same workload represents both models")
        return ClaimValues(
            (_subtract_medians(spread, _compute_variation(other_rows, other_mapping, design)),),
            describe_condition_mismatches(rows, references, mapping),
        )
    return ClaimValues(_build_values(spread), describe_condition_mismatches(rows, references, mapping))


def _subtract_medians(spread: pd.DataFrame, other: pd.DataFrame) -> ClaimValue:
    """Subtract two medians, and compute the bounds of the difference from the bounds of both.

    The method is that of Zou & Donner, 2008, Statistics in Medicine 27(10).
    """
    medians, other_medians = (table[["_value", "_low", "_high"]].median() for table in (spread, other))
    difference = float(medians["_value"] - other_medians["_value"])
    low = difference - float(
        np.hypot(medians["_value"] - medians["_low"], other_medians["_high"] - other_medians["_value"])
    )
    high = difference + float(
        np.hypot(medians["_high"] - medians["_value"], other_medians["_value"] - other_medians["_low"])
    )
    return ClaimValue(difference, low, high, "medians", tested=bool(spread["_tested"].all() and other["_tested"].all()))


def _compute_variation(rows: pd.DataFrame, mapping: CampaignMapping, design: Design) -> pd.DataFrame:
    """Return one row per group of otherwise equal cells, with the coefficient of variation of their means and its interval.

    Values are in percent. Raises NotMeasuredError if no group has two measured compositions.
    """
    keys = select_equal_columns(rows, mapping)
    groups = rows.groupby(keys, sort=False)
    cv = groups["mean"].transform("std") / groups["mean"].transform("mean")
    errors = design.estimate_errors(rows["cell_id"], np.asarray(groups.ngroup(), dtype=np.int64))
    rows = rows.assign(
        _value=100 * cv, _variance=errors.variance, _freedom=errors.freedom, _tested=errors.has_composition_variance
    )
    groups = rows[cv.notna()].groupby(keys, sort=False)
    variation = groups.first().reset_index()
    if variation.empty:
        raise NotMeasuredError("no two compositions that are otherwise equal were measured")
    bound_inputs = zip(
        variation["_value"] / 100, groups.size(), groups["_variance"].mean(), groups["_freedom"].min(), strict=True
    )
    bounds = np.array([compute_spread_bounds(*inputs, _adjust_confidence(variation)) for inputs in bound_inputs]) * 100
    is_tested = groups["_tested"].all().to_numpy()
    return variation.assign(_low=bounds[:, 0], _high=bounds[:, 1], _tested=is_tested)[[*rows.columns, "_low", "_high"]]


def _evaluate_outcomes(mapping: CampaignMapping, references: ReferenceSet, cells: pd.DataFrame) -> ClaimValues:
    """Return the outcomes, largest batches or planned runs of the cells that a claim applies to."""
    rows = select_cells(cells, references, mapping)
    rows = rows[rows["state"] != "missing"].reset_index(drop=True)
    if rows.empty:
        raise NotMeasuredError("none of these cells was run")
    if mapping.compute == "planned_runs":
        minimum = float(rows["n_planned"].min())
        return ClaimValues((ClaimValue(minimum, minimum, minimum, "fewest runs of any cell", exact=True),))
    mismatches = describe_condition_mismatches(rows, references, mapping)
    if mapping.compute == "outcome":
        outcomes = [
            (_classify_outcome(row), _describe_row(row, rows), str(row["cell_id"])) for row in rows.to_dict("records")
        ]
        return ClaimValues(
            tuple(ClaimValue(o, math.nan, math.nan, w, (i,), exact=True) for o, w, i in outcomes), mismatches
        )
    measured_rows = rows[rows["state"] == "measured"]
    if measured_rows.empty:
        raise NotMeasuredError("no batch was measured")
    largest = float(measured_rows["batch"].max())
    failed_larger = rows[(rows["batch"] > largest) & rows["state"].isin(["failed", "implied"])]
    high = largest if len(failed_larger) else math.inf
    return ClaimValues((ClaimValue(largest, largest, high, "largest batch measured"),), mismatches)


def _classify_outcome(row: Mapping[Any, Any]) -> str:
    """Classify the outcome of a cell as 'ok', 'out_of_memory', or the status of its failure."""
    if row["state"] == "measured":
        return "ok"
    return "out_of_memory" if row["state"] == "implied" or "oom" in str(row["failures"]) else str(row["failures"])


def _evaluate_links(mapping: CampaignMapping, links: Sequence[Mapping[str, Any]]) -> ClaimValues:
    """Compute the median link value over device pairs on one host that are attached as claimed, with its range.

    A ratio is that of two medians; its range is that of the smallest over the largest to the largest over the smallest.
    """
    if mapping.compute == "host_to_device_gb_per_s":
        copies = [(link["document"].get("host_device") or {}).get("h2d_gb_per_s") or () for link in links]
        values_measured = [value for values in copies for value in values if value is not None]
        median_range = _compute_median_and_range(values_measured, "copies from host to device were not measured")
        return ClaimValues((ClaimValue(*median_range, f"{len(values_measured)} devices"),))
    matrix = _LINK_MATRICES[mapping.compute]
    link_pairs = list(_iterate_link_pairs(links, matrix, mapping.ends))
    value, low, high = _compute_median_and_range(
        [value for value, _ in link_pairs], _describe_missing_link(mapping.ends)
    )
    words = f"{len(link_pairs)} pairs {' and '.join(mapping.ends)}"
    if mapping.compute == "link_ratio":
        reference_values = [value for value, _ in _iterate_link_pairs(links, matrix, mapping.against_ends)]
        reference_median, reference_min, reference_max = _compute_median_and_range(
            reference_values, _describe_missing_link(mapping.against_ends)
        )
        value, low, high = value / reference_median, low / reference_max, high / reference_min
        words += f", {len(reference_values)} {' and '.join(mapping.against_ends)}"
    allowed_models = mapping.under.get("device", ())
    other_models = [
        model
        for model in dict.fromkeys(model for _, pair in link_pairs for model in pair)
        if model not in allowed_models
    ]
    mismatches = tuple(
        f"device {model} instead of {' or '.join(map(str, allowed_models))}" for model in other_models if allowed_models
    )
    return ClaimValues((ClaimValue(value, low, high, words),), mismatches)


def _describe_missing_link(ends: Sequence[str]) -> str:
    """Describe the kind of link, given by its two ends, that was not measured."""
    return f"no link between a {' and a '.join(ends)} device on the same host was measured"


def _compute_median_and_range(values: Sequence[float], reason: str) -> tuple[float, float, float]:
    """Return the median, minimum and maximum of values. Raises NotMeasuredError with the given reason if there are none."""
    if not values:
        raise NotMeasuredError(reason)
    return median(values), min(values), max(values)


def _iterate_link_pairs(
    links: Sequence[Mapping[str, Any]], matrix: str, ends: Sequence[str]
) -> Iterator[tuple[float, tuple[str, str]]]:
    """Yield the value and models of each measured pair of devices on one host that is attached as `ends`, in either order."""
    for link in links:
        document = link["document"]
        values = (document.get("matrices") or {}).get(matrix) or ()
        devices = document["devices"]
        for first_device, row in zip(devices, values, strict=False):
            for second_device, value in zip(devices, row, strict=False):
                is_attached_so = sorted((first_device["attach"], second_device["attach"])) == sorted(ends)
                if (
                    value is not None
                    and first_device is not second_device
                    and first_device["host"] == second_device["host"]
                    and is_attached_so
                ):
                    yield float(value), (first_device["model"], second_device["model"])


def _build_values(rows: pd.DataFrame, exact: bool = False) -> tuple[ClaimValue, ...]:
    """Convert rows of estimates to measured values of a claim."""
    records = rows.to_dict("records")
    return tuple(
        ClaimValue(
            float(row["_value"]),
            float(row["_low"]),
            float(row["_high"]),
            _describe_row(row, rows),
            tuple(str(row[name]) for name in ("cell_id", "against_cell_id") if name in row),
            exact,
            bool(row.get("_tested", True)),
        )
        for row in records
    )


def _describe_row(row: Mapping[Any, Any], rows: pd.DataFrame) -> str:
    """Describe the cell of a row by the columns that distinguish it."""
    return wording.format_axes(row, list_naming_columns(rows))
