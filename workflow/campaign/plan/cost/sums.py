"""Expected times of sums over leases, with their intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import add, or_
from typing import TYPE_CHECKING

from campaign.plan.cost.composing import Duration
from campaign.plan.cost.estimates import Estimate

if TYPE_CHECKING:  # numpy and scipy are loaded only where something was learned
    from campaign.plan.cost.log_linear import Summand


class Sums:
    """Of each lease alone, then of all leases with each row of weights. What is added is independent."""

    def __init__(self, weights: Sequence[Sequence[float]]) -> None:
        self._weights, self._leases = weights, len(weights[0])
        size = self._leases + len(weights)
        self.expected, self._variance, self._spent = ([0.0] * size for _ in range(3))
        self.unknown, self._assumed = ([False] * size for _ in range(2))

    def add(self, part: Summand) -> None:
        """What was learned."""
        from campaign.plan.cost.log_linear import summed

        expected, variance = summed(part, self._weights)
        self._add(expected, variance, [each**2 / part.predicted.freedom for each in variance])

    def add_times(self, times: Sequence[Duration | None]) -> None:
        """Of each lease that has one; what all share adds up, and does not even out."""
        if not any(times):
            return
        nothing = Duration(0.0, 0.0, 0.0, math.inf)
        there = [each or nothing for each in times]
        whole = [_combined(row, there) for row in self._weights]
        every = [*there, *whole]
        variance = [each.scale_s**2 for each in every]
        spent = [square**2 / each.freedom for square, each in zip(variance, every, strict=True)]
        self._add([each.mean_s for each in every], variance, spent)

    def add_assumed(self, seconds: Sequence[float]) -> None:
        """Of each lease, without an interval; 0 where nothing is assumed."""
        if any(seconds):
            self._add([*seconds, *(sum(map(math.prod, zip(row, seconds, strict=True))) for row in self._weights)])
            self._assumed = list(map(or_, self._assumed, self._with_all([each > 0 for each in seconds])))

    def add_unknown(self, there: Sequence[bool]) -> None:
        """Leases with something of which nothing is known."""
        if any(there):
            self.unknown = list(map(or_, self.unknown, self._with_all(there)))

    def include(self, other: Sums, needed: bool) -> None:
        """Add what is independent. needed: without it, the sum is unknown; otherwise it is what is known of it."""
        self._add(other.expected, other._variance, other._spent)
        self._assumed = list(map(or_, self._assumed, other._assumed))
        if needed:
            self.unknown = list(map(or_, self.unknown, other.unknown))

    def estimates(self) -> list[Estimate]:
        """Unknown, assumed, or with an interval."""
        factors = [1.0] * len(self.expected)
        if any(self._variance):
            from campaign.plan.cost.log_linear import interval_factors

            factors = interval_factors(self.expected, self._variance, self._spent)
        return [
            Estimate(None) if unknown else Estimate(s) if assumed else Estimate(s, s / factor, s * factor)
            for s, factor, unknown, assumed in zip(self.expected, factors, self.unknown, self._assumed, strict=True)
        ]

    def of_leases(self, needed: bool) -> list[float]:
        """Expected seconds of each; not a number where they are unknown but needed."""
        known = zip(self.expected, self.unknown, strict=True)
        return [math.nan if unknown and needed else seconds for seconds, unknown in known][: self._leases]

    def _add(
        self, expected: Sequence[float], variance: Sequence[float] | None = None, spent: Sequence[float] | None = None
    ) -> None:
        self.expected = list(map(add, self.expected, expected))
        if variance and spent:
            self._variance = list(map(add, self._variance, variance))
            self._spent = list(map(add, self._spent, spent))

    def _with_all(self, leases: Sequence[bool]) -> list[bool]:
        return [*leases, *[any(leases)] * len(self._weights)]


def _combined(weights: Sequence[float], times: Sequence[Duration]) -> Duration:
    """A weighted sum."""
    terms = list(zip(weights, times, strict=True))
    return Duration(
        sum(weight * each.mean_s for weight, each in terms),
        sum(weight * each.common_s for weight, each in terms),
        math.hypot(*(weight * each.own_s for weight, each in terms)),
        min(each.freedom for each in times),
    )
