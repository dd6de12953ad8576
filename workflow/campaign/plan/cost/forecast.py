"""What runs and leases will take, learned from what earlier ones took. Pure.

Runs are learned from runs of the same workload on the same model of device behind the same kind of fabric, and from no others: what
none of these tells is unknown, unless the user assumes it. Times are modelled by their logarithm, as a linear model with a normal
prior on every effect (Bayesian linear regression; Gelman et al., Bayesian Data Analysis, 3rd ed., ch. 14-15):

    ln(time of a run) = mean + log2(batch, steps, operations of a sample, ranks, hosts) + precision + attach + storage + options
                        + system + what this cell has of its own + noise of a run

A prior makes one rule of all fall-backs: where data are few an effect stays near what is usual and its interval is wide, where they
are many the data decide. What a cell has of its own (its departure from the rest, shrunk by the number of its runs) makes the
forecast of a cell that ran before its own mean. Both variances are estimated (EM).
ComposingTimes, starting, the time between runs and the end of a lease are modelled alike, over the shape of its configuration.
The interval of a sum is that of its logarithm (delta method), with Student's t for the freedom of its summands together
(Welch-Satterthwaite); effects that several runs share move them together.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, or_
from typing import TYPE_CHECKING

from campaign.documents.cell import Cell, Configuration
from campaign.fabrics.registry import Serial
from campaign.plan.cost.assumption import NOTHING_ASSUMED, Assumption
from campaign.plan.cost.composing import ComposingTimes, Duration
from campaign.plan.cost.costs import SHORTEST_S, CellCost, Costs, Shape
from campaign.plan.cost.estimates import (
    NEEDED,
    NOTHING,
    PARTS,
    Estimate,
    Expected,
    Forecast,
    Kind,
    Part,
    Prices,
    Unknown,
    Work,
)
from campaign.workloads.sample_flops import SIZES

if TYPE_CHECKING:  # numpy and scipy are loaded only where something is planned
    from campaign.plan.cost.log_linear import Effects, Features, Predicted

_MOST = 3000  # observations that a regression is given: more change nothing and take time
_RECORDED: Mapping[Part, str] = {
    "composing": "compose_s",
    "queue": "queue_s",
    "start": "start_s",
    "between": "between_s",
    "release": "end_s",
}

Own = Mapping[str, tuple[float, int]]
"""Mean of ln(seconds) and number of runs by cell, or of uses of leases by shape."""


@dataclass
class Forecaster:
    """Forecasts for a campaign on one system with one kind of fabric, from what is known and what the user assumes of the rest.

    flops: operations of a cell's workload on one sample, None where that is not known. composing: times of the fabric's operations;
    serial: which of them run one after another.
    """

    known: Sequence[Costs] = ()
    system: str = ""
    fabric: str = ""
    assumed: Assumption = NOTHING_ASSUMED
    flops: Callable[[Cell], float | None] = lambda _: None
    composing: ComposingTimes = field(default_factory=lambda: ComposingTimes(None))
    serial: Serial = "all"
    _fits: dict[object, tuple[Effects | None, Own]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._here = [costs for costs in self.known if self._is_here(costs)]
        self._cells = {cell.cell_id: (cell, costs) for costs in self._here for cell in costs.cells}
        kinds: defaultdict[Kind, list[str]] = defaultdict(list)
        for name, (cell, _) in self._cells.items():
            kinds[cell.workload, str(cell.shape["device"])].append(name)
        # What only failed tells how long a run takes of nothing but itself.
        self._kinds = {kind: ids for kind, ids in kinds.items() if any(self._cells[name][0].believed for name in ids)}

    def _is_here(self, costs: Costs) -> bool:
        """Whether they are of this kind of fabric; of costs that do not say theirs, whether they are of this system."""
        return costs.fabric == self.fabric if costs.fabric and self.fabric else costs.system == self.system

    def learned_from(self, works: Sequence[Work]) -> str:
        """What there was to learn the times of their runs from, in words; empty for nothing."""
        wanted = {_kind(cell) for work in works for cell, _ in work.runs} & self._kinds.keys()
        used = [self._cells[name] for kind in wanted for name in self._kinds[kind]]
        names = sorted({costs.campaign for _, costs in used})
        leases = sum(len(costs.leases) for costs in self._here if costs.campaign in names)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        plural = "s" if len(names) > 1 else ""
        if not used:
            return ""
        return (
            f"{sum(cell.runs for cell, _ in used)} runs of {len(used)} cells and {leases} leases of the campaign{plural} "
            f"{', '.join(names[:3])}{more}"
        )

    def forecast(self, works: Sequence[Work]) -> Forecast:
        """Expected durations; deterministic."""
        if not any(work.count for work in works):
            return Forecast((NOTHING,) * len(works), NOTHING, NOTHING, NOTHING, Unknown({}, 0))
        sums = {part: self._sums(part, works) for part in PARTS}
        columns = {part: found.estimates() for part, found in sums.items()}
        columns["composing"][: len(works)] = map(self._composing_time, works, columns["composing"])
        whole = _new_sums(works, "runs")
        for part, found in sums.items():
            whole.include(found, part in NEEDED)
        bases = self._bases(works)
        rows = [
            Expected(each, {part: column[place] for part, column in columns.items()}, basis)
            for place, (each, basis) in enumerate(zip(whole.estimates(), bases, strict=True))
        ]
        leases = tuple(row if work.count else NOTHING for row, work in zip(rows, works, strict=False))
        runs = Counter[Kind]()
        for work in works:
            for cell, count in work.runs:
                if not self._is_known(cell):
                    runs[_kind(cell)] += count
        composed = sum(sums["composing"].unknown[: len(works)])
        total, device_s, host_s = rows[len(works) :]
        moved = any(work.operations and self._is_counted(work) for work in works)
        basis = self.composing.basis if moved else ""
        return Forecast(leases, total, device_s, host_s, Unknown(runs, composed), basis)

    def prices(self, works: Sequence[Work], per: Callable[[Work, Part], float] = lambda *_: 1.0) -> Prices:
        """The expected time of every single run, and what a lease takes beside its runs, times what `per` says of the part.

        Sums of seconds are those of `forecast`.
        """
        beside = {part: self._sums(part, works).of_leases(part in NEEDED) for part in _RECORDED}
        once, each = [], []
        for place, (work, runs_s) in enumerate(zip(works, self._each_run_s(works), strict=True)):
            once.append(sum(per(work, part) * beside[part][place] for part in _RECORDED if part != "between"))
            between_s = per(work, "between") * beside["between"][place] / max(1, work.count)
            each.append(tuple(between_s + per(work, "runs") * seconds for seconds in runs_s))
        return Prices(tuple(once), tuple(each))

    def _is_known(self, cell: Cell) -> bool:
        """Whether its time was learned or is assumed."""
        return _kind(cell) in self._kinds or self.assumed.of_run(cell.workload) is not None

    # -- runs ------------------------------------------------------------------------------------------------------------------

    def _runs_sums(self, works: Sequence[Work]) -> Sums:
        sums = _new_sums(works, "runs")
        assumed_s, unknown = [0.0] * len(works), [False] * len(works)
        for kind, rows in _by_kind(works).items():
            if (predicted := self._predicted_runs(kind, [cell for _, cell, _ in rows])) is not None:
                leases, cells, counts = zip(*rows, strict=True)
                from campaign.plan.cost.log_linear import Summand

                limits = [cell.settings.time_limit_s for cell in cells]
                sums.add(Summand(predicted, counts, leases, limits, runs=True))
                continue
            run_s = self.assumed.of_run(kind[0])
            for lease, cell, count in rows:
                unknown[lease] |= run_s is None
                assumed_s[lease] += count * min(run_s or 0.0, cell.settings.time_limit_s)
        sums.add_assumed(assumed_s)
        sums.add_unknown(unknown)
        return sums

    def _each_run_s(self, works: Sequence[Work]) -> list[list[float]]:
        """Expected time of a run of every cell of every lease; not a number where it is unknown."""
        found: list[list[float]] = [[] for _ in works]
        expected = {}
        for kind, rows in _by_kind(works).items():
            predicted = self._predicted_runs(kind, [cell for _, cell, _ in rows])
            run_s = self.assumed.of_run(kind[0])
            expected[kind] = iter(
                [math.nan if run_s is None else run_s] * len(rows) if predicted is None else predicted.expected.tolist()
            )
        for each, work in zip(found, works, strict=True):
            # The limit last: it is not taken for a time that nobody knows.
            each += [min(next(expected[_kind(cell)]), cell.settings.time_limit_s) for cell, _ in work.runs]
        return found

    def _predicted_runs(self, kind: Kind, cells: Sequence[Cell]) -> Predicted | None:
        if kind not in self._kinds:
            return None
        if kind not in self._fits:
            self._fits[kind] = self._fitted_runs(kind)
        sized = self._is_sized(kind)
        effects, own = self._fits[kind]
        features = [
            _run_features(
                _shape(cell.configuration),
                self.system,
                cell,
                cell.settings.warmup_steps + cell.settings.measured_steps,
                self.flops(cell) if sized else None,
            )
            for cell in cells
        ]
        rows = [(each, cell.id) for each, cell in zip(features, cells, strict=True)]
        return None if effects is None else effects.predict(rows, own)

    def _fitted_runs(self, kind: Kind) -> tuple[Effects | None, Own]:
        from campaign.plan.cost.log_linear import Observed, fitted

        sized = self._is_sized(kind)
        known = [self._cells[name] for name in self._kinds[kind]]
        rows = [
            Observed(
                _run_features(c.shape, costs.system, c, c.steps, c.flops if sized else None),
                c.mean_log_s, c.sd_log_s, c.runs,
            )
            for c, costs in map(self._cells.__getitem__, _thinned(c.cell_id for c, _ in known if c.believed))
        ]  # fmt: skip
        return fitted(rows, run_sd=0.05, own_sd=0.3), {c.cell_id: (c.mean_log_s, c.runs) for c, _ in known}

    def _is_sized(self, kind: Kind) -> bool:
        """Whether operations of a sample are known of all its cells."""
        return all(self._cells[name][0].flops for name in self._kinds[kind])

    def _bases(self, works: Sequence[Work]) -> list[str]:
        """What the durations rest on: of each lease, then three times of all together."""
        said = []
        for work in works:
            kinds: dict[str, None] = {}
            for cell, _ in work.runs:
                if _kind(cell) in self._kinds:
                    here = cell.id in self._cells
                    kinds["earlier runs of these cells" if here else "earlier runs of the workload in other cells"] = (
                        None
                    )
                elif self._is_known(cell):
                    kinds["assumed"] = None
                else:
                    kinds[f"no run of {cell.workload} yet"] = None
            said.append("; ".join(kinds) or NOTHING.basis)
        return said + [self.learned_from(works)] * 3

    # -- composing -------------------------------------------------------------------------------------------------------------

    def _is_counted(self, work: Work) -> bool:
        """Whether it is composed by operations that were timed."""
        return work.count > 0 and work.operations is not None and self.composing.knows(work.operations)

    def _composing_time(self, work: Work, otherwise: Estimate) -> Estimate:
        if work.operations is None or not self._is_counted(work):
            return otherwise
        told = self.composing.time(work.operations, self.serial)
        return Estimate(told.expected_s, told.low_s, told.high_s)

    # -- everything beside runs ------------------------------------------------------------------------------------------------

    def _sums(self, part: Part, works: Sequence[Work]) -> Sums:
        """Times of one part of all leases."""
        if part == "runs":
            return self._runs_sums(works)
        sums = _new_sums(works, part)
        counted = [part == "composing" and self._is_counted(work) for work in works]
        sums.add_times(
            [
                self.composing.summand(work.operations, self.serial) if yes and work.operations else None
                for yes, work in zip(counted, works, strict=True)
            ]
        )
        often = [
            0.0 if yes else float(max(0, work.count - 1) if part == "between" else work.count > 0)
            for yes, work in zip(counted, works, strict=True)
        ]
        if not any(often):
            return sums
        if part not in self._fits:
            self._fits[part] = self._fitted_part(part)
        effects, own = self._fits[part]
        if effects is not None:
            from campaign.plan.cost.log_linear import Summand, lease_features

            shapes = [(_shape(work.configuration), work.count if part == "between" else 1) for work in works]
            rows = [(lease_features(s, self.system, runs), _group(s, self.system)) for s, runs in shapes]
            sums.add(Summand(effects.predict(rows, own), often, range(len(works))))
            return sums
        composed = [
            bool(count) and (part != "composing" or w.needs_fabric) for count, w in zip(often, works, strict=True)
        ]
        if part == "composing" and self.assumed.compose_s is not None:
            sums.add_assumed([self.assumed.compose_s * each for each in composed])
        else:
            sums.add_unknown(composed)
        return sums

    def _fitted_part(self, part: Part) -> tuple[Effects | None, Own]:
        """Uses of leases on one shape are to it what runs are to a cell."""
        if not any(costs.leases for costs in self._here):
            return None, {}
        from campaign.plan.cost.log_linear import Observed, fitted, lease_features

        logs: defaultdict[str, list[float]] = defaultdict(list)
        features: dict[str, Features] = {}
        for costs in self._here:
            for each in costs.leases:
                if (seconds := getattr(each, _RECORDED[part])) is not None:
                    group = _group(each.shape, costs.system)
                    logs[group].append(math.log(max(SHORTEST_S, seconds)))
                    features[group] = lease_features(each.shape, costs.system, each.runs if part == "between" else 1)
        seen = {
            group: Observed(features[group], statistics.fmean(x), statistics.stdev(x) if len(x) > 1 else 0.0, len(x))
            for group, x in logs.items()
        }
        own = {group: (row.mean_log_s, row.runs) for group, row in seen.items()}
        return fitted([seen[group] for group in _thinned(seen)], run_sd=0.3, own_sd=0.3), own


@lru_cache(maxsize=4096)
def _shape(configuration: Configuration) -> Shape:
    return configuration.shape()


def _kind(cell: Cell) -> Kind:
    return cell.workload, cell.configuration.device


def _by_kind(works: Sequence[Work]) -> dict[Kind, list[tuple[int, Cell, int]]]:
    """Rows of lease, cell and runs, by what their times are learned from."""
    rows: defaultdict[Kind, list[tuple[int, Cell, int]]] = defaultdict(list)
    for lease, work in enumerate(works):
        for cell, count in work.runs:
            rows[_kind(cell)].append((lease, cell, count))
    return rows


def _run_features(
    shape: Shape, system: str, cell: Cell | CellCost, steps: int, flops: float | None
) -> dict[str, float]:
    from campaign.plan.cost.log_linear import run_features

    # What operations of a sample say already.
    options = {name: value for name, value in cell.options.items() if flops is None or name not in SIZES}
    return run_features(shape, system, cell.batch, cell.precision, options, max(1, steps), flops)


def _new_sums(works: Sequence[Work], part: Part) -> Sums:
    return Sums([[1.0] * len(works), [w.devices(part) for w in works], [w.hosts(part) for w in works]])


def _thinned(names: Iterable[str]) -> list[str]:
    """Names of no more observations than can be learned from quickly."""
    known = sorted(names)
    if len(known) <= _MOST:
        return known
    return sorted(known, key=lambda name: (zlib.crc32(name.encode()), name))[:_MOST]


def _group(shape: Shape, system: str) -> str:
    return f"{system}/{sorted(shape.items())}"


if TYPE_CHECKING:  # numpy and scipy are loaded only where something was learned
    from campaign.plan.cost.log_linear import Summand


class Sums:
    """Sums of times: of each lease alone, then of all leases with each row of weights. What is added is independent."""

    def __init__(self, weights: Sequence[Sequence[float]]) -> None:
        self._weights, self._leases = weights, len(weights[0])
        size = self._leases + len(weights)
        self.expected, self._variance, self._spent = ([0.0] * size for _ in range(3))
        self.unknown, self._assumed = ([False] * size for _ in range(2))

    def add(self, part: Summand) -> None:
        """Add what was learned."""
        from campaign.plan.cost.log_linear import summed

        expected, variance = summed(part, self._weights)
        self._add(expected, variance, [each**2 / part.predicted.freedom for each in variance])

    def add_times(self, times: Sequence[Duration | None]) -> None:
        """Add the time of each lease that has one; what all share adds up, and does not even out."""
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
        """Add the assumed time of each lease, which has no interval; 0 where nothing is assumed."""
        if any(seconds):
            self._add([*seconds, *(sum(map(math.prod, zip(row, seconds, strict=True))) for row in self._weights)])
            self._assumed = list(map(or_, self._assumed, self._with_all([each > 0 for each in seconds])))

    def add_unknown(self, there: Sequence[bool]) -> None:
        """Mark leases with something of which nothing is known."""
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
