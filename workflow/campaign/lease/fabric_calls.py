"""Fabric calls that wait for other leases and record each outcome, and a release that is repeated until nothing is held."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from campaign.common.errors import FabricError
from campaign.fabrics.errors import Busy, Conflict
from campaign.fabrics.operations import record_operations
from campaign.fabrics.protocol import Fabric
from campaign.lease.journal import Journal

ResultT = TypeVar("ResultT")

MAX_ATTEMPTS = 3
RELEASE_TIMEOUT_S = 60.0
_REPORT_INTERVAL_S = 60.0  # With many waiting processes, the holder changes with every lease that ends.


class WaitBudget:
    """Time budget for waiting until other leases end.

    Attributes:
        wait_s: budget in seconds.
        poll_s: poll interval in seconds.
    """

    def __init__(self, wait_s: float, poll_s: float, on_wait: Callable[[str], None] | None) -> None:
        self.wait_s = wait_s
        self.poll_s = poll_s
        self._deadline_s = time.monotonic() + wait_s
        self._on_wait = on_wait
        self._last_message = ""
        self._next_report_s = 0.0

    def wait_once(self, reason: Busy | Conflict) -> None:
        """Sleep for one poll interval. Raises the reason again, with the time waited, if the budget is spent."""
        if time.monotonic() >= self._deadline_s:
            message = (
                f"{reason}; waited {self.wait_s:g} s without success; wait longer, or ask the holder to release it"
            )
            raise type(reason)(message, reason.holders) from reason
        if self._on_wait is not None and str(reason) != self._last_message and time.monotonic() >= self._next_report_s:
            self._last_message, self._next_report_s = str(reason), time.monotonic() + _REPORT_INTERVAL_S
            self._on_wait(self._last_message)
        time.sleep(self.poll_s)

    def call_when_free(self, call: Callable[[], ResultT]) -> ResultT:
        """Repeat a call while it raises Busy or Conflict, and return its result. Raises the last error if the budget is spent."""
        while True:
            try:
                return call()
            except (Busy, Conflict) as reason:
                self.wait_once(reason)


def call_and_record(journal: Journal, name: str, call: Callable[[], ResultT]) -> ResultT:
    """Call the fabric and record the outcome and the duration in the journal."""
    start_s = time.monotonic()
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
        journal.add_facts(duration_s=time.monotonic() - start_s, **facts)


def release_all(fabric: Fabric, journal: Journal, *, wait_s: float, poll_s: float) -> tuple[str, ...]:
    """Release a lease repeatedly until the fabric reports no devices for it, and return what could not be released.

    The lease must be ABORTING or DETACHING. Its state becomes FABRIC_FREE, or LEAKED if the release fails.

    Args:
        fabric: fabric of the lease.
        journal: journal of the lease.
        wait_s: time limit in seconds for a busy fabric.
        poll_s: poll interval in seconds.
    """
    budget = WaitBudget(wait_s, poll_s, None)
    lease_id = journal.lease_id
    leaked_devices: tuple[str, ...] = ()
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            time.sleep(poll_s)
        try:
            with record_operations() as operations:
                leaked_devices = budget.call_when_free(
                    partial(call_and_record, journal, "release", partial(fabric.release, lease_id))
                )
            journal.add_operation_times("release", operations, sum(operation.seconds for operation in operations))
        except FabricError:
            # The outcome is unknown, and `call_and_record` has recorded the error. The fabric is therefore read back.
            leaked_devices = ()
        is_free = False
        with suppress(FabricError):
            is_free = not leaked_devices and fabric.read_back(lease_id) is None
        if is_free:
            journal.enter_state("FABRIC_FREE")
            return ()
    if not leaked_devices:
        with suppress(FabricError):
            leaked_devices = tag.devices if (tag := fabric.list_lease_tags().get(lease_id)) else ()
    leaked_devices = leaked_devices or (f"everything of {lease_id}",)
    journal.enter_state("LEAKED", leaked=leaked_devices)
    return leaked_devices
