"""A mix of workloads: what each shape makes of all of them together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.insight.recommend.choice import fastest_rate, fastest_rows, usable
from campaign.insight.recommend.shape_enumeration import COLUMNS

_SHAPE = ["shape", *COLUMNS, "configuration", "ranks", "devices", "way"]


def fastest_ways(rows: pd.DataFrame, workloads: Sequence[str], named: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The rows of the precision and options that each workload is fastest with, by these in words; of workloads with usable rows.

    All shapes of a mix are compared with the same precision and options of a workload. named: columns of precision and options.
    """
    found = {}
    for workload in workloads:
        own = usable(rows[rows["workload"] == workload])
        ways = [way for _, way in own.groupby(list(named), sort=False)]
        if ways:
            way = max(ways, key=fastest_rate)
            found[wording.describe(way.iloc[0].to_dict(), ["workload", *named])] = way
    return found


def mixed(ways: Sequence[pd.DataFrame], shares: Sequence[float]) -> pd.DataFrame:
    """Rows for each shape that has all workloads of a mix, with the columns of `candidates`: one with what was measured there, and
    one with the batches that are predicted to be better.

    ways: of each workload its rows with one precision and options; shares: of time, adding up to 1. `rate`: the inverse of the mean
    slow-down against each workload's own fastest shape; `batch`: in words; `cells`: of each workload the cell, '' where it was
    predicted.
    """
    by_rate = [rows.sort_values(["measured", "rate"], ascending=False, kind="stable") for rows in ways]
    measured = _together(ways, [rows.drop_duplicates("shape") for rows in by_rate], shares)
    best = _together(ways, [fastest_rows(rows) for rows in ways], shares)
    return pd.concat([measured, best]).drop_duplicates(["shape", "batch"], ignore_index=True)


def _together(ways: Sequence[pd.DataFrame], chosen: Sequence[pd.DataFrame], shares: Sequence[float]) -> pd.DataFrame:
    """One row for each shape. chosen: of each workload a row for each shape."""
    parts = []
    for rows, own, share in zip(ways, chosen, shares, strict=True):
        slow = share * fastest_rate(rows) / own["rate"]
        parts.append(
            own.assign(
                slow=slow,
                variance=(slow * own["sd"]) ** 2,
                said=slow * own["rate"] / own["said_rate"],
                batch=own["workload"] + ": batch " + own["batch"].astype(str),
            )
        )
    together = pd.concat(parts, ignore_index=True)
    shapes = together.groupby(_SHAPE, sort=False)
    rows_of = shapes.agg(
        workloads=("workload", "count"),
        slow=("slow", "sum"),
        variance=("variance", lambda each: each.sum(skipna=False)),
        freedom=("freedom", "min"),
        known=("known", "all"),
        said=("said", lambda each: each.sum(skipna=False)),
        measured=("measured", "all"),
        replayed=("replayed", "any"),
        extrapolated=("extrapolated", _joined),
        memory=("memory", lambda each: "unknown" if (each == "unknown").any() else "fits"),
        batch=("batch", ", ".join),
        cells=("cell_id", tuple),
    ).reset_index()
    rows_of = rows_of[rows_of["workloads"] == len(shares)].reset_index(drop=True)
    return rows_of.assign(
        rate=1 / rows_of["slow"],
        sd=np.sqrt(rows_of["variance"]) / rows_of["slow"],
        said_rate=1 / rows_of["said"],
        outside=rows_of["extrapolated"] != "",
        trusted=True,
        **dict.fromkeys(("low", "high", "price_per_h", "energy_j", "energy_sd"), np.nan),
    )


def _joined(words: pd.Series[Any]) -> str:
    return "; ".join(dict.fromkeys(each for each in words if each))
