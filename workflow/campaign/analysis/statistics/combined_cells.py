"""Weighted sums of cells as cells of a separate design, such as the time of a workload mix on one configuration.

Cells that share leases deviate together, so the variance of their sum is more than the sum of their variances. The sum is
therefore formed on each composition, run by run, and its variance is estimated from these like that of any cell
(`campaign.analysis.statistics.composition_variance`). Cells on separate leases deviate independently, which the same estimate
includes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from campaign.analysis.statistics.experiment_design import Design, build_design
from campaign.spec.run_numbers import compute_run_number


def combine_cells(cell_design: Design, parts: pd.DataFrame) -> Design:
    """Build a design in which each cell is a weighted sum of the costs of several cells.

    A composition of a sum is a block of the campaign in which all of its cells have a valid run. A sum without one is left out.
    Raises ValueError if the design lacks a cell.

    Args:
        cell_design: design of the cells.
        parts: one row per sum and cell, with `sum` (id), `kind` (of sums that may share the drift of blocks), `cell_id`,
            `weight`.
    """
    place = cell_design.find_cell_indices(parts["cell_id"])
    if (place < 0).any():
        raise ValueError(f"cell {parts['cell_id'][place < 0].iloc[0]} has no valid run")
    parts = parts.assign(cell=place)
    runs = _build_sum_runs(cell_design, parts)
    protocol = {
        "order": "blocks" if cell_design.has_random_runs else "sequential",
        "lease_order": "blocks" if cell_design.has_random_leases else "",
    }
    sums = build_design(runs, protocol, column="cost", higher_is_better=False)
    # The location includes all runs, also those of blocks that lack another cell of the sum.
    parts = parts.assign(cost=parts["weight"] * cell_design.cost[parts["cell"]])
    cost = parts.groupby("sum")["cost"].sum()
    spread = (parts["cost"] * cell_design.weights[parts["cell"]]).groupby(parts["sum"]).sum() / cost
    ids = list(sums.cells)
    return replace(sums, cost=cost.loc[ids].to_numpy(), weights=spread.loc[ids].to_numpy())


def _build_sum_runs(cell_design: Design, parts: pd.DataFrame) -> pd.DataFrame:
    """Build the runs of sums: the n-th run of a block is the sum of the n-th runs of its cells there.

    If a cell has more runs in a block than another one, neighbouring runs are averaged.
    """
    means = pd.DataFrame({name: getattr(cell_design.means, name) for name in ("cell", "lease", "block", "host")})
    runs = parts.merge(cell_design.valid_runs, on="cell").merge(means, on=["cell", "lease"])
    in_block, of_cell = ["sum", "block"], ["sum", "block", "cell"]
    runs["size"] = runs.groupby(of_cell)["cost"].transform("size")
    runs["fewest"] = runs.groupby(in_block)["size"].transform("min")
    runs["n"] = runs.groupby(of_cell).cumcount() * runs["fewest"] // runs["size"]
    runs["cost"] *= runs["weight"]
    complete = runs.groupby(in_block)["cell"].transform("nunique") == runs["sum"].map(parts["sum"].value_counts())
    averaged_runs = runs[complete].groupby([*of_cell, "n"], as_index=False).agg({"cost": "mean", "host": "first"})
    by_run = averaged_runs.groupby(["sum", "block", "n"], as_index=False)
    sums = by_run.agg(cost=("cost", "sum"), host=("host", "first"), hosts=("host", "nunique"), cell=("cell", "first"))
    kinds = parts.drop_duplicates("sum").set_index("sum")["kind"]
    groups, first = cell_design.means.groups, sums["cell"]
    systems, workloads = (
        np.array(names, dtype=object)[groups.stratum[first]] for names in (groups.systems, groups.workloads)
    )
    names = np.array([*(", ".join(sorted(host_set)) for host_set in cell_design.host_effects.hosts), ""], dtype=object)
    numbers = [compute_run_number(block + 1, n + 1) for block, n in zip(sums["block"], sums["n"], strict=True)]
    return pd.DataFrame(
        {
            "cell_id": sums["sum"],
            "configuration": sums["sum"],
            "workload": workloads,
            "precision": sums["sum"].map(kinds),
            "system": systems,
            "campaign": groups.campaign[first],
            "lease_id": sums["sum"].astype("str") + ".c" + sums["block"].astype("str"),
            "repetition": np.array(numbers, dtype=np.int64),
            "started": sums["block"].astype("float64"),
            "status": "ok",
            "host_names": names[np.where(sums["hosts"] == 1, sums["host"], -1)],
            "cost": sums["cost"],
        }
    )
