"""Ownership of devices, from a view of the control plane and the claims in the state file. Pure functions.

A device belongs to a lease if it has the mark of the lease on the fabric, or a claim that the fabric does not contradict. If
mark and
claim disagree, the device counts as held by somebody, and is neither taken nor detached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from campaign.fabrics.control_plane.protocol import Change, View
from campaign.fabrics.errors import Conflict, NoMatch, Unhealthy
from campaign.fabrics.protocol import Selection, Tag
from campaign.fabrics.state_file import HeldHost, Holding, Slot, State, composed, occupy
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

    view: View
    state: State
    hosts: Mapping[str, HostSpec]
    own: Sequence[Device]

    def inventory(self) -> Inventory:
        """Build the inventory of hosts and devices with their holders."""
        holders = {name: self.state.holder_of_host(name) or self.view.holders.get(name) for name in self.hosts}
        hosts = tuple(
            Host(name, spec.cores, spec.memory_gib, holder=holders[name]) for name, spec in self.hosts.items()
        )
        local = (occupy(device, self.state) for device in self.own)
        return Inventory(hosts, (*local, *(self.owned(device) for device in self.view.devices)))

    def owned(self, device: Device) -> Device:
        """Return a pooled device with its holder. A device with several holders gets the state `unknown`."""
        if device.others:
            device = replace(device, state="unknown")
        claimed = self.state.devices.get(device.fabric_id)
        nobodys = device.holder is None and not device.others and (claimed is None or claimed.lease is None)
        if nobodys and device.fabric_id in self.view.movable:
            return replace(device, state="free", movable=True)
        places = (None, claimed.host, claimed.found) if claimed is not None else ()
        ours = device.holder is None and device.attached_to in places
        if claimed is not None and claimed.lease is not None and ours:
            return replace(device, holder=claimed.lease, state=device.state if device.attached_to else "composing")
        if device.holder is None and device.attached_to is not None:
            return replace(device, holder=f"somebody, on {device.attached_to}")
        if device.holder is None and device.state == "reserved":
            return replace(device, holder="another client that reserved it")
        return device

    def attached(self, lease_id: str) -> list[Device]:
        """Return the pooled devices of the lease that are attached to the hosts that the lease claimed them for.

        A device that the fabric marks as belonging to the lease may be on any host of the lease.
        """
        holding = self.state.leases.get(lease_id)
        hosts = {host.name for host in holding.hosts} if holding else set(self.hosts)
        found = []
        for shown in self.view.devices:
            device = self.owned(shown)
            slot = self.state.slot(device.fabric_id)
            right = slot.host in (None, device.attached_to) and slot.found is None
            marked = shown.holder == lease_id and device.attached_to in hosts
            if device.holder == lease_id and device.attached_to is not None and (right or marked):
                found.append(device)
        return found

    def doubtful(self, lease_id: str) -> set[str]:
        """Return the fabric ids of claimed devices that are attached at an unknown or contradictory location."""
        claimed = set(self.state.held_by(lease_id))
        return {
            device.fabric_id
            for device in self.view.devices
            if device.fabric_id in claimed
            and device.holder in (None, lease_id)
            and device.attached_to is not None
            and (device.state == "unknown" or device.attached_to not in self.hosts)
        }

    def composition(self, lease_id: str) -> Composition | None:
        """Build the composition of a lease, or return None if neither the fabric nor a claim has the lease."""
        holding = self.state.leases.get(lease_id)
        if holding is None and lease_id not in self.view.tags:
            return None
        own = {d.fabric_id: occupy(d, self.state) for d in self.own if self.state.slot(d.fabric_id).lease == lease_id}
        # A device whose two ends disagree was not obtained, although it must still be released.
        pooled = {d.fabric_id: d for d in self.attached(lease_id) if d.state != "unknown"}
        hosts = [_as_attached(host, pooled) for host in holding.hosts] if holding else []
        for name in dict.fromkeys(d.attached_to for d in pooled.values()):
            if name in self.hosts and name not in {host.name for host in hosts}:
                hosts.append(_as_attached(HeldHost(name=str(name)), pooled))
        found = composed(self.hosts, (host for host in hosts if host.name in self.hosts), own | pooled)
        told = tuple(replace(host, p2p=self.view.p2p.get(host.name)) for host in found.hosts)
        return replace(found, hosts=told, doubts=self._doubts(lease_id, {host.name for host in hosts}))

    def _doubts(self, lease_id: str, hosts: set[str]) -> tuple[tuple[str, str], ...]:
        """Return hosts and devices of a lease that others hold too, with a description of the other holders."""
        claimed = set(self.state.held_by(lease_id))
        shared = {name: self.view.shared_hosts[name] for name in sorted(hosts) if name in self.view.shared_hosts}
        shared |= {
            device.fabric_id: device.others
            for device in self.view.devices
            if device.others and (device.fabric_id in claimed or device.holder == lease_id)
        }
        return tuple((name, f"also held by {', '.join(others)}") for name, others in shared.items())

    def refuse(self, selection: Selection) -> None:
        """Check that the selection can still be composed, as the state may have changed since it was made.

        Raises NoMatch, Conflict or Unhealthy.
        """
        lease_id = selection.request.lease_id
        devices = {device.fabric_id: device for device in self.inventory().devices}
        if unknown := [name for name in selection.ids if name not in devices]:
            raise NoMatch(f"{lease_id}: the fabric no longer has {', '.join(unknown)}")
        chosen = [devices[name] for name in selection.ids]
        if taken := {d.fabric_id: str(d.holder) for d in chosen if d.holder not in (None, lease_id)}:
            raise _taken(lease_id, taken)
        if broken := [d.fabric_id for d in chosen if d.health == "critical"]:
            raise Unhealthy(f"{lease_id}: failed since they were selected: {', '.join(broken)}", broken)
        if odd := [f"{d.fabric_id} is {d.state}" for d in chosen if d.holder is None and d.state != "free"]:
            raise Conflict(f"{lease_id}: not free on the fabric: {', '.join(odd)}", ("the fabric",))
        holders = {host.host: self.view.holders.get(host.host, lease_id) for host in selection.hosts}
        if others := {name: holder for name, holder in holders.items() if holder != lease_id}:
            raise _taken(lease_id, others)

    def change(self, holding: Holding, tag: Tag) -> Change:
        """Build the change that composes a claimed lease."""
        moving = {host.name: moving_of(host.devices, host.storage, self.view) for host in holding.hosts}
        ids = tuple(name for names in moving.values() for name in names)
        return Change(replace(tag, devices=ids), moving, dict(holding.handles))

    def held_change(self, lease_id: str) -> Change:
        """Build the change that releases a lease: all devices that it claimed or that the fabric marks as its own."""
        holding = self.state.leases.get(lease_id)
        hosts: dict[str, dict[str, None]] = {}
        for host in holding.hosts if holding is not None else ():
            hosts[host.name] = dict.fromkeys(moving_of(host.devices, host.storage, self.view))
        for device in self.attached(lease_id):
            hosts.setdefault(str(device.attached_to), {})[device.fabric_id] = None
        for name, holder in self.view.holders.items():
            if holder == lease_id:
                hosts.setdefault(name, {})
        # A device that another user holds by now must not be detached.
        owned = {d.fabric_id: self.owned(d).holder for d in self.view.devices}
        mine = {host: tuple(n for n in names if owned.get(n) in (None, lease_id)) for host, names in hosts.items()}
        tag = self.state.tags().get(lease_id) or self.view.tags[lease_id]
        ids = tuple(name for names in mine.values() for name in names)
        return Change(replace(tag, devices=ids), mine, dict(holding.handles) if holding else {})


def distinct(view: View, state: State) -> View:
    """Return the view with one entry per device.

    If a device is shown at several ends, its entry is the end that it was claimed for, and the other ends are listed in
    `others`.
    """
    shown: dict[str, list[Device]] = defaultdict(list)
    for device in view.devices:
        shown[device.fabric_id].append(device)
    if len(shown) == len(view.devices):
        return view
    return replace(view, devices=tuple(_merged(ends, state.devices.get(name)) for name, ends in shown.items()))


def _merged(ends: Sequence[Device], claimed: Slot | None) -> Device:
    """Merge the entries of one device, starting with the end that it was claimed for."""
    first = next((end for end in ends if claimed is not None and end.attached_to == claimed.host), ends[0])
    others = (
        f"somebody, on {end.attached_to}" if end.holder in (None, first.holder) else str(end.holder)
        for end in ends
        if end is not first
    )
    return replace(first, others=(*first.others, *others))


def _taken(lease_id: str, holders: Mapping[str, str]) -> Conflict:
    """Build the error that names the holders of hosts or devices."""
    what = ", ".join(f"{name} by {holder}" for name, holder in holders.items())
    return Conflict(f"{lease_id}: no longer free: {what}", dict.fromkeys(holders.values()))


def moving_of(devices: Sequence[str], storage: Sequence[str], view: View) -> tuple[str, ...]:
    """Return the devices and storage that come from the pool."""
    pooled = {device.fabric_id for device in view.devices}
    return tuple(name for name in (*devices, *storage) if name in pooled)


def _as_attached(host: HeldHost, pooled: Mapping[str, Device]) -> HeldHost:
    """Return a claimed host with the devices that the fabric really attached to it.

    Requested devices that are attached elsewhere are removed, and additional attached devices are added.
    """

    def there(asked: Sequence[str]) -> list[str]:
        """Return the requested ids without devices that are attached to another host."""
        return [name for name in asked if name not in pooled or pooled[name].attached_to == host.name]

    asked = {*host.devices, *host.storage}
    others = [d for name, d in pooled.items() if name not in asked and d.attached_to == host.name]
    return host.model_copy(
        update={
            "devices": (*there(host.devices), *(d.fabric_id for d in others if d.computes)),
            "storage": (*there(host.storage), *(d.fabric_id for d in others if d.kind == STORAGE_KIND)),
        }
    )
