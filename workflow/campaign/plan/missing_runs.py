"""Runs without a record, except those that a reached target or a smaller batch out of memory makes unnecessary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from campaign.common.paths import Results
from campaign.plan.oom_frontier import MemoryFrontier
from campaign.plan.repetitions import CellComposition, CellProgress, StopFiles, list_planned_runs
from campaign.spec.cell import Cell
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import RunKey, list_run_numbers

_MAX_SINGLE_LOOKUPS = 200  # With more runs, listing the names of all records is faster than looking up each cell.


@dataclass(frozen=True)
class RecordedRuns:
    """Runs of a results directory that have a record, and cells that ended early, from file names alone.

    Args:
        measured: keys of the runs that have a record.
        stops: progress of cells that ended early.
        implied: ids of cells whose missing runs are not started, because a smaller batch ran out of memory.
    """

    measured: set[RunKey] | frozenset[RunKey] = frozenset()
    stops: Mapping[CellComposition, CellProgress] = field(default_factory=dict)
    implied: Collection[str] = frozenset()

    def list_planned_runs(self, cell: Cell) -> tuple[int, ...]:
        """Return the numbers of the planned runs of a cell."""
        return list_planned_runs(cell.settings, cell.id, self.measured, self.stops)

    def list_missing_runs(self, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
        """Return the runs of these cells that have no record."""
        return list_missing_runs(cells, self.measured, self.stops)


def read_recorded_runs(store: RecordStore, *, skip_implied: bool, cells: Sequence[Cell] | None = None) -> RecordedRuns:
    """Read which runs have a record, for all cells or for some.

    Args:
        store: records of the results directory.
        skip_implied: whether implied records count.
        cells: cells to read; None for all.
    """
    if (
        cells is not None
        and sum(len(list_run_numbers(replace(cell.settings, composition=None))) for cell in cells)
        <= _MAX_SINGLE_LOOKUPS
    ):
        stops = StopFiles(store.results)
        stops_by_cell = [stops.read_cell(cell.id) for cell in cells if cell.settings.target_half_width_pct is not None]
        measured = store.list_keys(include_implied=skip_implied, cells={cell.id for cell in cells})
        return RecordedRuns(measured, {key: stop for cell_stops in stops_by_cell for key, stop in cell_stops.items()})
    return RecordedRuns(store.list_keys(include_implied=skip_implied), StopFiles(store.results).read_all())


def drop_damaged_records(recorded: RecordedRuns, store: RecordStore) -> RecordedRuns:
    """Return the recorded runs without damaged records.

    Only records that changed after the last tables were made are read.
    """
    return replace(
        recorded,
        measured=recorded.measured - store.find_damaged(_find_changed_records(store, recorded.measured)).keys(),
    )


def _find_changed_records(store: RecordStore, keys: Iterable[RunKey]) -> Iterator[RunKey]:
    tables = Results.from_directory(store.results).tables / "runs.parquet"
    since = tables.stat().st_ctime_ns if tables.exists() else 0
    for key in keys:
        with suppress(FileNotFoundError):  # an implied run may have no file of its own
            if store.path(*key).stat().st_ctime_ns > since:  # ctime cannot be set by a program
                yield key


def list_missing_runs(
    cells: Sequence[Cell], measured: Collection[RunKey], stops: Mapping[CellComposition, CellProgress] | None = None
) -> list[tuple[Cell, int]]:
    """Return the runs of these cells that have no record.

    Runs of cells that a target ended are left out. Other cells with a target count with their maximum number of runs.
    """
    return [
        (cell, repetition)
        for cell in cells
        for repetition in list_planned_runs(cell.settings, cell.id, measured, stops)
        if (cell.id, repetition) not in measured
    ]


def is_measured(store: RecordStore, cell: Cell, *, implied: bool) -> bool:
    """Return whether every run of a cell has a record, in all of its compositions.

    Args:
        store: records of the results directory.
        cell: the cell.
        implied: whether implied records count.
    """
    settings = replace(cell.settings, composition=None)
    measured = {
        (cell.id, run) for run in list_run_numbers(settings) if store.has_record(cell.id, run, include_implied=implied)
    }
    stops = StopFiles(store.results).read_cell(cell.id) if settings.target_half_width_pct is not None else None
    return all((cell.id, run) in measured for run in list_planned_runs(settings, cell.id, measured, stops))


def find_implied_cells(frontier: MemoryFrontier, cells: Iterable[Cell], recorded: RecordedRuns) -> set[str]:
    """Return the ids of cells whose missing runs will be recorded without being started."""
    if not frontier.skip or not frontier.directory.exists():
        return set()
    incomplete = (c for c in cells if any((c.id, n) not in recorded.measured for n in recorded.list_planned_runs(c)))
    return {cell.id for cell in incomplete if frontier.find_implying_run(cell)}
