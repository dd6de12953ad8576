"""Comparable cells of a campaign: cells that differ in one property, each with the cell that it is compared with.

Every function takes the cells table and returns the compared rows. Each row has the columns of its reference
(`against_configuration`, `against_mean`, ..) and of the comparison:

- ratio, ratio_low, ratio_high: throughput over that of the reference, 95 %. `campaign.analysis.statistics.comparisons` decides
  whether it is estimated within leases or between compositions; `paired`, `n_pairs` (leases or blocks) and `method` hold the
  result.
- tested: whether a test is allowed. There is none if each cell was measured on one composition and the spread of compositions is
  unknown.
- p: p-value of the hypothesis that there is no effect (ratio 1; the ideal speed-up for the scaling of a metric with an ideal).
- p_holm: p adjusted by Holm over all rows that a function returns, which is one figure. n_tests: number of these comparisons.
- least_detectable_pct: size of an effect that 80 of 100 campaigns like this one find among all n_tests comparisons.
- compositions, against_compositions, freedom: numbers of compositions of both cells, and degrees of freedom of the test.
- unlike: differences of warm-up or measured steps. in_order: whether drift can look like the difference.

A planned cell without a valid run keeps its row, with nan, so that a figure can show the gap. Pairs are formed by the shape of
the hardware alone, never by the names of configurations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.statistics.ratios import compute_detectable_errors
from campaign.common import intervals, wording
from campaign.spec.metric import THROUGHPUT, Metric

PANEL_COLUMNS = ("workload", "precision", "device", "attach", "storage")
HARDWARE_COLUMNS = (
    "hosts",
    "devices_per_host",
    "local_devices_per_host",
    "devices_used",
    "device",
    "attach",
    "storage",
)
REQUEST_RATE_COLUMN = "option_rate_per_s"
"""Column of the rate at which a client sends requests to a service."""

# From the most digits to the fewest. The first one in a campaign is the reference of the others.
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp16-o2", "fp8", "int8")


def list_option_columns(cells: pd.DataFrame) -> list[str]:
    """Return the names of the columns that hold workload options."""
    return [str(name) for name in cells.columns if str(name).startswith("option_")]


def list_naming_columns(cells: pd.DataFrame) -> list[str]:
    """Return the names of the columns that identify a cell to a reader; `wording.format_axes` formats them."""
    return ["configuration", "workload", "batch", "precision", *list_option_columns(cells)]


def select_cells_with_request_rate(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the service cells whose option `rate_per_s` sets the request rate, with the rate as column `rate_per_s`."""
    rates = (
        pd.to_numeric(cells[REQUEST_RATE_COLUMN], errors="coerce")
        if REQUEST_RATE_COLUMN in cells
        else pd.Series(np.nan, index=cells.index)
    )
    return cells.assign(rate_per_s=rates)[rates > 0]


def rank_precision(precision: str) -> tuple[int, str]:
    """Return a sort key that orders known precisions from the most digits to the fewest, then unknown ones by name."""
    return (PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS), precision)


def compare_with_reference(
    cells: pd.DataFrame,
    equal_columns: Sequence[str],
    is_reference: pd.Series[bool],
    design: Design,
    is_scaled_by_devices: bool = False,
) -> pd.DataFrame:
    """Compare every row with the measured reference row that has the same values in the given columns.

    Args:
        cells: cells table.
        equal_columns: columns in which a row and its reference are equal.
        is_reference: whether a row is a reference.
        design: design of the campaign.
        is_scaled_by_devices: whether no effect means a throughput proportional to the number of devices, instead of an equal
            one.
    """
    keys = list(equal_columns)
    reference_rows = cells[is_reference & (cells["n_ok"] > 0)].drop_duplicates(keys)
    # Key columns are kept under a second name as well, so they are copied instead of renamed.
    names = {"cell_id": "cell", "configuration": "configuration", "mean": "mean", "sd": "sd", "n_ok": "n"}
    names |= {"ranks": "ranks", "hosts": "hosts"}
    side = reference_rows[keys].assign(**{f"against_{new}": reference_rows[old] for old, new in names.items()})
    rows = cells.merge(side, on=keys, how="left", validate="many_to_one")
    ratios = comparisons.compute_ratios(rows["cell_id"], rows["against_cell"], design)
    return rows.assign(
        **ratios.build_columns(rows.index, rows["ranks"] / rows["against_ranks"] if is_scaled_by_devices else 1.0)
    )


def adjust_as_one_family(*frames: pd.DataFrame) -> tuple[pd.DataFrame, ...]:
    """Adjust the tests of several tables of one figure together: p_holm is over all rows.

    Rows selected from a larger family are treated as a new family.
    """
    p = np.concatenate([rows["p"].to_numpy(dtype=np.float64) for rows in frames])
    adjusted_p, tests = intervals.adjust_p_values(p), int(np.isfinite(p).sum())
    ends = np.cumsum([len(rows) for rows in frames])[:-1]
    parts = np.split(adjusted_p, ends)
    return tuple(
        rows.assign(
            p_holm=part, n_tests=tests, least_detectable_pct=_rescale_detectable_difference(rows, tests)
        ).reset_index(drop=True)
        for rows, part in zip(frames, parts, strict=True)
    )


def _rescale_detectable_difference(rows: pd.DataFrame, tests: int) -> pd.Series[float]:
    """Rescale least detectable differences, in percent, to a family with another number of tests."""
    before, after = (compute_detectable_errors(rows["freedom"], np.maximum(n, 1)) for n in (rows["n_tests"], tests))
    errors = np.log1p(rows["least_detectable_pct"].to_numpy(dtype=np.float64) / 100)
    return pd.Series(100 * np.expm1(errors * after / before), index=rows.index)


def add_description_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Add two columns for readers: `shape` ('2 of 4 devices') and `attached` ('hybrid (2 of 4 local)')."""
    columns = [name for name in (*HARDWARE_COLUMNS, "ranks", "devices") if name in rows]
    distinct_rows = rows[columns].drop_duplicates()
    records = distinct_rows.to_dict("records")
    descriptions = distinct_rows.assign(
        shape=list(map(wording.format_device_counts, records)), attached=list(map(wording.describe_attachment, records))
    )
    described_rows = rows[columns].merge(descriptions, on=columns, how="left").set_index(rows.index)
    return rows.assign(shape=described_rows["shape"].astype("str"), attached=described_rows["attached"].astype("str"))


def _select_unique_cells(cells: pd.DataFrame, keys: Sequence[str], smallest: Sequence[str]) -> pd.DataFrame:
    """Select one row per combination of keys: a measured row before others, then the row with the smallest values.

    Args:
        cells: cells table.
        keys: columns of the combination.
        smallest: columns whose smallest values are preferred, the most important first.
    """
    order = cells.assign(_unmeasured=cells["n_ok"] == 0)
    order = order.sort_values([*keys, "_unmeasured", *smallest], kind="stable", ignore_index=True)
    return order.drop_duplicates(list(keys), ignore_index=True).drop(columns="_unmeasured")


def _mark_first_measured(cells: pd.DataFrame, keys: Sequence[str]) -> pd.Series[bool]:
    """Mark the first measured row of each group with True, in row order."""
    measured_rows = cells[cells["n_ok"] > 0]
    return cells.index.to_series().isin(measured_rows.drop_duplicates(list(keys)).index)


def _count_measured_levels(cells: pd.DataFrame, keys: Sequence[str], column: str) -> pd.Series[int]:
    """Count, for each row, the distinct values of a column that were measured among rows with equal keys."""
    values = cells[column].where(cells["n_ok"] > 0)
    return values.groupby([cells[key] for key in keys], sort=False).transform("nunique")


def select_varied_cells(cells: pd.DataFrame, equal_columns: Sequence[str], column: str) -> pd.DataFrame:
    """Select the cells, measured or not, for which an otherwise equal cell was planned with another value of a column.

    One cell per value is kept, as in comparisons: a measured one, with the fewest devices per host.

    Args:
        cells: cells table.
        equal_columns: columns in which the cells are equal.
        column: column in which the cells differ.
    """
    rows = _select_unique_cells(cells, [*equal_columns, column], ["devices_per_host"])
    return rows[rows[column].groupby([rows[key] for key in equal_columns], sort=False).transform("nunique") >= 2]


def compare_device_counts(cells: pd.DataFrame, design: Design, metric: Metric = THROUGHPUT) -> pd.DataFrame:
    """Compare cells with more devices and the same batch per device with the cell with the fewest measured devices.

    The speed-up (`ratio`) and `efficiency_pct` are those of the work of all devices, also if the metric is per device.
    `ideal` and the efficiency are nan for a metric whose scaling is unknown; its `ratio` is that of the metric itself.

    `compact` marks the row with the fewest hosts per device count; rows with other numbers of hosts are kept. Among
    compositions with equally many hosts, the one with the fewest idle devices is used. A curve that was planned at two device
    counts and measured at one or none is kept as a gap, unless the campaign measured no curve at two counts.
    """
    panel = [*PANEL_COLUMNS, *list_option_columns(cells)]
    equal = [*panel, "batch"]
    rows = _select_unique_cells(cells, [*equal, "ranks", "hosts"], ["devices_per_host"])
    counts = rows["ranks"].groupby([rows[key] for key in equal], sort=False).transform("nunique")
    has_two_counts = bool((_count_measured_levels(rows, equal, "ranks") >= 2).any())
    rows = rows[(counts >= 2) & has_two_counts].sort_values([*equal, "ranks", "hosts"], ignore_index=True)
    table = compare_with_reference(
        rows, equal, _mark_first_measured(rows, equal), design, metric.has_efficiency and not metric.is_per_device
    )
    times = table["ranks"] / table["against_ranks"]
    if metric.is_per_device:
        table = table.assign(**{name: table[name] * times for name in ("ratio", "ratio_low", "ratio_high")})
    ideal = times if metric.has_efficiency else times * np.nan
    at_count = [*equal, "ranks"]
    measured_here = _count_measured_levels(table, at_count, "hosts") > 0
    compact = _mark_first_measured(table, at_count) | (~measured_here & ~table.duplicated(at_count))
    return table.assign(
        compact=compact,
        ideal=ideal,
        efficiency_pct=100 * table["ratio"] / ideal,
        efficiency_low=100 * table["ratio_low"] / ideal,
        efficiency_high=100 * table["ratio_high"] / ideal,
    )


def compare_speedups_by_batch(cells: pd.DataFrame, design: Design, metric: Metric = THROUGHPUT) -> pd.DataFrame:
    """Compare the speed-ups of several batches over the smallest device count, which is the same for all batches."""
    rows = compare_device_counts(cells, design, metric)
    rows = rows[rows["compact"]].reset_index(drop=True)
    panel = [*PANEL_COLUMNS, *list_option_columns(cells)]
    reference_ranks = rows["against_ranks"].where(_count_measured_levels(rows, [*panel, "batch"], "ranks") >= 2)
    fewest = reference_ranks.groupby([rows[key] for key in panel], sort=False).transform("min")
    has_fewest_ranks = (rows["against_ranks"] == fewest) | rows["against_ranks"].isna()
    rows = rows[has_fewest_ranks & (rows["ranks"] > fewest)].reset_index(drop=True)
    rows = rows.assign(ideal=rows["ranks"] / rows.groupby(panel, sort=False)["against_ranks"].transform("min"))
    keys = [*panel, "ranks"]
    return adjust_as_one_family(rows[_count_measured_levels(rows, keys, "batch") >= 2])[0]


def estimate_batch_effect(speedups: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare the speed-up of the largest batch with that of the smallest, per device count: `change_pct` and its bounds.

    Args:
        speedups: rows of `compare_speedups_by_batch`. Columns of the smallest batch keep their names; those of the largest end
            in `_large`.
        design: design of the campaign.
    """
    measured_rows = speedups[speedups["ratio"].notna()].sort_values("batch", kind="stable")
    series = [*PANEL_COLUMNS, *list_option_columns(speedups), "ranks"]
    largest = measured_rows.drop_duplicates(series, keep="last")
    ends = measured_rows.drop_duplicates(series).merge(largest, on=series, suffixes=("", "_large"))
    ends = ends[ends["batch"] < ends["batch_large"]].reset_index(drop=True)

    at_count = comparisons.compute_ratios(ends["cell_id_large"], ends["cell_id"], design)
    at_fewest = comparisons.compute_ratios(ends["against_cell_large"], ends["against_cell"], design)
    # Both device counts are separate compositions, so their errors are independent.
    change = at_count.divide_by(at_fewest)
    bounds = (100 * (bound - 1) for bound in change.estimate.compute_bounds())
    percent = dict(zip(("change_pct", "change_low", "change_high"), bounds, strict=True))
    return ends.assign(**percent, **change.build_test_columns(), **change.build_basis_columns(ends.index))


def compare_host_counts(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare cells with equally many devices on more hosts with the cell on the fewest hosts.

    `drop_pct` is the loss of throughput against the fewest hosts (one host, if it was measured).
    """
    equal = [*PANEL_COLUMNS, *list_option_columns(cells), "batch", "ranks"]
    rows = _select_unique_cells(cells, [*equal, "hosts"], ["devices_per_host"])
    rows = rows[_count_measured_levels(rows, equal, "hosts") >= 2].reset_index(drop=True)
    table = compare_with_reference(rows, equal, _mark_first_measured(rows, equal), design)
    return table.assign(
        drop_pct=100 * (1 - table["ratio"]),
        drop_low=100 * (1 - table["ratio_high"]),
        drop_high=100 * (1 - table["ratio_low"]),
    )


def compare_systems(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare equally many devices of the first system and of each other system; `ratio` is that of the other to the first.

    Workload, batch, precision, storage and options are equal. A composition is compared with one of the first system on as
    many hosts (`same_hosts`), or else with the one on the fewest hosts, such as 1x4 of one system with 2x2 of another.
    """
    first = cells["system"].iloc[0] if len(cells) else ""
    equal = ["workload", "precision", "storage", *list_option_columns(cells), "batch", "ranks"]
    rows = _select_unique_cells(cells, ["system", *equal, "hosts", "attach"], ["devices_per_host"])
    is_first = rows["system"] == first
    measured_rows = rows[is_first & (rows["n_ok"] > 0)]
    measured_keys = set(measured_rows[[*equal, "hosts"]].itertuples(index=False, name=None))
    fewest = measured_rows.groupby(equal, sort=False)["hosts"].min()
    keys = list(rows[[*equal, "hosts"]].itertuples(index=False, name=None))
    has_same_hosts = np.array([key in measured_keys for key in keys], dtype=np.bool_)
    reference_hosts = [
        key[-1] if is_own_system or is_measured else int(fewest.get(key[:-1], 0))
        for key, is_own_system, is_measured in zip(keys, is_first, has_same_hosts, strict=True)
    ]
    rows = rows.assign(same_hosts=has_same_hosts, on_hosts=reference_hosts)
    # The attachment with the most local devices represents the first system.
    order = rows.assign(_pooled=rows["devices_per_host"] - rows["local_devices_per_host"]).sort_values(
        "_pooled", kind="stable"
    )
    rows = order.drop(columns="_pooled").reset_index(drop=True)
    table = compare_with_reference(rows, [*equal, "on_hosts"], rows["system"] == first, design)
    compared_rows = table[(table["system"] != first) & table["against_cell"].notna()]
    return adjust_as_one_family(compared_rows.sort_values([*equal, "system", "hosts"], kind="stable"))[0].assign(
        against_system=first
    )


def compare_partial_hosts(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare cells that use some of the devices of a host (k of n) with the smallest host, and compute the spread over hosts.

    case_cv_pct: standard deviation (n - 1) over mean of the mean throughputs of compositions with equally many used devices;
    nan for one composition.
    """
    equal = [*PANEL_COLUMNS, *list_option_columns(cells), "batch", "hosts", "devices_used"]
    rows = _select_unique_cells(cells, [*equal, "devices_per_host"], ["local_devices_per_host"])
    is_partial = (rows["devices_used"] < rows["devices_per_host"]) & (rows["n_ok"] > 0)
    groups = [rows[key] for key in equal]
    rows = rows[is_partial.groupby(groups, sort=False).transform("any").astype(bool)].reset_index(drop=True)
    table = compare_with_reference(rows, equal, _mark_first_measured(rows, equal), design)
    means = table.groupby(equal, sort=False)["mean"]
    return table.assign(case_cv_pct=100 * means.transform("std") / means.transform("mean"))


def compare_precisions(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare cells that differ in precision only with the precision of the campaign that has the most digits."""
    equal = [*HARDWARE_COLUMNS, *list_option_columns(cells), "workload", "batch"]
    groups = [cells[key] for key in equal]
    planned_precisions = cells["precision"].groupby(groups, sort=False).transform("nunique")
    is_measured = (cells["n_ok"] > 0).groupby(groups, sort=False).transform("any").astype(bool)
    rows = cells[(planned_precisions >= 2) & is_measured].reset_index(drop=True)
    reference = min(rows["precision"].unique(), key=rank_precision, default="")
    places = {name: place for place, name in enumerate(sorted(rows["precision"].unique(), key=rank_precision))}
    rows = rows.assign(_place=rows["precision"].map(places))
    rows = rows.sort_values([*equal, "_place"], kind="stable", ignore_index=True).drop(columns="_place")
    return compare_with_reference(rows, equal, rows["precision"] == reference, design).assign(reference=reference)


def compute_attachment_overhead(cells: pd.DataFrame, baseline: str, design: Design) -> pd.DataFrame:
    """Compare cells with another attachment or storage than the baseline; `overhead_pct` is the increase of time.

    The reference of a cell is the cell with equal hosts, devices, workload, batch, precision and options that is attached and
    stored like the baseline. Rows without a reference keep nan. The result is empty if the baseline is not among the cells.

    Args:
        cells: cells table.
        baseline: baseline configuration of each system, joined by ', '.
        design: design of the campaign.
    """
    base = cells[cells["configuration"].isin(baseline.split(", "))].drop_duplicates("system").set_index("system")
    equal = ["hosts", "devices_per_host", "devices_used", "device", "workload", "batch", "precision"]
    equal += list_option_columns(cells)
    comparable = cells[cells["system"].isin(base.index)]
    rows = _select_unique_cells(comparable, [*equal, "attach", "storage", "local_devices_per_host"], ["ranks"])
    attach, storage = (rows["system"].map(base[name]) for name in ("attach", "storage"))
    is_reference = (rows["attach"] == attach) & (rows["storage"] == storage)
    table = compare_with_reference(rows, equal, is_reference, design)
    table = adjust_as_one_family(table[~is_reference.to_numpy()])[0]
    return table.assign(
        overhead_pct=100 * (1 / table["ratio"] - 1),
        overhead_low=100 * (1 / table["ratio_high"] - 1),
        overhead_high=100 * (1 / table["ratio_low"] - 1),
    )
