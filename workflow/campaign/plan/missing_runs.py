"""Which runs have no record yet, and which of those need no start: batches that a smaller one implies, repetitions that a target
makes needless."""

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
    """What a results directory says, from file names alone: the runs that have a record, and what ended cells early.

    implied: ids of cells whose missing runs are not started, since a smaller batch ran out of memory.
    """

    measured: set[RunKey] | frozenset[RunKey] = frozenset()
    stops: Mapping[CellComposition, Reached] = field(default_factory=dict)
    implied: Collection[str] = frozenset()

    def planned(self, cell: Cell) -> tuple[int, ...]:
        """The runs that the cell is to have."""
        return planned(cell.settings, cell.id, self.measured, self.stops)

    def missing(self, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
        """Runs of these cells that have no record."""
        return missing_runs(cells, self.measured, self.stops)


def read_known(store: Store, *, skip_implied: bool, cells: Sequence[Cell] | None = None) -> KnownRuns:
    """What is known, of all cells or of some; without what is implied where the runs themselves are asked for."""
    if cells is not None and sum(len(runs_of(replace(cell.settings, composition=None))) for cell in cells) <= _FEW:
        stops = Stops(store.results)
        ended = [stops.of(cell.id) for cell in cells if cell.settings.target_half_width_pct is not None]
        measured = store.index(implied=skip_implied, cells={cell.id for cell in cells})
        return KnownRuns(measured, {key: stop for found in ended for key, stop in found.items()})
    return KnownRuns(store.index(implied=skip_implied), Stops(store.results).index())


def without_damaged(known: KnownRuns, store: Store) -> KnownRuns:
    """What is known without damaged records. Those are read that were changed since tables were made of all of them."""
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
    """Runs without a record, but those of cells that a target ended. With a target: the most that there may be."""
    return [
        (cell, repetition)
        for cell in cells
        for repetition in planned(cell.settings, cell.id, measured, stops)
        if (cell.id, repetition) not in measured
    ]


def is_measured(store: Store, cell: Cell, *, implied: bool) -> bool:
    """Whether every run of a cell has a record, in all of its compositions. implied: whether what is implied counts."""
    settings = replace(cell.settings, composition=None)
    measured = {(cell.id, run) for run in runs_of(settings) if store.has(cell.id, run, implied=implied)}
    stops = Stops(store.results).of(cell.id) if settings.target_half_width_pct is not None else None
    return all((cell.id, run) in measured for run in planned(settings, cell.id, measured, stops))


def implied_cells(frontier: Frontier, cells: Iterable[Cell], known: KnownRuns) -> set[str]:
    """Ids of the cells of which runs are missing that will be recorded without being started."""
    if not frontier.skip or not frontier.directory.exists():
        return set()
    short = (c for c in cells if any((c.id, n) not in known.measured for n in known.planned(c)))
    return {cell.id for cell in short if frontier.implying(cell)}
