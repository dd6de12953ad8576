"""Candidates of a recommendation: one row per measured cell with its shape, its result, and the price of its devices. Pure.

Columns: workload, SHAPE, batch, precision, options, `configuration`, `system`, `ranks`, `devices`, `batch_global`,
`price_per_h`,
`energy_j` (joules per sample, nan without samples of power), `shape` (a number per shape and system), `cell` (its id in the
design that compares it), `cells` (the ids of the measured cells behind it), and the columns of `add_results`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.tables.io import Tables

SHAPE = ("hosts", "devices_per_host", "local_devices_per_host", "devices_used", "device", "attach", "storage")
_ENERGY = "energy_per_sample_j"


def measured_candidates(
    tables: Tables, energy: Design, named: Sequence[str], workloads: Sequence[str] = ()
) -> pd.DataFrame:
    """Build the candidate rows of all cells with a valid run.

    Args:
        tables: tables of the campaign.
        energy: design of `build_energy_design`.
        name_columns: columns of precision and options.
        workloads: workloads to include; empty for all.
    """
    cells, design = tables.cells, tables.design
    wanted = cells["workload"].isin(list(workloads)) if workloads else np.ones(len(cells), dtype=np.bool_)
    cells = cells[wanted & (design.places(cells["cell_id"]) >= 0)].reset_index(drop=True)
    joules = np.append(energy.value, np.nan)[energy.places(cells["cell_id"])]
    columns = ["configuration", "system", "ranks", "devices", "batch_global", "price_per_h"]
    rows = cells[["workload", *SHAPE, "batch", *named, *columns]].assign(
        energy_j=joules,
        shape=cells.groupby([*SHAPE, "system"], sort=False).ngroup(),
        cell=cells["cell_id"],
        cells=pd.Series([(cell,) for cell in cells["cell_id"]], index=cells.index, dtype=object),
    )
    texts = [name for name in rows if not pd.api.types.is_numeric_dtype(rows[name])]
    # Rows are taken from the frame hundreds of times, which is slow for columns of Arrow's strings.
    return with_results(rows.astype(dict.fromkeys(texts, object)), design)


def energy_design(tables: Tables) -> Design:
    """Build the design that compares cells by energy per sample.

    The design has no cells if no power was sampled.
    """
    protocol = tables.context.get("campaign", {}).get("protocol", {})
    return comparisons.design(tables.runs, protocol, column=_ENERGY, higher=False)


def with_results(rows: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Return the rows that the design has, with their result as a rate (more is better).

    The added columns are `rate`, `low`, `high`, `variance`, `freedom` and `known`. low and high bound the rate of this row
    alone.
    variance and freedom (degrees of freedom) are those of the logarithm of the rate, pooled over configurations
    (`Design.with_pools`). known: whether they include the spread of compositions.
    """
    place = design.places(rows["cell"])
    rows, place = rows[place >= 0], place[place >= 0]
    locations, _ = design.locations()
    value, low, high = (each[place] for each in locations.bounds())
    if not design.higher:
        value, low, high = 1 / value, 1 / high, 1 / low
    pools = design.with_pools().locations()[0]
    errors = {"variance": pools.variance[place], "freedom": pools.freedom[place]}
    return rows.assign(rate=value, low=low, high=high, **errors, known=design.variances.known[place])
