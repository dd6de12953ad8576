"""What has to be shown for an answer, pair by pair, what the measurements show of it, and what more of them would show. Pure.

Every answer is a set of statements `goodness of a >= goodness of b + least`. A set is shown where each of its statements is, so
only the chance that one false statement is shown has to be kept small, over all that could be stated and over all looks:

- A false statement about the best of a panel names a cell that is worse than the true best one by more than the tolerance (Hsu
  1996, "Multiple comparisons", 4). The cells that could be named share the error (Bonferroni). One that is shown to be worse
  than another one by more than the tolerance (at `HOPELESS`, one-sided) cannot, and has no share.
- A panel that is answered gives its part of the error to the others (Holm, 1979, "A simple sequentially rejective multiple test
  procedure", Scandinavian Journal of Statistics 6(2)).
- A pair is looked at again whenever one of its cells was composed again. The error is spent as O'Brien & Fleming do, in the form of
  Lan & DeMets (1983, "Discrete sequential boundaries for clinical trials", Biometrika 70(3)), over the compositions of the cell
  that was composed less often: the last of three has 67 %, the last two of five 77 %.
- A statement about a cell that was not measured rests on what is expected of it, with all of that expectation's uncertainty,
  and on a tenth of the error, which all such cells share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from campaign.insight.until.additive_model import Estimates, estimate
from campaign.insight.until.cell_states import CellStates, Floats, Ints, Marks, PricedMatrix, states_of
from campaign.insight.until.question import Question
from campaign.statistics.intervals import SIGNIFICANT
from campaign.tables.io import Tables

EXPECTED_PART = 0.1
HOPELESS = 0.02
LEAST_TOLD = 3
"""With its precision and batch measured on fewer configurations, nothing is expected of a cell that leaves it out."""
NOTHING = 3
"""The answer to a comparison of cells of which one failed."""
_DRAWS = 500
_NAMES = 8  # cells of a panel that are tried as its answer


@dataclass(frozen=True)
class RivalPairs:
    """Statements that `better` is at least as good as `other` plus `least`, by place of the cells. answer: number of the one
    that needs them, as 'a is faster' and 'they are equal' do. difference, error: of their goodness, and its standard error;
    asks: by how many of these the difference has to be more than `least`; passes: whether it is."""

    better: Ints
    other: Ints
    least: Floats
    answer: Ints
    difference: Floats
    error: Floats
    asks: Floats

    @property
    def passes(self) -> Marks:
        return np.asarray(self.difference - self.least > self.asks * self.error, dtype=np.bool_)

    def take(self, chosen: Ints | Marks) -> RivalPairs:
        return RivalPairs(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class QuestionPanel:
    """What is known of one panel. cells: those that compete; named: by the answer so far; answered: the number of the answer
    that is shown, -1 for none; candidates: how many could be named; pairs: statements that it needs."""

    cells: Ints
    named: Ints
    answered: int
    candidates: int
    pairs: RivalPairs


@dataclass(frozen=True)
class QuestionEvidence:
    """What is known. share: the part of the error that each statement may spend on its last look."""

    question: Question
    states: CellStates
    estimates: Estimates
    panels: tuple[QuestionPanel, ...]
    share: float

    @property
    def answered(self) -> Marks:
        return np.array([panel.answered >= 0 for panel in self.panels], dtype=np.bool_)

    @property
    def decided(self) -> bool:
        """Whether the question is answered: of all panels, and not because everything failed."""
        return bool(self.answered.all() and any(panel.cells.size for panel in self.panels))

    def composition(self, places: Ints) -> Floats:
        """Variance of one composition of cells of one workload."""
        fit = self.estimates.of(places[0])
        return fit.composition * fit.more[self.estimates.row[places]]

    def freedom(self, place: int) -> float:
        """Freedom of the spread of compositions of the workload of a cell."""
        return self.estimates.of(place).freedom[0]

    def after(self, places: Ints, compositions: Ints) -> tuple[Floats, Floats]:
        """The mean of cells that is expected after so many compositions, and the variance of that expectation."""
        known = self.states.measured[places]
        more = np.maximum(compositions - known, 0)
        column = self.estimates.column[places]
        doubt = self.estimates.of(places[0]).posterior[self.estimates.row[places], column, column]
        weight = known / np.maximum(known + more, 1)
        now = np.where(known > 0, self.estimates.measured[places], 0.0)
        mean = weight * now + (1 - weight) * self.estimates.expected[places]
        spread = (1 - weight) ** 2 * (doubt + self.composition(places) / np.maximum(more, 1))
        return mean, np.where(more > 0, spread, 0.0)

    def asked(self, i: Ints, j: Ints, k_i: Ints, k_j: Ints, freedom: float) -> Floats:
        """The difference beyond `least` that a test of cells i and j will ask for after so many compositions of each."""
        error = np.sqrt(self.composition(i) / np.maximum(k_i, 1) + self.composition(j) / np.maximum(k_j, 1))
        planned = np.maximum(np.maximum(self.states.planned[i], self.states.planned[j]), np.minimum(k_i, k_j))
        return _quantile(self.share * spent(np.minimum(k_i, k_j), planned), np.full(i.size, max(freedom, 1e-9))) * error


def weigh(
    question: Question, matrix: PricedMatrix, tables: Tables | None, prior: Mapping[str, float] | None = None
) -> QuestionEvidence:
    """What is known of a question. prior: what another model expects of cells, see `campaign.insight.until.additive_model`."""
    states = states_of(question, matrix, tables)
    estimates = estimate(states, prior)
    members = [np.flatnonzero((states.panel == number) & states.open) for number in range(len(states.panels))]
    counts = [_candidates(question, states, estimates, here) for here in members]
    answered = np.zeros(len(members), dtype=np.bool_)
    while True:  # panels that are answered leave their part of the error to the others
        left = [count for count, done in zip(counts, answered, strict=True) if not done] or counts
        # So many statements could be false, whatever is named.
        each = {"best": [n - 1 for n in left], "frontier": [n * (n - 1) for n in left], "comparison": [2] * len(left)}
        rests = 0.0 if question.form == "comparison" else EXPECTED_PART  # both configurations are measured
        share = SIGNIFICANT * (1 - rests) / max(1, sum(each[question.form]))
        unmeasured = int(((states.measured == 0) & states.open & (states.panel >= 0)).sum())
        shares = share, SIGNIFICANT * EXPECTED_PART / max(1, unmeasured)
        panels = tuple(
            _panel(question, states, estimates, here, count, shares)
            for here, count in zip(members, counts, strict=True)
        )
        now = np.array([panel.answered >= 0 for panel in panels], dtype=np.bool_)
        if not (now & ~answered).any() or now.all():
            return QuestionEvidence(question, states, estimates, panels, share)
        answered |= now


def tolerance(question: Question) -> float:
    """How much less good, as a logarithm, is as good as equal."""
    return -math.log1p(-question.within_pct / 100)


def spent(compositions: Ints, planned: Ints) -> Floats:
    """The part of a pair's error for looks with so many compositions of the cell that was composed less often; they add up to
    one."""
    from scipy.special import ndtr, ndtri

    def until(parts: Floats) -> Floats:
        return np.asarray(
            2 * ndtr(ndtri(SIGNIFICANT / 2) / np.sqrt(np.maximum(parts, 1e-9))) / SIGNIFICANT, dtype=np.float64
        )

    return until(np.minimum(compositions / planned, 1.0)) - until((np.minimum(compositions, planned) - 1) / planned)


def _quantile(level: Floats, freedom: Floats) -> Floats:
    """By how many standard errors a difference has to be larger; infinite without freedom."""
    from scipy.special import stdtrit

    with np.errstate(invalid="ignore"):
        return np.where(freedom > 0.1, -stdtrit(np.maximum(freedom, 0.1), np.clip(level, 1e-20, 0.5)), np.inf)


def _tested(
    states: CellStates, estimates: Estimates, i: Ints, j: Ints, shares: tuple[float, float]
) -> tuple[Floats, Floats, Floats]:
    """Differences of pairs of one panel, their standard errors, and how many of these a test asks for. shares: of the error,
    for a pair that was measured, and for another one."""
    both = (states.measured[i] > 0) & (states.measured[j] > 0)
    difference, variance, asks = np.zeros((3, i.size))
    if not both.all():
        a, b = i[~both], j[~both]
        difference[~both], variance[~both] = estimates.expectations(a, b)
        # Of a configuration that was never composed, only other configurations tell anything.
        seen = np.unique(estimates.row[(states.measured > 0) & (estimates.fit == estimates.fit[i[0]])])
        freedom = np.where(np.isin(estimates.row[b], seen), estimates.of(i[0]).checked, seen.size - 1.0)
        sure = (states.measured[a] > 0) & (estimates.told[b] >= LEAST_TOLD)
        asks[~both] = _quantile(np.full(a.size, shares[1]), np.where(sure, freedom, 0.0))
    if both.any():
        a, b = i[both], j[both]
        difference[both], variance[both], freedom_ = estimates.differences(a, b)
        least = np.minimum(states.measured[a], states.measured[b])
        level = shares[0] * spent(least, np.maximum(np.maximum(states.planned[a], states.planned[b]), least))
        asks[both] = _quantile(level, freedom_)
        if states.design is not None:  # what a host does cannot be told from what these configurations do
            within = estimates.row[a] == estimates.row[b]
            confounded = states.design.host_effects.pairs(states.in_design[a], states.in_design[b], within).confounded
            asks[both] = np.where(confounded, np.inf, asks[both])
    return difference, np.sqrt(variance), asks


def _candidates(question: Question, states: CellStates, estimates: Estimates, here: Ints) -> int:
    """How many cells of a panel could be named."""
    some = here[states.measured[here] > 0]
    if question.form == "comparison" or some.size < 2:
        return max(1, some.size)
    i, j = (each.ravel() for each in np.meshgrid(some, some, indexing="ij"))
    difference, variance, freedom = estimates.differences(i, j)
    needs = tolerance(question) + _quantile(np.full(i.size, HOPELESS), freedom) * np.sqrt(variance)
    if question.form == "frontier":
        needs = needs + np.maximum(0.0, np.log(states.devices[i]) - np.log(states.devices[j]))
    worse = (difference > needs).reshape(some.size, some.size).any(axis=0)
    return max(1, int((~worse).sum()))


def _panel(
    question: Question,
    states: CellStates,
    estimates: Estimates,
    here: Ints,
    candidates: int,
    shares: tuple[float, float],
) -> QuestionPanel:
    slack = tolerance(question)

    def pairs(rows: tuple[Ints, Ints, Floats, Ints]) -> RivalPairs:
        return RivalPairs(*rows, *_tested(states, estimates, rows[0], rows[1], shares))

    if question.form == "comparison":
        names = [states.cells[n].configuration.name for n in here]
        sides = [
            [n for n, of in zip(here, names, strict=True) if of == one] for one in (question.first, question.second)
        ]
        if not all(sides):
            return QuestionPanel(here, here[:0], NOTHING, 0, pairs(_columns([])))
        (a, *_), (b, *_) = sides
        needed = pairs(_columns([(a, b, 0.0, 0), (b, a, 0.0, 1), (a, b, -slack, 2), (b, a, -slack, 2)]))
        shown = [each for each in (0, 1, 2) if needed.passes[needed.answer == each].all()]
        return QuestionPanel(here, np.array([a, b]), shown[0] if shown else -1, candidates, needed)
    some = here[states.measured[here] > 0]
    if not some.size:
        return QuestionPanel(here, here[:0], 0 if not here.size else -1, candidates, pairs(_columns([])))
    if question.form == "best":
        # What is shown is named before what seems better: of cells that are as good as equal, one is told earlier than another.
        best = some[np.argsort(-estimates.expected[some], kind="stable")][: max(1, min(candidates, _NAMES))]
        found = [pairs(_columns([(int(one), int(n), -slack, 0) for n in here if n != one])) for one in best]
        number = next((n for n, each in enumerate(found) if each.passes.all()), 0)
        answered = 0 if found[number].passes.all() else -1
        return QuestionPanel(here, best[number : number + 1], answered, candidates, found[number])
    named = _frontier(states, estimates, some)
    needed = pairs(_of_frontier(states, estimates, here, named, slack))
    return QuestionPanel(here, named, 0 if needed.passes.all() else -1, candidates, needed)


def _columns(rows: list[tuple[int, int, float, int]]) -> tuple[Ints, Ints, Floats, Ints]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    a, b, answer = (np.array(columns[n], dtype=np.int64) for n in (0, 1, 3))
    return a, b, np.array(columns[2], dtype=np.float64), answer


def _frontier(states: CellStates, estimates: Estimates, here: Ints) -> Ints:
    """Cells that no other one dominates: one that is at least as fast and takes no more device-hours for the same work."""
    good, devices = estimates.measured[here], np.log(states.devices[here])
    over = good[:, None] - good[None, :]
    beats = (over >= 0) & (over >= devices[:, None] - devices[None, :])
    strictly = beats & ~(beats.T & (np.arange(here.size)[:, None] > np.arange(here.size)[None, :]))
    np.fill_diagonal(strictly, val=False)
    return here[~strictly.any(axis=0)]


def _of_frontier(
    states: CellStates, estimates: Estimates, here: Ints, named: Ints, slack: float
) -> tuple[Ints, Ints, Floats, Ints]:
    """A named cell covers each other one, and none dominates a named one."""
    devices, rows = np.log(states.devices), list[tuple[int, int, float, int]]()
    good = np.where(states.measured > 0, estimates.measured, estimates.expected)
    for each in here:
        if each not in named:
            least = -slack + np.maximum(0.0, devices[named] - devices[each])
            by = int(np.argmax(good[named] - good[each] - least))
            rows.append((int(named[by]), int(each), float(least[by]), 0))
        else:
            least = -slack + np.minimum(0.0, devices[each] - devices[here])
            rows += [
                (int(each), int(other), float(at), 0) for other, at in zip(here, least, strict=True) if other != each
            ]
    return _columns(rows)


def chance(evidence: QuestionEvidence, panel: QuestionPanel, compositions: Ints, freedom: float, seed: int) -> float:
    """The chance that a panel is answered after so many compositions of its cells (`compositions`, by place in `panel.cells`)."""
    cells, slack = panel.cells, tolerance(evidence.question)
    mean, variance = evidence.after(cells, compositions)
    # A lease moves all cells of a configuration: the best one of each stands for it.
    random = np.random.default_rng([seed, cells.size])
    some, rows = np.arange(cells.size), evidence.estimates.row[cells]
    if evidence.question.form == "best":
        some = np.array([max(np.flatnonzero(rows == row), key=lambda n: mean[n]) for row in np.unique(rows)])
    drawn = mean[some] + np.sqrt(variance[some]) * random.standard_normal((_DRAWS, some.size))
    of, k = cells[some], compositions[some]
    # The spread that tests will use is not known, either.
    now = evidence.freedom(int(cells[0])) + 2
    wide = np.sqrt(random.chisquare(now, _DRAWS) / now)

    def asked(i: Ints, j: Ints) -> Floats:
        return np.minimum(evidence.asked(of[i], of[j], k[i], k[j], freedom), 1e9) * wide[:, None]

    if evidence.question.form == "best":
        top, places = np.argmax(drawn, axis=1), np.arange(some.size)
        needs = np.stack([asked(np.full(some.size, n), places) for n in places])[top, np.arange(_DRAWS)]
        well = (drawn.max(axis=1)[:, None] - drawn + slack > needs) | (places[None, :] == top[:, None])
        return float(well.all(axis=1).mean())
    at = {int(cell): n for n, cell in enumerate(cells)}
    left = panel.pairs.take(~panel.pairs.passes)
    i, j = (np.array([at[int(n)] for n in each], dtype=np.int64) for each in (left.better, left.other))
    well = drawn[:, i] - drawn[:, j] - left.least > asked(i, j)
    return float(np.any([well[:, left.answer == each].all(axis=1) for each in np.unique(left.answer)], axis=0).mean())
