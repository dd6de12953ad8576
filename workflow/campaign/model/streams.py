"""A fixed program of operations on a few ordered streams, run for many draws at once. Pure.

An operation begins when the one before it on its stream and all that it waits for have ended. All draws advance in lockstep, each
to the next end of an operation of its own; how fast operations are depends on the set of streams that are active. So as many rounds
suffice as there are operations, and no draw has a queue of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from campaign.model.parameters import Floats

COMPUTE, COLLECTIVES, OTHER_COLLECTIVES = range(3)
"""The streams of a device. Copies that a step waits for are on that of compute, as in PyTorch."""
_STREAMS = 3
_ROUNDING = 1e-12

_Flags = npt.NDArray[np.bool_]
_Counts = npt.NDArray[np.int64]


@dataclass
class Program:
    """Operations in the order of their issue: the stream of each, seconds by draw when nothing else runs, and how many operations
    of every stream have to be over before it begins."""

    streams: list[int] = field(default_factory=list)
    seconds: list[Floats] = field(default_factory=list)
    waits: list[tuple[int, ...]] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)

    def add(self, stream: int, seconds: Floats, *after: int) -> int:
        """Append an operation; its number. after: numbers of those that it waits for."""
        needs = [0] * _STREAMS
        for number in after:
            needs[self.streams[number]] = max(needs[self.streams[number]], self._places[number] + 1)
        self._places.append(self.streams.count(stream))
        self.streams.append(stream)
        self.seconds.append(seconds)
        self.waits.append(tuple(needs))
        return len(self.streams) - 1

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal where programs differ in nothing but seconds."""
        return (tuple(self.streams), tuple(self.waits))


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
    streams = [_Stream.of(program, number, draws) for number in sorted(set(program.streams))]
    now, computing, communicating = np.zeros((3, len(draws)))
    slowed = 1 / (1 + slowdown)
    for _ in range(len(program.streams) + 1):
        done = {stream.number: stream.done for stream in streams}
        for stream in streams:
            stream.begin(done, draws)
        on = {stream.number: stream.active for stream in streams}
        idle = np.zeros(len(draws), dtype=bool)
        first, second = on.get(COLLECTIVES, idle), on.get(OTHER_COLLECTIVES, idle)
        either = first | second
        rates = {COMPUTE: np.where(either, slowed, 1.0)}
        rates[COLLECTIVES] = rates[OTHER_COLLECTIVES] = 1.0 - 0.5 * (first & second)
        step = np.full(len(draws), np.inf)
        for stream in streams:
            step = np.minimum(step, np.where(stream.active, stream.left / rates[stream.number], np.inf))
        if not np.isfinite(step).any():
            break
        step[np.isinf(step)] = 0.0  # this draw is over
        now += step
        computing += step * on.get(COMPUTE, idle)
        communicating += step * either
        for stream in streams:
            stream.advance(step * rates[stream.number], now)
    return Timeline(now, computing, communicating)


@dataclass
class _Stream:
    """The operations of one stream, and where each draw is in it."""

    number: int
    seconds: Floats
    waits: _Counts
    done: _Counts
    active: _Flags
    left: Floats

    @classmethod
    def of(cls, program: Program, number: int, draws: _Counts) -> _Stream:
        own = [place for place, stream in enumerate(program.streams) if stream == number]
        seconds = [np.broadcast_to(program.seconds[place], draws.shape) for place in own]
        never = [(len(program.streams) + 1,) * _STREAMS]  # behind the last one stands one that never begins
        return cls(
            number,
            np.stack([*seconds, np.zeros(len(draws))]),
            np.array([program.waits[place] for place in own] + never),
            np.zeros(len(draws), dtype=np.int64),
            np.zeros(len(draws), dtype=bool),
            np.zeros(len(draws)),
        )

    def begin(self, done: dict[int, _Counts], draws: _Counts) -> None:
        ready = ~self.active
        needs = self.waits[self.done]
        for other, count in done.items():
            ready &= count >= needs[:, other]
        self.left = np.where(ready, self.seconds[self.done, draws], self.left)
        self.active = self.active | ready

    def advance(self, work: Floats, now: Floats) -> None:
        self.left = self.left - work
        over = self.active & (self.left <= _ROUNDING * now)
        self.done = self.done + over
        self.active = self.active & ~over


def chained(
    order: Sequence[Sequence[int]], seconds: Sequence[Floats], before: Sequence[Sequence[tuple[int, Floats]]]
) -> list[Floats]:
    """Ends of operations of constant duration, by number: those of one row of `order` one after the other, each after what `before`
    names, with a delay each (a max-plus graph). ValueError: they wait for each other."""
    ends: dict[int, Floats] = {}
    places = [0] * len(order)
    while len(ends) < len(seconds):
        moved = False
        for row, numbers in enumerate(order):
            while places[row] < len(numbers):
                number = numbers[places[row]]
                if any(other not in ends for other, _ in before[number]):
                    break
                begun = ends[numbers[places[row] - 1]] if places[row] else np.zeros(())
                for other, delay in before[number]:
                    begun = np.maximum(begun, ends[other] + delay)
                ends[number] = begun + seconds[number]
                places[row] += 1
                moved = True
        if not moved:
            raise ValueError("operations wait for each other")
    return [ends[number] for number in range(len(seconds))]
