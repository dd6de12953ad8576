"""Which lease starts next beside those under way, and how long all of them take. Pure.

Leases start in the order of the plan, each as soon as what it takes is free (list scheduling). Where several of a block could
start, and few wait, that one starts with which all would end first, if later ones started in order, or those first that take most
of the scarcest resource.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Amounts = tuple[int, ...]
"""Of each resource."""

_FEW = 64
"""So many waiting leases are looked ahead at; more keep hosts busy in any order."""
_MANY = 500
"""Of more leases, the last ones are not looked ahead at to tell how long all take."""
_GAIN = 0.99
"""What changes the order of a block has to end so much earlier, as a ratio."""


@dataclass(frozen=True, slots=True)
class Job:
    """A lease that takes so much for so long. block: which of the compositions it is."""

    takes: Amounts
    seconds: float
    block: int = 1


def fits(takes: Amounts, free: Amounts) -> bool:
    return all(map(int.__le__, takes, free))


def left(free: Amounts, takes: Amounts) -> Amounts:
    return tuple(map(int.__sub__, free, takes))


def given_back(free: Amounts, takes: Amounts) -> Amounts:
    return tuple(map(int.__add__, free, takes))


def next_to_start(waiting: Sequence[Job], running: Sequence[Job], free: Amounts) -> int | None:
    """Place of the job to start now; None where none fits. running: with the seconds that are left of them."""
    if len(waiting) > _FEW:
        return _first(waiting, free)
    fitting = [place for place, job in enumerate(waiting) if fits(job.takes, free)]
    if len(fitting) < 2:
        return next(iter(fitting), None)
    block = min(waiting[place].block for place in fitting)
    distinct = {waiting[place]: place for place in reversed(fitting) if waiting[place].block == block}
    weights = _scarcity([*waiting, *running], tuple(map(sum, zip(free, *(job.takes for job in running), strict=True))))
    best, end = -1, float("inf")
    for job, place in sorted(distinct.items(), key=lambda item: item[1]):
        in_order = [*waiting[:place], *waiting[place + 1 :]]
        scarcest_first = sorted(
            in_order, key=lambda each: -each.seconds * sum(map(float.__mul__, weights, map(float, each.takes)))
        )
        now, rest = [*running, job], left(free, job.takes)
        found = min(_listed(each, now, rest) for each in (in_order, scarcest_first))
        if found < end * _GAIN:
            best, end = place, found
    return best


def _scarcity(jobs: Sequence[Job], limit: Amounts) -> list[float]:
    """Weight of each resource: what one of it is of all, where hardly any other one is as scarce; else nothing."""
    load = [sum(job.takes[n] * job.seconds for job in jobs) / (most or 1) for n, most in enumerate(limit)]
    return [1 / most if most and each > 0.9 * max(load) else 0.0 for most, each in zip(limit, load, strict=True)]


def _first(waiting: Sequence[Job], free: Amounts) -> int | None:
    tried = set[Amounts]()
    for place, job in enumerate(waiting):
        if job.takes not in tried:
            if fits(job.takes, free):
                return place
            tried.add(job.takes)
    return None


def _listed(waiting: Sequence[Job], running: Sequence[Job], free: Amounts) -> float:
    """Seconds until all are over, where each starts as soon as it fits, in order."""
    ends = [(job.seconds, number, job.takes) for number, job in enumerate(running)]
    heapq.heapify(ends)
    lines: dict[Amounts, deque[tuple[int, float]]] = {}
    for place, job in enumerate(waiting, len(ends)):
        lines.setdefault(job.takes, deque()).append((place, job.seconds))
    now = 0.0
    while True:
        while fitting := [(line[0][0], takes) for takes, line in lines.items() if fits(takes, free)]:
            place, takes = min(fitting)
            _, seconds = lines[takes].popleft()
            if not lines[takes]:
                del lines[takes]
            free = left(free, takes)
            heapq.heappush(ends, (now + seconds, place, takes))
        if not ends:
            return now
        now, _, takes = heapq.heappop(ends)
        free = given_back(free, takes)


def makespan(jobs: Sequence[Job], limit: Amounts, *, looks_ahead: bool = True) -> float:
    """Seconds that the jobs take, in this order, beside each other as far as the limit allows; none takes more than that."""
    if not looks_ahead or len(jobs) > _MANY:
        return _listed(jobs, (), limit)
    waiting, running, free, now = list(jobs), list[tuple[float, Job]](), limit, 0.0
    while waiting or running:
        rest = [Job(job.takes, end - now) for end, job in running]
        while (place := next_to_start(waiting, rest, free)) is not None:
            job = waiting.pop(place)
            free = left(free, job.takes)
            running.append((now + job.seconds, job))
            rest.append(Job(job.takes, job.seconds))
        now, done = min(running, key=lambda each: each[0])
        running.remove((now, done))
        free = given_back(free, done.takes)
    return now


def lower_bound(jobs: Sequence[Job], limit: Amounts) -> float:
    """Seconds that no order can do without: the longest job, or the whole of what is taken of the scarcest resource.

    Of a resource, jobs that take more than half of it exclude each other, so that each counts as taking all of it.
    """
    bound = max((job.seconds for job in jobs), default=0.0)
    for resource, most in enumerate(limit):
        if most:
            taken = [(job.takes[resource] / most, job.seconds) for job in jobs]
            bound = max(bound, sum(share * seconds for share, seconds in taken))
            bound = max(bound, sum(seconds for share, seconds in taken if share > 0.5))
    return bound
