"""Which runs of two cells stand in one block, and the ratios of cells that are made from them.

A lease measures its cells in blocks: each repetition of all its cells, in random order. So runs of one lease and one repetition are
neighbours in time on the same devices, and whatever drifts is in both. Cells of different compositions never share a lease and
are not paired. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign import statistics
from campaign.statistics import LogRatios

SIDE = ("cell_id", "mean", "sd", "n_ok")

SEQUENTIAL = (
    "The runs of a cell came one after the other, not in blocks, so that drift of the system can pose as an effect."
)


@dataclass(frozen=True)
class Ratios:
    """Ratios of cells. pairs: runs of either cell that stand in one block; paired: whether the ratio is made from those alone;
    method: how the interval was made, or why there is none."""

    of: LogRatios
    pairs: npt.NDArray[np.int64]
    paired: npt.NDArray[np.bool_]
    method: npt.NDArray[np.object_]


def blocks(runs: pd.DataFrame, protocol: Mapping[str, Any]) -> pd.DataFrame | None:
    """The valid runs that stand in blocks; None where the campaign has its runs in another order.

    protocol: the campaign's, as the report's document has it. Runs without a lease stand in no block.
    """
    if protocol.get("order") == "sequential":
        return None
    valid = runs[(runs["status"] == "ok") & runs["throughput_per_s"].notna() & (runs["lease_id"] != "")]
    return valid[["cell_id", "lease_id", "repetition", "throughput_per_s"]]


def ratios(of: pd.DataFrame, to: pd.DataFrame, runs: pd.DataFrame | None = None) -> Ratios:
    """Ratio of each cell in `of` to the cell in the same place of `to`; both have the columns SIDE, no cell is a row of nan.

    runs: those that `blocks` gives; without them nothing is paired. A cell over itself is 1, without a test.
    """
    a, b = of.reset_index(drop=True), to.reset_index(drop=True)
    count = len(a)
    alone = statistics.unpaired(a["mean"], a["sd"], a["n_ok"], b["mean"], b["sd"], b["n_ok"])
    first, second, place = _pairs(a["cell_id"], b["cell_id"], runs)
    pairs = np.bincount(place, minlength=count)
    n_a, n_b = a["n_ok"].fillna(0).to_numpy(), b["n_ok"].fillna(0).to_numpy()
    itself = (a["cell_id"] == b["cell_id"]).fillna(False).to_numpy(dtype=np.bool_)
    paired = statistics.is_paired(pairs, n_a, n_b)
    found = statistics.either(paired, statistics.paired(first, second, place, count), alone)
    one = LogRatios(np.where(n_a > 0, 1.0, np.nan), np.zeros(count), np.full(count, np.nan))
    found = statistics.either(itself, one, found)
    conditions = [
        itself,
        b["cell_id"].isna().to_numpy() | (n_b == 0),
        n_a == 0,
        np.isnan(found.ratio),
        paired,
        np.minimum(n_a, n_b) >= 2,
    ]
    reasons = [
        statistics.ITSELF,
        statistics.NO_REFERENCE,
        statistics.NO_RUN,
        statistics.NOT_POSITIVE,
        statistics.PAIRED,
        statistics.LOG_RATIO,
    ]
    method = np.select(conditions, reasons, statistics.ONE_RUN).astype(object)
    return Ratios(found, pairs, paired, method)


def _pairs(of: pd.Series[str], to: pd.Series[str], runs: pd.DataFrame | None) -> tuple[Any, Any, Any]:
    """Both throughputs of every pair of runs, and the place of the comparison that it belongs to."""
    if runs is None or runs.empty:
        return np.empty(0), np.empty(0), np.empty(0, dtype=np.int64)
    asked = pd.DataFrame({"cell_id": of, "to": to, "place": np.arange(len(of))})
    asked = asked[asked["to"].notna() & (asked["to"] != asked["cell_id"])]
    ours = asked.merge(runs, on="cell_id")
    theirs = runs.rename(columns={"cell_id": "to", "throughput_per_s": "theirs"})
    both = ours.merge(theirs, on=["to", "lease_id", "repetition"])
    return both["throughput_per_s"].to_numpy(), both["theirs"].to_numpy(), both["place"].to_numpy()
