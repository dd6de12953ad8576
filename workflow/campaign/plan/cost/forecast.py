"""What runs and leases will take, learned from what earlier ones took. Pure.

Times are modelled by their logarithm, as a linear model with a normal prior on every effect (Bayesian linear regression; Gelman et
al., Bayesian Data Analysis, 3rd ed., ch. 14-15):

    ln(time of a run) = mean + workload + log2(batch, steps, ranks, hosts) + precision + attach + storage + device + system
                        + the same again for each workload + what this cell has of its own + noise of a run

A prior makes one rule of all fall-backs: where data are few an effect stays near what is usual and its interval is wide, where they
are many the data decide. What a cell has of its own (its departure from the rest, shrunk by the number of its runs) makes the
forecast of a cell that ran before its own mean. Both variances are estimated (EM, from a prior worth `_PRIOR_RUNS` values).
Composing, starting, the time between runs and the end of a lease are modelled alike, over the shape of its configuration.
The interval of a sum is that of its logarithm (delta method), with Student's t; effects that several runs share move them together.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from campaign.documents.cell import Cell, Configuration
from campaign.plan.cost.costs import SHORTEST_S, CellCost, Costs
from campaign.plan.cost.log_linear import (
    Effects,
    Part,
    Predicted,
    fitted,
    lease_features,
    run_features,
    summed,
)

_T = TypeVar("_T")

ASSUMED_RUN_S = 10.0
ASSUMED_COMPOSE_S = 5.0
LEVEL = 0.95
"""How often an interval is to hold what it says."""

_MOST = 3000  # observations that a regression is given: more change nothing and take time
_PARTS = ("compose_s", "start_s", "between_s", "end_s")


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
    _fits: dict[str, Effects | None] = field(default_factory=dict, repr=False, compare=False)

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
        runs = self._runs(works)
        if runs is None:
            return self._assumed(works)
        parts = [Part(runs, _flat_counts(works), _flat_leases(works), _flat_limits(works))]
        fixed = [0.0] * len(works)
        between = self._lease_part("between_s", works)
        for name in _PARTS:
            predicted = between if name == "between_s" else self._lease_part(name, works)
            if predicted is not None:
                counts = [float(w.count) if name == "between_s" else float(w.count > 0) for w in works]
                parts.append(Part(predicted, counts, range(len(works)), runs=False))
            elif name == "compose_s":
                fixed = [ASSUMED_COMPOSE_S if w.count and w.needs_fabric else 0.0 for w in works]
        weights = [float(w.configuration.devices) for w in works]
        sums = summed(parts, len(works), weights)
        of_runs = summed([part for part in parts if part.runs or part.predicted is between], len(works), weights)
        basis, t = self.learned_from, student(runs.freedom)
        leases = [
            _expected(pair, t, once, only[0], why) if work.count else NOTHING
            for work, pair, once, only, why in zip(
                works, sums.groups, fixed, of_runs.groups, self._bases(works, runs), strict=True
            )
        ]
        total = _expected(sums.total, t, sum(fixed), of_runs.total[0], basis)
        more = sum(a * b for a, b in zip(fixed, weights, strict=True))
        device = _expected(sums.weighted, t, more, of_runs.weighted[0], basis)
        return Forecast(tuple(leases), total, device)

    def prices(self, works: Sequence[Work]) -> Prices:
        """The expected time of every single run, and what a lease takes beside its runs. Sums are those of `forecast`."""
        runs = self._runs(works)
        flat = [ASSUMED_RUN_S] * sum(len(w.runs) for w in works) if runs is None else runs.capped(_flat_limits(works))
        parts = {name: None if runs is None else self._lease_part(name, works) for name in _PARTS}
        once, each, position = [], [], 0
        for number, work in enumerate(works):
            gap = parts["between_s"]
            between = 0.0 if gap is None else float(gap.expected[number])
            others = [0.0 if (p := parts[n]) is None else float(p.expected[number]) for n in _PARTS if n != "between_s"]
            if parts["compose_s"] is None and work.needs_fabric:
                others.append(ASSUMED_COMPOSE_S)
            once.append(sum(others))
            each.append(tuple(flat[position + i] + between for i in range(len(work.runs))))
            position += len(work.runs)
        return Prices(tuple(once), tuple(each))

    def _runs(self, works: Sequence[Work]) -> Predicted | None:
        seen: dict[str, CellCost] = {}
        for costs in self.known:
            for cell in costs.cells:
                if cell.cell_id not in seen or seen[cell.cell_id].runs < cell.runs:
                    seen[cell.cell_id] = cell
        if not seen:
            return None
        if "runs" not in self._fits:
            system_of = {cell.cell_id: costs.system for costs in self.known for cell in costs.cells}
            self._fits["runs"] = fitted(
                [
                    (run_features(c.shape, system_of[c.cell_id], c.workload, c.batch, c.precision, c.options, c.steps),
                     c.cell_id, c.mean_log_s, c.sd_log_s, c.runs, c.believed)
                    for c in _thinned(seen.values(), lambda c: c.cell_id)
                ],
                run_sd=0.05,
                own_sd=0.3,
            )  # fmt: skip
        fit = self._fits["runs"]
        if fit is None:
            return None
        own = {c.cell_id: (c.mean_log_s, c.runs) for c in seen.values()}
        cells = [cell for work in works for cell, _ in work.runs]
        return fit.predict(
            [
                (run_features(shape, self.system, c.workload, c.batch, c.precision, c.options, _steps(c)), c.id)
                for c, shape in zip(cells, _shapes(cells), strict=True)
            ],
            own,
        )

    def _lease_part(self, name: str, works: Sequence[Work]) -> Predicted | None:
        # Uses of leases on one shape are to it what runs are to a cell.
        logs: dict[str, list[float]] = {}
        features: dict[str, dict[str, float]] = {}
        for costs in self.known:
            for each in costs.leases:
                if (seconds := getattr(each, name)) is not None:
                    group = _group(each.shape, costs.system)
                    logs.setdefault(group, []).append(math.log(max(SHORTEST_S, seconds)))
                    features.setdefault(group, lease_features(each.shape, costs.system))
        own = {group: (statistics.fmean(values), len(values)) for group, values in logs.items()}
        if name not in self._fits:
            rows = [
                (features[group], group, own[group][0], statistics.stdev(logs[group]) if own[group][1] > 1 else 0.0,
                 own[group][1], True)
                for group in _thinned(logs, str)
            ]  # fmt: skip
            self._fits[name] = fitted(rows, run_sd=0.3, own_sd=0.3)
        fit = self._fits[name]
        if fit is None:
            return None
        shapes = [work.configuration.shape() for work in works]
        return fit.predict([(lease_features(s, self.system), _group(s, self.system)) for s in shapes], own)

    def _bases(self, works: Sequence[Work], runs: Predicted) -> list[str]:
        known = {cell.workload for costs in self.known for cell in costs.cells if cell.believed}
        said, position = [], 0
        for work in works:
            kinds: dict[str, None] = {}
            for cell, _ in work.runs:
                if runs.own[position]:
                    kinds["earlier runs of these cells"] = None
                elif cell.workload in known:
                    kinds["earlier runs of the workload in other cells"] = None
                else:
                    kinds[f"runs of other workloads ({cell.workload} never ran)"] = None
                position += 1
            said.append("; ".join(kinds) or NOTHING.basis)
        return said

    def _assumed(self, works: Sequence[Work]) -> Forecast:
        basis = f"assumed {ASSUMED_RUN_S:g} s a run"
        leases = []
        for work in works:
            runs_s = work.count * ASSUMED_RUN_S
            compose_s = ASSUMED_COMPOSE_S if work.needs_fabric else 0.0
            leases.append(Expected(runs_s + compose_s, None, None, runs_s, basis) if work.count else NOTHING)
        total = sum(lease.expected_s for lease in leases)
        device = sum(e.expected_s * w.configuration.devices for e, w in zip(leases, works, strict=True))
        runs_s = sum(lease.runs_s for lease in leases)
        return Forecast(
            tuple(leases), Expected(total, None, None, runs_s, basis), Expected(device, None, None, 0.0, basis)
        )


def student(freedom: float, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t by the expansion of Abramowitz & Stegun 26.7.5: within 1 % from 4 degrees of freedom on."""
    z, n = statistics.NormalDist().inv_cdf(0.5 + level / 2), max(4.0, freedom)
    first = (z**3 + z) / (4 * n)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + first + second + third


def _expected(pair: tuple[float, float], t: float, fixed_s: float, runs_s: float, basis: str) -> Expected:
    """A sum with its interval, which is that of its logarithm."""
    seconds, variance = pair
    if seconds <= 0:
        return Expected(fixed_s, fixed_s, fixed_s, runs_s, basis)
    # Far from what was measured the relative error is large; as a variance of the logarithm it stays what it is for small ones.
    spread = t * math.sqrt(math.log1p(variance / seconds**2))
    low, high = seconds * math.exp(-spread), seconds * math.exp(spread)
    return Expected(seconds + fixed_s, low + fixed_s, high + fixed_s, runs_s, basis)


def _thinned(found: Iterable[_T], name: Callable[[_T], str]) -> list[_T]:
    """No more than can be learned from quickly; which, follows from their names."""
    everything = sorted(found, key=name)
    if len(everything) <= _MOST:
        return everything
    return sorted(everything, key=lambda each: (zlib.crc32(name(each).encode()), name(each)))[:_MOST]


def _steps(cell: Cell) -> int:
    return max(1, cell.settings.warmup_steps + cell.settings.measured_steps)


def _shapes(cells: Sequence[Cell]) -> list[Mapping[str, Any]]:
    known: dict[int, Mapping[str, Any]] = {}
    for cell in cells:
        if id(cell.configuration) not in known:
            known[id(cell.configuration)] = cell.configuration.shape()
    return [known[id(cell.configuration)] for cell in cells]


def _group(shape: Mapping[str, Any], system: str) -> str:
    return f"{system}/{sorted(shape.items())}"


def _flat_counts(works: Sequence[Work]) -> list[float]:
    return [float(count) for work in works for _, count in work.runs]


def _flat_leases(works: Sequence[Work]) -> list[int]:
    return [number for number, work in enumerate(works) for _ in work.runs]


def _flat_limits(works: Sequence[Work]) -> list[float]:
    return [cell.settings.time_limit_s for work in works for cell, _ in work.runs]
