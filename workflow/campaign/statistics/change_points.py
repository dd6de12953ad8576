"""Changes in the histories of cells: from which campaign on a cell is faster or slower than before. Pure.

A campaign is one value, the mean of the logarithms of its compositions, whatever their number.

Sources
-------
Where: E-divisive means, Matteson & James (2014), "A nonparametric approach for multiple change point analysis of multivariate
data", JASA 109(505): the place at which the energy distance of what is before and after is largest; again on both sides.
Whether: Student's t in place of permutations, Fleming, Kołaczkowski, Kumar, Das, McCarthy, Pattabhiraman & Ingo (2023), "Hunter:
Using change point detection to hunt for performance regressions", ICPE (arXiv 2301.03034). Permutations of 13 campaigns of which 3
are new have no p below 0.0035.
Spread: that between campaigns, and that of compositions within them, unless campaigns differ by more than their compositions
explain (an F test at SAME, after Bancroft, 1944): then a system is never twice the same, for all of its cells, and only campaigns
tell by how much. A dozen of them tell little of one cell, so each is moderated by all cells as far as these are alike: Smyth
(2004), "Linear models and empirical Bayes methods for assessing differential expression", Statistical Applications in Genetics and
Molecular Biology 3(1).
Before changes are known, the spread between campaigns is by successive differences (von Neumann, 1941): a change alters one. In
the history where that one matters most it is left out, or a single change in few cells would pass for the spread of the system.
Level: Bonferroni's inequality over cells, over places, and over looks: the look at n campaigns gets 4 / ((n - 6) (n - 5)) of the
level, which sums to 1 from ten on, so that a history may be looked at for ever.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy

from campaign.statistics.intervals import Floats, student_quantile

LEAST = 10
"""Histories of fewer campaigns are not looked at."""
LEVEL = 0.01
"""How often a site without a change may ever be said to have one."""
AGREE = 2
"""How many campaigns a change needs on each side: one alone may be an accident."""
SAME = 0.25
"""How often campaigns that differ by their compositions alone are taken to differ by more."""
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """at: place of the first campaign after the change. ratio, low, high: of what is after it to what is before, with its 95 %
    interval. p: adjusted, below LEVEL."""

    at: int
    ratio: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class _Spread:
    """Variance of a value and its degrees of freedom: of one cell from the compositions of its campaigns, of all cells together,
    and how many that of one may have at most."""

    within: float
    within_freedom: float
    common: float
    worth: float
    most_freedom: float

    def of(self, squares: float, freedom: int) -> tuple[float, float]:
        """With the squares of its values about their means."""
        squares, own = squares + self.within_freedom * self.within, freedom + self.within_freedom
        variance = self.common if np.isinf(self.worth) else (self.worth * self.common + squares) / (self.worth + own)
        return max(variance, _ROUNDING), max(own, min(self.worth + own, self.most_freedom))


def change_points(
    histories: Sequence[Sequence[npt.ArrayLike]], groups: Sequence[Hashable]
) -> list[tuple[ChangePoint, ...]]:
    """The changes of each history, in order of time.

    histories: of the cells of a site: for each campaign, oldest first, the logarithms of its compositions. groups: which of them
    share their compositions, such as those of a configuration: they are no independent evidence of the spread.
    """
    found: list[tuple[ChangePoint, ...]] = [()] * len(histories)
    tested = [place for place, each in enumerate(histories) if len(each) >= LEAST]
    series = [[np.asarray(campaign, dtype=np.float64) for campaign in histories[place]] for place in tested]
    values = [np.array([campaign.mean() for campaign in each]) for each in series]
    spreads = _spreads(values, series, [groups[place] for place in tested])
    for place, own, spread in zip(tested, values, spreads, strict=True):
        n = own.size
        looks = (n - LEAST + 4) * (n - LEAST + 5) / 4
        found[place] = _changes(own, len(tested) * (n - 2 * AGREE + 1) * looks, spread)
    return found


def _spreads(
    values: Sequence[Floats], series: Sequence[Sequence[Floats]], groups: Sequence[Hashable]
) -> Sequence[_Spread]:
    if not series:
        return ()
    n = np.array([each.size for each in values], dtype=np.float64)
    between = np.maximum(_between(values), _ROUNDING)
    freedom = 2 * (n - 1) ** 2 / (3 * n - 4)  # of von Neumann's estimate
    size = np.array([np.mean([1 / campaign.size for campaign in each]) for each in series])
    within_freedom = np.array([sum(campaign.size - 1 for campaign in each) for each in series], dtype=np.float64)
    squares = np.array([sum(float(((each - each.mean()) ** 2).sum()) for each in campaigns) for campaigns in series])
    within = np.maximum(squares / np.maximum(within_freedom, 1) * size, _ROUNDING)
    known = within_freedom > 2
    # Campaigns move all cells together: of them there are as many as in one history.
    ratio = (
        float(np.mean((between / within * (1 - 2 / np.maximum(within_freedom, 3)))[known])) if known.any() else np.inf
    )
    alike = ratio <= scipy.special.fdtri(freedom.max(), max(within_freedom.max(), 1.0), 1 - SAME)
    within, within_freedom = within * (max(ratio, 1.0) if alike else 1.0), np.where(known & alike, within_freedom, 0.0)
    own = freedom + within_freedom
    both = (freedom * between + within_freedom * within) / own
    common, worth = _moderation(both, own)
    most: dict[Hashable, float] = {}  # what moves all cells is one piece of evidence
    for group, size_, further in zip(groups, n, within_freedom, strict=True):
        shared = group if alike else None
        most[shared] = max(most.get(shared, 0.0), float(size_ - 2 + further))
    total = sum(most.values())
    return [
        _Spread(float(each) if further else 0.0, float(further), common, worth, total)
        for each, further in zip(within, within_freedom, strict=True)
    ]


def _between(values: Sequence[Floats]) -> Floats:
    """Variance by successive differences; of the history that falls most without it, without its likeliest change."""
    squares = [np.diff(each) ** 2 / 2 for each in values]
    less = [np.delete(own, _place(each) - 1).mean() for own, each in zip(squares, values, strict=True)]
    found = np.array([own.mean() for own in squares])
    most = int(np.argmax(found / np.maximum(less, _ROUNDING)))
    found[most] = less[most]
    return found


def _moderation(variance: Floats, freedom: Floats) -> tuple[float, float]:
    """Variance that cells have in common, and how many degrees of freedom it is worth for each: Smyth's estimates."""
    half = freedom / 2
    logs = np.log(variance) - scipy.special.digamma(half) + np.log(half)
    if variance.size < 2:
        return float(variance[0]), 0.0
    spread = float(logs.var(ddof=1) - scipy.special.polygamma(1, half).mean())
    if spread <= 0:
        return float(np.exp(logs.mean())), np.inf
    # The inverse of the trigamma function.
    own = scipy.optimize.brentq(lambda log: float(scipy.special.polygamma(1, np.exp(log))) - spread, -12, 25)
    worth = float(np.exp(own))
    return float(np.exp(logs.mean() + scipy.special.digamma(worth) - np.log(worth))), 2 * worth


def _changes(values: Floats, tests: float, spread: _Spread) -> tuple[ChangePoint, ...]:
    """The changes of one history: one more as long as there is one; sizes are those between neighbours in the end."""
    ends, p = [0, values.size], dict[int, float]()
    while True:
        parts = [(a, b) for a, b in pairwise(ends) if b - a >= 2 * AGREE]
        candidates = [_tested(values, ends, a, a + _place(values[a:b]), b, spread) for a, b in parts]
        best = min(candidates, key=lambda each: each.p, default=None)
        if best is None or best.p * tests >= LEVEL:
            break
        ends = sorted([*ends, best.at])
        p[best.at] = best.p * tests
    inner = zip(ends, ends[1:], ends[2:], strict=False)
    return tuple(replace(_tested(values, ends, a, at, b, spread), p=p[at]) for a, at, b in inner)


def _tested(values: Floats, ends: Sequence[int], a: int, at: int, b: int, spread: _Spread) -> ChangePoint:
    """Student's t between the values from `a` and those from `at` on, to `b`; p: of this test alone."""
    parts = np.split(values, sorted({*ends[1:-1], at}))
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    variance, freedom = spread.of(squares, values.size - len(parts))
    error = np.sqrt(variance * (1 / (at - a) + 1 / (b - at)))
    size = float(values[at:b].mean() - values[a:at].mean())
    half = float(student_quantile(freedom)) * error
    p = 2 * float(scipy.special.stdtr(freedom, -abs(size) / error))
    ratio, low, high = (float(np.exp(each)) for each in (size, size - half, size + half))
    return ChangePoint(at, ratio, low, high, p)


def _place(values: Floats) -> int:
    """Where the energy distance of what is before and after is largest: the number of values before."""
    n = values.size
    apart = np.abs(values[:, None] - values)
    before = np.diag(apart.cumsum(axis=0).cumsum(axis=1))[:-1]
    between = apart.sum(axis=1).cumsum()[:-1] - before
    after = apart.sum() - 2 * between - before
    k = np.arange(1, n)
    distance = k * (n - k) / n * (2 * between / (k * (n - k)) - before / k**2 - after / (n - k) ** 2)
    return AGREE + int(np.argmax(distance[AGREE - 1 : n - AGREE]))
