"""What is known of the answers to a question, and what is worth measuring for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from campaign.errors import ConfigError
from campaign.insight.until.cell_states import CellStates, Ints, Marks, PricedMatrix, states_of
from campaign.insight.until.expectation import Expectation, expect
from campaign.insight.until.question import Question
from campaign.insight.until.requirements import (
    ASSURED,
    DOUBT,
    HARDLY,
    UNLIKELY,
    PairEvidence,
    RequiredPairs,
    named,
    pairs_of,
    shown,
)
from campaign.insight.until.rounds import CellPrices, LeaseChoice, learning, next_round
from campaign.tables.io import Tables

NOTHING = 3
"""The answer to a comparison of cells of which one failed."""

MOST_CELLS = 2000
"""More cells than these are not weighed against each other at once."""


@dataclass(frozen=True)
class Weighed:
    """Everything that a decision follows from. answers: the cells that are named, by panel; answered: of each panel, the number
    of the answer that is shown, -1 for none; wanted: pairs that are worth measuring for."""

    states: CellStates
    expected: Expectation
    answers: list[Ints]
    pairs: RequiredPairs
    known: PairEvidence
    answered: Ints
    wanted: Marks
    chance: float
    """That all compositions of all cells would answer the question."""
    prices: CellPrices
    pair: bool
    """Whether two configurations are compared: then there is nothing to choose but how often both are composed."""

    @property
    def likely(self) -> bool:
        """Whether an answer is worth more than `MOST` of the matrix."""
        return self.chance >= ASSURED


def weigh(question: Question, matrix: PricedMatrix, tables: Tables | None) -> Weighed:
    """What is known, what has to be shown, and how much of it is. ConfigError for a question about too many cells."""
    states = states_of(question, matrix, tables)
    if len(states.cells) > MOST_CELLS:
        raise ConfigError(
            f"--until: '{question.text}' is about {len(states.cells):,} cells; at most {MOST_CELLS:,} are weighed against each "
            'other: narrow it, as with "for workload == ..."'
        )
    expected = expect(states)
    answers = named(question, states, expected)
    pairs = pairs_of(question, states, expected, answers)
    known = shown(question, states, expected, pairs)
    prices = CellPrices(states, matrix)
    answered, wanted, chance = _answered(question, states, pairs, known)
    can = (prices.lease[pairs.better] >= 0) | (prices.lease[pairs.other] >= 0) | (known.chance >= HARDLY)
    return Weighed(
        states, expected, answers, pairs, known, answered, wanted & can, chance, prices, question.form == "comparison"
    )


def is_decided(weighed: Weighed) -> bool:
    """Whether the question is answered: of all panels, and not because everything failed."""
    competing = weighed.states.open & (weighed.states.panel >= 0)
    return bool((weighed.answered >= 0).all() and competing.any())


def choose(weighed: Weighed) -> list[LeaseChoice]:
    """The next round; empty where nothing more is needed, or would help."""
    states, prices, wanted = weighed.states, weighed.prices, weighed.wanted
    if wanted.any() and not states.done and not weighed.pair:
        return learning(states, weighed.expected, prices)
    found = dict[int, set[int]]()
    if wanted.any():
        for each in next_round(
            states,
            weighed.expected,
            weighed.pairs,
            weighed.known,
            wanted,
            prices,
            whole=weighed.pair,
            likely=weighed.likely,
        ):
            found[each.lease] = set(each.places)
    for place in np.flatnonzero((last(states) | _to_repeat(weighed)) & (prices.lease >= 0)):
        found.setdefault(int(prices.lease[place]), set()).add(int(place))
    return [LeaseChoice(lease, tuple(sorted(places))) for lease, places in sorted(found.items())]


def _to_repeat(weighed: Weighed) -> Marks:
    """Cells that failed once and that an answer may still hang on: they are measured on another composition before that counts."""
    states, pairs, known = weighed.states, weighed.pairs, weighed.known
    found = np.zeros(len(states.cells), dtype=np.bool_)
    found[pairs.better[~known.passes]] = True
    found[pairs.other[~known.passes & (known.likely < 1 - DOUBT)]] = True
    marks: Marks = found & states.open & (states.failed > 0)
    return marks


def last(states: CellStates) -> Marks:
    """Cells that were not measured, of whose panel all others failed: they may fail as well."""
    asked = states.panel >= 0
    panel = np.maximum(states.panel, 0)
    competing = np.bincount(panel[states.open & asked], minlength=len(states.panels) or 1)
    failed = np.bincount(panel[states.fails & asked], minlength=len(states.panels) or 1)
    marks: Marks = states.open & asked & (states.measured == 0) & (competing[panel] == 1) & (failed[panel] > 0)
    return marks


def _answered(
    question: Question, states: CellStates, pairs: RequiredPairs, known: PairEvidence
) -> tuple[Ints, Marks, float]:
    """The answer that is shown of each panel; the pairs that are worth measuring for; the chance that all would be answered.

    While the whole question is expected to be answered, these are all that are not shown yet. Where it is not, more measurements
    only matter for which answer is named: then they are those of which the named one may well be the worse one. Of a comparison,
    each panel is a question of its own.
    """
    answered = np.full(len(states.panels), -1, dtype=np.int64)
    open_ = np.zeros(pairs.better.size, dtype=np.bool_)
    least = 1.0
    for panel in range(len(states.panels)):
        here = pairs.panel == panel
        answers = [here & (pairs.answer == each) for each in np.unique(pairs.answer[here])]
        chances = [float(known.chance[each & ~known.passes].min(initial=1.0)) for each in answers]
        shown_ = [number for number, each in enumerate(answers) if known.passes[each].all()]
        if not answers:  # one cell is the best of itself; none, or one of two, is all that can be known
            known_best = not last(states)[states.panel == panel].any()
            answered[panel] = NOTHING if question.form == "comparison" else 0 if known_best else -1
            continue
        if shown_:
            answered[panel] = shown_[0]
            continue
        best = int(np.argmax(chances))  # of answers that exclude each other
        least *= chances[best]
        if question.form != "comparison" or chances[best] >= HARDLY:
            open_ |= answers[best] & ~known.passes
    if question.form == "comparison":
        return answered, open_, least
    return answered, open_ if least >= UNLIKELY else _doubtful(open_, known), least


def _doubtful(open_: Marks, known: PairEvidence) -> Marks:
    """The pairs that have to be known better, so that all others together leave little doubt about which answer is named."""
    doubt = np.where(open_, 1 - known.likely, 0.0)
    order = np.argsort(doubt)
    found = np.zeros(open_.size, dtype=np.bool_)
    found[order] = np.cumsum(doubt[order]) > DOUBT
    return open_ & found & known.settles
