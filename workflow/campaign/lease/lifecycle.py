"""Life cycle of a lease from request to release.

`acquire_lease` takes a lease through the states of `journal.TRANSITIONS`. It records the exact devices before it changes them,
reads everything back, waits for devices that other parties hold, releases incomplete compositions, and takes over a lease that a
dead process left behind. `release_lease` ends the lease. `reconcile` releases leases that neither function could end, at the next
start.
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
from campaign.fabrics.operations import record_operations
from campaign.fabrics.protocol import Fabric, LeaseRequest, Selection
from campaign.lease.fabric_calls import MAX_ATTEMPTS, RELEASE_TIMEOUT_S, WaitBudget, call_and_record, release_all
from campaign.lease.fenced_devices import FencedDevices
from campaign.lease.journal import Journal, LeaseOwnership, LeaseState, is_owned, list_journaled_leases
from campaign.spec.hardware import Composition

DEAD_LEASE_TIMEOUT_S = 15.0
"""Time without activity after which processes no longer wait for a lease that could not be released."""


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
    request: LeaseRequest
    composition: Composition
    mismatches: tuple[str, ...]
    journal: Journal = field(repr=False)
    ownership: LeaseOwnership = field(repr=False)

    def make_document(self) -> dict[str, Any]:
        """Return times, counts, faults, and the requested and obtained composition as of now (see `Journal.make_document`)."""
        return self.journal.make_document()


def acquire_lease(
    fabric: Fabric,
    request: LeaseRequest,
    journals_directory: Path,
    *,
    wait_s: float,
    poll_s: float,
    on_wait: Callable[[str], None] | None = None,
    visibility_timeout_s: float = 60.0,
    max_attempts: int = MAX_ATTEMPTS,
    before_compose: Callable[[Collection[str]], None] | None = None,
) -> HeldLease:
    """Acquire a lease, or take over the lease with this id that a dead process left behind.

    After a failure, everything is released, and the FabricError that caused it is raised.

    Args:
        fabric: fabric of the system.
        request: request of the lease.
        journals_directory: directory of the lease journals.
        wait_s: total time limit in seconds for waiting until other parties release devices.
        poll_s: poll interval in seconds.
        on_wait: called with the current holder at the first wait, then once a minute if the holder has changed.
        visibility_timeout_s: time limit in seconds until the hosts list the devices. It applies before and after one rescan.
        max_attempts: number of attempts with a failing fabric.
        before_compose: called with the chosen hosts before anything is attached to them.
    """
    budget = WaitBudget(wait_s, poll_s, on_wait)
    ownership = budget.call_when_free(lambda: LeaseOwnership(journals_directory, request.lease_id))
    try:
        journal = Journal(journals_directory, request.lease_id)
        composition = _Acquisition(
            fabric, request, journal, budget, visibility_timeout_s, max_attempts, before_compose
        ).acquire()
    except BaseException:
        ownership.close()
        raise
    mismatches = composition.list_mismatches(request.configuration, request.links)
    return HeldLease(request.lease_id, request, composition, mismatches, journal, ownership)


@dataclass
class _Acquisition:
    """One pass through the states, from PLANNED or the state that a dead process left, to READY or a complete release."""

    fabric: Fabric
    request: LeaseRequest
    journal: Journal
    budget: WaitBudget
    visibility_timeout_s: float
    max_attempts: int
    before_compose: Callable[[Collection[str]], None] | None
    last_wait_reason: str = ""

    def acquire(self) -> Composition:
        """Acquire the lease and return its composition. After a failure, everything is released."""
        state, composition = self.budget.call_when_free(self._read_state)
        try:
            return self._take_over(state, composition) or self._compose_with_retries()
        except BaseException as error:
            self._abort(str(error) or type(error).__name__)
            if self.journal.state in ("PLANNED", "FABRIC_FREE"):
                self.journal.enter_state("RELEASED", reason=str(error))
            raise

    def _read_state(self) -> tuple[LeaseState | None, Composition | None]:
        """Return the state in the journal and the composition on the fabric. Raises Conflict if another party uses the id."""
        state, composition = self.journal.state, self.fabric.read_back(self.request.lease_id)
        if composition is not None and state in (None, "RELEASED"):
            tag = self.fabric.list_lease_tags().get(self.request.lease_id)
            owner = "an unknown owner" if tag is None else f"{tag.owner} (campaign {tag.campaign})"
            raise Conflict(
                f"{self.request.lease_id} is held by {owner}, but {self.journal.path} shows no open lease; another "
                "results directory uses this id, or the journal was removed",
                (owner,),
            )
        return state, composition

    def _compose_with_retries(self) -> Composition:
        """Compose repeatedly until it succeeds, the waiting time is over, or the fabric has failed too often."""
        failures = 0
        while True:
            try:
                return self._compose_timed()
            except (Busy, Conflict) as reason:
                self._reject_dead_holders(reason.holders)
                if str(reason) != self.last_wait_reason:
                    self.last_wait_reason = str(reason)
                    self.journal.add_facts(waits_for=self.last_wait_reason)
                self.budget.wait_once(reason)
            except (NoMatch, Incompatible, HostNotVisible, Refused):
                raise
            except FabricError as error:
                failures += 1
                self._abort(str(error))
                if failures >= self.max_attempts or self.journal.state == "LEAKED":
                    raise
                time.sleep(self.budget.poll_s)

    def _reject_dead_holders(self, holders: Collection[str]) -> None:
        """Raise FabricError if all holders are failed leases without an owner, because nothing will release them."""
        directory, causes = self.journal.path.parent, dict[str, str]()
        for holder in holders if set(holders) <= {*list_journaled_leases(directory)} else ():
            last_entry = (journal := Journal(directory, holder)).read_last_use()[-1]
            is_dead = (
                journal.state == "LEAKED"
                and time.time() - last_entry["time_s"] > DEAD_LEASE_TIMEOUT_S
                and not is_owned(directory, holder)
            )
            if not is_dead:
                return
            causes[holder] = journal.first_fault
        if causes:
            holders_text = "; ".join(
                f"{holder}, which could not be released: {cause}" for holder, cause in causes.items()
            )
            raise FabricError(
                f"held by {holders_text}; correct this, then run 'campaign fabric reconcile SYSTEM --release'"
            )

    def _compose_timed(self) -> Composition:
        """Compose once, and record the durations of the fabric operations."""
        start = time.monotonic()
        with record_operations() as operations:
            composition = self._compose_once()
        self.journal.add_operation_times("composing", operations, time.monotonic() - start)
        return composition

    def _compose_once(self) -> Composition:
        """Choose devices, attach them, and return the verified composition."""
        selection = self._select_devices()
        host_documents = [asdict(host) for host in selection.hosts]
        self.journal.enter_state("RESERVED", selected=host_documents, token=secrets.token_hex(8))
        if self.before_compose is not None:
            self.before_compose([host.host for host in selection.hosts])
        self.journal.enter_state("COMPOSING")
        try:
            call_and_record(self.journal, "compose", lambda: self.fabric.compose(selection))
        except OutcomeUnknown:
            self.journal.enter_state("UNKNOWN")
            if self.fabric.read_back(self.request.lease_id) is None:
                raise
        except PartialFailure as error:
            self.journal.enter_state("PARTIAL", done=error.completed_ids, failed=error.failed_ids)
            raise
        return self._verify_composition(self.fabric.read_back(self.request.lease_id))

    def _select_devices(self) -> Selection:
        """Select exact devices for the request. Fenced devices are avoided."""
        fenced_devices, inventory = FencedDevices(self.journal.path.parent.parent), self.fabric.read_inventory()
        try:
            return self.fabric.select_devices(self.request, fenced_devices.mark_fenced(inventory))
        except Unhealthy as error:
            fenced_devices.lift_suspected(error)
            return self.fabric.select_devices(self.request, fenced_devices.mark_fenced(inventory))

    def _verify_composition(self, composition: Composition | None) -> Composition:
        """Verify a composition that was read back, and advance the lease to READY.

        Raises an error for a defect of the composition, which the lease then still holds.
        """
        lease_id, configuration = self.request.lease_id, self.request.configuration
        if composition is None:
            raise ProtocolViolation(f"{lease_id}: the fabric does not report the lease after composing it")
        if shortfalls := composition.list_shortfalls(configuration):
            self.journal.enter_state("PARTIAL", obtained=composition.document())
            raise ProtocolViolation(f"{lease_id}: the fabric reports less than was composed: {'; '.join(shortfalls)}")
        if broken_devices := [device.fabric_id for device in composition.devices if device.health == "critical"]:
            self.journal.enter_state("PARTIAL", obtained=composition.document(), failed=broken_devices)
            raise Unhealthy(
                f"{lease_id}: the fabric attached broken devices: {', '.join(broken_devices)}", broken_devices
            )
        self.journal.enter_state("FABRIC_OK", obtained=composition.document())
        if self._ensure_visible_to_hosts(composition):
            # Facts from the hosts, such as the trained width of a link, are available only after the devices are visible.
            composition = self.fabric.read_back(lease_id) or composition
        are_hosts_checked = bool(self.fabric.list_devices_to_verify(composition))
        self.journal.enter_state("HOST_VISIBLE", obtained=composition.document(), hosts_looked_at=are_hosts_checked)
        self.journal.enter_state("READY", mismatches=composition.list_mismatches(configuration, self.request.links))
        return composition

    def _ensure_visible_to_hosts(self, composition: Composition) -> bool:
        """Wait until the hosts list all devices. Returns False if no wait was needed."""
        if not self._wait_for_missing_devices(composition, 0.0):
            return False
        missing = self._wait_for_missing_devices(composition, self.visibility_timeout_s)
        if missing:
            call_and_record(self.journal, "rescan", lambda: self.fabric.rescan_hosts(composition))
            missing = self._wait_for_missing_devices(composition, self.visibility_timeout_s)
        if missing:
            message = (
                f"not visible to the host within {self.visibility_timeout_s:g} s of attaching, even after a rescan"
            )
            raise HostNotVisible(f"{self.request.lease_id}: {', '.join(missing)}: {message}", missing)
        return True

    def _wait_for_missing_devices(self, composition: Composition, timeout_s: float) -> list[str]:
        """Poll until the hosts list all devices or a timeout is over, and return the missing ones."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            visible_devices = self.fabric.find_visible_devices(composition)
            missing = [device.fabric_id for device in composition.devices if device.fabric_id not in visible_devices]
            remaining_s = deadline_s - time.monotonic()
            if not missing or remaining_s <= 0:
                return missing
            time.sleep(min(self.budget.poll_s, remaining_s))

    def _take_over(self, state: LeaseState | None, composition: Composition | None) -> Composition | None:
        """Take over the composition that exists under this lease id.

        Returns None if no composition exists or it was released, so that a new one can be composed.
        """
        if state in (None, "RELEASED"):
            self._record_request()
            return None
        self.journal.enter_state("UNKNOWN", adopted_from=state, owner=self.request.owner)
        if composition is None:
            self.journal.enter_state("FABRIC_FREE")
        elif not self._matches_request():
            self._abort("the existing lease with this id was for another configuration")
        else:
            try:
                return self._verify_composition(composition)
            except (ProtocolViolation, Unhealthy, HostNotVisible) as error:
                self._abort(f"the existing composition cannot be taken over: {error}")
        if self.journal.state == "LEAKED":
            leaked_devices = tuple(self.journal.make_document()["leaked"])
            raise PartialFailure(
                f"{self.journal.first_fault or self.request.lease_id}; {', '.join(leaked_devices)} could not be released since",
                failed_ids=leaked_devices,
            )
        if not self._matches_request():
            self.journal.enter_state("RELEASED")
            self._record_request()
        return None

    def _record_request(self) -> None:
        campaign, owner = self.request.campaign, self.request.owner
        self.journal.enter_state("PLANNED", campaign=campaign, owner=owner, requested=self._make_request_document())

    def _matches_request(self) -> bool:
        """Return True if the existing lease was requested for this configuration."""
        return bool(self.journal.make_document()["requested"] == self._make_request_document())

    def _make_request_document(self) -> dict[str, Any]:
        """Return the configuration as a document without its system, because a journal belongs to one system."""
        return {name: value for name, value in asdict(self.request.configuration).items() if name != "system"}

    def _abort(self, reason: str) -> None:
        """Release everything that the lease currently holds.

        Afterwards the lease is FABRIC_FREE or LEAKED, unless it had not begun.
        """
        if self.journal.state in ("PLANNED", "FABRIC_FREE", "RELEASED", "LEAKED", None):
            return
        if self.journal.state == "READY":
            self.journal.enter_state("UNKNOWN")
        if self.journal.state != "ABORTING":
            self.journal.enter_state("ABORTING", reason=reason)
        release_all(self.fabric, self.journal, wait_s=RELEASE_TIMEOUT_S, poll_s=self.budget.poll_s)


def mark_in_use(lease: HeldLease) -> None:
    """Mark the lease as used by runs. Repeated calls have no effect."""
    if lease.journal.state == "READY":
        lease.journal.enter_state("IN_USE")


def check_lease(fabric: Fabric, lease: HeldLease) -> tuple[str, ...]:
    """Return the missing, broken and invisible devices of the composition with their problems. Empty if there are none.

    Any problem makes the lease DEGRADED permanently, because results since the last check are invalid.
    """
    composition = fabric.read_back(lease.id)
    attached_devices = {} if composition is None else {device.fabric_id: device for device in composition.devices}
    visible_devices = frozenset() if composition is None else fabric.find_visible_devices(composition)

    def describe_problem(name: str) -> str:
        if name not in attached_devices:
            return "no longer attached"
        if attached_devices[name].health == "critical":
            return "health critical"
        return "" if name in visible_devices else "no longer visible to its host"

    problem_by_device = {device.fabric_id: describe_problem(device.fabric_id) for device in lease.composition.devices}
    problem_by_device |= {} if composition is None else dict(composition.doubts)
    problems = [f"{name}: {words}" for name, words in problem_by_device.items() if words]
    if problems and lease.journal.state in ("READY", "IN_USE"):
        lease.journal.enter_state("DEGRADED", problems=problems)
    return tuple(problems)


def release_lease(
    fabric: Fabric, lease: HeldLease, *, wait_s: float = RELEASE_TIMEOUT_S, poll_s: float = 1.0
) -> dict[str, Any]:
    """Release a lease and return its document, whose `state` is RELEASED or LEAKED.

    The document lists leaked devices. A repeated call only returns the document. Errors of the fabric are not raised.

    Args:
        fabric: fabric of the system.
        lease: lease to release.
        wait_s: time limit in seconds for a busy fabric, after which the devices count as leaked.
        poll_s: poll interval in seconds.
    """
    journal = lease.journal
    if not lease.ownership.is_held:
        return lease.make_document()
    if journal.state in ("READY", "IN_USE", "DEGRADED"):
        journal.enter_state("DRAINING")
    if journal.state == "DRAINING":
        journal.enter_state("DETACHING")
    if journal.state == "DETACHING":
        release_all(fabric, journal, wait_s=wait_s, poll_s=poll_s)
    if journal.state == "FABRIC_FREE":
        journal.enter_state("RELEASED")
    document = lease.make_document()
    lease.ownership.close()
    return document
