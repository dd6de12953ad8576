"""How long composing takes, by the operations that it consists of and recorded times of these. Pure.

Operations of one box in one session resemble each other, and sessions differ: a box answers slowly for hours, then quickly.

Before anything of the present session is known, each box is taken to be like one of the recorded ones, drawn at random, or with the
chance of one more like none of them. Its mean is that one's, moved by a normal kernel (smoothed bootstrap; Silverman 1986, Density
Estimation, ch. 6). So the interval reaches to each side as far as boxes were seen to differ.

Once something is known of the session, the time of an operation is

    mean + what a box in a session has of its own + what an operation has of its own,

with both summands normal around one scale for each box and session, which is drawn anew: together they have Student's t with three
degrees of freedom (Pinheiro, Liu and Wu 2001, J. Comput. Graph. Stat. 10:249), so that one strange session neither moves the mean
nor is ignored. The variances are estimated (EM). Earlier operations of the present session shift mean and scale to what they
showed; those of another box by half. What is slow in one operation is taken to be slow in all. A box like none of those recorded is
drawn from this distribution, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING

from campaign.documents.operation_times import Operation, OperationTimes, Session, Timed
from campaign.fabrics.operations import Key, Operations
from campaign.fabrics.registry import Serial
from campaign.plan.cost.estimates import Estimate
from campaign.plan.cost.sums import LEVEL, Sum, student

ENOUGH = 5
"""Sessions on a system that tell how sessions differ, so that nothing from elsewhere is needed."""
_FREEDOM = 3.0
_MOST = 5.0  # degrees of freedom, however long the session: a box may change within it
_BESIDE = 0.5  # how alike two boxes are in one session: a correlation of what each has of its own
_STEPS = 200
_DRAWS = 4000
_KERNEL = 0.9  # of the spread between boxes, for one of them (Silverman 1986, eq. 3.31)

if TYPE_CHECKING:  # loaded only where something is composed
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Named = tuple[Operation, str]
"""Operation, and kind of device."""


@dataclass(frozen=True, slots=True)
class _Duration:
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
    sessions: int = 0
    freedom: float = _FREEDOM


def forecast(
    operations: Operations, times: OperationTimes | None, history: Iterable[Timed] = (), serial: Serial = "all"
) -> Estimate:
    """How long operations take together. times: earlier sessions; history: what was timed in the present one, by now."""
    return ComposingTimes(times).within(history).time(operations, serial)


class ComposingTimes:
    """What is known of the times of operations: from earlier sessions, and from the present one."""

    def __init__(self, times: OperationTimes | None, own: Sequence[Session] = (), basis: str = "") -> None:
        """times: of this kind of fabric; own: earlier sessions of the very system, which are used alone where they are enough."""
        self.basis = basis or (times.source if times else "")
        published, own_units = _units(times.sessions if times else ()), _units(own)
        self._models: dict[Named, _Model] = {}
        self._units: dict[Named, dict[tuple[str, str], float]] = {}
        for named in {**published, **own_units}:
            found = own_units.get(named, {})
            if len({session for session, _ in found}) < ENOUGH:
                found = {**published.get(named, {}), **found}
            self._models[named] = _fitted(list(found.values()), len({session for session, _ in found}))
            self._units[named] = {unit: fmean(seconds) for unit, seconds in found.items()}
        # How one session would differ from another nobody knows: as much as in the operation that differs most.
        apart = max(
            (m.between / m.mean**2 for m in self._models.values() if m.sessions > 1 and m.mean), default=math.nan
        )
        for named, model in self._models.items():
            if model.sessions == 1:
                self._models[named] = replace(model, between=apart * model.mean**2)
        self._here: dict[Named, list[Timed]] = {}
        self._times: dict[object, Estimate] = {}

    def within(self, history: Iterable[Timed]) -> ComposingTimes:
        """These times in a session in which something was timed already."""
        known = copy(self)
        known._here, known._times = {}, {}
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

    def time(self, operations: Operations, serial: Serial = "all") -> Estimate:
        """A time with its interval; the whole is as long as the longest of what runs side by side."""
        key = frozenset(operations.counts.items()), serial
        if key not in self._times:
            self._times[key] = self._time(operations, serial)
        return self._times[key]

    def _time(self, operations: Operations, serial: Serial) -> Estimate:
        if not operations:
            return Estimate(0.0, 0.0, 0.0)
        if not self.knows(operations):
            return Estimate(None)
        before, beside = _side_by_side(operations, serial)
        first, parts = self.duration(before), [self.duration(each) for each in beside]
        expected = first.mean_s + max((part.mean_s for part in parts), default=0.0)
        if any(math.isnan(part.scale_s) for part in (first, *parts)):
            return Estimate(expected)
        if not beside and self._is_seen(operations):
            off = student(first.freedom) * first.scale_s
            return Estimate(expected, max(0.0, expected - off), expected + off)
        import numpy as np

        random = np.random.default_rng(0)
        drawn = self._drawn(before, random)
        if beside:
            drawn = drawn + np.max([self._drawn(each, random) for each in beside], axis=0)
        low, middle, high = map(float, np.quantile(drawn, ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)))
        return Estimate(middle if beside else expected, max(0.0, low), high)

    def total(self, operations: Operations, serial: Serial, system: str) -> Sum:
        """The time of `time`, to be added up; without a spread where that is not known. What a session has of its own is in all."""
        told, alone = self.time(operations, serial), self.duration(operations)
        total = Sum(told.expected_s or 0.0, told=told)
        if told.low_s is not None and told.high_s is not None:
            freedom = alone.freedom if self._is_seen(operations) else math.inf
            scale_s = (told.high_s - told.low_s) / 2 / student(freedom)
            own_s = min(alone.own_s, scale_s)
            total.errors_s[(system, "operations"), freedom, ""] = math.sqrt(scale_s**2 - own_s**2)
            total.noise = own_s**2
        return total

    def _is_seen(self, operations: Operations) -> bool:
        """Whether any of them was timed in the present session."""
        return any(key[:2] in self._here for key in operations.counts)

    def _drawn(self, operations: Operations, random: np.random.Generator) -> Floats:
        """Times of operations one after another, as often as `_DRAWS`."""
        import numpy as np

        if self._is_seen(operations) or not operations:
            whole = self.duration(operations)
            return whole.mean_s + whole.scale_s * random.standard_t(whole.freedom, _DRAWS)
        by_box: defaultdict[str, list[tuple[Named, int]]] = defaultdict(list)
        for (operation, device, box), count in operations.counts.items():
            named = (operation, device) if (operation, device) in self._models else (operation, "")
            if named in self._models:
                by_box[box].append((named, count))
        total = np.zeros(_DRAWS)
        for its in by_box.values():
            longest = max(its, key=lambda each: each[1] * self._models[each[0]].mean)[0]
            like = list(self._units[longest])
            picked = random.integers(len(like) + 1, size=_DRAWS)  # the last is like none
            unlike, apart = picked == len(like), random.standard_t(_FREEDOM, _DRAWS)
            for named, count in its:
                model, units = self._models[named], self._units[named]
                # A box of which this operation was not recorded is like another one in it.
                means = np.array([*(units.get(unit, math.nan) for unit in like), model.mean])[picked]
                means = np.where(np.isnan(means), random.choice(list(units.values()), _DRAWS), means)
                kernel = _KERNEL * len(units) ** -0.2 * random.standard_normal(_DRAWS)
                means += math.sqrt(model.between) * np.where(unlike, apart, kernel)
                total += count * means + math.sqrt(count * model.within) * random.standard_normal(_DRAWS)
        return total

    def duration(self, operations: Operations) -> _Duration:
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
        return _Duration(mean, math.hypot(error, *by_box.values()), math.sqrt(own), freedom)


def _units(sessions: Iterable[Session]) -> dict[Named, dict[tuple[str, str], list[float]]]:
    """Seconds by operation, then by box in a session."""
    units: dict[Named, dict[tuple[str, str], list[float]]] = {}
    for session in sessions:
        for each in session.operations:
            of = units.setdefault((each.operation, each.device), {})
            of.setdefault((session.name, each.box), []).append(each.seconds)
    return units


def _here(model: _Model | None, seen: Sequence[Timed], box: str) -> _Model:
    """An operation in the present session."""
    own = [each.seconds for each in seen if not box or each.box in (box, "")]
    values = own or [each.seconds for each in seen]
    if model is None:
        return _alone(values)
    if not values:
        return model
    alike = 1.0 if own else _BESIDE
    count, mean = len(values), fmean(values)
    variance = model.between + model.within / count
    apart = sum((value - mean) ** 2 for value in values) / model.within + (mean - model.mean) ** 2 / variance
    scale = (_FREEDOM + apart) / (_FREEDOM + count)
    shrunk = alike * model.between / variance
    between = model.between * (1 - alike * shrunk)
    shifted, error = model.mean + shrunk * (mean - model.mean), model.error * (1 - shrunk) ** 2
    return _Model(shifted, between * scale, model.within * scale, error, freedom=min(_FREEDOM + count, _MOST))


def _alone(values: Sequence[float]) -> _Model:
    """Where the present session is all there is."""
    mean = fmean(values)
    if len(values) < 2:
        return _Model(mean, math.nan, math.nan, math.nan)
    within = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return _Model(mean, 0.0, within, within / len(values), freedom=len(values) - 1)


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
