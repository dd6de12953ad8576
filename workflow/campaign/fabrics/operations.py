"""Operations of a fabric: the number that composing needs, and the measured durations of those that ran.

Adapters time operations with `timing`. Callers of an adapter collect the durations with `record_operations`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from campaign.spec.hardware import Device
from campaign.spec.operation_times import Operation, OperationTime

OperationKey = tuple[Operation, str, str]
"""Operation, kind of device, and box. The last two are empty for an operation on all boxes."""


@dataclass(frozen=True, slots=True)
class OperationSteps:
    """Sequence of operations by which a kind of fabric changes attachments.

    Attributes:
        attach: operations that attach a device whose location is unknown.
        detach: operations that free a device.
        per_composition: operations of every composition that changes anything, besides the `rest`.
        confirms_readings: the fabric accepts a state only if two readings agree, so one reading takes as long
            as two readings recorded by other programs.
    """

    attach: tuple[Operation, ...] = ("attach",)
    detach: tuple[Operation, ...] = ("detach",)
    per_composition: tuple[Operation, ...] = ()
    confirms_readings: bool = False


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Number of operations, by operation, kind of device, and box."""

    counts: Mapping[OperationKey, int] = field(default_factory=dict)

    @classmethod
    def from_timed(cls, timed_operations: Iterable[OperationTime]) -> OperationCounts:
        """Count timed operations."""
        return cls(Counter((operation.operation, operation.device, operation.box) for operation in timed_operations))

    def count(self, operation: Operation) -> int:
        """Return the number of operations of one type, across all kinds of devices and boxes."""
        return sum(count for key, count in self.counts.items() if key[0] == operation)

    def __bool__(self) -> bool:
        return any(self.counts.values())


def count_operations(devices: Iterable[Device], steps: OperationSteps) -> OperationCounts:
    """Count the operations needed to attach devices of the pool to the hosts of a lease."""
    counts: Counter[OperationKey] = Counter()
    for device in devices:
        counts.update((operation, device.kind, get_device_box(device)) for operation in steps.attach)
    if counts:
        counts.update((operation, "", "") for operation in (*steps.per_composition, "rest"))
    return OperationCounts(counts)


def get_device_box(device: Device) -> str:
    """Return the part of the fabric that contains a device, such as its drawer."""
    return device.location.rpartition("/")[0]


_OPERATION_LOG: ContextVar[list[OperationTime] | None] = ContextVar("operation_log", default=None)


@dataclass(slots=True)
class OperationAnswer:
    """Answer of the control plane to an operation that is being timed.

    Set `answer` before the timed block ends.
    """

    answer: str = ""


@contextmanager
def record_operations() -> Iterator[list[OperationTime]]:
    """Record the operations that are timed inside the block, in order.

    A nested recording keeps its own list.
    """
    operations: list[OperationTime] = []
    token = _OPERATION_LOG.set(operations)
    try:
        yield operations
    finally:
        _OPERATION_LOG.reset(token)


@contextmanager
def time_operation(operation: Operation, device: str = "", box: str = "") -> Iterator[OperationAnswer]:
    """Measure the duration of one operation if a recording is active.

    A failed operation is not recorded, because its duration is that of the failure. An operation inside another one is not
    recorded either.
    """
    operation_answer, start = OperationAnswer(), time.monotonic()
    log = _OPERATION_LOG.get()
    token = _OPERATION_LOG.set(None)
    try:
        yield operation_answer
    finally:
        _OPERATION_LOG.reset(token)
    if log is not None:
        log.append(OperationTime(operation, device, box, operation_answer.answer, time.monotonic() - start))
