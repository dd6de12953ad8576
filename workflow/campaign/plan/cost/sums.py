"""Sums of times whose errors partly go together: what comes from one source is off by the same share everywhere. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import NormalDist

from campaign.plan.cost.estimates import Estimate
from campaign.plan.cost.measured_times import LogTime

LEVEL = 0.95
"""How often an interval is to hold what it says."""
_WIDEST = 1.0  # of a variance in ln(s)^2, where a median is turned into a mean: what is hardly known is not inflated
_MOST_VARIANCE = 4.0  # of one time in ln(s)^2: a single one of which nothing is known does not make a sum unknown

Source = tuple[Hashable, float, str]
"""What an error comes from: a table of times, its degrees of freedom, and which of its assumptions or times."""


@dataclass(slots=True)
class Sum:
    """Seconds. errors_s: by source, of what is added up; noise: variance of what is not; assumed: has no interval. told: its own
    estimate, where more is known of it than of a sum."""

    expected_s: float = 0.0
    unknown: bool = False
    assumed: bool = False
    errors_s: defaultdict[Source, float] = field(default_factory=lambda: defaultdict(float))
    noise: float = 0.0
    told: Estimate | None = None

    def add(
        self,
        time: LogTime,
        table: Hashable,
        name: str,
        count: float = 1.0,
        *,
        most_s: float = math.inf,
        runs: bool = True,
    ) -> None:
        """Add a time so often. most_s: of each; runs: whether each has noise of its own, and is not one thing many times."""
        each = expected(time, most_s)
        seconds = count * each
        self.expected_s += seconds
        for source, sd in time.shared.items():
            self.errors_s[table, time.freedom, source] += seconds * math.copysign(_relative(sd**2) ** 0.5, sd)
        self.errors_s[table, time.freedom, name] += seconds * _relative(time.own) ** 0.5
        self.noise += (seconds * each if runs else seconds**2) * _relative(time.run)

    def include(self, other: Sum, weight: float = 1.0, *, needed: bool = True) -> None:
        """Add another sum, times a weight. needed: without it, the whole is unknown; otherwise it is what is known of it."""
        self.expected_s += weight * other.expected_s
        self.unknown |= other.unknown and needed
        self.assumed |= other.assumed
        for source, seconds in other.errors_s.items():
            self.errors_s[source] += weight * seconds
        self.noise += weight**2 * other.noise

    def estimate(self) -> Estimate:
        """Unknown, assumed, or with its interval: that of the logarithm (delta method; freedom by Welch and Satterthwaite)."""
        if self.told:
            return self.told
        if self.unknown or self.assumed:
            return Estimate(None if self.unknown else self.expected_s)
        tables: defaultdict[tuple[Hashable, float], float] = defaultdict(float)
        for (table, freedom, _), seconds in self.errors_s.items():
            tables[table, freedom] += seconds**2
        variance = self.noise + sum(tables.values())
        if not variance or not self.expected_s:
            return Estimate(self.expected_s, self.expected_s, self.expected_s)
        spent = sum(part**2 / freedom for (_, freedom), part in tables.items())
        # Far from what was measured the relative error is large; as a variance of the logarithm it stays what it is for small ones.
        factor = math.exp(
            student(variance**2 / spent if spent else math.inf) * math.log1p(variance / self.expected_s**2) ** 0.5
        )
        return Estimate(self.expected_s, self.expected_s / factor, self.expected_s * factor)


def expected(time: LogTime, most_s: float = math.inf) -> float:
    """Seconds of one of many: their mean, not more than a limit; seconds that were assumed as they were."""
    return min(round(math.exp(time.median + min(_WIDEST, time.own + time.run) / 2), 9), most_s)


def student(freedom: float, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, to 0.5 % from 3 degrees of freedom on (Fisher and Cornish 1960, Technometrics 2:209)."""
    z, n = NormalDist().inv_cdf(0.5 + level / 2), max(3.0, freedom)
    return z + sum(
        sum(a * z**power for a, power in zip(terms, (1, 3, 5, 7, 9), strict=False)) / (divisor * n**order)
        for order, (divisor, terms) in enumerate(
            (
                (4, (1, 1)),
                (96, (3, 16, 5)),
                (384, (-15, 17, 19, 3)),
                (92160, (-945, -1920, 1482, 776, 79)),
            ),
            1,
        )
    )  # fmt: skip


def _relative(variance: float) -> float:
    return math.expm1(min(_MOST_VARIANCE, variance))
