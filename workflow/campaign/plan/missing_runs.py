"""Which runs have no record yet, and which of those need no start: batches that a smaller one implies, repetitions that a target
makes needless."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from campaign.documents.cell import Cell
from campaign.documents.record import Record, Store
from campaign.plan.oom_frontier import Frontier, implied_record
from campaign.plan.repetitions import Key, Reached, Repetitions, Stops, planned


@dataclass(frozen=True)
class Known:
    """What a results directory says, from file names alone: the runs that have a record, and what ended cells early."""

    measured: set[Key] = field(default_factory=set)
    stops: Mapping[str, Reached] = field(default_factory=dict)

    def planned(self, cell: Cell) -> int:
        """How many repetitions the cell is to have."""
        return planned(cell.settings, cell.id, self.measured, self.stops.get(cell.id))

    def missing(self, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
        """Runs of these cells that have no record."""
        return missing_runs(cells, self.measured, self.stops)


def read_known(store: Store, *, skip_implied: bool) -> Known:
    """What is known; without what is implied where the runs themselves are asked for."""
    return Known(store.index(implied=skip_implied), Stops(store.results).index())


def missing_runs(
    cells: Sequence[Cell], measured: Collection[Key], stops: Mapping[str, Reached] | None = None
) -> list[tuple[Cell, int]]:
    """Runs without a record, but those of cells that a target ended. With a target: the most that there may be."""
    ended = stops or {}
    return [
        (cell, repetition)
        for cell in cells
        for repetition in range(1, planned(cell.settings, cell.id, measured, ended.get(cell.id)) + 1)
        if (cell.id, repetition) not in measured
    ]


def implied_cells(frontier: Frontier, cells: Iterable[Cell], known: Known) -> set[str]:
    """Ids of the cells of which runs are missing that will be recorded without being started."""
    if not frontier.skip or not frontier.directory.exists():
        return set()
    short = (c for c in cells if any((c.id, n) not in known.measured for n in range(1, known.planned(c) + 1)))
    return {cell.id for cell in short if frontier.implying(cell)}


def record_implied(
    frontier: Frontier,
    missing: Iterable[tuple[Cell, int]],
    specification: Callable[[Cell], Mapping[str, Any]],
    as_used: str,
    tell: Callable[[Cell, Record, bool], None],
) -> None:
    """Write the records of missing runs that are implied, and end the cells that have reached their target.

    as_used: hash of the campaign; tell: is told of each record, and whether the cell is over with it.
    """
    repetitions = Repetitions(frontier.store, implied=frontier.skip)
    over: dict[str, bool] = {}
    for cell, repetition in missing:
        if cell.id not in over:
            over[cell.id] = repetitions.is_over(cell)
        if over[cell.id] or (evidence := frontier.evidence(cell)) is None:
            continue
        record = implied_record(specification(cell), as_used, cell, repetition, evidence)
        record = record.model_copy(update={"stopped": repetitions.why_last(cell, record)})
        frontier.store.write(record)
        over[cell.id] = repetitions.is_over(cell, record)
        tell(cell, record, over[cell.id] or repetition == cell.settings.repetitions)
