"""What a campaign can measure and what that takes, and the cells that a question is about, with what was measured of each. Pure.

A panel is what answers are given for: a workload with its precision and options, whose configurations compete at their best batch;
for a comparison also its batch. Goodness is the logarithm of the campaign's metric, less its cost where less of it is better.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.cell import Cell, Configuration
from campaign.documents.earlier_spread import spreads
from campaign.documents.metric import THROUGHPUT, Metric
from campaign.documents.record import OUT_OF_MEMORY
from campaign.documents.run_numbers import composition_of, runs_of
from campaign.insight.until.question import Question
from campaign.plan.control_runs import without_references
from campaign.plan.cost.estimates import Work
from campaign.plan.cost.forecast import Forecaster
from campaign.plan.plan import Plan
from campaign.statistics import composition_variance
from campaign.statistics.experiment_design import Design
from campaign.tables.io import Tables
from campaign.tables.runs import CONFIRMED, compositions_with


@dataclass(frozen=True)
class PricedLease:
    """One lease of the whole plan. cells: without the reference, whose runs are part of what the lease takes once.

    once_h: device-hours that it takes whatever is measured on it; cells_h: of all runs of each cell; nan where they are unknown.
    """

    name: str
    configuration: Configuration
    composition: int
    cells: tuple[Cell, ...]
    once_h: float
    cells_h: tuple[float, ...]


@dataclass(frozen=True)
class PricedMatrix:
    """All leases of a campaign, in the order of the plan, with all that they could measure. metric: what the campaign is about."""

    leases: tuple[PricedLease, ...]
    metric: Metric = THROUGHPUT

    @property
    def device_hours(self) -> float | None:
        """Device-hours of the whole matrix; None where they are unknown."""
        total = sum(lease.once_h + sum(lease.cells_h) for lease in self.leases)
        return total if math.isfinite(total) else None


def priced_matrix(plan: Plan, forecaster: Forecaster) -> PricedMatrix:
    """What the whole plan offers, also what has been measured. plan: of the whole matrix, without a budget."""
    works = [
        replace(lease.work, runs=tuple((cell, len(runs_of(cell.settings))) for cell in lease.cells))
        for lease in plan.leases
    ]
    kept, prices = without_references(works, forecaster.prices(works, Work.devices))
    leases = tuple(
        PricedLease(
            lease.name,
            lease.configuration,
            lease.composition,
            tuple(cell for cell, _ in work.runs),
            once / 3600,
            tuple(each * count / 3600 for each, (_, count) in zip(run_s, work.runs, strict=True)),
        )
        for lease, work, once, run_s in zip(plan.leases, kept, prices.once_s, prices.run_s, strict=True)
    )
    return PricedMatrix(leases, plan.campaign.metric)


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CellMeans:
    """Means of the runs of cells on leases: place of the cell, number of the lease, block of the campaign from 0, and goodness."""

    place: Ints
    lease: Ints
    block: Ints
    good: Floats


@dataclass(frozen=True)
class CellStates:
    """All cells of the question; arrays are by place in `cells`.

    panel: number of its panel in `panels`; -1 for cells beside the question, which only tell how much compositions differ.
    planned, measured: compositions planned, and with a valid run. failed: compositions on which it failed, of cells without a valid
    run; ran: whether it was started at all. fails: failed on two compositions, or on the only one, or is known to run out of
    memory. done: cells with the compositions on which they have a record, and the uses of leases that these are from. lent: by
    workload, the variance of compositions in earlier campaigns, with its freedom.
    """

    cells: tuple[Cell, ...]
    panel: Ints
    panels: tuple[tuple[Any, ...], ...]
    configuration: Ints
    devices: Floats
    planned: Ints
    measured: Ints
    failed: Ints
    ran: Marks
    fails: Marks
    done: Mapping[tuple[str, int], frozenset[str]]
    means: CellMeans
    lent: Mapping[str, tuple[float, float]]
    design: Design | None

    @property
    def open(self) -> Marks:
        """Whether a cell competes."""
        return ~self.fails

    @cached_property
    def in_design(self) -> Ints:
        """Places of the cells in the design; -1 for those that it does not have."""
        ids = pd.Series([cell.id for cell in self.cells], dtype="str")
        return np.full(len(self.cells), -1) if self.design is None else self.design.places(ids)


def states_of(question: Question, matrix: PricedMatrix, tables: Tables | None) -> CellStates:
    """The cells of a question with what the tables have of them."""
    offered: dict[str, int] = {}
    cells: dict[str, Cell] = {}
    for lease in matrix.leases:
        for cell in lease.cells:
            if cell.id in offered or question.beside(cell):
                offered[cell.id] = offered.get(cell.id, 0) + 1
                cells.setdefault(cell.id, cell)
    every = tuple(cells.values())
    panels: dict[tuple[Any, ...], int] = {}
    panel = [panels.setdefault(_panel(question, cell), len(panels)) if question.about(cell) else -1 for cell in every]
    names: dict[str, int] = {}
    configuration = [names.setdefault(cell.configuration.name, len(names)) for cell in every]
    count = len(every)
    planned = np.array([offered[cell.id] for cell in every], dtype=np.int64)
    measured, failed = (np.zeros(count, dtype=np.int64) for _ in range(2))
    ran, fails = (np.zeros(count, dtype=np.bool_) for _ in range(2))
    none = np.zeros(0, dtype=np.int64)
    means, design = CellMeans(none, none, none, np.zeros(0)), None
    done: Mapping[tuple[str, int], frozenset[str]] = {}
    lent: dict[str, tuple[float, float]] = {}
    if tables is not None and not tables.runs.empty:
        design = tables.design
        means = _means(every, design)
        measured = np.bincount(means.place, minlength=count)
        workloads = list(dict.fromkeys(cell.workload for cell in every))
        earlier = spreads(tables.context.get("campaign", {}).get("earlier_spread") or ())
        found = composition_variance.lent([each for each in earlier if each.metric == matrix.metric.name], workloads)
        lent = {
            name: (float(variance), float(freedom))
            for name, variance, freedom in zip(workloads, found.variance, found.freedom, strict=True)
            if freedom > 0
        }
        done = _done(tables.runs)
        failed = _failed(every, tables.runs, measured)
        started = set(tables.runs.loc[tables.runs["status"] != "implied", "cell_id"].astype(str))
        ran = np.array([cell.id in started for cell in every], dtype=np.bool_)
        enough = np.minimum(CONFIRMED, planned)
        out = _failed(every, tables.runs, measured, (*OUT_OF_MEMORY, "implied")) >= enough
        fails = (failed >= enough) | _implied(every, out, measured)
    devices = np.array([float(cell.configuration.devices) for cell in every])
    numbers = np.array(panel, dtype=np.int64), tuple(panels), np.array(configuration, dtype=np.int64)
    return CellStates(every, *numbers, devices, planned, measured, failed, ran, fails, done, means, lent, design)


def _means(cells: Sequence[Cell], design: Design) -> CellMeans:
    """The means that a design holds, of these cells; goodness is the logarithm of one over the cost."""
    places = np.full(design.cells.size, -1, dtype=np.int64)
    at = design.places(pd.Series([cell.id for cell in cells], dtype="str"))
    places[at[at >= 0]] = np.flatnonzero(at >= 0)
    means = design.means
    kept = places[means.cell] >= 0
    cost = design.cost[means.cell] * means.value
    return CellMeans(places[means.cell][kept], means.lease[kept], means.block[kept], -np.log(cost[kept]))


def _panel(question: Question, cell: Cell) -> tuple[Any, ...]:
    batch = (cell.batch,) if question.form == "comparison" else ()
    return (cell.workload, cell.precision, *batch, *sorted(cell.options.items()))


def _done(runs: pd.DataFrame) -> dict[tuple[str, int], frozenset[str]]:
    """Cells with the compositions on which they have a record, and the uses of leases that these are from."""
    found: dict[tuple[str, int], frozenset[str]] = {}
    rows = runs[["cell_id", "repetition", "lease_id"]].drop_duplicates()
    for cell, run, lease in zip(rows["cell_id"], rows["repetition"], rows["lease_id"], strict=True):
        key = str(cell), composition_of(int(run))
        found[key] = found.get(key, frozenset()) | {str(lease)}
    return found


def _failed(cells: Sequence[Cell], runs: pd.DataFrame, measured: Ints, status: Collection[str] | None = None) -> Ints:
    """On how many compositions each cell without a valid run failed: on all that have a record of it. status: those that count."""
    tried = compositions_with(runs, status)
    found = np.array([tried.get(cell.id, 0) for cell in cells], dtype=np.int64)
    return np.where(measured > 0, 0, found)


def _implied(cells: Sequence[Cell], out: Marks, measured: Ints) -> Marks:
    """Cells that are known to run out of memory: a batch no larger did in their configuration, and none as large fitted there.

    out: cells that ran out of it. Other configurations need other buffers, so nothing is known of them.
    """
    kinds = [(cell.configuration.name, cell.workload, cell.precision, *sorted(cell.options.items())) for cell in cells]
    least, fits = dict[Any, int](), dict[Any, int]()
    for kind, cell, ran_out, well in zip(kinds, cells, out, measured > 0, strict=True):
        if ran_out:
            least[kind] = min(cell.batch, least.get(kind, cell.batch))
        if well:
            fits[kind] = max(cell.batch, fits.get(kind, cell.batch))
    return np.array(
        [
            kind in least and cell.batch >= max(least[kind], fits.get(kind, 0) + 1)
            for kind, cell in zip(kinds, cells, strict=True)
        ],
        dtype=np.bool_,
    )
