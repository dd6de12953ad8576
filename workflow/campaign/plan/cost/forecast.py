"""What runs and leases will take, learned from what earlier ones took. Pure.

A run takes what runs of its cell took; otherwise the median of the nearest cells of the same workload on the same model of device
behind the same kind of fabric (`measured_times`); otherwise what the user assumes; otherwise what the model of a step predicts.
What none of these tells is unknown. Everything beside runs is learned alike from leases of this kind of fabric, by the shape of
their configuration; composing by the operations that it takes, where these were timed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from campaign.documents.cell import Cell, Configuration
from campaign.fabrics.operations import Operations
from campaign.fabrics.registry import Serial
from campaign.plan.cost.assumption import NOTHING_ASSUMED, Assumption
from campaign.plan.cost.composing import ComposingTimes
from campaign.plan.cost.costs import SHORTEST_S, CellCost, Costs
from campaign.plan.cost.estimates import (
    NEEDED,
    NOTHING,
    PARTS,
    Expected,
    Forecast,
    Kind,
    Part,
    Prices,
    Unknown,
    Work,
)
from campaign.plan.cost.measured_times import Features, LogTime, MeasuredTimes, Observed, log2, thinned
from campaign.plan.cost.sums import Sum, expected
from campaign.wording import some
from campaign.workloads.sample_flops import SIZES

_RUN_SD, _OWN_SD = 0.05, 0.25
"""How much ln(seconds) of runs of one cell, and of cells that differ in nothing, differ before anything is known."""
_MOST_PREDICTED = 30
_ASSUMED = "assumed"
_RECORDED: Mapping[Part, str] = {
    "composing": "compose_s",
    "queue": "queue_s",
    "start": "start_s",
    "between": "between_s",
    "release": "end_s",
}


@dataclass
class SystemTimes:
    """Times on one system with one kind of fabric, from what is known.

    flops: operations of a cell's workload on one sample, None where that is not known. composing: times of the fabric's operations;
    serial: which of them run one after another. predicted: time of a run of a cell that nothing measured tells of; None where it
    cannot be predicted.
    """

    known: Sequence[Costs] = ()
    system: str = ""
    fabric: str = ""
    flops: Callable[[Cell], float | None] = lambda _: None
    composing: ComposingTimes = field(default_factory=lambda: ComposingTimes(None))
    serial: Serial = "all"
    predicted: Callable[[Cell], LogTime | None] = lambda _: None
    _tables: dict[Part | Kind, MeasuredTimes] = field(default_factory=dict, repr=False, compare=False)
    _times: dict[object, LogTime | None] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.here = [costs for costs in self.known if self._is_here(costs)]
        self.cells = {cell.cell_id: (cell, costs) for costs in self.here for cell in costs.cells}
        kinds: defaultdict[Kind, list[str]] = defaultdict(list)
        for name, (cell, _) in self.cells.items():
            kinds[cell.workload, str(cell.shape["device"])].append(name)
        # What only failed tells how long a run takes of nothing but itself.
        self.kinds = {kind: ids for kind, ids in kinds.items() if any(self.cells[name][0].believed for name in ids)}

    def _is_here(self, costs: Costs) -> bool:
        """Whether they are of this kind of fabric; of costs that do not say theirs, whether they are of this system."""
        return costs.fabric == self.fabric if costs.fabric and self.fabric else costs.system == self.system

    def runs(self, cells: Iterable[Cell]) -> None:
        """Learn the times of a run of some cells, all at once."""
        new: defaultdict[Kind, dict[str, Cell]] = defaultdict(dict)
        for cell in cells:
            if cell.id not in self._times:
                new[kind_of(cell)][cell.id] = cell
        for kind, of_kind in new.items():
            if kind not in self.kinds:
                self._times.update(self._predicted_runs(of_kind))
                continue
            sized = all(self.cells[name][0].flops for name in self.kinds[kind])
            if kind not in self._tables:
                known = {name: self.cells[name] for name in self.kinds[kind]}
                self._tables[kind] = MeasuredTimes(
                    {
                        name: Observed(
                            _run_features(_of_shape(c.shape), costs.system, c, c.steps, c.flops if sized else None),
                            c.mean_log_s, c.sd_log_s, c.runs, c.believed,
                        )
                        for name, (c, costs) in known.items()
                    },
                    _RUN_SD,
                    _OWN_SD,
                )  # fmt: skip
            wanted = {name: self._features(cell, sized) for name, cell in of_kind.items()}
            self._times.update(self._tables[kind].of(wanted))

    def _predicted_runs(self, cells: Mapping[str, Cell]) -> Mapping[str, LogTime | None]:
        """Some are predicted, and of many cells the others are taken to be like the nearest of these."""
        found = {name: self.predicted(cells[name]) for name in thinned(cells, _MOST_PREDICTED)}
        if len(found) == len(cells) or None in found.values():
            return {name: found.get(name) for name in cells}
        features = {name: self._features(cell, True) for name, cell in cells.items()}
        known = {name: each for name, each in found.items() if each is not None}
        table = MeasuredTimes(
            {name: Observed(features[name], each.median, 0.0, 1) for name, each in known.items()}, _RUN_SD, _OWN_SD
        )
        sd = max(math.hypot(*each.shared.values()) for each in known.values())
        near = table.of({name: each for name, each in features.items() if name not in known})
        return {**known, **{n: each._replace(shared={**each.shared, "model": sd}) for n, each in near.items()}}

    def _features(self, cell: Cell, sized: bool) -> Features:
        steps = cell.settings.warmup_steps + cell.settings.measured_steps
        return _run_features(cell.configuration, self.system, cell, steps, self.flops(cell) if sized else None)

    def run(self, cell: Cell) -> LogTime | None:
        """Time of a run of a cell that was learned (`runs`); None where it is unknown."""
        return self._times[cell.id]

    def beside(self, part: Part, configuration: Configuration, runs: int) -> LogTime | None:
        """Time of a part of a lease; None without leases that tell it."""
        group = _group(configuration, self.system)
        key = part, group, runs
        if key not in self._times:
            if part not in self._tables:
                self._tables[part] = self._observed_part(part)
            table = self._tables[part]
            self._times[key] = (
                table.of({group: _lease_features(configuration, self.system, runs)})[group] if table else None
            )
        return self._times[key]

    def _observed_part(self, part: Part) -> MeasuredTimes:
        """Uses of leases on one shape are to it what runs are to a cell."""
        logs: defaultdict[str, list[float]] = defaultdict(list)
        features: dict[str, Features] = {}
        for costs in self.here:
            for each in costs.leases:
                if (seconds := getattr(each, _RECORDED[part])) is not None:
                    shape = _of_shape(each.shape)
                    group = _group(shape, costs.system)
                    logs[group].append(math.log(max(SHORTEST_S, seconds)))
                    features[group] = _lease_features(shape, costs.system, each.runs if part == "between" else 1)
        return MeasuredTimes(
            {
                group: Observed(
                    features[group], statistics.fmean(x), statistics.stdev(x) if len(x) > 1 else 0.0, len(x)
                )
                for group, x in logs.items()
            },
            run_sd=0.3,
            own_sd=0.3,
        )


@dataclass
class Forecaster:
    """Forecasts for a campaign, from what is known of each of its systems and what the user assumes of the rest."""

    systems: Mapping[str, SystemTimes] = field(default_factory=dict)
    assumed: Assumption = NOTHING_ASSUMED
    _unknown: SystemTimes = field(default_factory=SystemTimes, repr=False, compare=False)

    def learned_from(self, works: Sequence[Work]) -> str:
        """What there was to learn the times of their runs from, in words; empty for nothing."""
        wanted: defaultdict[str, set[Kind]] = defaultdict(set)
        for work in works:
            wanted[work.configuration.system].update(kind_of(cell) for cell, _ in work.runs)
        found: dict[str, None] = {}
        for name, kinds in wanted.items():
            known = self._on(name)
            used = [known.cells[cell] for kind in kinds & known.kinds.keys() for cell in known.kinds[kind]]
            names = sorted({costs.campaign for _, costs in used})
            leases = sum(len(costs.leases) for costs in known.here if costs.campaign in names)
            if used:
                runs, plural_s = sum(cell.runs for cell, _ in used), "s" if len(names) > 1 else ""
                found[
                    f"{runs} runs of {len(used)} cells and {leases} leases of the campaign{plural_s} {some(names)}"
                ] = None
        return "; ".join(found)

    def forecast(self, works: Sequence[Work]) -> Forecast:
        """Expected durations; deterministic."""
        if not any(work.count for work in works):
            return Forecast((NOTHING,) * len(works), NOTHING, NOTHING, NOTHING, Unknown({}, 0))
        self._learn(works)
        leases, composed = [], 0
        totals: list[dict[Part, Sum]] = [{part: Sum() for part in PARTS} for _ in range(3)]
        for work in works:
            sums = {part: self._sum(work, part) for part in PARTS}
            bases = dict.fromkeys(self._run(work, cell)[1] for cell, _ in work.runs)
            leases.append(_expected(sums, "; ".join(bases)) if work.count else NOTHING)
            composed += sums["composing"].unknown
            for part, found in sums.items():
                for each, weight in zip(totals, (1.0, work.devices(part), work.hosts(part)), strict=True):
                    each[part].include(found, weight)
        runs = Counter[Kind]()
        for work in works:
            for cell, count in work.runs:
                if self._run(work, cell)[0] is None:
                    runs[kind_of(cell)] += count
        basis = self.learned_from(works)
        total, device_s, host_s = (_expected(each, basis) for each in totals)
        moved = {self._on(work.configuration.system).composing.basis: None for work in works if self._operations(work)}
        return Forecast(tuple(leases), total, device_s, host_s, Unknown(runs, composed), "; ".join(filter(None, moved)))

    def prices(self, works: Sequence[Work], per: Callable[[Work, Part], float] = lambda *_: 1.0) -> Prices:
        """The expected time of every single run, and what a lease takes beside its runs, times what `per` says of the part.

        Sums of seconds are those of `forecast`.
        """
        self._learn(works)
        once, each = [], []
        for work in works:
            beside = {part: self._sum(work, part) for part in PARTS if part != "runs"}
            between_s = per(work, "between") * beside.pop("between").expected_s / max(1, work.count)
            if beside["composing"].unknown:
                once.append(math.nan)
            else:
                once.append(sum(per(work, part) * found.expected_s for part, found in beside.items()))
            runs_s = (self._run_s(work, cell) for cell, _ in work.runs)
            each.append(tuple(between_s + per(work, "runs") * seconds for seconds in runs_s))
        return Prices(tuple(once), tuple(each))

    def _on(self, system: str) -> SystemTimes:
        return self.systems.get(system, self._unknown)

    def _learn(self, works: Sequence[Work]) -> None:
        cells: defaultdict[str, list[Cell]] = defaultdict(list)
        for work in works:
            cells[work.configuration.system] += [cell for cell, _ in work.runs]
        for system, its in cells.items():
            self._on(system).runs(its)

    def _run(self, work: Work, cell: Cell) -> tuple[LogTime | None, str]:
        """Time of a run, None where it is unknown; and what it rests on."""
        known = self._on(work.configuration.system)
        if kind_of(cell) in known.kinds:
            here = cell.id in known.cells
            return known.run(cell), f"earlier runs of {'these cells' if here else 'the workload in other cells'}"
        if (assumed_s := self.assumed.of_run(cell.workload)) is not None:
            return LogTime(math.log(assumed_s), {}, 0.0, 0.0, math.inf), _ASSUMED
        found = known.run(cell)
        return found, "predicted by the model of a step" if found else f"no run of {cell.workload} yet"

    def _run_s(self, work: Work, cell: Cell) -> float:
        found, _ = self._run(work, cell)
        return math.nan if found is None else expected(found, cell.settings.time_limit_s)

    def _sum(self, work: Work, part: Part) -> Sum:
        """One part of a lease."""
        total, system = Sum(), work.configuration.system
        if part == "runs":
            for cell, count in work.runs:
                found, basis = self._run(work, cell)
                if found is None:
                    total.unknown = True
                else:
                    total.add(found, (system, kind_of(cell)), cell.id, count, most_s=cell.settings.time_limit_s)
                    total.assumed |= basis == _ASSUMED
            return total
        often = max(0, work.count - 1) if part == "between" else int(work.count > 0)
        known = self._on(system)
        if not often:
            return total
        if part == "composing" and (operations := self._operations(work)) is not None:
            return known.composing.total(operations, known.serial, system)
        found = known.beside(part, work.configuration, work.count if part == "between" else 1)
        if found is not None:
            total.add(found, (system, part), _group(work.configuration, ""), often, runs=False)
        elif part != "composing":
            total.unknown = True
        elif work.needs_fabric:
            compose_s = self.assumed.compose_s
            total = Sum(compose_s or 0.0, unknown=compose_s is None, assumed=True)
        return total

    def _operations(self, work: Work) -> Operations | None:
        """Operations that compose it, where they were timed."""
        composing, operations = self._on(work.configuration.system).composing, work.operations
        return operations if work.count and operations is not None and composing.knows(operations) else None


def _expected(sums: Mapping[Part, Sum], basis: str) -> Expected:
    whole = Sum()
    for part, found in sums.items():
        whole.include(found, needed=part in NEEDED)
    return Expected(whole.estimate(), {part: found.estimate() for part, found in sums.items()}, basis)


def kind_of(cell: Cell) -> Kind:
    return cell.workload, cell.configuration.device


def _run_features(
    configuration: Configuration, system: str, cell: Cell | CellCost, steps: int, flops: float | None
) -> Features:
    """What the time of a run of one workload on one model of device may depend on. flops: of one sample, where they are known."""
    features: dict[str, float | str] = {
        **_hardware(configuration, system),
        "batch": log2(cell.batch),
        "steps": log2(max(1, steps)),
        "flops": log2(flops or 1.0),
        "precision": cell.precision,
        "attach": configuration.attach,
        "storage": configuration.storage,
    }
    for name, value in cell.options.items():
        if flops is None or name not in SIZES:  # operations of a sample say them already
            words = isinstance(value, bool | str) or value <= 0
            features[f"option {name}"] = str(value) if words else log2(float(value))
    return features


def _lease_features(configuration: Configuration, system: str, runs: int) -> Features:
    """What composing, starting, the time between so many runs, and releasing may depend on."""
    moved = configuration.fabric_devices
    return {
        **_hardware(configuration, system),
        "moved": log2(1 + moved),
        "gaps": log2(max(1, runs - 1)),
        "by the fabric": str(moved > 0 or configuration.storage == "fabric-nvme"),
    }


def _hardware(configuration: Configuration, system: str) -> dict[str, float | str]:
    return {"system": system, "ranks": log2(configuration.ranks), "hosts": log2(configuration.hosts)}


def _of_shape(shape: Mapping[str, Any]) -> Configuration:
    return Configuration(**{"name": "", **shape})


@lru_cache(maxsize=4096)
def _group(configuration: Configuration, system: str) -> str:
    return f"{system}/{sorted(configuration.shape().items())}"
