"""Ownership of devices, from a view of the control plane and the claims in the state file. Pure functions.

A device belongs to a lease if it has the mark of the lease on the fabric, or a claim that the fabric does not contradict. If
mark and claim disagree, the device counts as held by an unknown user, and is neither taken nor detached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from campaign.fabrics.control_plane.protocol import FabricView, LeaseChange
from campaign.fabrics.errors import Conflict, NoMatch, Unhealthy
from campaign.fabrics.protocol import Selection, Tag
from campaign.fabrics.state_file import ClaimedHost, DeviceSlot, FabricState, LeaseClaim, apply_claim, build_composition
from campaign.spec.hardware import STORAGE_KIND, Composition, Device, Host, Inventory
from campaign.spec.site_hardware import HostSpec


@dataclass(frozen=True)
class ClaimedView:
    """A view of the control plane together with the claims in the state file.

    Attributes:
        view: state that the control plane reports.
        state: claims of leases.
        hosts: hosts of the system by name.
        built_in_devices: devices that are built into the hosts.
    """

    view: FabricView
    state: FabricState
    hosts: Mapping[str, HostSpec]
    built_in_devices: Sequence[Device]

    def build_inventory(self) -> Inventory:
        """Build the inventory of hosts and devices with their holders."""
        holders = {name: self.state.find_host_holder(name) or self.view.holders.get(name) for name in self.hosts}
        hosts = tuple(
            Host(name, spec.cores, spec.memory_gib, holder=holders[name]) for name, spec in self.hosts.items()
        )
        built_in_devices = (apply_claim(device, self.state) for device in self.built_in_devices)
        return Inventory(hosts, (*built_in_devices, *(self.add_holder(device) for device in self.view.devices)))

    def add_holder(self, device: Device) -> Device:
        """Return a pooled device with its holder. A device with several holders gets the state `unknown`."""
        if device.others:
            device = replace(device, state="unknown")
        slot = self.state.devices.get(device.fabric_id)
        is_unclaimed = device.holder is None and not device.others and (slot is None or slot.lease is None)
        if is_unclaimed and device.fabric_id in self.view.movable:
            return replace(device, state="free", movable=True)
        claimed_hosts = (None, slot.host, slot.found) if slot is not None else ()
        is_consistent = device.holder is None and device.attached_to in claimed_hosts
        if slot is not None and slot.lease is not None and is_consistent:
            return replace(device, holder=slot.lease, state=device.state if device.attached_to else "composing")
        if device.holder is None and device.attached_to is not None:
            return replace(device, holder=f"an unknown user on {device.attached_to}")
        if device.holder is None and device.state == "reserved":
            return replace(device, holder="another client, which reserved it")
        return device

    def list_attached_devices(self, lease_id: str) -> list[Device]:
        """Return the pooled devices of the lease that are attached to the hosts that the lease claimed them for.

        A device that the fabric marks as belonging to the lease may be on any host of the lease.
        """
        lease_claim = self.state.leases.get(lease_id)
        hosts = {host.name for host in lease_claim.hosts} if lease_claim else set(self.hosts)
        attached_devices = []
        for view_device in self.view.devices:
            device = self.add_holder(view_device)
            slot = self.state.get_or_create_slot(device.fabric_id)
            on_claimed_host = slot.host in (None, device.attached_to) and slot.found is None
            marked_on_host = view_device.holder == lease_id and device.attached_to in hosts
            if device.holder == lease_id and device.attached_to is not None and (on_claimed_host or marked_on_host):
                attached_devices.append(device)
        return attached_devices

    def find_uncertain_devices(self, lease_id: str) -> set[str]:
        """Return the fabric ids of claimed devices that are attached at an unknown or contradictory location."""
        claimed_ids = set(self.state.list_lease_devices(lease_id))
        return {
            device.fabric_id
            for device in self.view.devices
            if device.fabric_id in claimed_ids
            and device.holder in (None, lease_id)
            and device.attached_to is not None
            and (device.state == "unknown" or device.attached_to not in self.hosts)
        }

    def build_composition(self, lease_id: str) -> Composition | None:
        """Build the composition of a lease, or return None if neither the fabric nor a claim shows the lease."""
        lease_claim = self.state.leases.get(lease_id)
        if lease_claim is None and lease_id not in self.view.tags:
            return None
        built_in_devices = {
            d.fabric_id: apply_claim(d, self.state)
            for d in self.built_in_devices
            if self.state.get_or_create_slot(d.fabric_id).lease == lease_id
        }
        # A device whose two ends disagree was not obtained, although it must still be released.
        pooled_devices = {d.fabric_id: d for d in self.list_attached_devices(lease_id) if d.state != "unknown"}
        hosts = [_replace_claimed_devices(host, pooled_devices) for host in lease_claim.hosts] if lease_claim else []
        for name in dict.fromkeys(d.attached_to for d in pooled_devices.values()):
            if name in self.hosts and name not in {host.name for host in hosts}:
                hosts.append(_replace_claimed_devices(ClaimedHost(name=str(name)), pooled_devices))
        composition = build_composition(
            self.hosts, (host for host in hosts if host.name in self.hosts), built_in_devices | pooled_devices
        )
        composed_hosts = tuple(replace(host, p2p=self.view.p2p.get(host.name)) for host in composition.hosts)
        return replace(
            composition,
            hosts=composed_hosts,
            doubts=self._describe_other_holders(lease_id, {host.name for host in hosts}),
        )

    def _describe_other_holders(self, lease_id: str, hosts: set[str]) -> tuple[tuple[str, str], ...]:
        """Return hosts and devices of a lease that others also hold, with a description of the other holders."""
        claimed_ids = set(self.state.list_lease_devices(lease_id))
        other_holders = {name: self.view.shared_hosts[name] for name in sorted(hosts) if name in self.view.shared_hosts}
        other_holders |= {
            device.fabric_id: device.others
            for device in self.view.devices
            if device.others and (device.fabric_id in claimed_ids or device.holder == lease_id)
        }
        return tuple((name, f"also held by {', '.join(names)}") for name, names in other_holders.items())

    def check_selection(self, selection: Selection) -> None:
        """Check that the selection can still be composed, as the state may have changed since it was made.

        Raises NoMatch, Conflict or Unhealthy.
        """
        lease_id = selection.request.lease_id
        devices = {device.fabric_id: device for device in self.build_inventory().devices}
        if missing_ids := [name for name in selection.fabric_ids if name not in devices]:
            raise NoMatch(f"{lease_id}: the fabric no longer has {', '.join(missing_ids)}")
        selected_devices = [devices[name] for name in selection.fabric_ids]
        if device_holders := {d.fabric_id: str(d.holder) for d in selected_devices if d.holder not in (None, lease_id)}:
            raise _build_conflict(lease_id, device_holders)
        if failed_ids := [d.fabric_id for d in selected_devices if d.health == "critical"]:
            raise Unhealthy(
                f"{lease_id}: devices have failed since they were selected: {', '.join(failed_ids)}", failed_ids
            )
        if unusable_devices := [
            f"{d.fabric_id} is {d.state}" for d in selected_devices if d.holder is None and d.state != "free"
        ]:
            raise Conflict(
                f"{lease_id}: selected devices are not free on the fabric: {', '.join(unusable_devices)}",
                ("the fabric",),
            )
        holders = {host.host: self.view.holders.get(host.host, lease_id) for host in selection.hosts}
        if host_holders := {name: holder for name, holder in holders.items() if holder != lease_id}:
            raise _build_conflict(lease_id, host_holders)

    def build_compose_change(self, lease_claim: LeaseClaim, tag: Tag) -> LeaseChange:
        """Build the change that composes a claimed lease."""
        pooled_ids = {host.name: select_pooled(host.devices, host.storage, self.view) for host in lease_claim.hosts}
        ids = tuple(name for names in pooled_ids.values() for name in names)
        return LeaseChange(replace(tag, devices=ids), pooled_ids, dict(lease_claim.handles))

    def build_release_change(self, lease_id: str) -> LeaseChange:
        """Build the change that releases a lease: all devices that it claimed or that the fabric marks as its own."""
        lease_claim = self.state.leases.get(lease_id)
        hosts: dict[str, dict[str, None]] = {}
        for host in lease_claim.hosts if lease_claim is not None else ():
            hosts[host.name] = dict.fromkeys(select_pooled(host.devices, host.storage, self.view))
        for device in self.list_attached_devices(lease_id):
            hosts.setdefault(str(device.attached_to), {})[device.fabric_id] = None
        for name, holder in self.view.holders.items():
            if holder == lease_id:
                hosts.setdefault(name, {})
        # A device that another user holds by now must not be detached.
        holders = {d.fabric_id: self.add_holder(d).holder for d in self.view.devices}
        ids_by_host = {
            host: tuple(n for n in names if holders.get(n) in (None, lease_id)) for host, names in hosts.items()
        }
        tag = self.state.build_lease_tags().get(lease_id) or self.view.tags[lease_id]
        ids = tuple(name for names in ids_by_host.values() for name in names)
        return LeaseChange(replace(tag, devices=ids), ids_by_host, dict(lease_claim.handles) if lease_claim else {})


def merge_duplicate_devices(view: FabricView, state: FabricState) -> FabricView:
    """Return the view with one entry per device.

    If a device is shown at several ends, its entry is the end that it was claimed for, and the other ends are listed in
    `others`.
    """
    devices_by_id: dict[str, list[Device]] = defaultdict(list)
    for device in view.devices:
        devices_by_id[device.fabric_id].append(device)
    if len(devices_by_id) == len(view.devices):
        return view
    return replace(
        view, devices=tuple(_merge_ends(ends, state.devices.get(name)) for name, ends in devices_by_id.items())
    )


def _merge_ends(ends: Sequence[Device], slot: DeviceSlot | None) -> Device:
    """Merge the entries of one device, starting with the end that it was claimed for."""
    first = next((end for end in ends if slot is not None and end.attached_to == slot.host), ends[0])
    other_holders = (
        f"an unknown user on {end.attached_to}" if end.holder in (None, first.holder) else str(end.holder)
        for end in ends
        if end is not first
    )
    return replace(first, others=(*first.others, *other_holders))


def _build_conflict(lease_id: str, holders: Mapping[str, str]) -> Conflict:
    """Build the error that names the holders of hosts or devices."""
    held_items = ", ".join(f"{name} is held by {holder}" for name, holder in holders.items())
    return Conflict(
        f"{lease_id}: selected hosts or devices are no longer free: {held_items}", dict.fromkeys(holders.values())
    )


def select_pooled(devices: Sequence[str], storage: Sequence[str], view: FabricView) -> tuple[str, ...]:
    """Return the devices and storage that come from the pool."""
    pooled_ids = {device.fabric_id for device in view.devices}
    return tuple(name for name in (*devices, *storage) if name in pooled_ids)


def _replace_claimed_devices(host: ClaimedHost, pooled_devices: Mapping[str, Device]) -> ClaimedHost:
    """Return a claimed host with the devices that the fabric really attached to it.

    Requested devices that are attached elsewhere are removed, and additional attached devices are added.
    """

    def keep_attached(requested_ids: Sequence[str]) -> list[str]:
        """Return the requested ids without devices that are attached to another host."""
        return [
            name
            for name in requested_ids
            if name not in pooled_devices or pooled_devices[name].attached_to == host.name
        ]

    requested_ids = {*host.devices, *host.storage}
    extra_devices = [
        d for name, d in pooled_devices.items() if name not in requested_ids and d.attached_to == host.name
    ]
    return host.model_copy(
        update={
            "devices": (*keep_attached(host.devices), *(d.fabric_id for d in extra_devices if d.can_compute)),
            "storage": (*keep_attached(host.storage), *(d.fabric_id for d in extra_devices if d.kind == STORAGE_KIND)),
        }
    )
