"""Life cycle of a lease from request to release, and the only way to get one.

`acquire_lease` takes a lease through the states of `journal.TRANSITIONS`. It records exact devices before it touches them, reads
everything back, waits for devices that others hold, releases incomplete compositions, and takes over a lease that a dead process
left. `release_lease` ends it. Leases that neither could end are released by `reconcile` at the next start.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.errors import (
    Busy,
    Conflict,
    HostNotVisible,
    Incompatible,
    NoMatch,
    OutcomeUnknown,
    PartialFailure,
    ProtocolViolation,
    Refused,
    Unhealthy,
)
from campaign.fabrics.operations import recording
from campaign.fabrics.protocol import Fabric, Request, Selection
from campaign.lease.fabric_calls import ATTEMPTS, RELEASE_WAIT_S, Turn, give_back, operate
from campaign.lease.fenced_devices import FencedDevices
from campaign.lease.journal import Journal, LeaseState, Ownership, is_owned, journaled
from campaign.spec.hardware import Composition

DEAD_S = 15.0
"""Time without activity after which processes stop waiting for a lease that could not be released."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """Composition that this process owns until it is released.

    Attributes:
        id: id of the lease.
        request: request of the lease.
        composition: obtained composition.
        mismatches: differences between the composition and the request.
        journal: journal of the lease.
        ownership: lock of the lease.
    """

    id: str
    request: Request
    composition: Composition
    mismatches: tuple[str, ...]
    journal: Journal = field(repr=False)
    ownership: Ownership = field(repr=False)

    def document(self) -> dict[str, Any]:
        """Return times, counts, faults, and the requested and obtained composition as of now (see `Journal.make_document`)."""
        return self.journal.document()


def acquire(
    fabric: Fabric,
    request: Request,
    journal_dir: Path,
    *,
    wait_s: float,
    poll_s: float,
    on_wait: Callable[[str], None] | None = None,
    visible_s: float = 60.0,
    attempts: int = ATTEMPTS,
    before_compose: Callable[[Collection[str]], None] | None = None,
) -> HeldLease:
    """Acquire a lease, or take over the one with this id that a dead process left.

    Raises the FabricError that ended the attempt, after everything was released.

    Args:
        fabric: fabric of the system.
        request: request of the lease.
        journals_directory: directory of the lease journals.
        wait_s: total time limit in seconds for waiting until others release devices.
        poll_s: poll interval in seconds.
        on_wait: called with the current holder at the first wait, and when the holder has changed after a minute.
        visibility_timeout_s: time limit in seconds until the hosts list the devices, used before and after one rescan.
        max_attempts: number of attempts with a failing fabric.
        before_compose: called with the chosen hosts before anything is attached to them.
    """
    turn = Turn(wait_s, poll_s, on_wait)
    ownership = turn.get(lambda: Ownership(journal_dir, request.lease_id))
    try:
        journal = Journal(journal_dir, request.lease_id)
        composition = _Acquisition(fabric, request, journal, turn, visible_s, attempts, before_compose).run()
    except BaseException:
        ownership.close()
        raise
    mismatches = composition.mismatches(request.configuration, request.links)
    return HeldLease(request.lease_id, request, composition, mismatches, journal, ownership)


@dataclass
class _Acquisition:
    """One pass through the states, from PLANNED (or the state that a dead process left) to READY or back to nothing."""

    fabric: Fabric
    request: Request
    journal: Journal
    turn: Turn
    visible_s: float
    attempts: int
    before_compose: Callable[[Collection[str]], None] | None
    waited_for: str = ""

    def run(self) -> Composition:
        """Acquire the lease and return its composition. After a failure, everything is released."""
        before, there = self.turn.get(self._found)
        try:
            return self._adopt(before, there) or self._persist()
        except BaseException as error:
            self._abort(str(error) or type(error).__name__)
            if self.journal.state in ("PLANNED", "FABRIC_FREE"):
                self.journal.advance("RELEASED", reason=str(error))
            raise

    def _found(self) -> tuple[LeaseState | None, Composition | None]:
        """Return the state in the journal and the composition on the fabric. Raises Conflict if another party uses the id now."""
        before, there = self.journal.state, self.fabric.read_back(self.request.lease_id)
        if there is not None and before in (None, "RELEASED"):
            tag = self.fabric.held().get(self.request.lease_id)
            owner = "somebody" if tag is None else f"{tag.owner} (campaign {tag.campaign})"
            raise Conflict(
                f"{self.request.lease_id} is held by {owner}, and has no open journal at {self.journal.path}: another "
                "results directory uses this id, or the journal was removed",
                (owner,),
            )
        return before, there

    def _persist(self) -> Composition:
        """Compose until it succeeds, the time for waiting is over, or the fabric has failed too often."""
        failures = 0
        while True:
            try:
                return self._attempt()
            except (Busy, Conflict) as reason:
                self._refuse_dead(reason.holders)
                if str(reason) != self.waited_for:
                    self.waited_for = str(reason)
                    self.journal.note(waits_for=self.waited_for)
                self.turn.wait(reason)
            except (NoMatch, Incompatible, HostNotVisible, Refused):
                raise
            except FabricError as error:
                failures += 1
                self._abort(str(error))
                if failures >= self.attempts or self.journal.state == "LEAKED":
                    raise
                time.sleep(self.turn.poll_s)

    def _refuse_dead(self, holders: Collection[str]) -> None:
        """Raise FabricError if all holders are failed leases that no process works on, which will never be released by
        themselves.
        """
        directory, causes = self.journal.path.parent, dict[str, str]()
        for holder in holders if set(holders) <= {*journaled(directory)} else ():
            last = (journal := Journal(directory, holder)).last_use()[-1]
            dead = (
                journal.state == "LEAKED" and time.time() - last["time_s"] > DEAD_S and not is_owned(directory, holder)
            )
            if not dead:
                return
            causes[holder] = journal.cause
        if causes:
            why = "; ".join(
                f"{holder}, which failed and could not be released: {cause}" for holder, cause in causes.items()
            )
            raise FabricError(
                f"held by {why}. 'campaign fabric reconcile SYSTEM --release' releases it once that is corrected"
            )

    def _attempt(self) -> Composition:
        """Compose once, and record the durations of the fabric operations."""
        start = time.monotonic()
        with recording() as timed:
            composition = self._composed()
        self.journal.note_times("composing", timed, time.monotonic() - start)
        return composition

    def _composed(self) -> Composition:
        """Choose devices, attach them, and return the verified composition."""
        selection = self._selection()
        selected = [asdict(host) for host in selection.hosts]
        self.journal.advance("RESERVED", selected=selected, token=secrets.token_hex(8))
        if self.before_compose is not None:
            self.before_compose([host.host for host in selection.hosts])
        self.journal.advance("COMPOSING")
        try:
            operate(self.journal, "compose", lambda: self.fabric.compose(selection))
        except OutcomeUnknown:
            self.journal.advance("UNKNOWN")
            if self.fabric.read_back(self.request.lease_id) is None:
                raise
        except PartialFailure as error:
            self.journal.advance("PARTIAL", done=error.done, failed=error.failed)
            raise
        return self._verify(self.fabric.read_back(self.request.lease_id))

    def _selection(self) -> Selection:
        """Select exact devices for the request, without fenced ones (`FencedDevices`)."""
        fenced, inventory = FencedDevices(self.journal.path.parent.parent), self.fabric.inventory()
        try:
            return self.fabric.select(self.request, fenced.mark(inventory))
        except Unhealthy as error:
            fenced.lift_suspected(error)
            return self.fabric.select(self.request, fenced.mark(inventory))

    def _verify(self, composition: Composition | None) -> Composition:
        """Verify a composition that was read back, and advance the lease to READY.

        Raises an error for a defect of the composition, which the lease then still holds.
        """
        lease_id, configuration = self.request.lease_id, self.request.configuration
        if composition is None:
            raise ProtocolViolation(f"{lease_id}: the fabric knows nothing of the lease after composing it")
        if short := composition.shortfall(configuration):
            self.journal.advance("PARTIAL", obtained=composition.document())
            raise ProtocolViolation(f"{lease_id}: read back less than composed: {'; '.join(short)}")
        if broken := [device.fabric_id for device in composition.devices if device.health == "critical"]:
            self.journal.advance("PARTIAL", obtained=composition.document(), failed=broken)
            raise Unhealthy(f"{lease_id}: obtained broken devices: {', '.join(broken)}", broken)
        self.journal.advance("FABRIC_OK", obtained=composition.document())
        if self._await_hosts(composition):
            # Facts from the hosts, such as the trained width of a link, are available only after the devices are visible.
            composition = self.fabric.read_back(lease_id) or composition
        looked = bool(self.fabric.looked_for(composition))
        self.journal.advance("HOST_VISIBLE", obtained=composition.document(), hosts_looked_at=looked)
        self.journal.advance("READY", mismatches=composition.mismatches(configuration, self.request.links))
        return composition

    def _await_hosts(self, composition: Composition) -> bool:
        """Wait until the hosts list all devices. Returns False if they did at the first check."""
        if not self._unseen(composition, 0.0):
            return False
        missing = self._unseen(composition, self.visible_s)
        if missing:
            operate(self.journal, "rescan", lambda: self.fabric.rescan(composition))
            missing = self._unseen(composition, self.visible_s)
        if missing:
            words = f"attached, but not seen by the host within {self.visible_s:g} s, also after a rescan"
            raise HostNotVisible(f"{self.request.lease_id}: {words}: {', '.join(missing)}", missing)
        return True

    def _unseen(self, composition: Composition, patience_s: float) -> list[str]:
        """Poll until the hosts list all devices or a timeout is over, and return the missing ones."""
        until = time.monotonic() + patience_s
        while True:
            seen = self.fabric.host_sees(composition)
            missing = [device.fabric_id for device in composition.devices if device.fabric_id not in seen]
            left_s = until - time.monotonic()
            if not missing or left_s <= 0:
                return missing
            time.sleep(min(self.turn.poll_s, left_s))

    def _adopt(self, before: LeaseState | None, there: Composition | None) -> Composition | None:
        """Take over the composition that exists under this lease id.

        Returns None if there is none (any more), so that a new one can be composed.
        """
        if before in (None, "RELEASED"):
            self._plan()
            return None
        self.journal.advance("UNKNOWN", adopted_from=before, owner=self.request.owner)
        if there is None:
            self.journal.advance("FABRIC_FREE")
        elif not self._asked_for():
            self._abort("the lease of this id was for another configuration")
        else:
            try:
                return self._verify(there)
            except (ProtocolViolation, Unhealthy, HostNotVisible) as error:
                self._abort(f"not worth taking over: {error}")
        if self.journal.state == "LEAKED":
            leaked = tuple(self.journal.document()["leaked"])
            raise PartialFailure(
                f"{self.journal.cause or self.request.lease_id}; {', '.join(leaked)} could not be released since",
                failed=leaked,
            )
        if not self._asked_for():
            self.journal.advance("RELEASED")
            self._plan()
        return None

    def _plan(self) -> None:
        campaign, owner = self.request.campaign, self.request.owner
        self.journal.advance("PLANNED", campaign=campaign, owner=owner, requested=self._requested())

    def _asked_for(self) -> bool:
        """Return True if the existing lease was requested for this configuration."""
        return bool(self.journal.document()["requested"] == self._requested())

    def _requested(self) -> dict[str, Any]:
        """Return the configuration as a document without its system, because a journal belongs to one system."""
        return {name: value for name, value in asdict(self.request.configuration).items() if name != "system"}

    def _abort(self, reason: str) -> None:
        """Release everything that the lease holds by now.

        Afterwards the lease is FABRIC_FREE or LEAKED, or it had not begun.
        """
        if self.journal.state in ("PLANNED", "FABRIC_FREE", "RELEASED", "LEAKED", None):
            return
        if self.journal.state == "READY":
            self.journal.advance("UNKNOWN")
        if self.journal.state != "ABORTING":
            self.journal.advance("ABORTING", reason=reason)
        give_back(self.fabric, self.journal, wait_s=RELEASE_WAIT_S, poll_s=self.turn.poll_s)


def begin_use(lease: HeldLease) -> None:
    """Mark the lease as used by runs. Repeated calls have no effect."""
    if lease.journal.state == "READY":
        lease.journal.advance("IN_USE")


def check(fabric: Fabric, lease: HeldLease) -> tuple[str, ...]:
    """Return the problems of the composition since it was READY (missing, broken or unseen devices). Empty if there are none.

    Any problem makes the lease DEGRADED permanently, because results since the last check are invalid.
    """
    now = fabric.read_back(lease.id)
    present = {} if now is None else {device.fabric_id: device for device in now.devices}
    seen = frozenset() if now is None else fabric.host_sees(now)

    def problem(name: str) -> str:
        if name not in present:
            return "no longer attached"
        if present[name].health == "critical":
            return "health critical"
        return "" if name in seen else "no longer seen by its host"

    found = {device.fabric_id: problem(device.fabric_id) for device in lease.composition.devices}
    found |= {} if now is None else dict(now.doubts)
    problems = [f"{name}: {words}" for name, words in found.items() if words]
    if problems and lease.journal.state in ("READY", "IN_USE"):
        lease.journal.advance("DEGRADED", problems=problems)
    return tuple(problems)


def release(fabric: Fabric, lease: HeldLease, *, wait_s: float = RELEASE_WAIT_S, poll_s: float = 1.0) -> dict[str, Any]:
    """Release a lease and return its document, whose `state` is RELEASED, or LEAKED with the devices that leaked.

    A repeated call only returns the document. Errors of the fabric are not raised.

    Args:
        fabric: fabric of the system.
        lease: lease to release.
        wait_s: time limit in seconds for a busy fabric, after which the devices count as leaked.
        poll_s: poll interval in seconds.
    """
    journal = lease.journal
    if not lease.ownership.held:
        return lease.document()
    if journal.state in ("READY", "IN_USE", "DEGRADED"):
        journal.advance("DRAINING")
    if journal.state == "DRAINING":
        journal.advance("DETACHING")
    if journal.state == "DETACHING":
        give_back(fabric, journal, wait_s=wait_s, poll_s=poll_s)
    if journal.state == "FABRIC_FREE":
        journal.advance("RELEASED")
    document = lease.document()
    lease.ownership.close()
    return document
