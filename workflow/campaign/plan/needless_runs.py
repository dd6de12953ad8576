"""What needs no run: batches that a smaller one implies, and repetitions that a target makes needless.

`Known` is what a results directory says, from file names alone; `settle` writes down what its records say and no file does yet,
before hardware is composed for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.documents.record import Record, Store
from campaign.plan.oom_frontier import Frontier, implied_record
from campaign.plan.repetitions import Key, Reached, Repetitions, Stops, planned


@dataclass(frozen=True)
class Known:
    """Keys of the runs that have a record, and what ended cells before their most repetitions."""

    measured: set[Key] = field(default_factory=set)
    stops: Mapping[str, Reached] = field(default_factory=dict)

    def planned(self, cell: Cell) -> int:
        """How many repetitions the cell is to have."""
        return planned(cell.settings, cell.id, self.measured, self.stops.get(cell.id))


def read_known(campaign: Campaign, store: Store) -> Known:
    """What is known; without what is implied where the campaign asks for the runs themselves."""
    return Known(store.index(implied=campaign.protocol.skip_implied), Stops(store.results).index())


def implied_cells(campaign: Campaign, store: Store, cells: Iterable[Cell], known: Known) -> set[str]:
    """Ids of the cells of which runs are missing that will be recorded without being started."""
    frontier = Frontier(campaign, store)
    if not campaign.protocol.skip_implied or not frontier.directory.exists():
        return set()
    short = (c for c in cells if any((c.id, n) not in known.measured for n in range(1, known.planned(c) + 1)))
    return {cell.id for cell in short if frontier.implying(cell)}


def settle(
    campaign: Campaign, store: Store, missing: Iterable[tuple[Cell, int]], told: Callable[[Cell, Record, bool], None]
) -> None:
    """Write records of missing runs that are implied, and end cells that have reached their target.

    told: of each record, and whether the
    cell is over with it.
    """
    frontier, repetitions = Frontier(campaign, store), Repetitions(store, implied=campaign.protocol.skip_implied)
    over: dict[str, bool] = {}
    as_used = ""
    for cell, repetition in missing:
        if cell.id not in over:
            over[cell.id] = repetitions.is_over(cell)
        if over[cell.id] or (evidence := frontier.evidence(cell)) is None:
            continue
        as_used = as_used or store.share(campaign.document())
        record = implied_record(campaign, as_used, cell, repetition, evidence)
        record = record.model_copy(update={"stopped": repetitions.why_last(cell, record)})
        store.write(record)
        over[cell.id] = repetitions.is_over(cell, record)
        told(cell, record, over[cell.id] or repetition == cell.settings.repetitions)
