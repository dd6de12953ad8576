"""A lease: the right to a composition, from request to release, and the only way to get one.

`acquire` takes a lease through the states of `journal.TRANSITIONS`: it writes down exact devices before it touches them,
reads everything back, waits in turn for what others hold, gives back what is half done, and takes over a lease that a
dead process left. `release` ends it. What neither could end, `reconcile` does at the next start.
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
"""How long nobody has worked on a lease that could not be released, until it is given up by those that wait for it."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A composition that this process owns until it is released. `mismatches`: how obtained differs from requested."""

    id: str
    request: Request
    composition: Composition
    mismatches: tuple[str, ...]
    journal: Journal = field(repr=False)
    ownership: Ownership = field(repr=False)

    def document(self) -> dict[str, Any]:
        """Times, counts, faults, requested against obtained, as of now (see `Journal.document`)."""
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
    """Get the lease, or take over the one of this id that a dead process left.

    wait_s: how long to wait altogether for what others hold, polling every poll_s; on_wait is told whom it waits for, at first, and
    when that has changed after a minute.
    visible_s: how long the hosts may take to see the devices, before and again after one rescan.
    attempts: how often a failing fabric is tried. before_compose is told the chosen hosts before anything is attached to them.
    Raises the FabricError that ended it, after giving everything back.
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
    """One way through the states, from PLANNED (or from what a dead process left) to READY or back to nothing."""

    fabric: Fabric
    request: Request
    journal: Journal
    turn: Turn
    visible_s: float
    attempts: int
    before_compose: Callable[[Collection[str]], None] | None
    waited_for: str = ""

    def run(self) -> Composition:
        before, there = self.turn.get(self._found)
        try:
            return self._adopt(before, there) or self._persist()
        except BaseException as error:
            self._abort(str(error) or type(error).__name__)
            if self.journal.state in ("PLANNED", "FABRIC_FREE"):
                self.journal.advance("RELEASED", reason=str(error))
            raise

    def _found(self) -> tuple[LeaseState | None, Composition | None]:
        """The state that the journal and the fabric are in. Raises Conflict when the id is somebody else's just now."""
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
        """Raise for holders that will never release by themselves: all are leases that failed for good, and nobody works on one."""
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
        start = time.monotonic()
        with recording() as timed:
            composition = self._composed()
        self.journal.note_times("composing", timed, time.monotonic() - start)
        return composition

    def _composed(self) -> Composition:
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
        """Exact devices for the request, none of them fenced (`FencedDevices`)."""
        fenced, inventory = FencedDevices(self.journal.path.parent.parent), self.fabric.inventory()
        try:
            return self.fabric.select(self.request, fenced.mark(inventory))
        except Unhealthy as error:
            fenced.lift_suspected(error)
            return self.fabric.select(self.request, fenced.mark(inventory))

    def _verify(self, composition: Composition | None) -> Composition:
        """Take the lease from read-back to READY. Raises what is wrong with it, with the lease still holding it."""
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
            # What hosts tell of their devices, such as how a link was trained, was not known before they saw them.
            composition = self.fabric.read_back(lease_id) or composition
        looked = bool(self.fabric.looked_for(composition))
        self.journal.advance("HOST_VISIBLE", obtained=composition.document(), hosts_looked_at=looked)
        self.journal.advance("READY", mismatches=composition.mismatches(configuration, self.request.links))
        return composition

    def _await_hosts(self, composition: Composition) -> bool:
        """Wait until the hosts see everything; False when they did from the first look on."""
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
        until = time.monotonic() + patience_s
        while True:
            seen = self.fabric.host_sees(composition)
            missing = [device.fabric_id for device in composition.devices if device.fabric_id not in seen]
            left_s = until - time.monotonic()
            if not missing or left_s <= 0:
                return missing
            time.sleep(min(self.turn.poll_s, left_s))

    def _adopt(self, before: LeaseState | None, there: Composition | None) -> Composition | None:
        """Take over what is there under this lease id; None when nothing is there (any more) and the way is free."""
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
        """True when the lease that is there was requested for this configuration."""
        return bool(self.journal.document()["requested"] == self._requested())

    def _requested(self) -> dict[str, Any]:
        """The configuration, without its system: a journal is of one."""
        return {name: value for name, value in asdict(self.request.configuration).items() if name != "system"}

    def _abort(self, reason: str) -> None:
        """Give back whatever the lease has by now; afterwards it is FABRIC_FREE or LEAKED, or was not begun."""
        if self.journal.state in ("PLANNED", "FABRIC_FREE", "RELEASED", "LEAKED", None):
            return
        if self.journal.state == "READY":
            self.journal.advance("UNKNOWN")
        if self.journal.state != "ABORTING":
            self.journal.advance("ABORTING", reason=reason)
        give_back(self.fabric, self.journal, wait_s=RELEASE_WAIT_S, poll_s=self.turn.poll_s)


def begin_use(lease: HeldLease) -> None:
    """Mark the lease as in use by runs; doing so again does nothing."""
    if lease.journal.state == "READY":
        lease.journal.advance("IN_USE")


def check(fabric: Fabric, lease: HeldLease) -> tuple[str, ...]:
    """What became of the composition since it was READY: missing, broken or unseen devices; empty means all is well.

    Anything found makes the lease DEGRADED for good: results since the last check are not to be believed.
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
    """End the lease; gives its document, with `state` RELEASED, or LEAKED and what leaked. Again: only the document.

    wait_s: how long to wait for a busy fabric before that counts as leaked. Nothing is raised for a failing fabric.
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
