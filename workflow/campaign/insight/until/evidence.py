"""What has to be shown for an answer, pair by pair, what the measurements show of it, and what more of them would show. Pure.

Every answer is a set of statements `goodness of a >= goodness of b + least`. A set is shown where each of its statements is, so
only the chance that one false statement is shown has to be kept small, over all that could be stated and over all looks:

- A false statement about the best of a panel names a cell that is worse than the true best one by more than the tolerance (Hsu
  1996, "Multiple comparisons", 4). The cells that could be named share the error of their panel (Bonferroni). One that is shown
  to be worse than another one by more than the tolerance (at `HOPELESS`, one-sided) cannot, and has no share.
- Panels share the error by steps up (Hochberg, 1988, "A sharper Bonferroni procedure for multiple tests of significance",
  Biometrika 75(4)): all are answered where each is at the whole error, else all but one at half of it, and so on. Panels share
  leases, so that what moves one moves the others alike, as this asks for.
- A pair is looked at again whenever one of its cells was composed again. The error is spent as the fourth power of the part that
  is composed (Kim & DeMets, 1987, "Design and analysis of group sequential tests based on the type I error spending rate
  function", Biometrika 74(1)), of the cell that was composed less often: the last of three has 80 %, the last two of five 87 %.
- A statement about a cell that was not measured rests on what is expected of it, with all of that expectation's uncertainty,
  and on a tenth of the error, which all such cells share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from campaign.insight.until.additive_model import Estimates
from campaign.insight.until.cell_states import CellStates, PricedMatrix
from campaign.insight.until.question import Question
from campaign.statistics.experiment_design import Marks
from campaign.statistics.intervals import SIGNIFICANT, Floats, Integers
from campaign.tables.io import Tables

EXPECTED_PART = 0.1
HOPELESS = 0.02
LEAST_TOLD = 3
"""With its precision and batch measured on fewer configurations, nothing is expected of a cell that leaves it out."""
NOTHING = 3
"""The answer to a comparison of cells of which one failed."""
_SPENT_AS = 4
_LEAST = 0.1  # freedom; less is none
_NAMES = 8  # cells of a panel that are tried as its answer
Row = tuple[int, int, float, int]
"""Of a statement: better, other, least, answer."""


@dataclass(frozen=True)
class RivalPairs:
    """Statements that `better` is at least as good as `other` plus `least`, by place of the cells. answer: number of the one
    that needs them, as 'a is faster' and 'they are equal' do. difference, error, freedom: of their goodness, its standard error,
    and the freedom of that; part: of the error of a statement of its panel, what this look may spend; 0 where it rests on what
    is expected. asks: by how many standard errors the difference has to be more than `least`."""

    better: Integers
    other: Integers
    least: Floats
    answer: Integers
    difference: Floats
    error: Floats
    freedom: Floats
    part: Floats
    asks: Floats

    @property
    def passes(self) -> Marks:
        return np.asarray(self.difference - self.least > self.asks * self.error, dtype=np.bool_)

    @property
    def needs(self) -> Floats:
        """The error at which each statement would be shown, beside what others need."""
        of = stdtr(np.maximum(self.freedom, _LEAST), (self.least - self.difference) / self.error)
        known = np.where((self.freedom > _LEAST) & np.isfinite(self.asks), of / np.maximum(self.part, 1e-12), np.inf)
        return np.where(self.part > 0, known, np.where(self.passes, 0.0, np.inf))

    def at(self, share: float) -> RivalPairs:
        """With the error that each statement may spend in all."""
        found = np.where(self.part > 0, _quantile(share * self.part, self.freedom), self.asks)
        return replace(self, asks=np.where(np.isinf(self.asks), np.inf, found))

    def take(self, chosen: Integers | Marks) -> RivalPairs:
        return RivalPairs(*(getattr(self, each.name)[chosen] for each in fields(self)))


@dataclass(frozen=True)
class QuestionPanel:
    """What is known of one panel. cells: those that compete; named: by the answer so far; answered: the number of the answer
    that is shown, -1 for none; candidates: how many could be named; pairs: statements that it needs; share: the error that each
    of these may spend in all, while as many panels are open as now."""

    cells: Integers
    named: Integers
    answered: int
    candidates: int
    pairs: RivalPairs
    share: float


class QuestionEvidence:
    """What is known of a question. prior: what another model expects of cells, see `campaign.insight.until.additive_model`."""

    def __init__(
        self, question: Question, matrix: PricedMatrix, tables: Tables | None, prior: Mapping[str, float] | None = None
    ) -> None:
        self.question, self.states = question, CellStates(question, matrix, tables)
        self.estimates = Estimates(self.states, prior)
        # Of a comparison, both configurations are measured.
        error = SIGNIFICANT * (1 - EXPECTED_PART * (question.form != "comparison"))
        found = []
        for number in range(len(self.states.panels)):
            here = np.flatnonzero((self.states.panel == number) & ~self.states.fails)
            count = self._candidates(here)
            # So many statements could be false, whatever is named.
            false = max(1, {"best": count - 1, "frontier": count * (count - 1), "comparison": 2}[question.form])
            answers = []
            for named, rows in self._answers(here, count):
                pairs = self._tested(rows)
                for answer in np.unique(pairs.answer) if rows else [NOTHING]:
                    needs = pairs.needs[pairs.answer == answer].max(initial=0.0)
                    answers.append((float(false * needs), int(answer), named, pairs))
            found.append((here, count, false, answers or [(np.inf, -1, here[:0], self._tested([]))]))
        worst = sorted((min(answer[0] for answer in answers) for *_, answers in found), reverse=True)
        share = error / next((n for n, each in enumerate(worst, 1) if each <= error / n), len(worst))
        open_ = max(1, sum(each > share for each in worst))
        self.panels = []
        for here, count, false, answers in found:
            needs, answer, named, pairs = next((each for each in answers if each[0] <= share), answers[0])
            answered = answer if needs <= share else -1
            pairs = pairs.at(share / false)
            self.panels.append(QuestionPanel(here, named, answered, count, pairs, error / open_ / false))

    @property
    def answered(self) -> Marks:
        return np.array([panel.answered >= 0 for panel in self.panels], dtype=np.bool_)

    @property
    def decided(self) -> bool:
        """Whether the question is answered: of all panels, and not because everything failed."""
        return bool(self.answered.all() and any(panel.cells.size for panel in self.panels))

    def after(self, places: Integers, compositions: Integers) -> tuple[Floats, Floats]:
        """The mean of cells that is expected after so many compositions, and the variance of that expectation."""
        known, of = self.states.measured[places], self.estimates
        more = np.maximum(compositions - known, 0)
        weight = known / np.maximum(known + more, 1)
        mean = weight * np.where(known > 0, of.measured[places], 0.0) + (1 - weight) * of.expected[places]
        spread = (1 - weight) ** 2 * (of.doubt[places, places] + of.composition[places] / np.maximum(more, 1))
        return mean, np.where(more > 0, spread, 0.0)

    def asked(
        self, panel: QuestionPanel, i: Integers, j: Integers, k_i: Integers, k_j: Integers, freedom: float
    ) -> Floats:
        """The difference beyond `least` that a test of cells i and j will ask for after so many compositions of each."""
        of = self.estimates.composition
        error = np.sqrt(of[i] / np.maximum(k_i, 1) + of[j] / np.maximum(k_j, 1))
        part = spent(np.minimum(k_i, k_j), *self._looks(i, j))
        times = _quantile(panel.share * part, np.full(i.size, freedom))
        return np.minimum(times, 1e9) * error  # infinite without freedom

    def chances(
        self, panel: QuestionPanel, pairs: RivalPairs, better: Integers, other: Integers, freedom: float
    ) -> Floats:
        """The chance that statements are shown after so many compositions of their cells, by place. The spread that tests will use
        is not known, either."""
        i, j = pairs.better, pairs.other
        (a, v), (b, w) = self.after(i, better[i]), self.after(j, other[j])
        needs = self.asked(panel, i, j, better[i], other[j], freedom)
        spread = np.sqrt(v + w + needs**2 / (2 * (max(freedom, 0.0) + 2)) + 1e-12)
        return np.asarray(ndtr((a - b - pairs.least - needs) / spread), dtype=np.float64)

    def _looks(self, i: Integers, j: Integers) -> tuple[Integers, Integers]:
        """How many looks at pairs were planned, and how many are possible."""
        of = self.states
        return np.minimum(of.planned[i], of.planned[j]), np.minimum(of.possible[i], of.possible[j])

    def _candidates(self, here: Integers) -> int:
        """How many cells of a panel could be named."""
        some = here[self.states.measured[here] > 0]
        if self.question.form == "comparison" or some.size < 2:
            return max(1, some.size)
        i, j = (each.ravel() for each in np.meshgrid(some, some, indexing="ij"))
        difference, variance, freedom = self.estimates.differences(i, j)
        needs = self.question.tolerance + _quantile(np.full(i.size, HOPELESS), freedom) * np.sqrt(variance)
        if self.question.form == "frontier":
            needs = needs + np.maximum(0.0, np.log(self.states.devices[i] / self.states.devices[j]))
        return max(1, int((~(difference > needs).reshape(some.size, some.size).any(axis=0)).sum()))

    def _answers(self, here: Integers, candidates: int) -> list[tuple[Integers, list[Row]]]:
        """What may be named in a panel, the likeliest first, with the statements that it needs."""
        states, estimates, slack = self.states, self.estimates, self.question.tolerance
        if self.question.form == "comparison":
            names = [states.cells[n].configuration.name for n in here]
            if not {self.question.first, self.question.second} <= set(names):
                return [(here[:0], [])]
            a, b = (int(here[names.index(name)]) for name in (self.question.first, self.question.second))
            return [(np.array([a, b]), [(a, b, 0.0, 0), (b, a, 0.0, 1), (a, b, -slack, 2), (b, a, -slack, 2)])]
        some = here[states.measured[here] > 0]
        if not some.size:
            return [] if here.size else [(here, [])]
        if self.question.form == "best":
            # What is shown is named before what seems better: of cells that are as good as equal, one is told earlier than another.
            best = some[np.argsort(-estimates.expected[some], kind="stable")][: max(1, min(candidates, _NAMES))]
            return [(np.array([one]), [(int(one), int(n), -slack, 0) for n in here if n != one]) for one in best]
        # Cells that no other one dominates: one that is at least as fast and takes no more device-hours for the same work.
        devices, good = np.log(states.devices), np.where(states.measured > 0, estimates.measured, estimates.expected)
        over = good[some][:, None] - good[some][None, :]
        beats = (over >= 0) & (over >= devices[some][:, None] - devices[some][None, :])
        named = some[~(beats & ~(beats.T & np.tri(some.size, dtype=np.bool_))).any(axis=0)]
        rows = list[Row]()
        for each in map(int, here):
            if each not in named:  # one of the named covers it, and none dominates a named one
                least = -slack + np.maximum(0.0, devices[named] - devices[each])
                by = int(np.argmax(good[named] - good[each] - least))
                rows.append((int(named[by]), each, float(least[by]), 0))
            else:
                least = -slack + np.minimum(0.0, devices[each] - devices[here])
                rows += [(each, int(n), float(at), 0) for n, at in zip(here, least, strict=True) if n != each]
        return [(named, rows)]

    def _tested(self, rows: list[Row]) -> RivalPairs:
        """Statements of one panel, before their share of the error is known."""
        states, estimates = self.states, self.estimates
        columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        i, j, answer = columns[[0, 1, 3]].astype(np.int64)
        both = (states.measured[i] > 0) & (states.measured[j] > 0)
        difference, variance, freedom, part, asks = np.zeros((5, i.size))
        a, b = i[~both], j[~both]
        difference[~both], variance[~both] = estimates.expectations(a, b)
        # Of a configuration that was never composed, only other configurations tell anything.
        seen = np.unique(states.configuration[states.place])
        of = np.where(np.isin(states.configuration[b], seen), estimates.checked[a], seen.size - 1.0)
        sure = (states.measured[a] > 0) & (estimates.told[b] >= LEAST_TOLD) & (self.question.form != "comparison")
        unmeasured = int(((states.measured == 0) & ~states.fails & (states.panel >= 0)).sum())
        level = np.full(a.size, SIGNIFICANT * EXPECTED_PART / max(1, unmeasured))
        asks[~both] = _quantile(level, np.where(sure, of, 0.0))
        a, b = i[both], j[both]
        difference[both], variance[both], freedom[both] = estimates.differences(a, b)
        part[both] = spent(np.minimum(states.measured[a], states.measured[b]), *self._looks(a, b))
        if a.size and states.design is not None:  # what a host does cannot be told from what these configurations do
            within = states.configuration[a] == states.configuration[b]
            effects = states.design.host_effects.pairs(states.in_design[a], states.in_design[b], within)
            asks[both] = np.where(effects.confounded, np.inf, 0.0)
        return RivalPairs(i, j, columns[2], answer, difference, np.sqrt(variance), freedom, part, asks)


def spent(compositions: Integers, planned: Integers, possible: Integers) -> Floats:
    """The part of a pair's error for looks with so many compositions of the cell that was composed less often; they add up to
    one. possible: fewer than planned where some failed. Looks before that may have spent as planned, and the last one spends the
    rest."""
    of = np.minimum(compositions, possible)
    before, now = ((of - 1) / possible) ** _SPENT_AS, (of / possible) ** _SPENT_AS
    before = np.where((of == possible) & (of < planned), np.maximum(before, (of / planned) ** _SPENT_AS), before)
    return np.asarray(now - before, dtype=np.float64)


def _quantile(level: Floats, freedom: Floats) -> Floats:
    """By how many standard errors a difference has to be larger; infinite without freedom."""
    with np.errstate(invalid="ignore"):
        return np.where(freedom > _LEAST, -stdtrit(np.maximum(freedom, _LEAST), np.clip(level, 1e-20, 0.5)), np.inf)
