"""What the operations of a fabric took, gathered while it is called: adapters time them, and whoever calls keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from campaign.documents.operation_times import Operation, Timed

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
