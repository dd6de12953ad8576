"""Forecasts for leases of several systems: each system's own, put together. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from campaign.plan.cost.assumption import Assumption
from campaign.plan.cost.estimates import NOTHING, PARTS, Estimate, Expected, Forecast, Kind, Part, Prices, Unknown, Work
from campaign.plan.cost.forecast import Forecaster


@dataclass(frozen=True)
class SystemForecasters:
    """Asks the forecaster of each lease's system. Their errors are independent: nothing is learned of one from another."""

    of_system: Mapping[str, Forecaster]

    @property
    def assumed(self) -> Assumption:
        return next(iter(self.of_system.values())).assumed

    def learned_from(self, works: Sequence[Work]) -> str:
        """What there was to learn from, in words; empty for nothing."""
        said = (known.learned_from([works[n] for n in places]) for known, places in self._parts(works))
        return "; ".join(dict.fromkeys(filter(None, said)))

    def forecast(self, works: Sequence[Work]) -> Forecast:
        """Expected durations, in the order of the works; sums are of all systems."""
        leases = [NOTHING] * len(works)
        parts: list[Forecast] = []
        for known, places in self._parts(works):
            parts.append(known.forecast([works[place] for place in places]))
            for place, expected in zip(places, parts[-1].leases, strict=True):
                leases[place] = expected
        if len(parts) == 1:
            return parts[0]
        runs = Counter[Kind]()
        for part in parts:
            runs.update(part.unknown.runs)
        return Forecast(
            tuple(leases),
            _total([part.total for part in parts]),
            _total([part.device_s for part in parts]),
            _total([part.host_s for part in parts]),
            Unknown(runs, sum(part.unknown.composed for part in parts)),
            "; ".join(dict.fromkeys(part.composing_from for part in parts if part.composing_from)),
        )

    def prices(self, works: Sequence[Work], per: Callable[[Work, Part], float] = lambda *_: 1.0) -> Prices:
        """Prices as `Forecaster.prices` gives them, in the order of the works."""
        once, each = [math.nan] * len(works), [()] * len(works)  # type: tuple[list[float], list[tuple[float, ...]]]
        for known, places in self._parts(works):
            found = known.prices([works[place] for place in places], per)
            for number, place in enumerate(places):
                once[place], each[place] = found.once_s[number], found.run_s[number]
        return Prices(tuple(once), tuple(each))

    def _parts(self, works: Sequence[Work]) -> Iterator[tuple[Forecaster, list[int]]]:
        """Each system's forecaster, with the places of its works."""
        for name, known in self.of_system.items():
            if places := [place for place, work in enumerate(works) if work.configuration.system == name]:
                yield known, places


def _total(parts: Sequence[Expected]) -> Expected:
    basis = "; ".join(dict.fromkeys(part.basis for part in parts if part.basis))
    by_part = {name: _sum([part.parts[name] for part in parts]) for name in PARTS}
    return Expected(_sum([part.whole for part in parts]), by_part, basis)


def _sum(parts: Sequence[Estimate]) -> Estimate:
    expected = [part.expected_s for part in parts if part.expected_s is not None]
    if len(expected) < len(parts):
        return Estimate(None)
    total = sum(expected)
    low = [e - part.low_s for e, part in zip(expected, parts, strict=True) if part.low_s is not None]
    high = [part.high_s - e for e, part in zip(expected, parts, strict=True) if part.high_s is not None]
    if len(low) < len(parts) or len(high) < len(parts):
        return Estimate(total)
    return Estimate(total, max(0.0, total - math.hypot(*low)), total + math.hypot(*high))
