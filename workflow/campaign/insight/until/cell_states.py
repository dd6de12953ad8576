"""What a campaign can measure and what that takes, and the cells that a question is about, with what was measured of each. Pure.

A panel is what answers are given for: a workload with its precision and options, whose configurations compete at their best batch;
for a comparison also its batch. Goodness is the logarithm of the campaign's metric, less its cost where less of it is better.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace

import numpy as np
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
from campaign.plan.oom_frontier import implied_by, without_batch
from campaign.plan.plan import Plan
from campaign.statistics import composition_variance
from campaign.statistics.experiment_design import Design
from campaign.statistics.intervals import Integers
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


class CellStates:
    """All cells of a question with what the tables have of them; arrays are by place in `cells`.

    configuration, kind, column: numbers of its configuration, of its precision and options, and of these with its batch.
    panel: number of its panel in `panels`; -1 for cells beside the question, which only tell how much compositions differ.
    planned, measured: compositions planned, and with a valid run. failed: compositions on which it failed, of cells without a valid
    run; ran: whether it was started at all. fails: failed on two compositions, or on the only one, or is known to run out of
    memory. done: cells with the compositions on which they have a record, and the uses of leases that these are from. place, lease,
    block, good: of each mean of the runs of a cell on a lease, the place of the cell, the number of the lease, its block of the
    campaign from 0, and its goodness. lent: by workload, the variance of compositions in earlier campaigns, with its freedom.
    in_design: places of the cells in `design`; -1 for those that it does not have.

    known: whether durations are; else a run of a device counts as one. spent, whole: cost of what was measured, and of all cells
    that the question is about, with composing. composed, compositions: how often their leases were composed, and how many they
    are; beside: of other leases. once_h, cells_h: cost of a composition of a cell's configuration, and of the cell on it. left:
    compositions without a record; possible: with those with a valid run. each, uses: of each lease of the matrix, the cost of its
    cells without a record by place, and how often it was composed. of: numbers of the leases of a configuration.
    """

    def __init__(self, question: Question, matrix: PricedMatrix, tables: Tables | None) -> None:
        self.matrix = matrix
        offered = [cell for lease in matrix.leases for cell in lease.cells if question.beside(cell)]
        self.cells = tuple({cell.id: cell for cell in offered}.values())
        counts, count = Counter(cell.id for cell in offered), len(self.cells)
        self.planned = np.array([counts[cell.id] for cell in self.cells], dtype=np.int64)
        kinds = [(cell.precision, *sorted(cell.options.items())) for cell in self.cells]
        columns = [(kind, cell.batch) for kind, cell in zip(kinds, self.cells, strict=True)]
        by_batch = question.form == "comparison"
        about = [
            (cell.workload, *kind, *[cell.batch] * by_batch) if question.about(cell) else None
            for kind, cell in zip(kinds, self.cells, strict=True)
        ]
        self.panels = tuple(dict.fromkeys(each for each in about if each is not None))
        self.panel = np.array([-1 if each is None else self.panels.index(each) for each in about], dtype=np.int64)
        self.configuration = pd.factorize(pd.Series([cell.configuration.name for cell in self.cells], dtype="str"))[0]
        self.kind, self.column = (pd.factorize(pd.Series(each, dtype="object"))[0] for each in (kinds, columns))
        self.devices = np.array([float(cell.configuration.devices) for cell in self.cells])
        self.measured, self.failed = np.zeros((2, count), dtype=np.int64)
        self.ran, self.fails = np.zeros((2, count), dtype=np.bool_)
        self.done: dict[tuple[str, int], frozenset[str]] = {}
        self.place, self.lease, self.block = np.zeros((3, 0), dtype=np.int64)
        self.good, self.lent = np.zeros(0), dict[str, tuple[float, float]]()
        self.design: Design | None = None
        if tables is not None and not tables.runs.empty:
            self._read(tables, matrix.metric.name)
        self._price()

    def _read(self, tables: Tables, metric: str) -> None:
        runs, design, means = tables.runs, tables.design, tables.design.means
        ids = pd.Series([cell.id for cell in self.cells], dtype="str")
        self.design, self.in_design = design, design.places(ids)
        places = np.full(design.cells.size, -1, dtype=np.int64)
        places[self.in_design[self.in_design >= 0]] = np.flatnonzero(self.in_design >= 0)
        here = places[means.cell] >= 0
        self.place, self.lease, self.block = (each[here] for each in (places[means.cell], means.lease, means.block))
        self.good = -np.log(design.cost[means.cell] * means.value)[here]
        self.measured = np.bincount(self.place, minlength=len(ids))
        workloads = list(dict.fromkeys(cell.workload for cell in self.cells))
        earlier = spreads(tables.context.get("campaign", {}).get("earlier_spread") or ())
        lent = composition_variance.lent([each for each in earlier if each.metric == metric], workloads)
        known = zip(workloads, lent.variance, lent.freedom, strict=True)
        self.lent = {name: (float(variance), float(freedom)) for name, variance, freedom in known if freedom > 0}
        for cell, run, use in set(zip(runs["cell_id"], runs["repetition"], runs["lease_id"], strict=True)):
            key = str(cell), composition_of(int(run))
            self.done[key] = self.done.get(key, frozenset()) | {str(use)}
        self.ran = ids.isin(runs.loc[runs["status"] != "implied", "cell_id"]).to_numpy()
        self.failed, enough = self._failed(runs), np.minimum(CONFIRMED, self.planned)
        # Other configurations need other buffers, so nothing is known of them.
        ran_out, fits = defaultdict[Hashable, list[int]](list), defaultdict[Hashable, list[int]](list)
        out = self._failed(runs, (*OUT_OF_MEMORY, "implied")) >= enough
        alike = [(cell.batch, without_batch(cell)) for cell in self.cells]
        for (batch, of), no, well in zip(alike, out, self.measured > 0, strict=True):
            if no or well:
                (ran_out if no else fits)[of].append(batch)
        implied = [implied_by(batch, ran_out[of], fits[of]) is not None for batch, of in alike]
        self.fails = (self.failed >= enough) | np.array(implied, dtype=np.bool_)

    def _failed(self, runs: pd.DataFrame, status: Collection[str] | None = None) -> Integers:
        """On how many compositions each cell without a valid run failed: on all that have a record of it."""
        tried = compositions_with(runs, status)
        found = np.array([tried.get(cell.id, 0) for cell in self.cells], dtype=np.int64)
        return np.where(self.measured > 0, 0, found)

    def _price(self) -> None:
        self.left, self.known = np.zeros(len(self.cells), dtype=np.int64), self.matrix.device_hours is not None
        self.once_h, self.cells_h = np.zeros((2, len(self.cells)))
        self.spent = self.whole = 0.0
        self.composed = self.beside = self.compositions = 0
        self.each, self.uses = list[dict[int, float]](), list[int]()
        self.of = defaultdict[str, list[int]](list)
        place = {cell.id: number for number, cell in enumerate(self.cells)}
        for number, lease in enumerate(self.matrix.leases):
            self.of[lease.configuration.name].append(number)
            once = lease.once_h if self.known else 0.0
            hours = lease.cells_h if self.known else (float(lease.configuration.devices),) * len(lease.cells)
            mine = {place[cell.id]: cost for cell, cost in zip(lease.cells, hours, strict=True) if cell.id in place}
            self.once_h[list(mine)], self.cells_h[list(mine)] = once, list(mine.values())
            about = [cost for at, cost in mine.items() if self.panel[at] >= 0]
            done = {at: self.done.get((self.cells[at].id, lease.composition), frozenset[str]()) for at in mine}
            # A lease that was composed for several rounds took as much each time.
            uses = len(frozenset[str]().union(*done.values()))
            if about:
                self.spent += once * uses + sum(cost for at, cost in mine.items() if done[at])
                self.whole += once + sum(about)
                self.compositions += 1
                self.composed += uses
            else:
                self.beside += uses
            self.each.append({at: cost for at, cost in mine.items() if not done[at] and not self.fails[at]})
            self.uses.append(uses)
            self.left[list(self.each[-1])] += 1
        self.possible = np.clip(self.measured + self.left, 1, self.planned)
