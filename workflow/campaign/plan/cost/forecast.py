"""What runs and leases will take, learned from what earlier ones took. Pure.

Times are modelled by their logarithm, as a linear model with a normal prior on every effect (Bayesian linear regression; Gelman et
al., Bayesian Data Analysis, 3rd ed., ch. 14-15):

    ln(time of a run) = mean + workload + log2(batch, steps, ranks, hosts) + precision + attach + storage + device + system
                        + the same again for each workload + what this cell has of its own + noise of a run

A prior makes one rule of all fall-backs: where data are few an effect stays near what is usual and its interval is wide, where they
are many the data decide. What a cell has of its own (its departure from the rest, shrunk by the number of its runs) makes the
forecast of a cell that ran before its own mean. Both variances are estimated (EM).
Composing, starting, the time between runs and the end of a lease are modelled alike, over the shape of its configuration.
The interval of a sum is that of its logarithm (delta method), with Student's t; effects that several runs share move them together.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from campaign.documents.cell import Cell, Configuration
from campaign.plan.cost.costs import SHORTEST_S, Costs, Shape

if TYPE_CHECKING:  # numpy and scipy are loaded only where there is something to learn from
    from campaign.plan.cost.log_linear import Effects, Observed, Predicted

ASSUMED_RUN_S = 10.0
ASSUMED_COMPOSE_S = 5.0

_MOST = 3000  # observations that a regression is given: more change nothing and take time
_BESIDE = ("compose_s", "start_s", "between_s", "end_s")

Own = Mapping[str, tuple[float, int]]
"""Mean of ln(seconds) and number of runs by cell, or of uses of leases by shape."""


@dataclass(frozen=True)
class Work:
    """What one lease is to do: how many runs of which cells. starts: whether anything is composed for it at all."""

    lease: str
    configuration: Configuration
    runs: Sequence[tuple[Cell, int]]
    needs_fabric: bool

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)


@dataclass(frozen=True)
class Expected:
    """A duration with its interval, and what it rests on. low_s and high_s are None where there was nothing to learn from.

    runs_s: of it, the runs and what lies between them.
    """

    expected_s: float
    low_s: float | None
    high_s: float | None
    runs_s: float
    basis: str


NOTHING = Expected(0.0, 0.0, 0.0, 0.0, "nothing to do")


@dataclass(frozen=True)
class Prices:
    """What each part of some works costs, in seconds: once a lease, and each run of each of its cells."""

    once_s: tuple[float, ...]
    run_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Forecast:
    """What some works will take. total: all leases one after the other; devices: the same in device-seconds."""

    leases: tuple[Expected, ...]
    total: Expected
    device_s: Expected


@dataclass
class Forecaster:
    """Forecasts for a campaign on one system, from what is known; with nothing known it says what it assumes."""

    known: Sequence[Costs] = ()
    system: str = ""
    _fits: dict[str, tuple[Effects | None, Own]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def learned_from(self) -> str:
        """What there was to learn from, in words; empty for nothing."""
        if not any(costs.runs for costs in self.known):
            return ""
        runs, cells = (sum(x) for x in zip(*((c.runs, len(c.cells)) for c in self.known), strict=True))
        leases = sum(len(costs.leases) for costs in self.known)
        names = list(dict.fromkeys(costs.campaign for costs in self.known if costs.runs))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        plural = "s" if len(names) > 1 else ""
        return f"{runs} runs of {cells} cells and {leases} leases of the campaign{plural} {', '.join(names[:3])}{more}"

    def forecast(self, works: Sequence[Work]) -> Forecast:
        """Expected durations; deterministic."""
        if not any(work.count for work in works):
            return Forecast((NOTHING,) * len(works), NOTHING, NOTHING)
        parts = self._parts(works)
        prices = _prices(works, parts)
        runs_s = [
            sum(seconds * count for seconds, (_, count) in zip(each, work.runs, strict=True))
            for each, work in zip(prices.run_s, works, strict=True)
        ]
        weights = [float(work.configuration.devices) for work in works]
        assumed = "compose_s" not in parts
        fixed = [ASSUMED_COMPOSE_S * (assumed and w.needs_fabric and w.count > 0) for w in works]
        if "runs" in parts:
            sums, t = _sums(works, parts, weights)
            bases = [*self._bases(works, parts["runs"]), self.learned_from]
        else:
            sums, t = [(seconds, math.nan) for seconds in _with_totals(runs_s, weights)], math.nan
            bases = [f"assumed {ASSUMED_RUN_S:g} s a run"] * (len(works) + 1)
        *leases, total, device_s = (
            _expected(seconds, variance, t, once, only, basis)
            for (seconds, variance), once, only, basis in zip(
                sums, _with_totals(fixed, weights), _with_totals(runs_s, weights), [*bases, bases[-1]], strict=True
            )
        )
        told = tuple(lease if work.count else NOTHING for lease, work in zip(leases, works, strict=True))
        return Forecast(told, total, device_s)

    def prices(self, works: Sequence[Work]) -> Prices:
        """The expected time of every single run, and what a lease takes beside its runs. Sums are those of `forecast`."""
        return _prices(works, self._parts(works))

    def _parts(self, works: Sequence[Work]) -> dict[str, Predicted]:
        """Times of all runs (`runs`) and of what leases take beside them; without those of which nothing is known."""
        if not any(cell.believed for costs in self.known for cell in costs.cells):
            return {}
        from campaign.plan.cost.log_linear import lease_features, run_features

        of_runs, of_leases = [], []
        for work in works:
            shape = work.configuration.shape()
            of_leases.append((lease_features(shape, self.system), _group(shape, self.system)))
            for c, _ in work.runs:
                steps = max(1, c.settings.warmup_steps + c.settings.measured_steps)
                features = run_features(shape, self.system, c.workload, c.batch, c.precision, c.options, steps)
                of_runs.append((features, c.id))
        fits = {name: self._fitted(name) for name in ("runs", *_BESIDE)}
        return {
            name: fit.predict(of_runs if name == "runs" else of_leases, own)
            for name, (fit, own) in fits.items()
            if fit is not None
        }

    def _fitted(self, name: str) -> tuple[Effects | None, Own]:
        from campaign.plan.cost.log_linear import fitted

        if name not in self._fits:
            rows, own = self._seen_runs() if name == "runs" else self._seen_leases(name)
            self._fits[name] = fitted(rows, run_sd=0.05 if name == "runs" else 0.3, own_sd=0.3), own
        return self._fits[name]

    def _seen_runs(self) -> tuple[list[Observed], Own]:
        from campaign.plan.cost.log_linear import Observed, run_features

        seen = {cell.cell_id: (cell, costs.system) for costs in self.known for cell in costs.cells}
        rows = [
            Observed(
                run_features(c.shape, system, c.workload, c.batch, c.precision, c.options, c.steps),
                c.mean_log_s, c.sd_log_s, c.runs,
            )
            for c, system in map(seen.__getitem__, _thinned(name for name, (c, _) in seen.items() if c.believed))
        ]  # fmt: skip
        return rows, {name: (c.mean_log_s, c.runs) for name, (c, _) in seen.items()}

    def _seen_leases(self, part: str) -> tuple[list[Observed], Own]:
        """Uses of leases on one shape are to it what runs are to a cell."""
        from campaign.plan.cost.log_linear import Observed, lease_features

        logs: dict[str, list[float]] = {}
        features: dict[str, dict[str, float]] = {}
        for costs in self.known:
            for each in costs.leases:
                if (seconds := getattr(each, part)) is not None:
                    group = _group(each.shape, costs.system)
                    logs.setdefault(group, []).append(math.log(max(SHORTEST_S, seconds)))
                    features.setdefault(group, lease_features(each.shape, costs.system))
        seen = {
            group: Observed(features[group], statistics.fmean(x), statistics.stdev(x) if len(x) > 1 else 0.0, len(x))
            for group, x in logs.items()
        }
        return [seen[group] for group in _thinned(seen)], {g: (row.mean_log_s, row.runs) for g, row in seen.items()}

    def _bases(self, works: Sequence[Work], runs: Predicted) -> list[str]:
        known = {cell.workload for costs in self.known for cell in costs.cells if cell.believed}
        said, position = [], 0
        for work in works:
            kinds: dict[str, None] = {}
            for cell, _ in work.runs:
                if runs.ran[position]:
                    kinds["earlier runs of these cells"] = None
                elif cell.workload in known:
                    kinds["earlier runs of the workload in other cells"] = None
                else:
                    kinds[f"runs of other workloads ({cell.workload} never ran)"] = None
                position += 1
            said.append("; ".join(kinds) or NOTHING.basis)
        return said


def _prices(works: Sequence[Work], parts: Mapping[str, Predicted]) -> Prices:
    count = len(works)
    beside = {name: parts[name].expected.tolist() if name in parts else [0.0] * count for name in _BESIDE}
    if "compose_s" not in parts:
        beside["compose_s"] = [ASSUMED_COMPOSE_S * work.needs_fabric for work in works]
    limits = iter(_limits(works))
    expected = iter(parts["runs"].expected.tolist()) if "runs" in parts else None
    once, each = [], []
    for work, between, *others in zip(works, beside.pop("between_s"), *beside.values(), strict=True):
        once.append(sum(others))
        each.append(
            tuple(
                between + (ASSUMED_RUN_S if expected is None else min(next(expected), next(limits))) for _ in work.runs
            )
        )
    return Prices(tuple(once), tuple(each))


def _sums(
    works: Sequence[Work], parts: Mapping[str, Predicted], weights: Sequence[float]
) -> tuple[list[tuple[float, float]], float]:
    """(seconds, variance) of each lease, of all, and of all with weights; and the quantile of Student's t for their intervals."""
    from campaign.plan.cost.log_linear import Part, student, summed

    counts = [float(count) for work in works for _, count in work.runs]
    leases = [number for number, work in enumerate(works) for _ in work.runs]
    summands = [Part(parts["runs"], counts, leases, _limits(works), runs=True)]
    for name in _BESIDE:
        if name in parts:
            often = [float(work.count if name == "between_s" else work.count > 0) for work in works]
            summands.append(Part(parts[name], often, range(len(works))))
    return summed(summands, weights), student(parts["runs"].freedom)


def _with_totals(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    return [*values, sum(values), sum(value * weight for value, weight in zip(values, weights, strict=True))]


def _expected(seconds: float, variance: float, t: float, fixed_s: float, runs_s: float, basis: str) -> Expected:
    """A sum with its interval, which is that of its logarithm; without one where the variance is not known."""
    if math.isnan(variance):
        return Expected(seconds + fixed_s, None, None, runs_s, basis)
    if seconds <= 0:
        return Expected(fixed_s, fixed_s, fixed_s, runs_s, basis)
    # Far from what was measured the relative error is large; as a variance of the logarithm it stays what it is for small ones.
    spread = t * math.sqrt(math.log1p(variance / seconds**2))
    low, high = seconds * math.exp(-spread), seconds * math.exp(spread)
    return Expected(seconds + fixed_s, low + fixed_s, high + fixed_s, runs_s, basis)


def _thinned(names: Iterable[str]) -> list[str]:
    """No more than can be learned from quickly."""
    known = sorted(names)
    if len(known) <= _MOST:
        return known
    return sorted(known, key=lambda name: (zlib.crc32(name.encode()), name))[:_MOST]


def _group(shape: Shape, system: str) -> str:
    return f"{system}/{sorted(shape.items())}"


def _limits(works: Sequence[Work]) -> list[float]:
    return [cell.settings.time_limit_s for work in works for cell, _ in work.runs]
