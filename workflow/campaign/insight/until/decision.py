"""The next round of leases that a question needs, or the statement that ends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from campaign.errors import ConfigError
from campaign.insight.until import words
from campaign.insight.until.cell_states import PricedMatrix
from campaign.insight.until.evidence import weigh
from campaign.insight.until.question import Question
from campaign.insight.until.rounds import NextLease, RoundPrices, choose
from campaign.tables.io import Tables
from campaign.wording import plural

MOST_CELLS = 2000
"""More cells than these are not weighed against each other at once."""


@dataclass(frozen=True)
class Decision:
    """What follows from what has been measured.

    stop: nothing more is to be measured. decided: whether the question is answered. statement: in words. answers: of each
    panel, those that are shown first. rests_on: what the statement rests on, a sentence each. next: the leases of the next round,
    empty with `stop`. reasons: why these, a sentence each. device_hours: expected of what has been measured;
    whole_device_hours: of all cells that the question is about; None where they are unknown.
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


def decide(
    question: Question,
    matrix: PricedMatrix,
    tables: Tables | None,
    seed: int,
    round: int,
    prior: Mapping[str, float] | None = None,
) -> Decision:
    """What to measure next, in round `round` (from 1), or that no more is needed. tables: None where nothing was measured.

    prior: what another model expects of cells, by id: logarithms of the metric, up to a constant. ConfigError for a question
    about too many cells.
    """
    asked = len({cell.id for lease in matrix.leases for cell in lease.cells if question.beside(cell)})
    if asked > MOST_CELLS:
        raise ConfigError(
            f"--until: '{question.text}' is about {asked:,} cells; at most {MOST_CELLS:,} are weighed against each "
            'other: narrow it, as with "for workload == ..."'
        )
    evidence = weigh(question, matrix, tables, prior)
    prices = RoundPrices(evidence.states, matrix)
    chosen = choose(evidence, prices, seed)
    known = matrix.device_hours is not None
    return Decision(
        round=round,
        stop=not chosen,
        decided=evidence.decided,
        statement=words.statement(evidence, prices, stop=not chosen),
        answers=words.answers(evidence, prices),
        rests_on=words.rests_on(evidence, prices),
        next=tuple(chosen),
        reasons=tuple(f"{each.lease}: {plural(len(each.cells), 'cell')}, {each.why}." for each in chosen),
        device_hours=prices.spent if known else None,
        whole_device_hours=prices.whole if known else None,
    )
