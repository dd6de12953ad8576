"""The journal of a lease: what was intended and what came of it, line by line, so that a dead process leaves no riddle.

`<directory>/<lease id>.jsonl` grows by whole lines; the intent is written, and forced to disk, before the first
mutating call, the ids right after. `<lease id>.lock` is locked for as long as the owner lives:
the kernel drops the lock of a killed process, so nobody has to trust a process number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from campaign.common.errors import FabricError
from campaign.common.files import NO_SPACE, acquire_lock, append_json, is_locked, lock_holder, read_json_lines
from campaign.common.processes.clocks import stamp_s
from campaign.fabrics.errors import Conflict
from campaign.spec.operation_times import Timed

LeaseState = Literal[
    "PLANNED",  # asked for; nothing is chosen
    "RESERVED",  # exact devices are chosen and written down; nothing is touched
    "COMPOSING",  # the fabric was told to attach them
    "FABRIC_OK",  # the fabric reads back enough devices
    "HOST_VISIBLE",  # the hosts see them, or nobody looks (`hosts_looked_at`)
    "READY",  # obtained was compared with requested
    "IN_USE",  # runs use it
    "DEGRADED",  # devices broke or vanished: results since the last check are not to be believed
    "DRAINING",  # no further run will start
    "DETACHING",  # the fabric was told to release
    "FABRIC_FREE",  # the fabric holds nothing for the lease
    "RELEASED",  # over
    "UNKNOWN",  # a reply was lost, or the owner died: read back
    "PARTIAL",  # less than asked for is attached
    "ABORTING",  # what was attached is being given back
    "LEAKED",  # something could not be given back; tried again at every reconciliation
]

# Forced to disk: what was intended before the fabric changes, and what it then holds. The states between, and that all is over, are
# read back from the fabric where a power failure has taken them.
_FORCED: frozenset[LeaseState] = frozenset(
    {"PLANNED", "RESERVED", "COMPOSING", "FABRIC_OK", "PARTIAL", "UNKNOWN", "ABORTING", "DETACHING", "LEAKED"}
)
# Devices are released also where there is no space to write it down.
_GIVING_BACK: frozenset[LeaseState] = frozenset(
    {"UNKNOWN", "ABORTING", "DEGRADED", "DRAINING", "DETACHING", "FABRIC_FREE", "RELEASED", "LEAKED"}
)
_END: frozenset[LeaseState] = frozenset({"FABRIC_FREE", "LEAKED", "UNKNOWN"})
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
    "DETACHING": _END,
    "FABRIC_FREE": frozenset({"RELEASED", "RESERVED", "UNKNOWN"}),
    "RELEASED": frozenset({"PLANNED"}),
    "UNKNOWN": frozenset(
        {"RESERVED", "FABRIC_OK", "PARTIAL", "ABORTING", "DETACHING", "FABRIC_FREE", "LEAKED", "UNKNOWN"}
    ),
    "PARTIAL": frozenset({"ABORTING", "UNKNOWN"}),
    "ABORTING": _END,
    "LEAKED": frozenset({"ABORTING", "UNKNOWN"}),
}

_LET_GO: frozenset[LeaseState] = frozenset({"DRAINING", "DETACHING", "ABORTING", "FABRIC_FREE", "RELEASED", "LEAKED"})
"""States from which on the devices may be somebody else's."""

_TIMES: dict[LeaseState, str] = {
    "PLANNED": "requested_s",
    "FABRIC_OK": "fabric_done_s",
    "HOST_VISIBLE": "host_visible_s",
    "READY": "ready_s",
    "DRAINING": "release_started_s",
    "RELEASED": "released_s",
}
_LEASE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")

JournalEntry = dict[str, Any]


class Journal:
    """The lines of one lease. A lease id that was released may be used again: its last use is what counts."""

    def __init__(self, directory: Path, lease_id: str) -> None:
        if not _LEASE_ID.fullmatch(lease_id):
            raise FabricError(f"lease id {lease_id!r} cannot be a file name; use letters, digits and . _ + -")
        self.lease_id = lease_id
        self.path = directory / f"{lease_id}.jsonl"
        self._state: LeaseState | None = None

    def entries(self) -> list[JournalEntry]:
        """All whole lines; a line torn by the death of its writer is passed over."""
        return [entry for entry in read_json_lines(self.path)[0] if "time_s" in entry]

    def last_use(self) -> list[JournalEntry]:
        """Entries since the lease was last requested."""
        entries = self.entries()
        starts = [index for index, entry in enumerate(entries) if entry.get("state") == "PLANNED"]
        return entries[starts[-1] :] if starts else []

    @property
    def state(self) -> LeaseState | None:
        """The present state. Read once: only the owner of the lease writes to its journal."""
        if self._state is None:
            states: list[LeaseState] = [entry["state"] for entry in self.last_use() if "state" in entry]
            self._state = states[-1] if states else None
        return self._state

    @property
    def holding(self) -> str:
        """Token of what the lease holds, made anew whenever devices are chosen; empty once they are given back. Read each time."""
        token = ""
        for entry in self.last_use():
            if entry.get("state") == "RESERVED":
                token = str(entry.get("token") or entry["time_s"])
            elif entry.get("state") in _LET_GO:
                token = ""
        return token

    @property
    def cause(self) -> str:
        """What first went wrong in the last use, in words; empty where nothing did. Read each time."""
        return next((str(fault["message"]) for fault in self.document()["faults"]), "")

    def advance(self, state: LeaseState, **facts: Any) -> None:
        """Enter a state, with what is known by now. Raises FabricError when the lease cannot get there from where it is."""
        before = self.state
        if state not in TRANSITIONS[before]:
            raise FabricError(f"{self.path}: a lease that is {before or 'new'} cannot become {state}")
        with _without_space() if state in _GIVING_BACK else nullcontext():
            append_json(self.path, {"time_s": stamp_s(), "state": state, **facts}, durable=state in _FORCED)
        self._state = state

    def note(self, **facts: Any) -> None:
        """Write down an operation, a wait or an adoption; the state stays."""
        with _without_space():
            append_json(self.path, {"time_s": stamp_s(), **facts})

    def note_times(self, of: str, timed: Sequence[Timed], seconds: float) -> None:
        """Write down what the fabric's operations took, and all together; of: `composing` or `release`."""
        if timed:
            rows = [[each.operation, each.device, each.box, each.answer, round(each.seconds, 6)] for each in timed]
            self.note(timed={"of": of, "seconds": round(seconds, 6), "rows": rows})

    def document(self) -> dict[str, Any]:
        """The last use as one JSON-able document: times (Unix s), counts, faults, requested against obtained."""
        use = self.last_use()
        states = [entry for entry in use if "state" in entry]
        operations = [entry for entry in use if "operation" in entry]
        last = {name: value for entry in use for name, value in entry.items()}
        facts = {name: last.get(name) for name in ("campaign", "owner", "state", "requested", "selected", "obtained")}
        # Failed operations of the fabric, and what failed while the composition was used, in their order.
        failed = [{**entry, **entry.get("fault", {})} for entry in use if "fault" in entry or _failed(entry)]
        return {
            "lease_id": self.lease_id,
            **facts,
            "driver_began_s": last.get("driver_began_s"),
            "mismatches": last.get("mismatches", []),
            "times": _times(states),
            "operations": len(operations),
            "retries": sum(entry["outcome"] in ("failed", "busy") for entry in operations),
            "adoptions": sum("adopted_from" in entry for entry in use),
            "waits": [{"time_s": each["time_s"], "reason": each["waits_for"]} for each in use if "waits_for" in each],
            "faults": [{name: each[name] for name in ("time_s", "operation", "error", "message")} for each in failed],
            "degraded": [problem for entry in use for problem in entry.get("problems", [])],
            "timed": [entry["timed"] for entry in use if "timed" in entry],
            "leaked": states[-1].get("leaked", []) if states else [],
        }


@contextmanager
def _without_space() -> Iterator[None]:
    """Go on where a full disk takes no line: the fabric still tells what a lease holds."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def _failed(entry: JournalEntry) -> bool:
    return "operation" in entry and entry["outcome"] == "failed"


def _times(states: list[JournalEntry]) -> dict[str, float | None]:
    """When each milestone was reached, in the attempt that counts: choosing devices anew starts a new one."""
    times: dict[str, float | None] = dict.fromkeys(_TIMES.values())
    for entry in states:
        if entry["state"] == "RESERVED":
            times |= dict.fromkeys(("fabric_done_s", "host_visible_s", "ready_s"))
        name = _TIMES.get(entry["state"])
        if name is not None and times[name] is None and entry.get("hosts_looked_at", True):
            times[name] = entry["time_s"]
    return times


def journaled(directory: Path) -> list[str]:
    """Ids of all leases that have a journal here, sorted."""
    return sorted(path.stem for path in directory.glob("*.jsonl"))


class Ownership:
    """A lease's lock, held by this process until closed or dead; an object that is merely forgotten stays locked."""

    def __init__(self, directory: Path, lease_id: str) -> None:
        """Raises Conflict naming the process that has it."""
        path = _lock_file(directory, lease_id)
        # Somebody who only looks whether a lease is owned holds its lock for an instant: look again before believing it.
        self._descriptor = acquire_lock(path, attempts=5)
        if self._descriptor is None:
            raise Conflict(f"{lease_id} belongs to {lock_holder(path)}, which is alive", (lease_id,))

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def close(self) -> None:
        """Give the lock up; doing so again does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_owned(directory: Path, lease_id: str) -> bool:
    """True while a live process has the lease."""
    return is_locked(_lock_file(directory, lease_id))


def _lock_file(directory: Path, lease_id: str) -> Path:
    return directory / f"{lease_id}.lock"
