"""How long composing takes, by the operations that it consists of and recorded times of these. Pure.

Operations of one box in one session resemble each other, and sessions differ: a box answers slowly for hours, then quickly. So the
time of an operation is

    mean + what a box in a session has of its own + what an operation has of its own,

with both summands normal around one scale for each box and session, which is drawn anew: together they have Student's t with three
degrees of freedom (Pinheiro, Liu and Wu 2001, J. Comput. Graph. Stat. 10:249), so that one strange session neither moves the mean
nor is ignored. The variances are estimated (EM); that between sessions is its mean under a flat prior on its root (Gelman 2006,
Bayesian Anal. 1:515), because sessions are few. Earlier operations of the present session shift mean and scale to what they showed;
those of another box by half. What is slow in one operation is taken to be slow in all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from statistics import fmean, median

from campaign.documents.operation_times import Operation, OperationTimes, Session, Timed
from campaign.fabrics.operations import Key, Operations
from campaign.fabrics.registry import Serial

LEVEL = 0.95
ENOUGH = 5
"""Sessions on a system that tell how sessions differ, so that nothing from elsewhere is needed."""
_FREEDOM = 3.0
_MOST = 5.0  # degrees of freedom, however long the session: a box may change within it
_BESIDE = 0.5  # how alike two boxes are in one session: a correlation of what each has of its own
_STEPS = 200
_QUANTILE = 3.182  # of Student's t with three degrees of freedom, for an interval of LEVEL

Named = tuple[Operation, str]
"""Operation, and kind of device."""


@dataclass(frozen=True, slots=True)
class ComposingTime:
    """Seconds, with a 95 % interval where there is one; None: not known. basis: what it rests on."""

    expected_s: float | None
    low_s: float | None
    high_s: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Duration:
    """A time in seconds, as a t distribution. common_s: of its scale, what all composing of a session shares; own_s: the rest."""

    mean_s: float
    common_s: float
    own_s: float
    freedom: float

    @property
    def scale_s(self) -> float:
        return math.hypot(self.common_s, self.own_s)


@dataclass(frozen=True, slots=True)
class _Model:
    """An operation: mean, variances between boxes in sessions and within, and of the mean; in how many sessions."""

    mean: float
    between: float
    within: float
    error: float
    sessions: int


def forecast(
    operations: Operations, times: OperationTimes | None, history: Iterable[Timed] = (), serial: Serial = "all"
) -> ComposingTime:
    """How long operations take together. times: earlier sessions; history: what was timed in the present one, by now."""
    return ComposingTimes(times).within(history).time(operations, serial)


class ComposingTimes:
    """What is known of the times of operations: from earlier sessions, and from the present one."""

    def __init__(self, times: OperationTimes | None, own: Sequence[Session] = (), basis: str = "") -> None:
        """times: of this kind of fabric; own: earlier sessions of the very system, which are used alone where they are enough."""
        self.basis = basis or (times.source if times else "")
        published, own_units = _units(times.sessions if times else ()), _units(own)
        self._models = {}
        for named in {**published, **own_units}:
            found = own_units.get(named, {})
            if len({session for session, _ in found}) < ENOUGH:
                found = {**published.get(named, {}), **found}
            self._models[named] = _fitted(list(found.values()), len({session for session, _ in found}))
        # How one session would differ from another nobody knows: as much as in the operation that differs most.
        apart = max(
            (m.between / m.mean**2 for m in self._models.values() if m.sessions > 1 and m.mean), default=math.nan
        )
        for named, model in self._models.items():
            if model.sessions == 1:
                self._models[named] = replace(model, between=apart * model.mean**2)
        self._here: dict[Named, list[Timed]] = {}

    def within(self, history: Iterable[Timed]) -> ComposingTimes:
        """These times in a session in which something was timed already."""
        known = copy(self)
        known._here = {}
        for each in history:
            known._here.setdefault((each.operation, each.device), []).append(each)
        return known

    def knows(self, operations: Operations) -> bool:
        """Whether each operation was ever timed."""
        return all(self._is_known(key) or key[0] == "rest" for key in operations.counts)

    def _is_known(self, key: Key) -> bool:
        return self._model(*key[:2]) is not None or key[:2] in self._here

    def _model(self, operation: Operation, device: str) -> _Model | None:
        return self._models.get((operation, device)) or self._models.get((operation, ""))

    def time(self, operations: Operations, serial: Serial = "all") -> ComposingTime:
        """A time with its interval; the whole is as long as the longest of what runs side by side."""
        if not operations:
            return ComposingTime(0.0, 0.0, 0.0, "nothing to compose")
        if not self.knows(operations):
            return ComposingTime(None, None, None, "operations of this kind of fabric were never timed")
        before, beside = _side_by_side(operations, serial)
        first, parts = self.duration(before), [self.duration(each) for each in beside]
        if any(math.isnan(part.scale_s) for part in (first, *parts)):
            expected = first.mean_s + max((part.mean_s for part in parts), default=0.0)
            return ComposingTime(expected, None, None, self.basis)
        middle, low, high = (_longest(first, parts, share) for share in (0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return ComposingTime(middle, max(0.0, low), high, self.basis)

    def summand(self, operations: Operations, serial: Serial = "all") -> Duration:
        """The time of `time`, to be added up; without a spread where that is not known."""
        if serial == "all":
            found = self.duration(operations)
            return found if not math.isnan(found.scale_s) else Duration(found.mean_s, 0.0, 0.0, _FREEDOM)
        told = self.time(operations, serial)
        scale = 0.0 if told.low_s is None or told.high_s is None else (told.high_s - told.low_s) / 2 / _QUANTILE
        return Duration(told.expected_s or 0.0, scale, 0.0, _FREEDOM)

    def duration(self, operations: Operations) -> Duration:
        """The time of operations one after another; its scale is not a number where one session is all there is."""
        mean = error = own = 0.0
        by_box: defaultdict[str, float] = defaultdict(float)
        weights, freedoms = [], []
        for (operation, device, box), count in operations.counts.items():
            if not self._is_known((operation, device, box)):
                continue
            one = _here(self._model(operation, device), self._here.get((operation, device), ()), box)
            mean += count * one.mean
            by_box[box] += count * math.sqrt(one.between)
            error += count * math.sqrt(one.error)
            own += count * one.within
            weights.append(count**2 * one.between + count * one.within)
            freedoms.append(one.freedom)
        weight = sum(weights)
        freedom = sum(w * f for w, f in zip(weights, freedoms, strict=True)) / weight if weight > 0 else _FREEDOM
        return Duration(mean, math.hypot(error, *by_box.values()), math.sqrt(own), freedom)


@dataclass(frozen=True, slots=True)
class _Here:
    """The time of one operation on one box in the present session."""

    mean: float
    between: float
    within: float
    error: float
    freedom: float


def _units(sessions: Iterable[Session]) -> dict[Named, dict[tuple[str, str], list[float]]]:
    """Seconds by operation, then by box in a session."""
    units: dict[Named, dict[tuple[str, str], list[float]]] = {}
    for session in sessions:
        for each in session.operations:
            of = units.setdefault((each.operation, each.device), {})
            of.setdefault((session.name, each.box), []).append(each.seconds)
    return units


def _here(model: _Model | None, seen: Sequence[Timed], box: str) -> _Here:
    own = [each.seconds for each in seen if not box or each.box in (box, "")]
    values = own or [each.seconds for each in seen]
    if model is None:
        return _alone(values)
    if not values:
        return _Here(model.mean, model.between, model.within, model.error, _FREEDOM)
    alike = 1.0 if own else _BESIDE
    count, mean = len(values), fmean(values)
    variance = model.between + model.within / count
    apart = sum((value - mean) ** 2 for value in values) / model.within + (mean - model.mean) ** 2 / variance
    scale = (_FREEDOM + apart) / (_FREEDOM + count)
    shrunk = alike * model.between / variance
    between = model.between * (1 - alike * shrunk)
    return _Here(
        model.mean + shrunk * (mean - model.mean),
        between * scale,
        model.within * scale,
        model.error * (1 - shrunk) ** 2,
        min(_FREEDOM + count, _MOST),
    )


def _alone(values: Sequence[float]) -> _Here:
    """Where the present session is all there is."""
    mean = fmean(values)
    if len(values) < 2:
        return _Here(mean, math.nan, math.nan, math.nan, _FREEDOM)
    within = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return _Here(mean, 0.0, within, within / len(values), len(values) - 1)


def _fitted(units: Sequence[Sequence[float]], sessions: int) -> _Model:
    """Maximum likelihood of the multivariate t, by EM."""
    count, total = len(units), sum(map(len, units))
    means = [fmean(unit) for unit in units]
    squares = [sum((x - m) ** 2 for x in unit) for unit, m in zip(units, means, strict=True)]
    least = (1e-3 * fmean(means)) ** 2 + 1e-12
    mean = median(means)
    within = max(least, sum(squares) / max(1, total - count))
    between = max(least, sum((m - mean) ** 2 for m in means) / count)
    weights = [1.0] * count
    for _ in range(_STEPS):
        variances = [between + within / len(unit) for unit in units]
        weights = [
            (_FREEDOM + len(unit)) / (_FREEDOM + s / within + (m - mean) ** 2 / v) / v
            for unit, m, s, v in zip(units, means, squares, variances, strict=True)
        ]
        mean = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
        new_between = new_within = 0.0
        for unit, m, s, v, w in zip(units, means, squares, variances, weights, strict=True):
            n, scale, effect = len(unit), w * v, between / v * (m - mean)
            known = between * within / n / v
            new_between += scale * effect**2 + known
            new_within += scale * (s + n * (m - mean - effect) ** 2) + n * known
        moved = abs(new_between / count - between) + abs(new_within / total - within)
        between, within = new_between / count, max(least, new_within / total)
        if moved < 1e-6 * within:
            break
    return _Model(mean, between * count / max(1, count - 4), within, 1 / sum(weights), sessions)


def _side_by_side(operations: Operations, serial: Serial) -> tuple[Operations, list[Operations]]:
    """What comes first, and what then runs at the same time: all of a box, or of a device."""
    of_all = {key: count for key, count in operations.counts.items() if not key[2]}
    if serial == "all":
        return operations, []
    groups: defaultdict[tuple[str, ...], dict[Key, int]] = defaultdict(dict)
    for key, count in operations.counts.items():
        if not key[2] or not count:
            continue
        if serial == "box":
            groups[key[2:]][key] = count
        else:
            for device in range(count):
                groups[*key[1:], str(device)][key] = 1
    return Operations(of_all), [Operations(group) for group in groups.values()]


def _longest(first: Duration, parts: Sequence[Duration], share: float) -> float:
    """Quantile of the first and the longest of the others, which count as independent."""
    from scipy.special import stdtr, stdtrit

    if not parts:
        return first.mean_s + float(stdtrit(first.freedom, share)) * first.scale_s
    # What comes first is short beside the rest: it widens every part alike.
    each = [
        Duration(p.mean_s + first.mean_s, p.common_s + first.common_s, math.hypot(p.own_s, first.own_s), p.freedom)
        for p in parts
    ]

    def below(seconds: float) -> float:
        return math.prod(
            float(stdtr(p.freedom, (seconds - p.mean_s) / p.scale_s)) if p.scale_s else float(seconds >= p.mean_s)
            for p in each
        )

    return _root(below, share, [p.mean_s for p in each], max(p.scale_s for p in each))


def _root(rising: Callable[[float], float], share: float, places: Sequence[float], width: float) -> float:
    low, high = min(places), max(places)
    step = max(width, 1e-6)
    while rising(low) > share:
        low, step = low - step, 2 * step
    while rising(high) < share:
        high, step = high + step, 2 * step
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= share else (middle, high)
    return high
