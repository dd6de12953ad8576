"""The next round of leases that a question needs, or the statement that ends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from campaign.insight.until import words
from campaign.insight.until.cell_states import PricedMatrix
from campaign.insight.until.question import Question
from campaign.insight.until.weighed import choose, is_decided, weigh
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

    stop: nothing more is to be measured. decided: whether the question is answered. statement: in words. answers: of each
    panel, those that are shown first. rests_on: what the
    statement rests on, a sentence each. next: the leases of the next round, empty with `stop`. reasons: why these, a sentence each.
    device_hours: expected of what has been measured; whole_device_hours: of the whole matrix; None where they are unknown.
    """

    round: int
    stop: bool
    decided: bool
    statement: str
    answers: tuple[str, ...]
    rests_on: tuple[str, ...]
    next: tuple[NextLease, ...]
    reasons: tuple[str, ...]
    device_hours: float | None
    whole_device_hours: float | None


def decide(question: Question, matrix: PricedMatrix, tables: Tables | None, seed: int, round: int) -> Decision:
    """What to measure next, in round `round` (from 1), or that no more is needed. tables: None where nothing was measured."""
    weighed = weigh(question, matrix, tables)
    chosen = choose(weighed)
    spent = None if matrix.device_hours is None else weighed.prices.spent
    return Decision(
        round=round,
        stop=not chosen,
        decided=is_decided(weighed),
        statement=words.statement(question, weighed, stop=not chosen),
        answers=words.answers(question, matrix, weighed),
        rests_on=words.rests_on(question, matrix, weighed, spent),
        next=tuple(
            NextLease(
                (lease := matrix.leases[each.lease]).name,
                lease.configuration.name,
                lease.composition,
                tuple(weighed.states.cells[place].id for place in each.places),
            )
            for each in chosen
        ),
        reasons=words.reasons(weighed, matrix, chosen),
        device_hours=spent,
        whole_device_hours=matrix.device_hours,
    )
