"""The next round of leases that a question needs, or the statement that ends it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from campaign.documents.run_numbers import composition_of
from campaign.insight.until.offer import Offer
from campaign.insight.until.question import Question
from campaign.tables.io import Tables


@dataclass(frozen=True)
class NextLease:
    """A lease of the next round, and the ids of the cells to measure on it: all their runs in this composition."""

    lease: str
    configuration: str
    composition: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """What follows from what has been measured.

    stop: nothing more is to be measured. decided: whether the question is answered. statement: in words. rests_on: what the
    statement rests on, a sentence each. next: the leases of the next round, empty with `stop`. reasons: why these, a sentence each.
    device_hours: expected of what has been measured; whole_device_hours: of the whole matrix; None where they are unknown.
    """

    round: int
    stop: bool
    decided: bool
    statement: str
    rests_on: tuple[str, ...]
    next: tuple[NextLease, ...]
    reasons: tuple[str, ...]
    device_hours: float | None
    whole_device_hours: float | None


def decide(question: Question, offer: Offer, tables: Tables | None, seed: int, round: int) -> Decision:
    """What to measure next, in round `round` (from 1), or that no more is needed. tables: None where nothing was measured."""
    measured = set() if tables is None else _measured(tables)
    left = [
        NextLease(lease.name, lease.configuration.name, lease.composition, cells)
        for lease in offer.leases
        if (
            cells := tuple(
                cell.id for cell in lease.cells if question.about(cell) and (cell.id, lease.composition) not in measured
            )
        )
    ]
    composition = min((lease.composition for lease in left), default=0)
    chosen = tuple(lease for lease in left if lease.composition == composition)
    spent = sum(
        lease.once_h * any(done) + sum(h for h, here in zip(lease.cells_h, done, strict=True) if here)
        for lease in offer.leases
        if any(done := [(cell.id, lease.composition) in measured for cell in lease.cells])
    )
    return Decision(
        round=round,
        stop=not left,
        decided=False,
        statement="Not decided." if not left else "",
        rests_on=(),
        next=chosen,
        reasons=(f"composition {composition} of all configurations",) if chosen else (),
        device_hours=spent if math.isfinite(spent) else None,
        whole_device_hours=offer.device_hours,
    )


def _measured(tables: Tables) -> set[tuple[str, int]]:
    """Cells with the compositions on which they have a record."""
    runs = tables.runs
    return {
        (str(cell), composition_of(int(run))) for cell, run in zip(runs["cell_id"], runs["repetition"], strict=True)
    }
