"""Mix of workloads: slow-down of each shape compared with running every workload on its own fastest shape. Pure.

The slow-down of a shape is the sum over workloads of `share x rate of the fastest shape / rate of this shape`. It is 1 if the
shape is the fastest for each of them. Workloads of one configuration share leases, so variances are those of sums
(`campaign.analysis.statistics.combined_cells`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from campaign.analysis.recommend.candidates import SHAPE
from campaign.analysis.statistics.combined_cells import combine_cells
from campaign.analysis.statistics.comparisons import Design, compute_ratios
from campaign.common import wording
from campaign.common.intervals import Floats

_BY_SHAPE = ["shape", *SHAPE, "configuration", "system", "ranks", "devices"]


def select_fastest_variants(
    rows: pd.DataFrame, workloads: Sequence[str], name_columns: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Select the rows with the precision and options at which each workload is fastest, by description.

    All shapes of a mix are compared with the same precision and options of a workload.

    Args:
        rows: candidate rows.
        workloads: workloads of the mix.
        name_columns: columns of precision and options.
    """
    variants_by_name = {}
    for workload in workloads:
        variants = [
            variant for _, variant in rows[rows["workload"] == workload].groupby(list(name_columns), sort=False)
        ]
        if variants:
            fastest = max(variants, key=lambda variant: variant["rate"].max())
            variants_by_name[wording.format_axes(fastest.iloc[0].to_dict(), ["workload", *name_columns])] = fastest
    return variants_by_name


def build_mix_candidates(
    variants: Sequence[pd.DataFrame], shares: Sequence[float], design: Design
) -> tuple[pd.DataFrame, Design]:
    """Build one row per shape that ran all workloads of a mix, and the design that compares these rows.

    The rows have the columns of `candidates` that a choice needs. `rate` is the inverse of the slow-down, `batch` is in words.

    Args:
        variants: for each workload, its rows with one precision and options.
        shares: fractions of time, adding up to 1.
        design: the design of the cells.
    """
    parts_per_workload = [_compute_slow_down_parts(rows, share) for rows, share in zip(variants, shares, strict=True)]
    parts = pd.concat(parts_per_workload, ignore_index=True)
    parts = parts[parts.groupby("shape")["workload"].transform("count") == len(shares)]
    if parts.empty:
        return parts, design
    slower_parts = parts[parts["cell"] != parts["fastest"]]
    sums = combine_cells(design, _build_sums(parts, slower_parts))
    shapes = parts.groupby(_BY_SHAPE, sort=False)
    rows = shapes.agg(slow=("slow", "sum"), batch=("batch", ", ".join), cells=("cell", tuple)).reset_index()
    rows = rows.assign(cell=rows["cells"].map(_join_cell_ids))
    rows = rows[sums.find_cell_indices(rows["cell"]) >= 0].reset_index(drop=True)
    bounds = _bound_slow_down(rows, slower_parts, sums)
    is_known = sums.variances.is_known[sums.find_cell_indices(rows["cell"])]
    return rows.assign(rate=1 / rows["slow"], **bounds, known=is_known), sums


def _compute_slow_down_parts(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """Compute the part of the slow-down due to one workload, per shape, at its fastest batch.

    Args:
        rows: candidate rows of one workload.
        share: share of the workload in the mix.
    """
    by_rate = rows.sort_values("rate", ascending=False, kind="stable")
    fastest, best_per_shape = by_rate.iloc[0], by_rate.drop_duplicates("shape")
    return best_per_shape.assign(
        share=share,
        weight=share * fastest["rate"],
        slow=share * fastest["rate"] / best_per_shape["rate"],
        fastest=fastest["cell"],
        batch=best_per_shape["workload"] + ": batch " + best_per_shape["batch"].astype("str"),
    )


def _build_sums(parts: pd.DataFrame, slower_parts: pd.DataFrame) -> pd.DataFrame:
    """Build the parts of all sums, each distinct sum once.

    There is one sum of all workloads on each shape. Two further sums are over the workloads that are faster elsewhere: on the
    shape, and where they are the fastest. The latter have cells in common, so each is a kind of its own.
    """
    frames = []
    for rows, name in ((parts, "cell"), (slower_parts, "cell"), (slower_parts, "fastest")):
        ids = rows.groupby("shape")[name].transform(_join_cell_ids)
        kind = "mix" if rows is parts else ids
        frames.append(pd.DataFrame({"sum": ids, "kind": kind, "cell_id": rows[name], "weight": rows["weight"]}))
    return pd.concat(frames).drop_duplicates(["sum", "cell_id"], ignore_index=True)


def _join_cell_ids(cells: Iterable[str]) -> str:
    """Join the ids of cells into the id of their sum."""
    return "+".join(cells)


def _bound_slow_down(rows: pd.DataFrame, slower_parts: pd.DataFrame, sums: Design) -> dict[str, Floats]:
    """Compute `low`, `high`, `variance` and `freedom` of the inverse slow-down, as `candidates.add_results` does.

    They are nan if a shape is the fastest for all workloads. A workload that is fastest on the shape itself adds its share,
    exactly. The others add a ratio of two sums.
    """
    by_shape = slower_parts.groupby("shape").agg(
        own=("cell", _join_cell_ids), fastest=("fastest", _join_cell_ids), share=("share", "sum")
    )
    by_shape = by_shape.reindex(rows["shape"])
    slow, share = rows["slow"].to_numpy(dtype=np.float64), by_shape["share"].to_numpy(dtype=np.float64)
    log_ratios, pools = (
        compute_ratios(by_shape["fastest"], by_shape["own"], design).estimate for design in (sums, sums.with_pools())
    )
    exact_share = 1 - share
    _, low, high = replace(log_ratios, ratio=(slow - exact_share) / share).compute_bounds()
    variance = pools.variance * (1 - exact_share / slow) ** 2
    return {
        "low": 1 / (exact_share + share * high),
        "high": 1 / (exact_share + share * low),
        "variance": variance,
        "freedom": pools.freedom,
    }
