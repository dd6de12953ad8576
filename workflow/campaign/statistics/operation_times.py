"""What operations of a fabric took, by operation and kind of device, beside recorded quantiles of elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

ORDER = ("attach", "detach", "inventory", "read_back", "visible", "request", "rest")


def by_operation(operations: pd.DataFrame, recorded: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """A row for each operation on each kind of device: how many, median, 5 % (low) and 95 % (high) quantile, and the longest.

    operations: `campaign.tables.leases.operations_table`. recorded: quantiles of recordings (`operation`, `low_s`, `median_s`,
    `high_s`), which stand beside operations on devices; nan without one.
    """
    groups = operations.groupby(["operation", "device"], sort=False)["seconds"]
    table = groups.agg(
        operations="size",
        low_s=lambda x: x.quantile(0.05),
        median_s="median",
        high_s=lambda x: x.quantile(0.95),
        longest_s="max",
    ).reset_index()
    there = {str(each["operation"]): each for each in recorded}
    for name in ("low_s", "median_s", "high_s"):
        table[f"recorded_{name}"] = pd.Series(
            [float(there[o][name]) if o in there else float("nan") for o in table["operation"]],
            index=table.index,
            dtype="float64",
        )
    rank = table["operation"].map({name: place for place, name in enumerate(ORDER)}).fillna(len(ORDER))
    return (
        table.assign(rank=rank)
        .sort_values(["rank", "device"], kind="stable")
        .drop(columns="rank")
        .reset_index(drop=True)
    )
