"""What is known of the answers to a question, and what is worth measuring for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from campaign.errors import ConfigError
from campaign.insight.until.arms import Arms, Ints, Marks, arms_of
from campaign.insight.until.expectation import Expectation, expect
from campaign.insight.until.offer import Offer
from campaign.insight.until.question import Question
from campaign.insight.until.requirements import ASSURED, DOUBT, HARDLY, UNLIKELY, Pairs, Shown, named, pairs_of, shown
from campaign.insight.until.rounds import Choice, Prices, learning, next_round
from campaign.tables.io import Tables

NOTHING = 3
"""The answer to a comparison of cells of which one failed."""

MOST_CELLS = 2000
"""More cells than these are not weighed against each other at once."""


@dataclass(frozen=True)
class Weighed:
    """Everything that a decision follows from. answers: of each panel, the arms that are named; answered: of each panel, the number
    of the answer that is shown, -1 for none; wanted: pairs that are worth measuring for."""

    arms: Arms
    expected: Expectation
    answers: list[Ints]
    pairs: Pairs
    known: Shown
    answered: Ints
    wanted: Marks
    chance: float
    """That all compositions of all cells would answer the question."""
    prices: Prices
    pair: bool
    """Whether two configurations are compared: then there is nothing to choose but how often both are composed."""

    @property
    def likely(self) -> bool:
        """Whether an answer is worth more than `MOST` of the matrix."""
        return self.chance >= ASSURED


def weigh(question: Question, offer: Offer, tables: Tables | None) -> Weighed:
    """What is known, what has to be shown, and how much of it is. ConfigError for a question about too many cells."""
    arms = arms_of(question, offer, tables)
    if len(arms.cells) > MOST_CELLS:
        raise ConfigError(
            f"--until: '{question.text}' is about {len(arms.cells):,} cells; at most {MOST_CELLS:,} are weighed against each "
            'other: narrow it, as with "for workload == ..."'
        )
    expected = expect(arms)
    answers = named(question, arms, expected)
    pairs = pairs_of(question, arms, expected, answers)
    known = shown(question, arms, expected, pairs)
    prices = Prices(arms, offer)
    answered, wanted, chance = _answered(question, arms, pairs, known)
    can = (prices.lease[pairs.better] >= 0) | (prices.lease[pairs.other] >= 0) | (known.chance >= HARDLY)
    return Weighed(
        arms, expected, answers, pairs, known, answered, wanted & can, chance, prices, question.form == "comparison"
    )


def is_decided(weighed: Weighed) -> bool:
    """Whether the question is answered: of all panels, and not because everything failed."""
    competing = weighed.arms.open & (weighed.arms.panel >= 0)
    return bool((weighed.answered >= 0).all() and competing.any())


def choose(weighed: Weighed) -> list[Choice]:
    """The next round; empty where nothing more is needed, or would help."""
    arms, prices, wanted = weighed.arms, weighed.prices, weighed.wanted
    if wanted.any() and not arms.done and not weighed.pair:
        return learning(arms, weighed.expected, prices)
    found = dict[int, set[int]]()
    if wanted.any():
        for each in next_round(
            arms,
            weighed.expected,
            weighed.pairs,
            weighed.known,
            wanted,
            prices,
            whole=weighed.pair,
            likely=weighed.likely,
        ):
            found[each.lease] = set(each.arms)
    for place in np.flatnonzero(last(arms) & (prices.lease >= 0)):
        found.setdefault(int(prices.lease[place]), set()).add(int(place))
    return [Choice(lease, tuple(sorted(places))) for lease, places in sorted(found.items())]


def last(arms: Arms) -> Marks:
    """Cells that were not measured, of whose panel all others failed: they may fail as well."""
    asked = arms.panel >= 0
    panel = np.maximum(arms.panel, 0)
    competing = np.bincount(panel[arms.open & asked], minlength=len(arms.panels) or 1)
    failed = np.bincount(panel[arms.fails & asked], minlength=len(arms.panels) or 1)
    marks: Marks = arms.open & asked & (arms.measured == 0) & (competing[panel] == 1) & (failed[panel] > 0)
    return marks


def _answered(question: Question, arms: Arms, pairs: Pairs, known: Shown) -> tuple[Ints, Marks, float]:
    """Of each panel, the answer that is shown; the pairs that are worth measuring for; the chance that all would be answered.

    While the whole question is expected to be answered, these are all that are not shown yet. Where it is not, more measurements
    only matter for which answer is named: then they are those of which the named one may well be the worse one. Of a comparison,
    each panel is a question of its own.
    """
    answered = np.full(len(arms.panels), -1, dtype=np.int64)
    open_ = np.zeros(pairs.better.size, dtype=np.bool_)
    least = 1.0
    for panel in range(len(arms.panels)):
        here = pairs.panel == panel
        answers = [here & (pairs.answer == each) for each in np.unique(pairs.answer[here])]
        chances = [float(known.chance[each & ~known.passes].min(initial=1.0)) for each in answers]
        shown_ = [number for number, each in enumerate(answers) if known.passes[each].all()]
        if not answers:  # one cell is the best of itself; none, or one of two, is all that can be known
            known_best = not last(arms)[arms.panel == panel].any()
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


def _doubtful(open_: Marks, known: Shown) -> Marks:
    """The pairs that have to be known better, so that all others together leave little doubt about which answer is named."""
    doubt = np.where(open_, 1 - known.likely, 0.0)
    order = np.argsort(doubt)
    found = np.zeros(open_.size, dtype=np.bool_)
    found[order] = np.cumsum(doubt[order]) > DOUBT
    return open_ & found & known.settles
