"""Journal of a lease with every intended change and its outcome, so that the state is known after a crash.

`<directory>/<lease id>.jsonl` grows by whole lines. An intended change is written and forced to disk before the first mutating
call, and the ids right after it. `<lease id>.lock` is locked as long as the owner lives. The kernel drops the lock of a killed
process, so no process number has to be trusted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from campaign.common.errors import FabricError
from campaign.common.files import (
    NO_SPACE_ERRNOS,
    acquire_lock,
    append_json,
    is_locked,
    read_json_lines,
    read_lock_holder,
)
from campaign.common.processes.clocks import get_timestamp_s
from campaign.fabrics.errors import Conflict
from campaign.spec.operation_times import OperationTime

LeaseState = Literal[
    "PLANNED",  # requested; nothing is chosen
    "RESERVED",  # exact devices are chosen and recorded; nothing is changed
    "COMPOSING",  # the fabric was requested to attach them
    "FABRIC_OK",  # the fabric reads back enough devices
    "HOST_VISIBLE",  # the hosts list them, or no host agent is configured (`hosts_looked_at`)
    "READY",  # the obtained composition was compared with the requested one
    "IN_USE",  # runs use it
    "DEGRADED",  # devices broke or vanished; results since the last check are invalid
    "DRAINING",  # no further run will start
    "DETACHING",  # the fabric was requested to release
    "FABRIC_FREE",  # the fabric holds nothing for the lease
    "RELEASED",  # over
    "UNKNOWN",  # an answer was lost or the owner died; the fabric must be read back
    "PARTIAL",  # less than requested is attached
    "ABORTING",  # the attached devices are being released
    "LEAKED",  # something could not be released; every reconciliation tries again
]

# States that are forced to disk: those before the fabric is changed, and the results. Other states can be read back from the
# fabric after a power failure.
_DURABLE_STATES: frozenset[LeaseState] = frozenset(
    {"PLANNED", "RESERVED", "COMPOSING", "FABRIC_OK", "PARTIAL", "UNKNOWN", "ABORTING", "DETACHING", "LEAKED"}
)
# States in which devices are released even if a full disk cannot store the journal entry.
_FULL_DISK_STATES: frozenset[LeaseState] = frozenset(
    {"UNKNOWN", "ABORTING", "DEGRADED", "DRAINING", "DETACHING", "FABRIC_FREE", "RELEASED", "LEAKED"}
)
_STATES_AFTER_RELEASE: frozenset[LeaseState] = frozenset({"FABRIC_FREE", "LEAKED", "UNKNOWN"})
TRANSITIONS: dict[LeaseState | None, frozenset[LeaseState]] = {
    None: frozenset({"PLANNED"}),
    "PLANNED": frozenset({"RESERVED", "RELEASED", "UNKNOWN"}),
    "RESERVED": frozenset({"COMPOSING", "ABORTING", "UNKNOWN"}),
    "COMPOSING": frozenset({"FABRIC_OK", "RESERVED", "PARTIAL", "ABORTING", "UNKNOWN"}),
    "FABRIC_OK": frozenset({"HOST_VISIBLE", "ABORTING", "UNKNOWN"}),
    "HOST_VISIBLE": frozenset({"READY", "ABORTING", "UNKNOWN"}),
    "READY": frozenset({"IN_USE", "DEGRADED", "DRAINING", "UNKNOWN"}),
    "IN_USE": frozenset({"DEGRADED", "DRAINING", "UNKNOWN"}),
    "DEGRADED": frozenset({"DRAINING", "UNKNOWN"}),
    "DRAINING": frozenset({"DETACHING", "UNKNOWN"}),
    "DETACHING": _STATES_AFTER_RELEASE,
    "FABRIC_FREE": frozenset({"RELEASED", "RESERVED", "UNKNOWN"}),
    "RELEASED": frozenset({"PLANNED"}),
    "UNKNOWN": frozenset(
        {"RESERVED", "FABRIC_OK", "PARTIAL", "ABORTING", "DETACHING", "FABRIC_FREE", "LEAKED", "UNKNOWN"}
    ),
    "PARTIAL": frozenset({"ABORTING", "UNKNOWN"}),
    "ABORTING": _STATES_AFTER_RELEASE,
    "LEAKED": frozenset({"ABORTING", "UNKNOWN"}),
}

_RELEASING_STATES: frozenset[LeaseState] = frozenset(
    {"DRAINING", "DETACHING", "ABORTING", "FABRIC_FREE", "RELEASED", "LEAKED"}
)
"""States after which the devices may belong to another lease."""

_MILESTONE_NAMES: dict[LeaseState, str] = {
    "PLANNED": "requested_s",
    "FABRIC_OK": "fabric_done_s",
    "HOST_VISIBLE": "host_visible_s",
    "READY": "ready_s",
    "DRAINING": "release_started_s",
    "RELEASED": "released_s",
}
_LEASE_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")

JournalEntry = dict[str, Any]


class Journal:
    """Journal of one lease. A lease id that was released may be used again; only its last use counts.

    Attributes:
        lease_id: id of the lease.
        path: file of the journal.
    """

    def __init__(self, directory: Path, lease_id: str) -> None:
        if not _LEASE_ID_PATTERN.fullmatch(lease_id):
            raise FabricError(f"lease id {lease_id!r} cannot be a file name; use letters, digits and . _ + -")
        self.lease_id = lease_id
        self.path = directory / f"{lease_id}.jsonl"
        self._state: LeaseState | None = None

    def read_entries(self) -> list[JournalEntry]:
        """Return the entries of all complete lines. A line that was cut off when its writer died is skipped."""
        return [entry for entry in read_json_lines(self.path)[0] if "time_s" in entry]

    def read_last_use(self) -> list[JournalEntry]:
        """Return the entries since the last request of the lease."""
        entries = self.read_entries()
        starts = [index for index, entry in enumerate(entries) if entry.get("state") == "PLANNED"]
        return entries[starts[-1] :] if starts else []

    @property
    def state(self) -> LeaseState | None:
        """Current state of the lease, read once because only the owner of the lease writes to its journal."""
        if self._state is None:
            states: list[LeaseState] = [entry["state"] for entry in self.read_last_use() if "state" in entry]
            self._state = states[-1] if states else None
        return self._state

    @property
    def holding_token(self) -> str:
        """Token of the held devices. The file is read each time.

        The token changes whenever devices are chosen, and is empty once they are released.
        """
        token = ""
        for entry in self.read_last_use():
            if entry.get("state") == "RESERVED":
                token = str(entry.get("token") or entry["time_s"])
            elif entry.get("state") in _RELEASING_STATES:
                token = ""
        return token

    @property
    def first_fault(self) -> str:
        """Message of the first fault in the last use, or an empty string. The file is read each time."""
        return next((str(fault["message"]) for fault in self.make_document()["faults"]), "")

    def enter_state(self, state: LeaseState, **facts: Any) -> None:
        """Record a new state of the lease. Raises FabricError if the current state does not allow it.

        Args:
            state: new state.
            **facts: further values for the journal.
        """
        before = self.state
        if state not in TRANSITIONS[before]:
            raise FabricError(f"{self.path}: a lease that is {before or 'new'} cannot become {state}")
        with _tolerate_full_disk() if state in _FULL_DISK_STATES else nullcontext():
            append_json(
                self.path, {"time_s": get_timestamp_s(), "state": state, **facts}, durable=state in _DURABLE_STATES
            )
        self._state = state

    def add_facts(self, **facts: Any) -> None:
        """Record an operation, a wait or a takeover without changing the state."""
        with _tolerate_full_disk():
            append_json(self.path, {"time_s": get_timestamp_s(), **facts})

    def add_operation_times(self, phase: str, operations: Sequence[OperationTime], seconds: float) -> None:
        """Record the durations of fabric operations and their total.

        Args:
            phase: `composing` or `release`.
            operations: timed operations.
            seconds: total duration in seconds.
        """
        if operations:
            rows = [
                [operation.operation, operation.device, operation.box, operation.answer, round(operation.seconds, 6)]
                for operation in operations
            ]
            self.add_facts(timed={"of": phase, "seconds": round(seconds, 6), "rows": rows})

    def make_document(self) -> dict[str, Any]:
        """Return the last use as a JSON-serialisable document.

        It contains the times (Unix seconds), counts, faults, and the requested and obtained composition.
        """
        entries = self.read_last_use()
        states = [entry for entry in entries if "state" in entry]
        operations = [entry for entry in entries if "operation" in entry]
        last_values = {name: value for entry in entries for name, value in entry.items()}
        facts = {
            name: last_values.get(name) for name in ("campaign", "owner", "state", "requested", "selected", "obtained")
        }
        # Faults are failed operations of the fabric and failures during the use of the composition, in order.
        faults = [
            {**entry, **entry.get("fault", {})} for entry in entries if "fault" in entry or _is_failed_operation(entry)
        ]
        return {
            "lease_id": self.lease_id,
            **facts,
            "driver_began_s": last_values.get("driver_began_s"),
            "mismatches": last_values.get("mismatches", []),
            "times": _collect_milestone_times(states),
            "operations": len(operations),
            "retries": sum(entry["outcome"] in ("failed", "busy") for entry in operations),
            "adoptions": sum("adopted_from" in entry for entry in entries),
            "waits": [
                {"time_s": fault_entry["time_s"], "reason": fault_entry["waits_for"]}
                for fault_entry in entries
                if "waits_for" in fault_entry
            ],
            "faults": [
                {name: fault_entry[name] for name in ("time_s", "operation", "error", "message")}
                for fault_entry in faults
            ],
            "degraded": [problem for entry in entries for problem in entry.get("problems", [])],
            "timed": [entry["timed"] for entry in entries if "timed" in entry],
            "leaked": states[-1].get("leaked", []) if states else [],
        }


@contextmanager
def _tolerate_full_disk() -> Iterator[None]:
    """Ignore errors of a full disk in the block. The fabric still reports what a lease holds."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE_ERRNOS:
            raise


def _is_failed_operation(entry: JournalEntry) -> bool:
    return "operation" in entry and entry["outcome"] == "failed"


def _collect_milestone_times(states: list[JournalEntry]) -> dict[str, float | None]:
    """Return the time of each milestone in the last attempt. An attempt starts when devices are chosen."""
    times: dict[str, float | None] = dict.fromkeys(_MILESTONE_NAMES.values())
    for entry in states:
        if entry["state"] == "RESERVED":
            times |= dict.fromkeys(("fabric_done_s", "host_visible_s", "ready_s"))
        name = _MILESTONE_NAMES.get(entry["state"])
        if name is not None and times[name] is None and entry.get("hosts_looked_at", True):
            times[name] = entry["time_s"]
    return times


def list_journaled_leases(directory: Path) -> list[str]:
    """Return the sorted ids of all leases with a journal in a directory."""
    return sorted(path.stem for path in directory.glob("*.jsonl"))


class LeaseOwnership:
    """Lock of a lease, held by this process until it is closed or the process dies.

    The lock stays if the object is garbage-collected without being closed.
    """

    def __init__(self, directory: Path, lease_id: str) -> None:
        """Acquire the lock. Raises Conflict, with the process that holds it, if it is taken."""
        path = _get_lock_path(directory, lease_id)
        # A process that only checks the ownership holds the lock for a moment, so several attempts are made.
        self._descriptor = acquire_lock(path, attempts=5)
        if self._descriptor is None:
            raise Conflict(f"{lease_id} belongs to {read_lock_holder(path)}, which is alive", (lease_id,))

    @property
    def is_held(self) -> bool:
        """True until the lock is closed."""
        return self._descriptor is not None

    def close(self) -> None:
        """Release the lock. Repeated calls have no effect."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_owned(directory: Path, lease_id: str) -> bool:
    """Return True if a live process owns the lease."""
    return is_locked(_get_lock_path(directory, lease_id))


def _get_lock_path(directory: Path, lease_id: str) -> Path:
    return directory / f"{lease_id}.lock"
