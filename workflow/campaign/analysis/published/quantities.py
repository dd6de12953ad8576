"""Measured values of published claims, from each pair of cells, cell or group of cells that a claim is about.

Intervals of several values of one claim hold together at 95 % (Bonferroni), so that no claim fails because of its number of
cells.
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

from campaign.analysis.published.selection import NotHere, chosen, column, equal_columns, pairs, said_missed
from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparable_cells import naming_columns
from campaign.analysis.statistics.comparisons import Design, Ratios
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.common.intervals import CONFIDENCE_LEVEL, Floats, compute_spread_bounds
from campaign.spec.published_file import Claim, Here, ReferenceSet

_MATRIX = {
    "link_gb_per_s": "bidirectional_gb_per_s",
    "link_one_way_gb_per_s": "unidirectional_gb_per_s",
    "link_ratio": "bidirectional_gb_per_s",
    "link_latency_us": "latency_us",
}


@dataclass(frozen=True)
class Value:
    """Measured value of a claim's quantity.

    low, high: interval, nan if there is none; cells: ids of the cells; words: the cells in words.
    """

    value: float | str
    low: float
    high: float
    words: str
    cells: tuple[str, ...] = ()
    exact: bool = False
    """The value is a count or a description of these cells, not an estimate."""
    tested: bool = True
    """Whether its interval holds the spread of compositions; without, it is of runs of one composition and decides nothing."""


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
    """Measured values of a claim, conditions of the document that its cells miss, and the trend if the claim is about one."""

    values: tuple[Value, ...]
    missed: tuple[str, ...] = ()
    trend: Trend | None = None


def found(claim: Claim, names: ReferenceSet, tables: Tables) -> ClaimValues:
    """Return the measured values of a claim.

    Raises NotMeasuredError, with the reason, if the tables hold none.
    """
    here = claim.here
    if here is None:
        raise NotHere(claim.not_here)
    if here.compute.startswith(("link", "host")):
        return _of_links(here, tables.links)
    if here.compute == "near_linear_up_to":
        return _near_linear(claim, here, names, tables)
    if here.compute == "spread_cv_pct":
        return _spread(here, names, tables)
    if here.compute in ("largest_batch", "outcome", "planned_runs"):
        return _of_cells(here, names, tables.cells)
    return _measured(here, names, tables)


def _measured(here: Here, names: ReferenceSet, tables: Tables) -> ClaimValues:
    """Return the throughput, or the metric, of the cells or pairs of cells that a claim is about."""
    by = _metric(here, tables) if here.compute.startswith("metric") else _throughput(tables)
    if here.compute == "metric":
        rows = chosen(tables.cells[tables.cells["n_ok"] > 0], names, here)
        rows = rows.drop_duplicates("workload") if here.columns == ("parameters",) else rows
        rows = _known(rows[by.places(rows["cell_id"]) >= 0].reset_index(drop=True), here)
        at = by.places(rows["cell_id"])
        scale = rows["ranks"].to_numpy() if here.times_ranks else 1.0
        value, low, high = (bound[at] * scale for bound in by.locations()[0].bounds(_confidence(rows)))
        # A value that is equal in all runs, such as a number of parameters, is no estimate.
        errors = by.errors(rows["cell_id"], np.zeros(len(rows), dtype=np.int64))
        tested = errors.known | (errors.variance == 0)
    else:
        rows = pairs(tables.cells, names, here)
        ratios, scale = _ratios(here, rows, by)
        value, low, high = _SAID[here.compute](*(bound * scale for bound in ratios.of.bounds(_confidence(rows))))
        kept = np.isfinite(value)
        rows, value, low, high = _known(rows[kept].reset_index(drop=True), here), value[kept], low[kept], high[kept]
        tested = ratios.tested[kept] | (rows["cell_id"] == rows["against_cell_id"]).to_numpy()
    rows = rows.assign(_value=value, _low=low, _high=high, _tested=tested)
    trend = _trend(rows, here, tables) if here.along else None
    return ClaimValues(_values(rows), said_missed(rows, names, here), trend)


def _ratios(here: Here, rows: pd.DataFrame, by: Design) -> tuple[Ratios, Any]:
    """Return the ratio of each cell to its reference cell, and the factor by which to multiply the ratios."""
    if here.compute != "metric_ratio":
        return comparisons.ratios(rows["cell_id"], rows["against_cell_id"], by), 1.0
    scale = (rows["ranks"] / rows["against_ranks"]).to_numpy() if here.times_ranks else 1.0
    # For a metric that is not a rate, a larger value is a larger cost. The claim needs the ratio of the metric itself.
    return comparisons.ratios(rows["against_cell_id"], rows["cell_id"], by), scale


def _throughput(tables: Tables) -> Design:
    """Return the design that compares cells by throughput, also if the campaign has another primary metric.

    Raises NotMeasuredError if no run has a throughput.
    """
    campaign = tables.context["campaign"]
    name = dict(campaign.get("metric") or {}).get("name", "throughput_per_s")
    if name == "throughput_per_s":
        return tables.design
    if not (tables.runs["throughput_per_s"] > 0).any():
        raise NotHere(f"no run has a throughput: the campaign measures {name}; 'metric_ratio' compares such a number")
    return comparisons.design(tables.runs, campaign.get("protocol"), column="throughput_per_s")


_Conversion = Callable[[Floats, Floats, Floats], tuple[Floats, Floats, Floats]]
_SAID: Mapping[str, _Conversion] = {
    "throughput_ratio": lambda value, low, high: (value, low, high),
    "metric_ratio": lambda value, low, high: (value, low, high),
    "throughput_drop_pct": lambda value, low, high: (100 * (1 - value), 100 * (1 - high), 100 * (1 - low)),
    "throughput_gain_pct": lambda value, low, high: (100 * (value - 1), 100 * (low - 1), 100 * (high - 1)),
    "time_ratio": lambda value, low, high: (1 / value, 1 / high, 1 / low),
    "time_increase_pct": lambda value, low, high: (100 * (1 / value - 1), 100 * (1 / high - 1), 100 * (1 / low - 1)),
}


def _metric(here: Here, tables: Tables) -> Design:
    """Return the design that compares cells by a claim's metric over valid runs.

    Raises NotMeasuredError if no run has the metric.
    """
    protocol = tables.context["campaign"].get("protocol", {})
    runs = tables.runs.assign(_total=_total(here, tables.runs))
    return comparisons.design(runs, protocol, column="_total", higher=False)


def _total(here: Here, runs: pd.DataFrame) -> pd.Series[float]:
    """Return the metric of each run, which is the sum of a claim's columns or a rate in GB/s from its bytes per step."""
    if lacking := [name for name in here.columns if name not in runs.columns]:
        if not here.bytes_per_step or any(name not in runs.columns for name in here.bytes_per_step):
            raise NotHere(f"no run has the metric '{lacking[0]}'")
        steps_per_s = runs["throughput_per_s"] / runs["batch_global"]
        return steps_per_s * _sum(runs, here.bytes_per_step) / 1e9
    return _sum(runs, here.columns)


def _sum(runs: pd.DataFrame, names: Sequence[str]) -> pd.Series[float]:
    """Add up columns, each as often as it is named; the sum is nan if one of them is missing."""
    return pd.concat([runs[name].astype("float64") for name in names], axis=1).sum(axis=1, skipna=False)


def _known(rows: pd.DataFrame, here: Here) -> pd.DataFrame:
    """Return the rows unchanged. Raises NotMeasuredError if there are none."""
    if rows.empty:
        raise NotHere(f"no run of these cells has the metric '{' + '.join(here.columns)}'")
    return rows


def _confidence(rows: pd.DataFrame) -> float:
    """Return the confidence level of each row for which all rows together have 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE_LEVEL) / max(len(rows), 1)


def _trend(rows: pd.DataFrame, here: Here, tables: Tables) -> Trend:
    """Count the pairs of otherwise equal cells whose values rise along the claim's axis.

    Raises NotMeasuredError if fewer than three pairs exist.
    """
    try:
        along = rows[column(rows, here.along)].to_numpy(dtype=np.float64)
        alike = [name for name in equal_columns(rows, here) if name != column(rows, here.along)]
    except NotHere:
        metric = _metric(here.model_copy(update={"columns": (here.along,), "bytes_per_step": ()}), tables)
        at = metric.places(rows["cell_id"])
        along = np.where(at >= 0, metric.value[at], np.nan)
        alike = [name for name in equal_columns(rows, here) if name not in ("workload", "batch")]
    alike += [name for name in here.vary if name in rows.columns and name not in ("workload", "batch")]
    count = ordered = opposite = 0
    for _, group in rows[np.isfinite(along)].groupby(alike, sort=False):
        for one, other in permutations(group.index, 2):
            if along[one] < along[other]:
                count += 1
                ordered += group["_value"][other] > group["_value"][one]
                opposite += group["_high"][other] < group["_low"][one]
    if count < 3:
        raise NotHere(f"fewer than three cells are alike in all but '{here.along}'")
    return Trend(count, int(ordered), int(opposite))


def _near_linear(claim: Claim, here: Here, names: ReferenceSet, tables: Tables) -> ClaimValues:
    """Return the smallest scaling efficiency up to the claim's number of devices, in percent."""
    rows = chosen(tables.cells[tables.cells["n_ok"] > 0], names, here).sort_values("ranks", kind="stable")
    keys = equal_columns(rows, here)
    asked = claim.value if isinstance(claim.value, float) else math.inf
    rows = rows[rows["ranks"] <= asked].drop_duplicates([*keys, "ranks"])
    first = rows.drop_duplicates(keys)[[*keys, "ranks", "cell_id"]]
    both = rows.merge(first, on=keys, suffixes=("", "_first"))
    both = both[both["ranks"] > both["ranks_first"]].reset_index(drop=True)
    if both.empty:
        raise NotHere("no two numbers of devices were measured")
    by = _throughput(tables)
    ratios = comparisons.ratios(both["cell_id"], both["cell_id_first"], by)
    scale = (100 * both["ranks_first"] / both["ranks"]).to_numpy()
    value, low, high = (each * scale for each in ratios.of.bounds(_confidence(both)))
    both = both.assign(_value=value, _low=low, _high=high, _tested=ratios.tested)
    least = both.loc[both.groupby(keys, sort=False)["_value"].idxmin()].reset_index(drop=True)
    most = int(both["ranks"].max())
    short = (f"up to {most} devices instead of {asked:g}",) if most < asked else ()
    return ClaimValues(_values(least), (*said_missed(least, names, here), *short))


def _spread(here: Here, names: ReferenceSet, tables: Tables) -> ClaimValues:
    """Return the variation of throughput among otherwise equal cells, or its difference between two sets of models."""
    measured = tables.cells[tables.cells["n_ok"] > 0]
    rows = chosen(measured, names, here)
    by = _throughput(tables)
    spread = _cv(rows, here, by)
    if here.against_models:
        other = here.model_copy(update={"models": here.against_models})
        beside = chosen(measured, names, other)
        if set(beside["workload"]) & set(rows["workload"]):
            raise NotHere("one workload stands for both models")
        return ClaimValues((_less(spread, _cv(beside, other, by)),), said_missed(rows, names, here))
    return ClaimValues(_values(spread), said_missed(rows, names, here))


def _less(spread: pd.DataFrame, other: pd.DataFrame) -> Value:
    """Return the difference of two medians, with bounds from the bounds of both.

    The method is that of Zou & Donner, 2008, Statistics in Medicine 27(10).
    """
    ours, theirs = (each[["_value", "_low", "_high"]].median() for each in (spread, other))
    one = float(ours["_value"] - theirs["_value"])
    low = one - float(np.hypot(ours["_value"] - ours["_low"], theirs["_high"] - theirs["_value"]))
    high = one + float(np.hypot(ours["_high"] - ours["_value"], theirs["_value"] - theirs["_low"]))
    return Value(one, low, high, "medians", tested=bool(spread["_tested"].all() and other["_tested"].all()))


def _cv(rows: pd.DataFrame, here: Here, by: Design) -> pd.DataFrame:
    """Return one row per group of otherwise equal cells, with the coefficient of variation of their means and its interval.

    Values are in percent. Raises NotMeasuredError if no group has two measured compositions.
    """
    keys = equal_columns(rows, here)
    groups = rows.groupby(keys, sort=False)
    cv = groups["mean"].transform("std") / groups["mean"].transform("mean")
    errors = by.errors(rows["cell_id"], np.asarray(groups.ngroup(), dtype=np.int64))
    rows = rows.assign(_value=100 * cv, _variance=errors.variance, _freedom=errors.freedom, _tested=errors.known)
    groups = rows[cv.notna()].groupby(keys, sort=False)
    found = groups.first().reset_index()
    if found.empty:
        raise NotHere("no two otherwise equal compositions were measured")
    of = zip(found["_value"] / 100, groups.size(), groups["_variance"].mean(), groups["_freedom"].min(), strict=True)
    bounds = np.array([compute_spread_bounds(*each, _confidence(found)) for each in of]) * 100
    tested = groups["_tested"].all().to_numpy()
    return found.assign(_low=bounds[:, 0], _high=bounds[:, 1], _tested=tested)[[*rows.columns, "_low", "_high"]]


def _of_cells(here: Here, names: ReferenceSet, cells: pd.DataFrame) -> ClaimValues:
    """Return the outcome, the largest batch or the planned runs of the cells that a claim is about."""
    rows = chosen(cells, names, here)
    rows = rows[rows["state"] != "missing"].reset_index(drop=True)
    if rows.empty:
        raise NotHere("none of these cells was run")
    if here.compute == "planned_runs":
        least = float(rows["n_planned"].min())
        return ClaimValues((Value(least, least, least, "fewest of any cell", exact=True),))
    missed = said_missed(rows, names, here)
    if here.compute == "outcome":
        told = [(_outcome(row), _words(row, rows), str(row["cell_id"])) for row in rows.to_dict("records")]
        return ClaimValues(tuple(Value(o, math.nan, math.nan, w, (i,), exact=True) for o, w, i in told), missed)
    measured = rows[rows["state"] == "measured"]
    if measured.empty:
        raise NotHere("no batch was measured")
    largest = float(measured["batch"].max())
    beyond = rows[(rows["batch"] > largest) & rows["state"].isin(["failed", "implied"])]
    high = largest if len(beyond) else math.inf
    return ClaimValues((Value(largest, largest, high, "largest batch measured"),), missed)


def _outcome(row: Mapping[Any, Any]) -> str:
    """Return 'ok', 'out_of_memory', or the failure of a cell."""
    if row["state"] == "measured":
        return "ok"
    return "out_of_memory" if row["state"] == "implied" or "oom" in str(row["failures"]) else str(row["failures"])


def _of_links(here: Here, links: Sequence[Mapping[str, Any]]) -> ClaimValues:
    """Return the median over all pairs of devices of one host that are attached as claimed, with the range of the pairs.

    A ratio is that of two medians; its range is that of the smallest over the largest to the largest over the smallest.
    """
    if here.compute == "host_to_device_gb_per_s":
        copies = [(each["document"].get("host_device") or {}).get("h2d_gb_per_s") or () for each in links]
        known = [value for values in copies for value in values if value is not None]
        middle = _middle(known, "no copies from host to device were measured")
        return ClaimValues((Value(*middle, f"{len(known)} devices"),))
    matrix = _MATRIX[here.compute]
    of = list(_link_pairs(links, matrix, here.ends))
    value, low, high = _middle([value for value, _ in of], _lacking(here.ends))
    words = f"{len(of)} pairs {' and '.join(here.ends)}"
    if here.compute == "link_ratio":
        against = [value for value, _ in _link_pairs(links, matrix, here.against_ends)]
        under, least, most = _middle(against, _lacking(here.against_ends))
        value, low, high = value / under, low / most, high / least
        words += f", {len(against)} {' and '.join(here.against_ends)}"
    allowed = here.under.get("device", ())
    others = [model for model in dict.fromkeys(model for _, pair in of for model in pair) if model not in allowed]
    missed = tuple(f"device {model} instead of {' or '.join(map(str, allowed))}" for model in others if allowed)
    return ClaimValues((Value(value, low, high, words),), missed)


def _lacking(ends: Sequence[str]) -> str:
    """Describe which kind of link was not measured."""
    return f"no link between a {' and a '.join(ends)} device of one host was measured"


def _middle(values: Sequence[float], lacking: str) -> tuple[float, float, float]:
    """Return the median, minimum and maximum of values. Raises NotMeasuredError with the given reason if there are none."""
    if not values:
        raise NotHere(lacking)
    return median(values), min(values), max(values)


def _link_pairs(
    links: Sequence[Mapping[str, Any]], matrix: str, ends: Sequence[str]
) -> Iterator[tuple[float, tuple[str, str]]]:
    """Yield the value and models of each measured pair of devices on one host that is attached as `ends`, in either order."""
    for each in links:
        document = each["document"]
        values = (document.get("matrices") or {}).get(matrix) or ()
        devices = document["devices"]
        for one, row in zip(devices, values, strict=False):
            for other, value in zip(devices, row, strict=False):
                alike = sorted((one["attach"], other["attach"])) == sorted(ends)
                if value is not None and one is not other and one["host"] == other["host"] and alike:
                    yield float(value), (one["model"], other["model"])


def _values(rows: pd.DataFrame, exact: bool = False) -> tuple[Value, ...]:
    """Convert rows to values of a claim."""
    told = rows.to_dict("records")
    return tuple(
        Value(
            float(row["_value"]),
            float(row["_low"]),
            float(row["_high"]),
            _words(row, rows),
            tuple(str(row[name]) for name in ("cell_id", "against_cell_id") if name in row),
            exact,
            bool(row.get("_tested", True)),
        )
        for row in told
    )


def _words(row: Mapping[Any, Any], rows: pd.DataFrame) -> str:
    """Describe the cell of a row by the columns that name it."""
    return wording.format_axes(row, naming_columns(rows))
