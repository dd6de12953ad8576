"""Candidates of a recommendation: one row per measured cell with its shape, its result, and the price of its devices. Pure.

Columns: workload, SHAPE, batch, precision, options, `configuration`, `system`, `ranks`, `devices`, `batch_global`,
`compute_price_per_h`, `read_energy_j` (joules per sample, nan without samples of power), `shape` (a number per shape and system),
`cell` (its id in the design that compares it), `cells` (the ids of the measured cells behind it), and the columns of
`add_results`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.tables.io import Tables

SHAPE = ("hosts", "devices_per_host", "local_devices_per_host", "devices_used", "device", "attach", "storage")
_ENERGY_COLUMN = "energy_per_sample_j"


def build_candidates(
    tables: Tables, energy: Design, name_columns: Sequence[str], workloads: Sequence[str] = ()
) -> pd.DataFrame:
    """Build the candidate rows of all cells with a valid run.

    Args:
        tables: tables of the campaign.
        energy: design of `build_energy_design`.
        name_columns: columns of precision and options.
        workloads: workloads to include; empty for all.
    """
    cells, design = tables.cells, tables.design
    is_selected = cells["workload"].isin(list(workloads)) if workloads else np.ones(len(cells), dtype=np.bool_)
    cells = cells[is_selected & (design.find_cell_indices(cells["cell_id"]) >= 0)].reset_index(drop=True)
    joules = np.append(energy.value, np.nan)[energy.find_cell_indices(cells["cell_id"])]
    columns = ["configuration", "system", "ranks", "devices", "batch_global", "price_per_h"]
    rows = cells[["workload", *SHAPE, "batch", *name_columns, *columns]].assign(
        energy_j=joules,
        shape=cells.groupby([*SHAPE, "system"], sort=False).ngroup(),
        cell=cells["cell_id"],
        cells=pd.Series([(cell,) for cell in cells["cell_id"]], index=cells.index, dtype=object),
    )
    text_columns = [name for name in rows if not pd.api.types.is_numeric_dtype(rows[name])]
    # Rows are taken from the frame hundreds of times, which is slow for columns of Arrow's strings.
    return add_results(rows.astype(dict.fromkeys(text_columns, object)), design)


def build_energy_design(tables: Tables) -> Design:
    """Build the design that compares cells by energy per sample.

    The design has no cells if no power was sampled.
    """
    protocol = tables.context.get("campaign", {}).get("protocol", {})
    return comparisons.build_design(tables.runs, protocol, column=_ENERGY_COLUMN, higher_is_better=False)


def add_results(rows: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Add the results, as rates (more is better), to the rows that the design contains.

    The added columns are `rate`, `low`, `high`, `variance`, `freedom` and `known`. low and high bound the rate of this row
    alone. variance and freedom (degrees of freedom) are those of the logarithm of the rate, pooled over configurations
    (`Design.with_pools`). known: whether they include the spread of compositions.
    """
    positions = design.find_cell_indices(rows["cell"])
    rows, positions = rows[positions >= 0], positions[positions >= 0]
    locations, _ = design.estimate_locations()
    value, low, high = (bound[positions] for bound in locations.compute_bounds())
    if not design.higher_is_better:
        value, low, high = 1 / value, 1 / high, 1 / low
    pools = design.with_pools().estimate_locations()[0]
    errors = {"variance": pools.variance[positions], "freedom": pools.freedom[positions]}
    return rows.assign(rate=value, low=low, high=high, **errors, known=design.variances.is_known[positions])
