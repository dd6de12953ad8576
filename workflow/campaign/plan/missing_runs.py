"""Runs without a record, and those of them that need no start because a smaller batch or a reached target makes them needless."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from campaign.common.paths import Results
from campaign.plan.oom_frontier import Frontier
from campaign.plan.repetitions import CellComposition, Reached, Stops, planned
from campaign.spec.cell import Cell
from campaign.spec.record import Store
from campaign.spec.run_numbers import RunKey, runs_of

_FEW = 200  # runs whose cells are looked up one by one; of more, the names of all records are listed


@dataclass(frozen=True)
class KnownRuns:
    """Runs of a results directory that have a record, and the progress that ended cells early, from file names alone.

    implied: ids of cells whose missing runs are not started, since a smaller batch ran out of memory.
    """

    measured: set[RunKey] | frozenset[RunKey] = frozenset()
    stops: Mapping[CellComposition, Reached] = field(default_factory=dict)
    implied: Collection[str] = frozenset()

    def planned(self, cell: Cell) -> tuple[int, ...]:
        """Return the numbers of the runs that the cell is to have."""
        return planned(cell.settings, cell.id, self.measured, self.stops)

    def missing(self, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
        """Return the runs of these cells that have no record."""
        return missing_runs(cells, self.measured, self.stops)


def read_known(store: Store, *, skip_implied: bool, cells: Sequence[Cell] | None = None) -> KnownRuns:
    """Read which runs have a record, for all cells or for some.

    Args:
        store: records of the results directory.
        skip_implied: whether implied records count.
        cells: cells to read; None for all.
    """
    if cells is not None and sum(len(runs_of(replace(cell.settings, composition=None))) for cell in cells) <= _FEW:
        stops = Stops(store.results)
        ended = [stops.of(cell.id) for cell in cells if cell.settings.target_half_width_pct is not None]
        measured = store.index(implied=skip_implied, cells={cell.id for cell in cells})
        return KnownRuns(measured, {key: stop for found in ended for key, stop in found.items()})
    return KnownRuns(store.index(implied=skip_implied), Stops(store.results).index())


def without_damaged(known: KnownRuns, store: Store) -> KnownRuns:
    """Return the recorded runs without damaged records.

    Only records that changed after the last tables were made are read.
    """
    return replace(known, measured=known.measured - store.damaged(_changed(store, known.measured)).keys())


def _changed(store: Store, keys: Iterable[RunKey]) -> Iterator[RunKey]:
    tables = Results.from_directory(store.results).tables / "runs.parquet"
    since = tables.stat().st_ctime_ns if tables.exists() else 0
    for key in keys:
        with suppress(FileNotFoundError):  # it is implied by another one
            if store.path(*key).stat().st_ctime_ns > since:  # the time that nobody can set
                yield key


def missing_runs(
    cells: Sequence[Cell], measured: Collection[RunKey], stops: Mapping[CellComposition, Reached] | None = None
) -> list[tuple[Cell, int]]:
    """Return the runs of these cells that have no record.

    Runs of cells that a target ended are left out. A cell with a target counts with its maximum number of runs.
    """
    return [
        (cell, repetition)
        for cell in cells
        for repetition in planned(cell.settings, cell.id, measured, stops)
        if (cell.id, repetition) not in measured
    ]


def is_measured(store: Store, cell: Cell, *, implied: bool) -> bool:
    """Return whether every run of a cell has a record, in all of its compositions.

    Args:
        store: records of the results directory.
        cell: the cell.
        implied: whether implied records count.
    """
    settings = replace(cell.settings, composition=None)
    measured = {(cell.id, run) for run in runs_of(settings) if store.has(cell.id, run, implied=implied)}
    stops = Stops(store.results).of(cell.id) if settings.target_half_width_pct is not None else None
    return all((cell.id, run) in measured for run in planned(settings, cell.id, measured, stops))


def implied_cells(frontier: Frontier, cells: Iterable[Cell], known: KnownRuns) -> set[str]:
    """Return the ids of cells whose missing runs will be recorded without being started."""
    if not frontier.skip or not frontier.directory.exists():
        return set()
    short = (c for c in cells if any((c.id, n) not in known.measured for n in known.planned(c)))
    return {cell.id for cell in short if frontier.implying(cell)}
