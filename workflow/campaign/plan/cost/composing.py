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
showed; those of another box by half.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from campaign.config.resolve import Campaign
from campaign.documents.operation_times import Operation, OperationTimes, Session, Timed
from campaign.fabrics.operations import Operations, Steps
from campaign.fabrics.registry import fabric_kind
from campaign.plan.cost.costs import Costs
from campaign.plan.cost.draws import DRAWS, Floats, assumed, normals, random_of, student
from campaign.plan.cost.recorded_operations import given_times, timed_operations
from campaign.wording import plural

ENOUGH = 5
"""Sessions on a system that tell how sessions differ, so that nothing from elsewhere is needed."""
_KERNEL = 0.9  # of the spread between boxes, for one of them (Silverman 1986, eq. 3.31)
_FREEDOM = 3.0
_MOST = 5.0  # degrees of freedom, however long the session: a box may change within it
_BESIDE = 0.5  # how alike two boxes are in one session: a correlation of what each has of its own
_STEPS = 200

Named = tuple[Operation, str]
"""Operation, and kind of device."""
Box = tuple[str, str]
"""Session, and box."""


@dataclass(frozen=True, slots=True)
class _Model:
    """An operation: mean, variances between boxes in sessions and within, and of the mean; degrees of freedom of its errors."""

    mean: float
    between: float
    within: float
    error: float
    freedom: float = _FREEDOM


class ComposingTimes:
    """What is known of the times of operations: from earlier sessions, and from the present one."""

    def __init__(
        self, times: OperationTimes | None, own: Sequence[Session] = (), now: Iterable[Timed] = (), basis: str = ""
    ) -> None:
        """times: of this kind of fabric; own: earlier sessions of the very system, used alone where they are enough; now: the
        present session."""
        self.basis = basis or (times.source if times else "")
        published, here = _by_box(times.sessions if times else ()), _by_box(own)
        self._now: defaultdict[Named, list[Timed]] = defaultdict(list)
        for each in now:
            self._now[each.operation, each.device].append(each)
        self._means: dict[Named, dict[Box, float]] = {}
        self._models: dict[Named, _Model] = {}
        single = []
        for named in {**published, **here}:
            found = here.get(named, {})
            if len({session for session, _ in found}) < ENOUGH:
                found = {**published.get(named, {}), **found}
            self._means[named] = {box: fmean(seconds) for box, seconds in found.items()}
            self._models[named] = _fitted(list(found.values()))
            single += [named] if len({session for session, _ in found}) == 1 else []
        # How one session would differ from another nobody knows: as much as in the operation that differs most.
        several = [model for named, model in self._models.items() if named not in single and model.mean]
        apart = max((model.between / model.mean**2 for model in several), default=math.nan)
        for named in single:
            model = self._models[named]
            self._models[named] = replace(model, between=apart * model.mean**2)
        self._boxes: dict[str, dict[Named, tuple[Floats, Floats]]] = {}

    def knows(self, operations: Operations) -> bool:
        """Whether each operation was ever timed."""
        return all(self._named(*key[:2]) or key[0] == "rest" for key in operations.counts)

    def _named(self, operation: Operation, device: str) -> Named | None:
        """What recordings call an operation on a kind of device; None where it was never timed."""
        return next(
            (named for named in ((operation, device), (operation, "")) if named in self._models or named in self._now),
            None,
        )

    def time(self, operations: Operations, lease: str = "") -> Floats:
        """Draws of a time of operations, one after another. lease: whose noise it has."""
        if not self.knows(operations):
            return assumed(math.nan)
        whole = np.zeros(DRAWS + 1)
        for (operation, device, box), count in operations.counts.items():
            if (named := self._named(operation, device)) is not None:
                means, noise_s = self._box(box)[named]
                noise = normals([f"{lease} {operation} {device} {box}"])[0]
                whole += count * means + math.sqrt(count) * noise_s * noise
        return whole

    def _box(self, box: str) -> dict[Named, tuple[Floats, Floats]]:
        """By operation, draws of its mean time on one box in the present session, and of how much it scatters (sd)."""
        if box in self._boxes:
            return self._boxes[box]
        boxes = sorted({each for means in self._means.values() for each in means})
        # The last is like none of them.
        like = random_of(box).permutation(np.arange(DRAWS) * (len(boxes) + 1) // DRAWS)
        own = normals([f"{box} in this session"])[0, 1:]
        self._boxes[box] = drawn = {}
        for named in {**self._models, **self._now}:
            source = f"{box} {named}"
            errors = normals([source])[0, 1:]
            if seen := self._now.get(named):
                model = _here(self._models.get(named), seen, box)
                tail = student(box, model.freedom)[1:]
                means = model.mean + (math.sqrt(model.between) * own + math.sqrt(model.error) * errors) * tail
            else:
                model, recorded = self._models[named], self._means[named]
                # A box of which this operation was not recorded is like another one in it.
                means = np.array([*(recorded.get(each, math.nan) for each in boxes), model.mean])[like]
                means = np.where(np.isnan(means), random_of(source).choice([*recorded.values()], DRAWS), means)
                tail = np.ones(DRAWS)
                kernel = _KERNEL * len(recorded) ** -0.2
                spread = np.where(like == len(boxes), student(source, _FREEDOM)[1:], kernel)
                means += math.sqrt(model.between) * spread * errors
            drawn[named] = np.insert(means, 0, model.mean), np.insert(math.sqrt(model.within) * tail, 0, 0.0)
        return drawn


def composing_of(campaign: Campaign, costs: Sequence[Costs]) -> ComposingTimes:
    """What is known of the times of operations on a campaign's system; the campaign itself is the present session."""
    system = campaign.system
    kind = str(system.fabric["kind"])
    entries: defaultdict[str, list[Mapping[str, object]]] = defaultdict(
        list
    )  # costs of a campaign may come from several files
    for each in costs:
        if each.system == system.name:
            entries[each.campaign] += [entry for lease in each.leases for entry in lease.timed]
    now = timed_operations(entries.pop(campaign.name, ()), kind)
    sessions = (Session(name, timed_operations(found, kind)) for name, found in entries.items())
    before = [each for each in sessions if each.operations]
    published = given_times(system, campaign.system_source.path)
    if published is not None:  # a site's own file may have this campaign
        published = replace(published, sessions=tuple(s for s in published.sessions if s.name != campaign.name))
        if (fabric_kind(kind).steps or Steps()).confirmed and not system.times:
            published = published.read_twice(float(system.fabric.get("poll_s", 0.0)))
    known = [
        *(["this campaign"] if now else []),
        *([f"{plural(len(before), 'earlier campaign')} on {system.name}"] if before else []),
        *([published.source] if published and len(before) < ENOUGH else []),
    ]
    return ComposingTimes(published, before, now, " and ".join(known))


def _by_box(sessions: Iterable[Session]) -> dict[Named, dict[Box, list[float]]]:
    """Seconds by operation, then by session and box."""
    found: dict[Named, dict[Box, list[float]]] = {}
    for session in sessions:
        for each in session.operations:
            of = found.setdefault((each.operation, each.device), {})
            of.setdefault((session.name, each.box), []).append(each.seconds)
    return found


def _here(model: _Model | None, seen: Sequence[Timed], box: str) -> _Model:
    """An operation in the present session."""
    own = [each.seconds for each in seen if not box or each.box in (box, "")]
    values = own or [each.seconds for each in seen]
    count, mean = len(values), fmean(values)
    squares = sum((value - mean) ** 2 for value in values)
    if model is None:  # the present session is all there is
        within = squares / (count - 1) if count > 1 else math.nan
        return _Model(mean, 0.0, within, within / count, max(1, count - 1))
    variance = model.between + model.within / count
    apart = squares / model.within + (mean - model.mean) ** 2 / variance
    scale = (_FREEDOM + apart) / (_FREEDOM + count)
    alike = 1.0 if own else _BESIDE
    shrunk = alike * model.between / variance
    between = model.between * (1 - alike * shrunk)
    shifted, error = model.mean + shrunk * (mean - model.mean), model.error * (1 - shrunk) ** 2
    return _Model(shifted, between * scale, model.within * scale, error, min(_FREEDOM + count, _MOST))


def _fitted(units: Sequence[Sequence[float]]) -> _Model:
    """Maximum likelihood of the multivariate t, by EM. units: times of one box in one session each."""
    counts = np.array([len(unit) for unit in units])
    means = np.array([fmean(unit) for unit in units])
    squares = np.array([sum((each - fmean(unit)) ** 2 for each in unit) for unit in units])
    total = counts.sum()
    least = (1e-3 * means.mean()) ** 2 + 1e-12
    mean = np.median(means)
    within = max(least, squares.sum() / max(1, total - len(units)))
    between = max(least, ((means - mean) ** 2).mean())
    weights = np.ones(len(units))
    for _ in range(_STEPS):
        variances = between + within / counts
        scales = (_FREEDOM + counts) / (_FREEDOM + squares / within + (means - mean) ** 2 / variances)
        weights = scales / variances
        mean = (weights * means).sum() / weights.sum()
        effects = between / variances * (means - mean)
        known = between * within / counts / variances
        new_between = (scales * effects**2 + known).mean()
        new_within = (scales * (squares + counts * (means - mean - effects) ** 2) + counts * known).sum() / total
        moved = abs(new_between - between) + abs(new_within - within)
        between, within = new_between, max(least, new_within)
        if moved < 1e-6 * within:
            break
    between *= len(units) / max(1, len(units) - 4)
    return _Model(float(mean), float(between), float(within), float(1 / weights.sum()))
