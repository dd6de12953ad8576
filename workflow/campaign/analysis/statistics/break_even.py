"""Job length from which recomposing pays: the time to compose and to release, over the gain of the faster composition.

A job that takes L on a composition at hand takes L / ratio on a recomposed one, and composing and releasing cost an overhead in
addition. Recomposing pays if L is longer than overhead / (1 - 1 / ratio). Nothing is charged for the composition at hand.

The interval joins the interval of the ratio (`comparisons`) and that of the mean overhead (Student's t over leases, on the
logarithmic scale) by the method of variance estimates recovery: Zou & Donner (2008), "Construction of confidence limits about
effect measures: a general approach", Statistics in Medicine 27(10). It has no upper end if the ratio may be 1 or less.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.average_ratio import compute_average_ratio
from campaign.analysis.statistics.comparable_cells import list_option_columns
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import Floats


def compute_break_even_s(overhead_s: LogRatios, ratio: LogRatios) -> tuple[Floats, Floats, Floats]:
    """Compute the job length from which recomposing pays, with the bounds of its 95 % interval, in seconds.

    A length is infinite if recomposing never pays, and nan if a variance is unknown.

    Args:
        overhead_s: mean time to compose and to release, with its variance on the logarithmic scale.
        ratio: throughput of the recomposed configuration over that of the composition at hand.
    """
    overhead, overhead_low, overhead_high = overhead_s.compute_bounds()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gain, gain_low, gain_high = (np.where(bound > 1, 1 - 1 / bound, 0.0) for bound in ratio.compute_bounds())
        length = overhead / gain
        below = np.hypot(np.log(overhead / overhead_low), np.log(gain_high / gain))
        above = np.hypot(np.log(overhead_high / overhead), np.log(gain / gain_low))
        low = np.where(gain > 0, length * np.exp(-below), overhead_low / gain_high)
        high = np.where(gain_low > 0, length * np.exp(above), np.inf)
    is_known = np.isfinite(overhead_s.variance + ratio.variance)
    return length, np.where(is_known, low, np.nan), np.where(is_known, high, np.nan)


def estimate_overhead_s(leases: pd.DataFrame) -> pd.DataFrame:
    """Estimate the mean time to compose and to release each configuration, over leases with both times.

    The index is the configuration. The columns are overhead_s, variance (of its logarithm), freedom and leases.
    """
    times = (leases["compose_s"] + leases["release_s"]).groupby(leases["configuration"], sort=False)
    mean, count = times.mean(), times.count()
    variance = (times.std() / mean) ** 2 / count
    table = pd.DataFrame({"overhead_s": mean, "variance": variance, "freedom": count - 1.0, "leases": count})
    return table[table["overhead_s"] > 0]


def compare_recomposed_cells(cells: pd.DataFrame, leases: pd.DataFrame, baseline: str, design: Design) -> pd.DataFrame:
    """Compare cells with the composition at hand, and compute from which job length recomposing pays.

    A composition at hand is the baseline or, for a configuration with devices of the fabric, one with fewer devices that are all
    local. System, workload, batch per device, precision, storage and options are equal. Only measured cells of configurations
    with known times are compared.

    Further columns are overhead_s, overhead_low_s, overhead_high_s, leases, saving_s_per_h (of a job at hand), break_even_s,
    break_even_low_s and break_even_high_s.

    Args:
        cells: cells table.
        leases: leases table.
        baseline: baseline configuration of each system, joined by ', '.
        design: design of the campaign.
    """
    equal = ["system", "workload", "batch", "precision", "storage", *list_option_columns(cells)]
    overheads = estimate_overhead_s(leases)
    measured = cells[(cells["n_ok"] > 0) & (cells["mean"] > 0)]
    is_baseline = measured["configuration"].isin(baseline.split(", "))
    is_at_hand = is_baseline | (
        (measured["attach"] == "local") & (measured["devices_used"] == measured["devices_per_host"])
    )
    names = {"cell_id": "cell", "configuration": "configuration", "mean": "mean", "n_ok": "n"}
    names |= {"devices": "devices", "hosts": "hosts"}
    side = measured.loc[is_at_hand, equal].assign(
        **{f"against_{new}": measured[old] for old, new in names.items()}, is_baseline=is_baseline
    )
    rows = measured[measured["configuration"].isin(overheads.index)].merge(side, on=equal)
    is_smaller = (rows["against_devices"] < rows["devices"]) & (rows["against_hosts"] == rows["hosts"])
    is_compared = rows["is_baseline"] | ((rows["attach"] != "local") & is_smaller)
    rows = rows[is_compared & (rows["configuration"] != rows["against_configuration"])]
    rows = rows.sort_values(["configuration", "against_configuration"], kind="stable", ignore_index=True)
    ratios = comparisons.compute_ratios(rows["cell_id"], rows["against_cell"], design)
    overhead_s = _look_up_overheads(overheads, rows["configuration"])
    _, overhead_low, overhead_high = overhead_s.compute_bounds()
    length, low, high = compute_break_even_s(overhead_s, ratios.estimate)
    return rows.assign(
        **ratios.build_columns(rows.index),
        overhead_s=overhead_s.ratio,
        overhead_low_s=overhead_low,
        overhead_high_s=overhead_high,
        leases=overheads["leases"].reindex(rows["configuration"]).to_numpy(),
        saving_s_per_h=3600 * (1 - 1 / ratios.estimate.ratio),
        break_even_s=length,
        break_even_low_s=low,
        break_even_high_s=high,
    ).drop(columns="is_baseline")


def compute_average_break_even_s(
    rows: pd.DataFrame, leases: pd.DataFrame, design: Design
) -> tuple[float, float, float]:
    """Compute the break-even length of the mean ratio of several cells of one configuration, with its bounds, in seconds.

    Args:
        rows: rows of `compare_recomposed_cells` of one configuration and one composition at hand.
        leases: leases table.
        design: design of the campaign.
    """
    overhead_s = _look_up_overheads(estimate_overhead_s(leases), rows["configuration"].head(1))
    length, low, high = compute_break_even_s(overhead_s, compute_average_ratio(rows, design))
    return float(length[0]), float(low[0]), float(high[0])


def _look_up_overheads(overheads: pd.DataFrame, configurations: pd.Series[str]) -> LogRatios:
    """Return the mean overheads of configurations, in seconds, with their variance on the logarithmic scale."""
    estimates = overheads.reindex(configurations)
    return LogRatios(*(estimates[name].to_numpy(dtype=np.float64) for name in ("overhead_s", "variance", "freedom")))
