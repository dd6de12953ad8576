"""What has to be shown for an answer, pair by pair, and what of it the measurements show. Pure.

Every answer is a set of statements `goodness of a >= goodness of b + least`. A set is shown where each of its statements is; so
only the chance that one false statement is shown has to be kept small, over all that could be stated and over all looks:

- The family is every pair that could be stated, whichever configurations are named. Each has an equal part of the error
  (Bonferroni; for the best of m it is m - 1 pairs, since only those against the true best can be false: Hsu 1996, "Multiple
  comparisons", 4).
- A pair is looked at whenever one of its cells was composed again. The error is spent in proportion to the information (Lan &
  DeMets 1983, "Discrete sequential boundaries for clinical trials", Biometrika 70(3)), which is the harmonic mean of both numbers
  of compositions over those planned. The parts add up over all looks that there could be, whichever are taken, so that a choice of
  leases by what was measured spends no more.
- A pair may also rest on what is expected of cells (`campaign.insight.until.expectation`), which has a part of the error of its
  own: one of which a cell was not measured; and one that differs by far more than configurations that were left out were expected
  wrongly.

Tests of measured pairs are those of `campaign.statistics.comparisons`, one-sided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from campaign.insight.until.cell_states import CellStates, Floats, Ints, Marks
from campaign.insight.until.expectation import Expectation
from campaign.insight.until.question import Question
from campaign.statistics import comparisons
from campaign.statistics.intervals import SIGNIFICANT

EXPECTED_PART = 0.2
"""The part of the error that is for pairs which rest on what is expected of a cell."""

SURPRISE = -2.5
"""A cell that was measured on one composition and is as much slower than expected, in standard errors, is measured on another one
before anything is better than it."""

UNLIKELY, HARDLY = 0.3, 0.02
"""The chances below which a question, and the comparison of two cells, are not expected to be answered by all that could be
measured."""
ASSURED = 0.9
"""The chance of an answer that is worth more than `campaign.insight.until.rounds.MOST` of the matrix: it is overrated, see decision
40."""
DOUBT = 0.02
"""How likely a wrong name may be where an answer is named that is not shown."""


@dataclass(frozen=True)
class RequiredPairs:
    """Statements that `better` is at least as good as `other` plus `least`, by place of the cells. answer: number of the one that
    needs them: answers of one panel exclude each other, as 'a is faster' and 'they are equal' do."""

    better: Ints
    other: Ints
    least: Floats
    panel: Ints
    answer: Ints

    def take(self, chosen: Ints | Marks) -> RequiredPairs:
        return RequiredPairs(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class PairEvidence:
    """What is shown of pairs, and whether their statement is (`passes`).

    margin: by how much the difference is more than has to be shown; asks: the factor of its standard error that a test asks for.
    chance: that it would be shown with all compositions of both; likely: chance that it is true, as far as anybody knows; settles:
    whether all that is left would say more of that. part: of the error that this look at the pair may spend; measured: whether both
    were, and beyond doubt.
    """

    difference: Floats
    margin: Floats
    error: Floats
    asks: Floats
    passes: Marks
    chance: Floats
    likely: Floats
    settles: Marks
    part: Floats
    measured: Marks


def tolerance(question: Question) -> float:
    """How much less good, as a logarithm, is as good as equal."""
    return -float(np.log1p(-question.within_pct / 100))


def family(question: Question, states: CellStates) -> int:
    """How many statements could be false, whatever is named."""
    sizes = np.bincount(states.panel[states.panel >= 0], minlength=len(states.panels))
    if question.form == "best":
        return max(1, int(np.sum(sizes - 1)))
    if question.form == "frontier":
        return max(1, int(np.sum(sizes * (sizes - 1))))
    return max(1, 2 * len(states.panels))


def named(question: Question, states: CellStates, expected: Expectation) -> list[Ints]:
    """The cells that the answer of each panel names by what is known: the best, or the frontier."""
    return [_best(question, states, expected.mean, here) for here in _members(states)]


def _members(states: CellStates) -> list[Ints]:
    return [np.flatnonzero((states.panel == number) & states.open) for number in range(len(states.panels))]


def _best(question: Question, states: CellStates, mean: Floats, here: Ints) -> Ints:
    if not here.size:
        return here
    good, devices = mean[here], np.log(states.devices[here])
    if question.form == "best":
        return here[[int(np.argmax(good))]]
    # Dominated: another is at least as fast and takes no more device-hours for the same work.
    over = good[:, None] - good[None, :]
    beats = (over >= 0) & (over >= devices[:, None] - devices[None, :])
    strictly = beats & ~(beats.T & (np.arange(here.size)[:, None] > np.arange(here.size)[None, :]))
    np.fill_diagonal(strictly, val=False)
    return here[~strictly.any(axis=0)]


def pairs_of(question: Question, states: CellStates, expected: Expectation, answers: Sequence[Ints]) -> RequiredPairs:
    """What has to be shown for these answers."""
    if question.form == "comparison":
        return _of_comparison(question, states)
    rows: list[tuple[int, int, float, int]] = []
    slack, devices = tolerance(question), np.log(states.devices)
    for panel, (here, chosen) in enumerate(zip(_members(states), answers, strict=True)):
        if not chosen.size:
            continue
        if question.form == "best":
            rows += [(int(chosen[0]), int(each), -slack, panel) for each in here if each != chosen[0]]
            continue
        inside = set(chosen.tolist())
        for each in here:
            if each not in inside:
                least = -slack + np.maximum(0.0, devices[chosen] - devices[each])
                by = int(np.argmax(expected.mean[chosen] - expected.mean[each] - least))
                rows.append((int(chosen[by]), int(each), float(least[by]), panel))
            else:
                least = -slack + np.minimum(0.0, devices[each] - devices[here])
                rows += [
                    (int(each), int(other), float(at), panel)
                    for other, at in zip(here, least, strict=True)
                    if other != each
                ]
    better, other, least_, panel_ = zip(*rows, strict=True) if rows else ((), (), (), ())
    return RequiredPairs(
        np.array(better, dtype=np.int64),
        np.array(other, dtype=np.int64),
        np.array(least_, dtype=np.float64),
        np.array(panel_, dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
    )


def _of_comparison(question: Question, states: CellStates) -> RequiredPairs:
    """The statements for each panel: the first is faster, the second is, or neither by more than the tolerance."""
    slack = tolerance(question)
    rows = []
    for panel, here in enumerate(_members(states)):
        sides = [
            [n for n in here if states.cells[n].configuration.name == name]
            for name in (question.first, question.second)
        ]
        if all(sides):
            (a, *_), (b, *_) = sides
            rows += [(a, b, 0.0, panel, 0), (b, a, 0.0, panel, 1), (a, b, -slack, panel, 2), (b, a, -slack, panel, 2)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    whole = [np.array(columns[n], dtype=np.int64) for n in (0, 1, 3, 4)]
    return RequiredPairs(whole[0], whole[1], np.array(columns[2], dtype=np.float64), whole[2], whole[3])


def shown(question: Question, states: CellStates, expected: Expectation, pairs: RequiredPairs) -> PairEvidence:
    """What the measurements show of pairs."""
    a, b = pairs.better, pairs.other
    both = (states.measured[a] > 0) & (states.measured[b] > 0)
    difference, variance, freedom = expected.difference(a, b)
    likely = scipy.special.ndtr((difference - pairs.least) / np.sqrt(variance))
    one = states.measured[a] > 0
    tested = one & ~both & expected.trusted
    after = np.sqrt(of_composition(states) * (1 / states.planned[a] + 1 / states.planned[b]))
    now = variance.copy()
    can_be = np.ones(a.size, dtype=np.bool_)
    if states.design is not None and both.any():
        found = comparisons.ratios(states.ids(a[both]), states.ids(b[both]), states.design)
        difference[both], freedom[both] = np.log(found.of.ratio), np.nan_to_num(found.of.freedom, nan=1.0)
        tested[both] = found.tested
        known = found.tested & (found.of.variance > 0)
        variance[both] = np.where(known, found.of.variance, variance[both])
        k_a, k_b = states.measured[a[both]], states.measured[b[both]]
        less = (1 / states.planned[a[both]] + 1 / states.planned[b[both]]) / (1 / k_a + 1 / k_b)
        after[both] = np.sqrt(variance[both] * less)
        can_be[both] = found.tested | (less < 1)
        now[both] = variance[both]
    looks = np.where(
        both, look_share(states.measured[a], states.measured[b], np.maximum(states.planned[a], states.planned[b])), 1.0
    )
    part = SIGNIFICANT * np.where(both, 1 - EXPECTED_PART, EXPECTED_PART) / family(question, states)
    error = np.sqrt(variance)
    by_far = -scipy.special.stdtrit(
        max(expected.configurations, 1), SIGNIFICANT * EXPECTED_PART / family(question, states)
    )
    far = both & expected.trusted & (difference - pairs.least > by_far * np.sqrt(2) * expected.left_out)
    part = np.maximum(part * looks, 1e-15)
    asks = -scipy.special.stdtrit(freedom, part)
    # One slow run is most of what a single composition says.
    doubtful = (states.measured[b] == 1) & (expected.surprise[b] < SURPRISE)
    passes = ((tested & (difference - pairs.least > asks * error)) | far) & ~doubtful
    last = look_share(states.planned[a], states.planned[b], np.maximum(states.planned[a], states.planned[b]))
    asks_last = -scipy.special.ndtri(SIGNIFICANT * (1 - EXPECTED_PART) / family(question, states) * last)
    # Differences change with what is left to measure, and errors with what will be known of the spread of compositions.
    unknown = np.where(both, (asks_last * after) ** 2 / (2 * freedom), 0.0)
    spread = np.sqrt(np.maximum(now - after**2, 0.0) + unknown + 1e-12)
    doubt_after = scipy.special.ndtr(-(difference - pairs.least) / after)
    settles = ~both | (doubt_after < (1 - likely) / 2)
    chance = np.where(can_be, scipy.special.ndtr((difference - pairs.least - asks_last * after) / spread), 0.0)
    return PairEvidence(
        difference, difference - pairs.least, error, asks, passes, chance, likely, settles, part, both & ~doubtful
    )


def of_composition(states: CellStates) -> float:
    """Variance of one composition of a cell, as far as it is known."""
    known = states.measured > 0
    return float(np.median(states.variance[known] * states.measured[known])) if known.any() else 0.03**2


def look_share(k_a: Ints, k_b: Ints, planned: Ints) -> Floats:
    """The part of a pair's error that a look with so many compositions of both has; over all looks they add up to one."""
    found = np.zeros(k_a.size)
    for most in np.unique(planned):
        counts = np.arange(1, most + 1)
        information = np.unique(_information(counts[:, None], counts[None, :], most).ravel())
        parts = np.diff(information, prepend=0.0)
        here = planned == most
        at = np.searchsorted(information, _information(k_a[here], k_b[here], most) - 1e-9)
        found[here] = parts[np.minimum(at, parts.size - 1)]
    return found


def _information(k_a: Ints, k_b: Ints, planned: int) -> Floats:
    mean = 2 / (1 / np.maximum(k_a, 1) + 1 / np.maximum(k_b, 1))
    return np.asarray(np.round(np.minimum(mean / planned, 1.0), 12), dtype=np.float64)
