"""Calls of a fabric, with waiting for other leases, a record of each outcome, and repeated release until nothing is held."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from campaign.common.errors import FabricError
from campaign.fabrics.errors import Busy, Conflict
from campaign.fabrics.operations import recording
from campaign.fabrics.protocol import Fabric
from campaign.lease.journal import Journal

T = TypeVar("T")

ATTEMPTS = 3
RELEASE_WAIT_S = 60.0
_TELL_S = 60.0  # many waiting processes see a new holder with every lease that ends


class Turn:
    """Budget of time for waiting until other leases end.

    Attributes:
        wait_s: budget in seconds.
        poll_s: poll interval in seconds.
    """

    def __init__(self, wait_s: float, poll_s: float, on_wait: Callable[[str], None] | None) -> None:
        self.wait_s = wait_s
        self.poll_s = poll_s
        self._until = time.monotonic() + wait_s
        self._on_wait = on_wait
        self._told = ""
        self._tell_again = 0.0

    def wait(self, reason: Busy | Conflict) -> None:
        """Sleep for one poll interval. Raises the reason again, with the time waited, if the budget is spent."""
        if time.monotonic() >= self._until:
            message = (
                f"{reason}; waited {self.wait_s:g} s without success: wait longer, or ask the holder to release it"
            )
            raise type(reason)(message, reason.holders) from reason
        if self._on_wait is not None and str(reason) != self._told and time.monotonic() >= self._tell_again:
            self._told, self._tell_again = str(reason), time.monotonic() + _TELL_S
            self._on_wait(self._told)
        time.sleep(self.poll_s)

    def get(self, call: Callable[[], T]) -> T:
        """Repeat a call while it raises Busy or Conflict, and return its result. Raises the last error if the budget is spent."""
        while True:
            try:
                return call()
            except (Busy, Conflict) as reason:
                self.wait(reason)


def operate(journal: Journal, name: str, call: Callable[[], T]) -> T:
    """Call the fabric and record the outcome and the duration in the journal."""
    started = time.monotonic()
    facts: dict[str, Any] = {"operation": name, "outcome": "interrupted"}
    try:
        result = call()
        facts["outcome"] = "ok"
        return result
    except FabricError as error:
        facts["outcome"] = "busy" if isinstance(error, (Busy, Conflict)) else "failed"
        facts |= {"error": type(error).__name__, "message": str(error)}
        raise
    finally:
        journal.note(duration_s=time.monotonic() - started, **facts)


def give_back(fabric: Fabric, journal: Journal, *, wait_s: float, poll_s: float) -> tuple[str, ...]:
    """Release a lease repeatedly until the fabric reads back nothing, and return what could not be released.

    The lease must be ABORTING or DETACHING. Its state becomes FABRIC_FREE, or LEAKED if the release fails.

    Args:
        fabric: fabric of the lease.
        journal: journal of the lease.
        wait_s: time limit in seconds for a busy fabric.
        poll_s: poll interval in seconds.
    """
    turn = Turn(wait_s, poll_s, None)
    lease_id = journal.lease_id
    left: tuple[str, ...] = ()
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(poll_s)
        try:
            with recording() as timed:
                left = turn.get(partial(operate, journal, "release", partial(fabric.release, lease_id)))
            journal.note_times("release", timed, sum(each.seconds for each in timed))
        except FabricError:
            # The outcome is unknown, and `call_and_record` has recorded the error. Reading back decides.
            left = ()
        free = False
        with suppress(FabricError):
            free = not left and fabric.read_back(lease_id) is None
        if free:
            journal.advance("FABRIC_FREE")
            return ()
    if not left:
        with suppress(FabricError):
            left = tag.devices if (tag := fabric.held().get(lease_id)) else ()
    left = left or (f"everything of {lease_id}",)
    journal.advance("LEAKED", leaked=left)
    return left
