"""A mix of workloads: what each shape makes of all of them together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from campaign.insight.recommend.choice import fastest_rate, usable
from campaign.insight.recommend.shape_enumeration import COLUMNS

_SHAPE = ["shape", *COLUMNS, "configuration", "ranks", "devices", "way"]


def mixed(rows: pd.DataFrame, shares: Sequence[tuple[str, float]]) -> pd.DataFrame:
    """One row for each shape that has all workloads of a mix, each run as is fastest there, with the columns of `candidates`.

    shares: of time, by workload, adding up to 1. `rate`: the inverse of the mean slow-down against each workload's own fastest
    shape; `batch`: in words; `cells`: of each workload the cell, '' where it was predicted.
    """
    best = usable(rows).sort_values(["measured", "rate"], ascending=False, kind="stable")
    best = best.drop_duplicates(["workload", "shape"])
    parts = []
    for workload, share in shares:
        own = best[best["workload"] == workload]
        slow = share * (fastest_rate(own) if len(own) else np.nan) / own["rate"]
        parts.append(
            own.assign(
                slow=slow,
                variance=(slow * own["sd"]) ** 2,
                said=slow * own["rate"] / own["said_rate"],
                batch=[f"{workload}: batch {batch}" for batch in own["batch"]],
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
        cell_id="",
        n_ok=0,
        price_per_h=np.nan,
        energy_j=np.nan,
        energy_sd=np.nan,
    )


def _joined(words: pd.Series[Any]) -> str:
    return "; ".join(dict.fromkeys(each for each in words if each))
