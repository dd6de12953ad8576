"""Operations of a fabric: which composing takes, known before anything is touched, and what those that were called took.

Adapters time them (`timing`), and whoever calls an adapter keeps the times (`recording`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from campaign.spec.hardware import Device
from campaign.spec.operation_times import Operation, Timed

OperationKey = tuple[Operation, str, str]
"""Operation, kind of device, box; the last two are empty where an operation is of all boxes."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What a kind of fabric does to change attachments, as operations one after another.

    attach: to attach a device of which nobody knows where it is; detach: to free one.
    once: at every composing that changes anything, and beside it the `rest`. confirmed: a state counts that two readings agree on,
    so that a reading is two of those that were recorded by others.
    """

    attach: tuple[Operation, ...] = ("attach",)
    detach: tuple[Operation, ...] = ("detach",)
    once: tuple[Operation, ...] = ()
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Operations:
    """How many operations of which kind."""

    counts: Mapping[OperationKey, int] = field(default_factory=dict)

    @classmethod
    def counted(cls, timed: Iterable[Timed]) -> Operations:
        """Those that were timed."""
        return cls(Counter((each.operation, each.device, each.box) for each in timed))

    def of(self, operation: Operation) -> int:
        return sum(count for key, count in self.counts.items() if key[0] == operation)

    def __bool__(self) -> bool:
        return any(self.counts.values())


def operations(devices: Iterable[Device], steps: Steps) -> Operations:
    """Count what attaching devices of the pool to the hosts of a lease takes."""
    counts: Counter[OperationKey] = Counter()
    for device in devices:
        counts.update((each, device.kind, box_of(device)) for each in steps.attach)
    if counts:
        counts.update((each, "", "") for each in (*steps.once, "rest"))
    return Operations(counts)


def box_of(device: Device) -> str:
    """The part of a fabric that a device is in, such as its drawer."""
    return device.location.rpartition("/")[0]


_LOG: ContextVar[list[Timed] | None] = ContextVar("operation_log", default=None)


@dataclass(slots=True)
class Answered:
    """What the control plane said of an operation that is being timed; set it before the block ends."""

    answer: str = ""


@contextmanager
def recording() -> Iterator[list[Timed]]:
    """Operations that are timed within, in order. A recording within another one has its own."""
    found: list[Timed] = []
    token = _LOG.set(found)
    try:
        yield found
    finally:
        _LOG.reset(token)


@contextmanager
def timing(operation: Operation, device: str = "", box: str = "") -> Iterator[Answered]:
    """Time one operation, if somebody records. One that fails is not kept, because it took as long as failing takes; nor is one
    that is a part of another."""
    answered, start = Answered(), time.monotonic()
    log = _LOG.get()
    token = _LOG.set(None)
    try:
        yield answered
    finally:
        _LOG.reset(token)
    if log is not None:
        log.append(Timed(operation, device, box, answered.answer, time.monotonic() - start))
