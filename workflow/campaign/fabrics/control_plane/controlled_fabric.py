"""Fabric behind an external control plane: first claims, then requests, then a check of both ends and of the hosts.

The owner of a device follows from two sources: the mark on the fabric (`lease_tag`), and the claims in a state file. All
campaigns on this system share the state file, and it is written before the first request. A device is ours only if neither
contradicts the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.host_view import HostView
from campaign.fabrics.control_plane.ownership import ClaimedView, merge_duplicate_devices, select_pooled
from campaign.fabrics.control_plane.protocol import ControlPlane, FabricView, LeaseChange
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.host_agents import open_agent
from campaign.fabrics.host_agents.protocol import HostAgent, HostBusy
from campaign.fabrics.operations import time_operation
from campaign.fabrics.placement.selection import select_devices
from campaign.fabrics.protocol import (
    Capabilities,
    Fabric,
    LeaseRequest,
    OutgoingRequest,
    RecordedRequest,
    Selection,
    Tag,
)
from campaign.fabrics.state_file import FabricState, StateFile, assign_slots, enter_claim, find_devices_to_remove
from campaign.spec.hardware import Composition, Device, Host, Inventory, list_built_in_devices
from campaign.spec.site_hardware import HostSpec, PoolSpec

_MAX_VIEW_AGE_S = 1.0


class ControlledFabric(Fabric):
    """Fabric behind an external control plane; see `protocol.Fabric`."""

    force = False

    def __init__(
        self,
        plane: ControlPlane,
        hosts: Sequence[HostSpec],
        state_file: Path,
        agent: HostAgent | None = None,
        pool: Sequence[PoolSpec] = (),
        map_model: Callable[[str], str] = str,
    ) -> None:
        """Open the fabric of a control plane.

        Args:
            plane: adapter that communicates with the control plane.
            hosts: hosts of the system.
            state_file: path of the file with the claims.
            agent: host agent, or None if hosts are not inspected.
            pool: pool of the system file, used for plans.
            map_model: function that maps the fabric's name of a device model to the name in the system file.
        """
        self.plane = plane
        self._map_model = map_model
        self._pool = tuple(pool)
        self._hosts = {host.name: host for host in hosts}
        self._built_in_devices = tuple(device for host in hosts for device in list_built_in_devices(host))
        self._state = StateFile(state_file)
        kinds_by_host: dict[str, set[str]] = {}
        for device in self._built_in_devices:
            kinds_by_host.setdefault(device.location, set()).add(device.kind)
        self._host_view = HostView(
            agent, self._state, {host: frozenset(kinds) for host, kinds in kinds_by_host.items()}
        )
        self._recent_view: tuple[str, float, FabricView] | None = None

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities of the control plane."""
        return self.plane.describe_capabilities()

    def read_inventory(self) -> Inventory:
        """Read the hosts and devices from the control plane, with the holders that marks and claims show."""
        with self.plane.client.limit_time():
            return self._combine_with_claims(self._reuse_or_read_view("reading back")).build_inventory()

    def _reuse_or_read_view(self, next_step: str) -> FabricView:
        """Return the view of the control plane, reusing one that an earlier step kept a moment ago.

        A kept view is reused at most once, by a following step that changes nothing itself.
        """
        recent_view, self._recent_view = self._recent_view, None
        if (
            recent_view is not None
            and recent_view[0] == next_step
            and time.monotonic() - recent_view[1] < _MAX_VIEW_AGE_S
        ):
            return recent_view[2]
        return self._read_view()

    def _read_view(self) -> FabricView:
        """Read the state that the control plane reports now.

        Raises ProtocolViolation if the data are unexpected, because then the control plane is at fault and not this program.
        """
        try:
            with time_operation("inventory"):
                reported_view = self.plane.read_view()
            view = merge_duplicate_devices(reported_view, self._state.read())
            devices = (
                replace(device, model=self._map_model(device.model), called=device.model) for device in view.devices
            )
            return replace(view, devices=tuple(devices))
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ProtocolViolation(
                f"{self.plane.client.base}: the control plane returned unexpected data ({type(error).__name__}: {error})"
            ) from error

    def _keep_view(self, next_step: str, view: FabricView) -> None:
        """Keep a view for the next step."""
        self._recent_view = (next_step, time.monotonic(), view)

    def _combine_with_claims(self, view: FabricView) -> ClaimedView:
        """Combine a view of the control plane with the claims in the state file."""
        return ClaimedView(view, self._state.read(), self._hosts, self._built_in_devices)

    def select_devices(self, request: LeaseRequest, inventory: Inventory) -> Selection:
        """Choose the devices for a request, counting movable devices as free.

        Raises Incompatible if the change would break a rule of the fabric.
        """
        pooled_devices = (device for device in inventory.devices if not device.local)
        view = FabricView(
            tuple(replace(device, attached_to=None) if device.movable else device for device in pooled_devices)
        )
        selection = select_devices(request, inventory, self.plane.list_banks(view))
        change = LeaseChange(
            _build_tag(request), {host.host: select_pooled(host.fabric, host.storage, view) for host in selection.hosts}
        )
        if rule := self.plane.find_rule_violation(change, view):
            raise Incompatible(f"{request.lease_id}: {rule}", rule)
        return selection

    def build_planned_inventory(self) -> Inventory:
        """Build the inventory of the system file without any holders."""
        hosts = tuple(Host(spec.name, spec.cores, spec.memory_gib) for spec in self._hosts.values())
        return Inventory(hosts, (*self._built_in_devices, *self._planned_pool[0]))

    def select_planned_devices(self, request: LeaseRequest) -> Selection:
        """Choose devices by the rules of the system file, without rules that only the control plane has."""
        return select_devices(request, self.build_planned_inventory(), self._planned_pool[1])

    @cached_property
    def _planned_pool(self) -> tuple[Sequence[Device], Sequence[Bank]]:
        """Devices and banks of the pool in the system file."""
        return self.plane.build_planned_pool(self._pool, tuple(self._hosts))

    def read_back(self, lease_id: str) -> Composition | None:
        """Read the composition that the fabric and the claims show for the lease, with the data that its hosts report.

        Returns None if neither of them knows the lease.
        """
        if not self.plane.marks_leases and lease_id not in self._state.read().leases:
            return None
        with self.plane.client.limit_time():
            view = self._reuse_or_read_view("release")
            self._keep_view("reading back", view)
            composition = self._combine_with_claims(view).build_composition(lease_id)
            hosts = tuple(self._host_view.add_host_data(host) for host in composition.hosts) if composition else ()
            return None if composition is None else replace(composition, hosts=hosts)

    def find_visible_devices(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices that their hosts can use now."""
        return self._host_view.find_visible_devices(composition)

    def list_devices_to_verify(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices that are verified on their hosts."""
        return self._host_view.list_devices_to_verify(composition)

    def rescan_hosts(self, composition: Composition) -> None:
        """Make the hosts of the composition scan for devices."""
        self._host_view.rescan_hosts(composition)

    @property
    def control_plane_access(self) -> ControlledFabric:
        """Operations beyond `Fabric`, which this class offers itself."""
        return self

    @property
    def request_count(self) -> int:
        """Number of requests sent to the control plane so far."""
        return self.plane.client.request_count

    def limit_time(self) -> AbstractContextManager[None]:
        """Apply one common time limit to all requests inside the block."""
        return self.plane.client.limit_time()

    def read_banks(self) -> Sequence[Bank]:
        """Read which hosts can reach which devices."""
        return self.plane.list_banks(self.plane.read_view())

    def list_unreachable_drawers(self) -> Mapping[tuple[str, str], str]:
        """Return, by drawer and host, the reason why a host could not reach a drawer at the last reading."""
        return self.plane.list_unreachable_drawers()

    def list_host_devices(self, host: str) -> Sequence[tuple[str, str]] | None:
        """Return (identity, model) of each device that the host lists now, or None if no host agent is configured."""
        return self._host_view.list_devices(host)

    def record_requests(self) -> AbstractContextManager[list[RecordedRequest]]:
        """Record every request with its answer inside the block."""
        return self.plane.client.record_requests()

    def redact_secrets(self, text: str) -> str:
        """Remove the secrets of the control plane from a text."""
        return self.plane.client.redact_secrets(text)

    def list_lease_tags(self) -> Mapping[str, Tag]:
        """Return the tags of all leases, from the marks on the fabric and the claims in the state file."""
        if not self.plane.marks_leases:
            return self._state.read().build_lease_tags()
        with self.plane.client.limit_time():
            claims, marked_tags = self._state.read().build_lease_tags(), self._read_view().tags
        # Some marks have no room for the owner.
        completed_tags = {lease: tag if tag.owner else claims.get(lease, tag) for lease, tag in marked_tags.items()}
        return {**claims, **completed_tags}

    def compose(self, selection: Selection) -> None:
        """Claim the selection, detach devices that block it, and attach its devices.

        Raises Busy or Conflict if nothing was changed, PartialFailure with the devices that failed, or OutcomeUnknown.
        """
        lease_id = selection.request.lease_id
        with self._state.lock_transaction(lease_id), self.plane.client.limit_time():
            # The view must be current: some fabrics attach one device to two hosts on request.
            view, self._recent_view = self._read_view(), None
            claimed_view = self._combine_with_claims(view)
            claimed_view.check_selection(selection)
            devices = {
                host.host: [d for d in view.devices if d.fabric_id in host.fabric_ids] for host in selection.hosts
            }
            devices_before = self._host_view.list_keys_before_attach(devices)
            with self._state.edit() as state:
                is_new, change, hosts_to_leave = self._enter_claim(state, claimed_view, selection)
                if is_new:
                    state.leases[lease_id].seen_before = devices_before
            try:
                self._detach_blocking_devices(view, hosts_to_leave, change.tag)
                self.plane.attach(change, lambda name, handle: self._store_handle(lease_id, name, handle))
            except (Busy, Conflict):
                if is_new:  # The fabric changed nothing, so there is nothing to release.
                    self._drop_claims(lease_id)
                raise
            except HostBusy as busy:  # Nothing is attached yet, and the users of the devices on the host may finish.
                if is_new:
                    self._drop_claims(lease_id)
                raise Conflict(f"{lease_id}: {busy}", busy.holders or ("a host",)) from busy

    def _enter_claim(
        self, state: FabricState, claimed_view: ClaimedView, selection: Selection
    ) -> tuple[bool, LeaseChange, Mapping[str, str]]:
        """Enter the claim of a selection into the state.

        Returns a tuple: True if the claim is new, the attachments to change, and the hosts that devices must leave first, by
        fabric id.
        """
        lease_id, view = selection.request.lease_id, claimed_view.view
        _forget_moved_devices(state, view)
        _record_origins(state, view, selection)
        if is_new := enter_claim(state, selection):
            assign_slots(state, selection, {device.fabric_id for device in view.devices})
        change = claimed_view.build_compose_change(state.leases[lease_id], _build_tag(selection.request, state))
        change = replace(change, p2p=selection.request.configuration.p2p)
        return is_new, change, find_devices_to_remove(state, lease_id)

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Take the devices of the lease out of use, detach them, and return displaced devices to their hosts.

        Returns the fabric ids of devices that could not be released. Raises FabricError if the fabric still shows the mark of
        the lease.
        """
        with self.plane.client.limit_time():
            if lease_id not in self._state.read().leases and lease_id not in self._read_view().tags:
                return ()
        with self._state.lock_transaction(lease_id), self.plane.client.limit_time():
            claimed_view = self._combine_with_claims(self._read_view())
            change = claimed_view.build_release_change(lease_id)
            for host, names in change.hosts.items():  # Hosts stop using the devices before the fabric detaches them.
                attached_devices = [
                    d for d in claimed_view.view.devices if d.fabric_id in names and d.attached_to == host
                ]
                self._host_view.drain_devices(host, attached_devices, force=self.force)
            partial_failure: PartialFailure | None = None
            try:
                undetached_ids = set(self.plane.detach(change))
            except PartialFailure as error:
                undetached_ids, partial_failure = set(error.failed_ids), error
            view_after = replace(claimed_view, view=self._read_view())
            undetached_ids |= {
                device.fabric_id for device in view_after.list_attached_devices(lease_id)
            } | view_after.find_uncertain_devices(lease_id)
            if not undetached_ids and lease_id in view_after.view.tags:
                raise FabricError(
                    f"{lease_id}: the fabric still shows the mark of this lease; run 'campaign fabric reconcile --release'"
                )
            self._drop_claims(lease_id, keep_ids=undetached_ids, view=view_after.view)
            self._keep_view("release", view_after.view)
            if partial_failure is not None:
                raise partial_failure  # The released devices stay released, and the error explains the others.
            self._return_displaced_devices()
            return tuple(sorted(undetached_ids))

    def list_displaced_devices(self) -> Mapping[str, str]:
        """Return the original host of each displaced device, by fabric id."""
        return self._state.read().list_displaced_devices()

    def return_displaced_devices(self) -> Mapping[str, str]:
        """Attach displaced devices to their original hosts again, and return these hosts by fabric id."""
        if not self._state.read().list_displaced_devices():
            return {}
        with self._state.lock_transaction("the return of displaced devices"), self.plane.client.limit_time():
            return self._return_displaced_devices()

    def _return_displaced_devices(self) -> Mapping[str, str]:
        """Attach displaced devices to their original hosts again, and return these hosts by fabric id.

        The caller holds the transaction lock.
        """
        if not self._state.read().list_displaced_devices():
            return {}
        view, self._recent_view = self._read_view(), None
        hosts: dict[str, tuple[str, ...]] = {}
        with self._state.edit() as state:
            for name, host in state.list_displaced_devices().items():
                device = view.find_device(name)
                if device is None or device.attached_to is not None:
                    _forget_origin(state, name)  # Another user has attached it.
                else:
                    hosts[host] = (*hosts.get(host, ()), name)
        if not hosts:
            return {}
        attach_error: FabricError | None = None
        try:
            self.plane.attach(LeaseChange(Tag("", "", "", time.time(), ()), hosts), lambda name, handle: None)
        except (OutcomeUnknown, PartialFailure) as error:
            # A lost answer gives no result for single devices, so the view is read again.
            attach_error, view = error, self._read_view()
        is_incomplete = False
        with self._state.edit() as state:
            for name, host in ((name, host) for host, names in hosts.items() for name in names):
                device = view.find_device(name)
                if attach_error is None or (device is not None and device.attached_to == host):
                    _forget_origin(state, name)
                else:
                    is_incomplete = True
        if attach_error is not None and is_incomplete:
            raise attach_error
        return {name: host for host, names in hosts.items() for name in names}

    def _detach_blocking_devices(self, view: FabricView, devices: Mapping[str, str], tag: Tag) -> None:
        """Detach blocking devices from the hosts where they were found; `devices` maps their fabric ids to these hosts.

        Raises PartialFailure if the fabric does not release devices, and HostBusy if they may be in use.
        """
        hosts: dict[str, list[Device]] = {}
        for name, host in devices.items():
            if (device := view.find_device(name)) is not None:
                hosts.setdefault(host, []).append(device)
        if hosts and not self._host_view.has_agent and not self.force:
            device_names = ", ".join(device.fabric_id for host_devices in hosts.values() for device in host_devices)
            raise HostBusy(
                f"it is unknown if {device_names} are in use on {', '.join(hosts)}; configure a host agent (`agent`)"
            )
        for host, host_devices in hosts.items():
            self._host_view.drain_devices(host, host_devices, force=self.force)
            names = tuple(device.fabric_id for device in host_devices)
            undetached_ids = self.plane.detach(LeaseChange(replace(tag, devices=names), {host: names}))
            with self._state.edit() as state:
                for name in set(names) - set(undetached_ids):
                    state.mark_removed_from_origin(name)
            if undetached_ids:
                raise PartialFailure(
                    f"{tag.lease_id}: {', '.join(undetached_ids)} could not be detached from {host}",
                    failed_ids=undetached_ids,
                )

    def preview_requests(self, selection: Selection) -> tuple[list[OutgoingRequest], list[OutgoingRequest]]:
        """Return the exact requests that composing and releasing the selection would send now.

        Nothing is sent or claimed.
        """
        with self.plane.client.limit_time():
            claimed_view = self._combine_with_claims(self._read_view())
            claimed_view.check_selection(selection)
            # This copy of the state is not written.
            _, change, hosts_to_leave = self._enter_claim(self._state.read(), claimed_view, selection)
            handles: dict[str, str] = {}
            with self.plane.client.rehearse_changes() as composing:
                for name, host in hosts_to_leave.items():
                    self.plane.detach(replace(change, hosts={host: (name,)}))
                self.plane.attach(change, handles.__setitem__)
            with self.plane.client.rehearse_changes() as releasing:
                self.plane.detach(replace(change, handles=handles))
            return composing, releasing

    def close(self) -> None:
        """Close the control plane, its HTTP client and the host agent."""
        self.plane.close()
        self.plane.client.close()
        self._host_view.close()

    def _store_handle(self, lease_id: str, name: str, handle: str) -> None:
        """Store the id of an object that the fabric created for a lease."""
        with self._state.edit() as state:
            state.leases[lease_id].handles[name] = handle

    def _drop_claims(self, lease_id: str, keep_ids: Collection[str] = (), view: FabricView | None = None) -> None:
        """Remove the claims of a lease, except those of the devices to keep."""
        with self._state.edit() as state:
            if view is not None:
                _forget_moved_devices(state, view)
            state.drop_lease(lease_id, keep_ids)


def _build_tag(request: LeaseRequest, state: FabricState | None = None) -> Tag:
    """Build the tag of a request, with the start time of its claim if there is one."""
    lease_claim = state.leases.get(request.lease_id) if state else None
    since_s = lease_claim.since_s if lease_claim else time.time()
    return Tag(request.lease_id, request.campaign, request.owner, since_s, ())


def _forget_origin(state: FabricState, name: str) -> None:
    """Delete the stored original host of a device that is no longer displaced."""
    del state.homes[name]
    if (slot := state.devices.get(name)) is not None and slot.lease is None:
        state.free_device(name)


def _forget_moved_devices(state: FabricState, view: FabricView) -> None:
    """Delete the stored original hosts of devices that other clients have moved since they were found."""
    for name, slot in tuple(state.devices.items()):
        view_device, is_unmovable = view.find_device(name), slot.lease is None and name not in view.movable
        if slot.found is not None and (is_unmovable or view_device is None or view_device.attached_to != slot.found):
            state.mark_removed_from_origin(name)


def _record_origins(state: FabricState, view: FabricView, selection: Selection) -> None:
    """Record the hosts of movable devices that are selected or attached to selected hosts."""
    hosts = {host.host for host in selection.hosts}
    for device in view.devices:
        if device.fabric_id in view.movable and (
            device.fabric_id in selection.fabric_ids or device.attached_to in hosts
        ):
            slot = state.get_or_create_slot(device.fabric_id)
            if slot.lease is None and slot.found is None:
                slot.found = state.homes[device.fabric_id] = str(device.attached_to)


def make_opener(
    open_plane: Callable[[Any, Sequence[HostSpec], Sequence[PoolSpec], StateFile], ControlPlane], kind: str
) -> Callable[[Any, Sequence[HostSpec], Sequence[PoolSpec], Path], ControlledFabric]:
    """Return a function that opens a vendor adapter (`FabricKind.open`). Opening sends no request to the control plane.

    Args:
        open_plane: function that creates the control plane of the adapter.
        kind: kind of the fabric, which names the state file.
    """

    def open_fabric(
        options: Any, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
    ) -> ControlledFabric:
        """Open the adapter with its state file and host agent."""
        state = state_dir / f"{kind}.json"
        agent = open_agent(options.agent, len(hosts))
        return ControlledFabric(
            open_plane(options, hosts, pool, StateFile(state)), hosts, state, agent, pool, options.map_model
        )

    return open_fabric
