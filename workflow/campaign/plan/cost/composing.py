"""How long composing takes, by the operations that it consists of and recorded times of these. Pure.

Operations of one box in one session resemble each other, and sessions differ: a box answers slowly for hours, then quickly. So each
box is taken to be like one of the recorded ones, drawn at random, or with the chance of one more like none of them. Its mean is
that one's, moved by a normal kernel (smoothed bootstrap; Silverman 1986, Density Estimation, ch. 6).

Earlier operations of the present session draw those boxes more often that explain them, and move the means to what they showed: a
mixture of normal distributions, each with its posterior in closed form. What another box showed tells less, by as much as boxes
differ. Errors have Student's t then, since a box may change within a session.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance

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
_KERNEL = 0.5  # of the spread between boxes; on Falcons 0.9 of that of their quartiles (Silverman 1986, eq. 3.31)
_PRIOR_VALUES = 2.0  # that a box has the scatter of all, before its own is known
_FREEDOM = 4.0
_LEAST = 1e-6  # variance within a box: no clock is finer than a millisecond

Named = tuple[Operation, str]
"""Operation, and kind of device."""
Box = tuple[str, str]
"""Session, and box."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An operation: mean and variance by box in a session, variance between these and within one; in how many sessions."""

    means: Mapping[Box, float]
    scatter: Mapping[Box, float]
    between: float
    within: float
    sessions: int

    @property
    def middle(self) -> float:
        return median(self.means.values())


class ComposingTimes:
    """What is known of the times of operations: from earlier sessions, and from the present one."""

    def __init__(
        self, times: OperationTimes | None, own: Sequence[Session] = (), now: Iterable[Timed] = (), basis: str = ""
    ) -> None:
        """times: of this kind of fabric; own: earlier sessions of the very system, used alone where they are enough; now: the
        present session."""
        self.basis = basis or (times.source if times else "")
        published, here = _by_box(times.sessions if times else ()), _by_box(own)
        self._now = _by_box([Session("", tuple(now))])
        self._recorded: dict[Named, _Recorded] = {}
        for named in {**self._now, **published, **here}:
            found = here.get(named, {})
            if len({session for session, _ in found}) < ENOUGH:
                found = {**published.get(named, {}), **found}
            self._recorded[named] = _recorded(found or self._now[named])
        # How one session would differ from another nobody knows: as much as in the operation that differs most.
        several = [each for each in self._recorded.values() if each.sessions > 1 and each.middle]
        apart = max((each.between / each.middle**2 for each in several), default=math.nan)
        for named, each in self._recorded.items():
            if each.sessions == 1:
                self._recorded[named] = replace(each, between=apart * each.middle**2)
        self._boxes: dict[str, dict[Named, tuple[Floats, Floats]]] = {}

    def knows(self, operations: Operations) -> bool:
        """Whether each operation was ever timed."""
        return all(self._named(*key[:2]) or key[0] == "rest" for key in operations.counts)

    def _named(self, operation: Operation, device: str) -> Named | None:
        """What recordings call an operation on a kind of device; None where it was never timed."""
        return next((named for named in ((operation, device), (operation, "")) if named in self._recorded), None)

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
        boxes = sorted({each for recorded in self._recorded.values() for each in recorded.means})
        likely, found = np.zeros(len(boxes) + 1), {}
        for named, each in self._recorded.items():
            # What was not recorded of a box is like none of the others, as is the last.
            means = np.array([each.means.get(of, each.middle) for of in (*boxes, ("", ""))])
            scatter = np.array([each.scatter.get(of, each.within) for of in (*boxes, ("", ""))])
            kernel = _KERNEL**2 * len(each.means) ** -0.4
            between = each.between * np.array([kernel if of in each.means else 1.0 for of in (*boxes, ("", ""))])
            seen = self._now.get(named, {})
            own = [s for (_, at), seconds in seen.items() if not box or at in (box, "") for s in seconds]
            if values := own or [s for seconds in seen.values() for s in seconds]:
                mean, count = fmean(values), len(values)
                squares = sum((value - mean) ** 2 for value in values)
                alone = math.isnan(each.between) and count == 1  # of one time nobody knows how much it differs
                error = scatter / count + (math.nan if alone else 0.0 if own else each.between)
                likely -= np.nan_to_num((mean - means) ** 2 / (between + error) + np.log(between + error)) / 2
                likely -= np.nan_to_num((count - 1) * np.log(scatter) + squares / scatter) / 2
                gain = np.nan_to_num(between / (between + error), nan=1.0)  # all, where one session is all there is
                means, between = means + gain * (mean - means), gain * error
            found[named] = means, np.sqrt(between), np.sqrt(scatter), bool(values)
        chance = np.cumsum(np.exp(likely - likely.max()))
        like = np.searchsorted(chance / chance[-1], (np.arange(DRAWS) + 0.5) / DRAWS)
        like = random_of(box).permutation(like)
        self._boxes[box] = drawn = {}
        for named, (means, sds, scatter, is_seen) in found.items():
            source = f"{box} {named}"
            tails = [student(f"{source} {of}", _FREEDOM)[1:] if is_seen else 1.0 for of in ("mean", "noise")]
            mean_s = means[like] + sds[like] * normals([source])[0, 1:] * tails[0]
            expected_s = self._recorded[named].middle if np.isnan(mean_s).any() else np.median(mean_s)
            drawn[named] = np.insert(mean_s, 0, expected_s), np.insert(scatter[like] * tails[1], 0, 0.0)
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


def _recorded(found: Mapping[Box, Sequence[float]]) -> _Recorded:
    means = {box: fmean(seconds) for box, seconds in found.items()}
    squares = {box: sum((each - means[box]) ** 2 for each in seconds) for box, seconds in found.items()}
    more = {box: len(seconds) - 1 for box, seconds in found.items()}
    # Of boxes that did an operation once their means tell how much it differs.
    within = max(_LEAST, sum(squares.values()) / max(1, sum(more.values())))
    scatter = {box: (_PRIOR_VALUES * within + squares[box]) / (_PRIOR_VALUES + more[box]) for box in found}
    sessions = len({session for session, _ in found})
    return _Recorded(means, scatter, variance(means.values()) if sessions > 1 else math.nan, within, sessions)
