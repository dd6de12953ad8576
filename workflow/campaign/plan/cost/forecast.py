"""What runs and leases will take, learned from what earlier ones took. Pure.

A run takes what runs of its cell took; otherwise what the nearest cells of the same workload did on the same model of device behind
the same kind of fabric (`measured_times`); otherwise what the user assumes; otherwise what the model of a step predicts. What none
of these tells is unknown. Composing is forecast by the operations that it takes, where these were timed. Everything else beside
runs, and composing without such times, takes the median of leases: of the same shape, else of all on this kind of fabric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from campaign.documents.cell import Cell, Configuration, drop_layout
from campaign.fabrics.operations import Operations
from campaign.plan.cost.assumption import NOTHING_ASSUMED, Assumption
from campaign.plan.cost.composing import ComposingTimes
from campaign.plan.cost.costs import SHORTEST_S, CellCost, Costs
from campaign.plan.cost.draws import DRAWS, Floats, assumed, estimates, normals, seconds_of, student
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
    kind_of,
    needs_fabric,
)
from campaign.plan.cost.measured_times import PRIOR_VALUES, Features, MeasuredTimes, Observed, log2, thinned
from campaign.wording import some
from campaign.workloads.sample_flops import SIZES

_PART_SD = 0.3
"""How much ln(seconds) of a part of leases differs before anything is known."""
_MOST_SD = 3.0  # that a part of a lease is off by: no sum is that of its strangest draw
_MOST_PREDICTED = 30
_AT_ONCE = 500
_RECORDED: Mapping[Part, str] = {
    "composing": "compose_s",
    "queue": "queue_s",
    "start": "start_s",
    "between": "between_s",
    "release": "end_s",
}
_BY_THE_FABRIC: frozenset[Part] = frozenset({"composing", "start", "release"})
"""Parts that differ where the fabric moves devices."""


class _PartTime(NamedTuple):
    """Median and sd of ln(seconds) of a part of so many leases, and its degrees of freedom. source: of the error of the median."""

    source: str
    log_s: float
    sd: float
    leases: int
    freedom: float

    def draws(self, part: str, lease: str) -> Floats:
        own, of_all = normals([f"{part} {lease}", self.source])
        errors = student(self.source, self.freedom) * (own + of_all / math.sqrt(self.leases))
        return seconds_of(self.log_s + self.sd * np.clip(errors, -_MOST_SD, _MOST_SD), self.sd**2)


@dataclass
class SystemTimes:
    """Times on one system with one kind of fabric, from what is known.

    flops: operations of a cell's workload on one sample, None where that is not known. composing: times of the fabric's operations.
    predicted: median and sd of ln(seconds) of a run of a cell that nothing measured tells of; None where it cannot be predicted.
    """

    known: Sequence[Costs] = ()
    system: str = ""
    fabric: str = ""
    flops: Callable[[Cell], float | None] = lambda _: None
    composing: ComposingTimes = field(default_factory=lambda: ComposingTimes(None))
    predicted: Callable[[Cell], tuple[float, float] | None] = lambda _: None

    def __post_init__(self) -> None:
        self.here = [costs for costs in self.known if self._is_here(costs)]
        self.cells = {cell.cell_id: (cell, costs) for costs in self.here for cell in costs.cells}
        kinds: defaultdict[Kind, list[str]] = defaultdict(list)
        for name, (cell, _) in self.cells.items():
            kinds[cell.workload, str(cell.shape["device"])].append(name)
        # What only failed tells how long a run takes of nothing but itself.
        self.kinds = {kind: ids for kind, ids in kinds.items() if any(self.cells[name][0].believed for name in ids)}
        self.runs: dict[Kind, MeasuredTimes | None] = {}
        self._logs: dict[Part, dict[Configuration, list[float]]] = {part: defaultdict(list) for part in _RECORDED}
        for lease in (lease for costs in self.here for lease in costs.leases):
            shape = _of_shape(lease.shape) if lease.shape else None
            for part, name in _RECORDED.items():
                if shape and (seconds := getattr(lease, name)) is not None:
                    self._logs[part][shape].append(math.log(max(SHORTEST_S, seconds)))
        self._parts: dict[tuple[Part, Configuration], _PartTime | None] = {}

    def _is_here(self, costs: Costs) -> bool:
        """Whether they are of this kind of fabric; of costs that do not say theirs, whether they are of this system."""
        return costs.fabric == self.fabric if costs.fabric and self.fabric else costs.system == self.system

    def learn(self, cells: Iterable[Cell]) -> None:
        """Learn the times of a run of some cells, all at once (`runs`)."""
        new: defaultdict[Kind, dict[str, Cell]] = defaultdict(dict)
        for cell in cells:
            kind = kind_of(cell)
            if (known := self.runs.get(kind)) is None or cell.id not in known:
                new[kind][cell.id] = cell
        for kind, of_kind in new.items():
            measured = {name: self.cells[name] for name in self.kinds.get(kind, ())}
            sized = all(cell.flops for cell, _ in measured.values())
            hardware = {c: _hardware(c, self.system) for c in {cell.configuration for cell in of_kind.values()}}
            wanted = {
                name: hardware[cell.configuration]
                | _run_features(
                    cell,
                    cell.settings.warmup_steps + cell.settings.measured_steps,
                    self.flops(cell) if sized else None,
                )
                for name, cell in of_kind.items()
            }
            if kind not in self.runs:
                observed = {
                    name: Observed(
                        _hardware(_of_shape(cell.shape), costs.system)
                        | _run_features(cell, cell.steps, cell.flops if sized else None),
                        cell.mean_log_s, cell.sd_log_s, cell.runs, cell.believed,
                    )
                    for name, (cell, costs) in measured.items()
                }  # fmt: skip
                source = f"{self.system} {kind}"
                self.runs[kind] = MeasuredTimes(source, observed) if measured else self._predicted(of_kind, wanted)
            if (times := self.runs[kind]) is not None:
                times.learn(wanted)

    def _predicted(self, cells: Mapping[str, Cell], features: Mapping[str, Features]) -> MeasuredTimes | None:
        """Some are predicted, and the others are taken to be like the nearest of these; None where one cannot be predicted."""
        found = {}
        for name in thinned(cells, _MOST_PREDICTED):
            if (told := self.predicted(cells[name])) is None:
                return None
            found[name] = told
        observed = {name: Observed(features[name], log_s, 0.0, 1) for name, (log_s, _) in found.items()}
        return MeasuredTimes(f"{self.system} model", observed, max(sd for _, sd in found.values()))

    def beside(self, part: Part, work: Work) -> Floats | None:
        """Time of a part of a lease; None without leases that tell it."""
        key = part, work.configuration
        if key not in self._parts:
            self._parts[key] = self._part(*key)
        told = self._parts[key]
        return told and told.draws(part, work.lease)

    def _part(self, part: Part, configuration: Configuration) -> _PartTime | None:
        shape, known = _of_shape(configuration.shape()), self._logs[part]
        if not known:
            return None
        is_moved = needs_fabric(shape)
        if shape in known:  # those of other shapes tell how much leases of one shape differ
            values, groups, count = known[shape], list(known.values()), len(known[shape])
            freedom = sum(len(group) - 1 for group in groups)
        else:  # each shape tells as one value, since leases of one resemble each other
            alike = [each for each in known if part in _BY_THE_FABRIC and needs_fabric(each) == is_moved] or list(known)
            values, count = [x for each in alike for x in known[each]], len(alike)
            groups, freedom = [values], count - 1
        variance = sum((x - median(group)) ** 2 for group in groups for x in group)
        variance /= max(1, sum(len(group) - 1 for group in groups))
        sd = math.sqrt((PRIOR_VALUES * _PART_SD**2 + freedom * variance) / (PRIOR_VALUES + freedom))
        source = f"{self.system} {part} {shape if shape in known else is_moved}"
        return _PartTime(source, median(values), sd, count, PRIOR_VALUES + freedom)


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
        leases: list[Expected] = []
        unknown, composed = Counter[Kind](), 0
        parts, totals = np.zeros((len(PARTS), DRAWS + 1)), np.zeros((3, DRAWS + 1))
        for some_works in _at_once(works):
            runs, bases, without = self._runs(some_works)
            unknown += without
            whole, found = np.zeros_like(runs), []
            for number, part in enumerate(PARTS):
                times = runs if part == "runs" else np.stack([self._beside(part, work) for work in some_works])
                found.append(estimates(times))
                parts[number] += times.sum(axis=0)
                counted = times if part in NEEDED else np.where(np.isnan(times[:, :1]), 0.0, times)
                whole += counted
                totals += np.transpose([(1.0, work.devices(part), work.hosts(part)) for work in some_works]) @ counted
            for told, basis, *of_parts in zip(estimates(whole), bases, *found, strict=True):
                leases.append(_expected(told, of_parts, basis))
                composed += of_parts[PARTS.index("composing")].expected_s is None
        total, device_s, host_s = estimates(totals)
        moved = {self._on(work.configuration.system).composing.basis: None for work in works if self._operations(work)}
        return Forecast(
            leases=tuple(leases),
            total=_expected(total, estimates(parts), self.learned_from(works)),
            device_s=device_s,
            host_s=host_s,
            unknown=Unknown(unknown, composed),
            composing_from="; ".join(filter(None, moved)),
        )

    def prices(self, works: Sequence[Work], per: Callable[[Work, Part], float] = lambda *_: 1.0) -> Prices:
        """The expected time of every single run, and what a lease takes beside its runs, times what `per` says of the part.

        Sums of seconds are those of `forecast`.
        """
        self._learn(works)
        once, each = [], []
        for work in works:
            beside = {part: per(work, part) * float(self._beside(part, work)[0]) for part in PARTS if part != "runs"}
            known = {part: 0.0 if math.isnan(s) and part not in NEEDED else s for part, s in beside.items()}
            between_s = known.pop("between") / max(1, work.count)
            once.append(sum(known.values()))
            each.append(tuple(between_s + per(work, "runs") * self._run_s(work, cell) for cell, _ in work.runs))
        return Prices(tuple(once), tuple(each))

    def _on(self, system: str) -> SystemTimes:
        return self.systems.get(system, self._unknown)

    def _learn(self, works: Sequence[Work]) -> None:
        cells: defaultdict[str, list[Cell]] = defaultdict(list)
        for work in works:
            cells[work.configuration.system] += [cell for cell, _ in work.runs]
        for system, its in cells.items():
            self._on(system).learn(its)

    def _times(self, work: Work, cell: Cell) -> tuple[MeasuredTimes | float, str]:
        """Times that tell of a run, or seconds that are assumed, not a number where they are unknown; and what that rests on."""
        known, kind = self._on(work.configuration.system), kind_of(cell)
        times = known.runs[kind]
        if times is not None and kind in known.kinds:
            return (
                times,
                f"earlier runs of {'these cells' if cell.id in known.cells else 'the workload in other cells'}",
            )
        if (seconds := self.assumed.of_run(cell.workload)) is not None:
            return min(seconds, cell.settings.time_limit_s), "assumed"
        return (times, "predicted by the model of a step") if times else (math.nan, f"no run of {cell.workload} yet")

    def _run_s(self, work: Work, cell: Cell) -> float:
        """Expected time of a run; not a number where it is unknown."""
        times, _ = self._times(work, cell)
        return times if isinstance(times, float) else min(times.expected_s(cell.id), cell.settings.time_limit_s)

    def _runs(self, works: Sequence[Work]) -> tuple[Floats, list[str], Counter[Kind]]:
        """Draws of the time of all runs of each work, what these rest on, and the runs of which nothing is known."""
        found, bases, unknown = np.zeros((len(works), DRAWS + 1)), [], Counter[Kind]()
        measured: dict[int, tuple[MeasuredTimes, list[tuple[int, Cell, int]]]] = {}
        for row, work in enumerate(works):
            basis: dict[str, None] = {}
            for cell, count in work.runs:
                times, words = self._times(work, cell)
                basis[words] = None
                if not isinstance(times, float):
                    measured.setdefault(id(times), (times, []))[1].append((row, cell, count))
                    continue
                found[row] += count * assumed(times)
                if math.isnan(times):
                    unknown[kind_of(cell)] += count
            bases.append("; ".join(basis) or NOTHING.basis)
        for times, runs in measured.values():
            rows, cells, counts = (list(column) for column in zip(*runs, strict=True))
            often = np.array(counts, float)[:, None]
            of_one = times.draws([cell.id for cell in cells], [works[row].lease for row in rows], often)
            limits = np.array([cell.settings.time_limit_s for cell in cells], float)[:, None]
            first = np.flatnonzero(np.diff(rows, prepend=-1))
            seconds = np.add.reduceat(often * np.minimum(of_one, limits), first, axis=0)
            found[np.array(rows)[first]] += seconds
        return found, bases, unknown

    def _beside(self, part: Part, work: Work) -> Floats:
        """Draws of a part of a lease beside its runs."""
        known = self._on(work.configuration.system)
        often = max(0, work.count - 1) if part == "between" else int(work.count > 0)
        if not often:
            return np.zeros(DRAWS + 1)
        if part == "composing" and (operations := self._operations(work)) is not None:
            return known.composing.time(operations, work.lease)
        if (found := known.beside(part, work)) is not None:
            return often * found
        if part != "composing":
            return assumed(math.nan)
        return assumed(self.assumed.compose_s or math.nan) if work.needs_fabric else np.zeros(DRAWS + 1)

    def _operations(self, work: Work) -> Operations | None:
        """Operations that compose it, where they were timed."""
        composing, operations = self._on(work.configuration.system).composing, work.operations
        return operations if work.count and operations is not None and composing.knows(operations) else None


def _expected(whole: Estimate, parts: Sequence[Estimate], basis: str) -> Expected:
    return Expected(whole.expected_s, whole.low_s, whole.high_s, dict(zip(PARTS, parts, strict=True)), basis)


def _at_once(works: Sequence[Work]) -> Iterator[list[Work]]:
    """Works in order, so many at once that their draws stay small."""
    found: list[Work] = []
    size = 0
    for work in works:
        if found and size > _AT_ONCE:
            yield found
            found, size = [], 0
        found.append(work)
        size += 1 + len(work.runs)
    yield found


def _run_features(cell: Cell | CellCost, steps: int, flops: float | None) -> dict[str, float | str]:
    """What the time of a run may depend on beside its hardware. flops: of one sample, where they are known."""
    features: dict[str, float | str] = {
        "batch": log2(cell.batch),
        "steps": log2(max(1, steps)),
        "flops": log2(flops or 1.0),
        "precision": cell.precision,
    }
    for name, value in cell.options.items():
        if flops is None or name not in SIZES:  # operations of a sample say them already
            words = isinstance(value, bool | str) or value <= 0
            features[f"option {name}"] = str(value) if words else log2(float(value))
    return features


def _hardware(configuration: Configuration, system: str) -> dict[str, float | str]:
    return {
        "system": system,
        "ranks": log2(configuration.ranks),
        "hosts": log2(configuration.hosts),
        "attach": configuration.attach,
        "storage": configuration.storage,
    }


def _of_shape(shape: Mapping[str, Any]) -> Configuration:
    return Configuration(**{"name": "", **drop_layout(shape)})
