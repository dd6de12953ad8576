"""The cells that a question is about, as arrays, with what has been measured of each. Pure.

A panel is what answers are given for: a workload with its precision and options, whose configurations compete at their best batch;
for a comparison also its batch. Goodness is the logarithm of the campaign's metric, less its cost where less of it is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.cell import Cell
from campaign.documents.run_numbers import composition_of
from campaign.insight.until.offer import Offer
from campaign.insight.until.question import Question
from campaign.plan.oom_frontier import OUT_OF_MEMORY
from campaign.statistics.comparisons import Design
from campaign.tables.io import Tables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

_UNKNOWN_SPREAD = 0.02**2
"""Of compositions, as a variance, where nothing tells it yet; only the choice of the next leases rests on it."""


@dataclass(frozen=True)
class Arms:
    """All cells of the question; arrays are by place in `cells`.

    panel: number of its panel in `panels`; -1 for cells beside the question, which only tell how much compositions differ.
    offered, measured: compositions planned, and with a valid run. good, variance: of what was measured (nan, infinite where nothing
    was). fails: has no valid run, or is known to run out of memory.
    """

    cells: tuple[Cell, ...]
    panel: Ints
    panels: tuple[tuple[Any, ...], ...]
    configuration: Ints
    configurations: tuple[str, ...]
    devices: Floats
    offered: Ints
    measured: Ints
    good: Floats
    variance: Floats
    fails: Marks
    done: Mapping[tuple[str, int], frozenset[str]]
    """Cells with the compositions on which they have a record, and the uses of leases that these are from."""
    design: Design | None

    def ids(self, places: Ints) -> pd.Series[str]:
        return pd.Series([self.cells[place].id for place in places], dtype="str")

    @property
    def open(self) -> Marks:
        """Whether a cell competes."""
        return ~self.fails


def arms_of(question: Question, offer: Offer, tables: Tables | None) -> Arms:
    """The cells of a question with what the tables have of them."""
    offered: dict[str, int] = {}
    cells: dict[str, Cell] = {}
    for lease in offer.leases:
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
    good, variance, measured = np.full(count, np.nan), np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    design = None if tables is None or tables.runs.empty else tables.design
    done: Mapping[tuple[str, int], frozenset[str]] = {}
    fails = np.zeros(count, dtype=np.bool_)
    if tables is not None and design is not None:
        at = design.places(pd.Series([cell.id for cell in every], dtype="str"))
        there = at >= 0
        found, _ = design.locations()
        good[there] = -np.log(design.cost[at[there]])
        spread = np.where(
            np.isfinite(design.variances.alone.variance),
            found.variance,
            np.nan_to_num(found.variance, nan=_UNKNOWN_SPREAD) + _UNKNOWN_SPREAD / np.maximum(design.compositions, 1),
        )
        variance[there] = spread[at[there]]
        measured[there] = design.compositions[at[there]]
        done = _done(tables.runs)
        fails = _fails(every, tables.runs, measured)
    return Arms(
        every,
        np.array(panel, dtype=np.int64),
        tuple(panels),
        np.array(configuration, dtype=np.int64),
        tuple(names),
        np.array([float(cell.configuration.devices) for cell in every]),
        np.array([offered[cell.id] for cell in every], dtype=np.int64),
        measured,
        good,
        variance,
        fails,
        done,
        design,
    )


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


def _fails(cells: Sequence[Cell], runs: pd.DataFrame, measured: Ints) -> Marks:
    """Cells that have records and none that is valid; and those known to run out of memory.

    Memory grows with the batch, and falls with the ranks where weights are shared among them: what ran out on as many ranks or more
    runs out, unless a batch as large fitted on as few or fewer (`campaign.insight.recommend.candidates`).
    """
    ran = set(runs["cell_id"].astype(str))
    short = set(runs.loc[runs["status"].isin(OUT_OF_MEMORY), "cell_id"].astype(str))
    failed = np.array([cell.id in ran for cell in cells], dtype=np.bool_) & (measured == 0)
    out = np.array([cell.id in short for cell in cells], dtype=np.bool_) & (measured == 0)
    kinds: dict[Any, int] = {}
    kind = np.array([kinds.setdefault(_memory(cell), len(kinds)) for cell in cells], dtype=np.int64)
    batch = np.array([cell.batch for cell in cells], dtype=np.int64)
    ranks = np.array([cell.configuration.ranks for cell in cells], dtype=np.int64)
    for place in np.flatnonzero((measured == 0) & ~failed & np.isin(kind, kind[out])):
        like = kind == kind[place]
        known = like & out & (batch <= batch[place]) & (ranks >= ranks[place])
        fits = like & (measured > 0) & (batch >= batch[place]) & (ranks <= ranks[place])
        failed[place] = known.any() and not fits.any()
    return np.asarray(failed, dtype=np.bool_)


def _memory(cell: Cell) -> Any:
    return cell.configuration.hardware, cell.workload, cell.precision, *sorted(cell.options.items())


def similar(cells: Sequence[Cell]) -> Mapping[str, npt.NDArray[Any]]:
    """What tells cells apart, one array each: numbers as logarithms, the rest as numbers of their values."""

    def number(values: Sequence[float]) -> Floats:
        logs = np.log2(np.maximum(np.asarray(values, dtype=np.float64), 1e-9))
        return np.asarray(logs - logs.mean(), dtype=np.float64)

    def kinds(values: Sequence[Any]) -> Ints:
        places: dict[Any, int] = {}
        return np.array([places.setdefault(value, len(places)) for value in values], dtype=np.int64)

    shapes = [cell.configuration for cell in cells]
    return {
        "ranks": number([shape.ranks for shape in shapes]),
        "hosts": number([shape.hosts for shape in shapes]),
        "batch": number([cell.batch for cell in cells]),
        "fabric": np.array([shape.fabric_devices / shape.devices for shape in shapes]),
        "device": kinds([f"{shape.hardware} on {shape.system}" for shape in shapes]),
        "attach": kinds([shape.attach for shape in shapes]),
        "storage": kinds([shape.storage for shape in shapes]),
        "configuration": kinds([shape.name for shape in shapes]),
        "workload": kinds([cell.workload for cell in cells]),
        "kind": kinds([(cell.workload, cell.precision, *sorted(cell.options.items())) for cell in cells]),
    }
