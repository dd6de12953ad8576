"""A fixed program of operations on a few ordered streams, run for many draws at once. Pure.

An operation begins when the one before it on its stream and all that it waits for have ended. All draws advance in lockstep, each
to the next end of an operation of its own; how fast operations are depends on the set of streams that are active. So as many rounds
suffice as there are operations, and no draw has a queue of events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from campaign.model.parameters import Floats

COMPUTE, COLLECTIVES, OTHER_COLLECTIVES = range(3)
"""The streams of a device. Copies that a step waits for are on that of compute, as in PyTorch."""
_STREAMS = 3
_ROUNDING = 1e-12


@dataclass
class Program:
    """Operations in the order of their issue: the stream of each, seconds by draw when nothing else runs, and how many operations
    of every stream have to be over before it begins."""

    streams: list[int] = field(default_factory=list)
    seconds: list[Floats] = field(default_factory=list)
    waits: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, stream: int, seconds: Floats, *after: int) -> int:
        """Append an operation; its number. after: numbers of those that it waits for."""
        needs = [0] * _STREAMS
        for number in after:
            of = self.streams[number]
            needs[of] = max(needs[of], self.streams[: number + 1].count(of))
        self.streams.append(stream)
        self.seconds.append(seconds)
        self.waits.append(tuple(needs))
        return len(self.streams) - 1


class Timeline(NamedTuple):
    """end_s: of the whole program, by draw; compute_s, collectives_s: how long the stream of compute, and one with collectives at
    least, was active."""

    end_s: Floats
    compute_s: Floats
    collectives_s: Floats


def run(program: Program, slowdown: Floats) -> Timeline:
    """Run for all draws. slowdown: share by which compute takes longer while collectives run. Collectives of two streams share
    links: each is half as fast while both run."""
    draws = np.arange(len(slowdown))
    own = [[place for place, of in enumerate(program.streams) if of == stream] for stream in range(_STREAMS)]
    used = [stream for stream in range(_STREAMS) if own[stream]]
    # Behind the last operation of a stream stands one that never begins.
    never = (len(program.streams) + 1,) * _STREAMS
    waits = [np.array([*(program.waits[place] for place in places), never]) for places in own]
    seconds = [
        np.stack([*(np.broadcast_to(program.seconds[place], draws.shape) for place in places), np.zeros(len(draws))])
        for places in own
    ]
    done, active = np.zeros((_STREAMS, len(draws)), dtype=np.int64), np.zeros((_STREAMS, len(draws)), dtype=bool)
    left, rates = np.zeros(active.shape), np.ones(active.shape)
    now, computing, communicating = np.zeros((3, len(draws)))
    for _ in range(len(program.streams) + 1):
        for stream in used:
            needs = waits[stream][done[stream]]
            begins = ~active[stream]
            for other in used:
                begins &= done[other] >= needs[:, other]
            left[stream] = np.where(begins, seconds[stream][done[stream], draws], left[stream])
            active[stream] |= begins
        either = active[COLLECTIVES] | active[OTHER_COLLECTIVES]
        rates[COMPUTE] = np.where(either, 1 / (1 + slowdown), 1.0)
        rates[COLLECTIVES:] = 1.0 - 0.5 * (active[COLLECTIVES] & active[OTHER_COLLECTIVES])
        step = np.where(active[used], left[used] / rates[used], np.inf).min(axis=0)
        if not np.isfinite(step).any():
            break
        step[np.isinf(step)] = 0.0  # this draw is over
        now += step
        computing += step * active[COMPUTE]
        communicating += step * either
        left -= step * rates
        over = active & (left <= _ROUNDING * now)
        done += over
        active &= ~over
    return Timeline(now, computing, communicating)
