"""Control plane of a Liqid Matrix.

No real Matrix was available. These assumptions must be checked first on one: the words for broken devices, that deleting a
machine disconnects its devices at once, and that devices show their machine only after it was reprogrammed. Links are not
reported: the meaning of `lanes` is not documented, so it does not show if a link is degraded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.liqid.api import LiqidApi, LiqidOptions, MatrixRefusal
from campaign.fabrics.adapters.liqid.attach import Attachment, Detachment, predict_snapshot
from campaign.fabrics.adapters.liqid.snapshot import (
    INFO_PATH_BY_PATH,
    KIND_BY_PATH,
    LiqidDevice,
    MatrixObject,
    MatrixSnapshot,
    build_snapshot,
    is_machine_name,
    parse_device,
    parse_number,
)
from campaign.fabrics.banks import Bank, build_unlimited_banks
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.protocol import ControlPlane, FabricView, LeaseChange, RememberHandle
from campaign.fabrics.errors import Busy, PartialFailure, ProtocolViolation
from campaign.fabrics.http.response import get_nested
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile
from campaign.spec.hardware import STORAGE_KIND, Device, DeviceState
from campaign.spec.site_hardware import HostSpec, PoolSpec


class LiqidControlPlane(ControlPlane):
    """Control plane of a Liqid Matrix.

    The snapshot of a view is used by the next change and then dropped, so that nothing is read twice in succession.
    """

    def __init__(
        self, options: LiqidOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        """Create the client of the Matrix without sending a request."""
        self._api = LiqidApi(options)
        self.client = self._api.client
        self._options = options
        self._hosts = {options.hosts.get(host.name, host.name): host.name for host in hosts}
        self._last_snapshot: MatrixSnapshot | None = None
        self._groups: tuple[MatrixObject, ...] = ()

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities of a Liqid Matrix, with the attach mode of the options."""
        return Capabilities(
            attach_mode=self._options.attach_mode,
            note="the adapter follows Liqid's public SDKs (3.4), and was not run against a real Matrix",
        )

    def read_view(self) -> FabricView:
        """Read the Liqid Matrix and return the view of its devices."""
        self._last_snapshot = snapshot = self._read_snapshot()
        return build_view(snapshot)

    def _read_snapshot(self) -> MatrixSnapshot:
        """Read a snapshot of the Liqid Matrix. Known groups are reused once the campaign's group is among them."""
        snapshot = read_snapshot(self._api, self._hosts, self._groups)
        # Groups are created and deleted rarely, and by hand. They are read every time while the campaign's group is missing.
        self._groups = snapshot.groups if snapshot.find_group(self._options.group) else ()
        return snapshot

    def list_banks(self, view: FabricView) -> Sequence[Bank]:
        """Return one bank of slots per shelf. Every host of a Liqid Matrix reaches every device."""
        return build_unlimited_banks(sorted(device.location for device in view.devices), tuple(self._hosts.values()))

    def attach(self, change: LeaseChange, remember: RememberHandle) -> None:
        """Compose the Liqid machines of a lease and connect its devices.

        If the Matrix is busy, the steps of a first attempt are undone before Busy is raised again.
        """
        snapshot = self._take_snapshot()
        tags = (device.tag for device in snapshot.devices.values())
        is_first_attempt = all(tag is None or tag.lease_id != change.tag.lease_id for tag in tags)
        handles: dict[str, str] = {}

        def remember_handle(name: str, handle: str) -> None:
            """Remember a handle in the state file and for undoing this composition."""
            handles[name] = handle
            remember(name, handle)

        attachment = Attachment(self._api, self._options, snapshot, change, remember_handle)
        try:
            attachment.run()
        except Busy as busy:
            if is_first_attempt:
                self._roll_back(LeaseChange(change.tag, change.hosts, {**change.handles, **handles}), busy)
            raise
        if self.client.is_rehearsing:
            self._last_snapshot = predict_snapshot(change, snapshot, self._options.group, attachment.assignments)

    def _roll_back(self, change: LeaseChange, busy: Busy) -> None:
        """Undo the steps of a composition that was refused because another client edits the Matrix.

        Busy means that nothing was changed. Raises PartialFailure if the steps cannot be undone.
        """
        ids = tuple(name for names in change.hosts.values() for name in names)
        try:
            stuck_names = Detachment(self._api, self._options, self._read_snapshot(), change).run()
        except FabricError as error:
            raise PartialFailure(f"{busy}; the steps done so far could not be undone: {error}", (), ids) from error
        if stuck_names:
            raise PartialFailure(
                f"{busy}; these devices could not be released again: {', '.join(stuck_names)}", (), ids
            ) from busy

    def detach(self, change: LeaseChange) -> tuple[str, ...]:
        """Release the devices of a lease, and return the names of devices that the Matrix did not release."""
        return Detachment(self._api, self._options, self._take_snapshot(), change).run()

    def _take_snapshot(self) -> MatrixSnapshot:
        """Return the snapshot of the last view and forget it, or read a new one."""
        snapshot, self._last_snapshot = self._last_snapshot, None
        return snapshot if snapshot is not None else self._read_snapshot()

    def close(self) -> None:
        """Keep the session open.

        Another process of this campaign may use the same label, and a new login would end that session.
        """


def build_view(snapshot: MatrixSnapshot) -> FabricView:
    """Build the view of all devices in a snapshot of a Liqid Matrix. Pure."""
    slots: dict[tuple[int, int], int] = {}
    devices: list[Device] = []
    for device in sorted(snapshot.devices.values(), key=lambda entry: (parse_number(entry.device_id) or 0, entry.name)):
        if not device.is_compute:
            shelf = (device.rack, device.shelf)
            slots[shelf] = slots.get(shelf, 0) + 1
            location = f"rack{device.rack}-shelf{device.shelf}/slot{slots[shelf]}"
            devices += [_build_device(device, snapshot, location, host) for host in _find_attachments(device, snapshot)]
    # Includes leases whose marked devices other users have taken meanwhile, so that these marks can be removed.
    tags = lease_tag.group_tags_by_lease((entry.tag for entry in snapshot.devices.values()), devices)
    return FabricView(tuple(devices), _find_host_holders(snapshot), tags, p2p=_read_p2p_by_host(snapshot))


def _read_p2p_by_host(snapshot: MatrixSnapshot) -> dict[str, bool]:
    """Return whether peer-to-peer is on in each host's machine, by host. Unknown states are left out."""
    p2p_by_word = {"on": True, "off": False}
    p2p_by_machine = {
        machine_number: p2p_by_word.get(str(get_nested(machine, "p2p")).lower())
        for machine_number, machine in snapshot.machines.items()
    }
    return {
        host: p2p
        for machine_number, p2p in p2p_by_machine.items()
        if p2p is not None
        for host in snapshot.list_hosts_in(machine_number)
    }


def _find_attachments(liqid_device: LiqidDevice, snapshot: MatrixSnapshot) -> Sequence[str | None]:
    """Return the hosts in the machine of a device, or a description of the machine if it has no host.

    The result is [None] if the device is in no machine or its records are contradictory.
    """
    if liqid_device.machine is None or liqid_device.name in snapshot.inconsistent_devices:
        return [None]
    return snapshot.list_hosts_in(liqid_device.machine) or [
        f"machine {snapshot.format_machine_name(liqid_device.machine)}"
    ]


def _build_device(
    liqid_device: LiqidDevice, snapshot: MatrixSnapshot, location: str, attached_to: str | None
) -> Device:
    """Convert a device of a Liqid Matrix to a device of the fabric view."""
    is_inconsistent = liqid_device.name in snapshot.inconsistent_devices
    holder = snapshot.find_holder(liqid_device)
    return Device(
        liqid_device.name,
        KIND_BY_PATH[liqid_device.path],
        liqid_device.model,
        liqid_device.serial or None if KIND_BY_PATH[liqid_device.path] == STORAGE_KIND else None,
        location,
        local=False,
        attached_to=attached_to,
        holder=holder,
        state="unknown" if is_inconsistent else _determine_state(liqid_device, holder),
        health=liqid_device.health,
    )


def _determine_state(liqid_device: LiqidDevice, holder: str | None) -> DeviceState:
    """Derive the state of a device from its machine, group, holder and health."""
    if liqid_device.machine is not None:
        return "in_use"
    if liqid_device.group is not None:
        return "reserved"
    if holder is not None:
        return "composing"
    return "failed" if liqid_device.health == "critical" else "free"


def _find_host_holders(snapshot: MatrixSnapshot) -> dict[str, str]:
    """Return the holder of each held host, by host.

    A host without a compute device on the Matrix gets an explanation as its holder.
    """
    holders: dict[str, str] = {}
    for compute, host in snapshot.hosts.items():
        liqid_device = snapshot.devices.get(compute)
        if liqid_device is None:
            holders[host] = f"no user: the Matrix has no compute device {compute!r} (see `hosts` of the fabric)"
            continue
        holder = snapshot.find_holder(liqid_device)
        if holder is None and liqid_device.machine is not None:
            holder = snapshot.find_lease(liqid_device.machine)
        if holder is not None:
            holders[host] = holder
    return holders


def read_snapshot(api: LiqidApi, hosts: Mapping[str, str], groups: Sequence[Any] = ()) -> MatrixSnapshot:
    """Read all machines, groups and devices of a Matrix into a snapshot.

    The number of requests does not depend on the number of devices. Each machine of this program takes one additional request.

    Args:
        api: client of the Matrix.
        hosts: host name by the name of its compute device.
        groups: groups known from an earlier reading; they are read again only if a device is in an unknown group.
    """
    machines, predevices = (api.get_data(path) for path in ("machine", "predevice"))
    devices = [device for record in predevices if (device := parse_device(record, None)) is not None]
    group_numbers = {None, *(parse_number(get_nested(group, "grp_id")) for group in groups)}
    if not groups or any(device.group not in group_numbers for device in devices):
        groups = api.get_data("group")
    infos = {
        path: api.get_data(f"device/info/{INFO_PATH_BY_PATH[path]}")
        for path in dict.fromkeys(device.path for device in devices)
    }
    machine_by_number: dict[int, Any] = {}
    for record in machines:
        mach_id = parse_number(get_nested(record, "mach_id"))
        if mach_id is not None and machine_by_number.setdefault(mach_id, record) != record:
            raise ProtocolViolation(f"the Matrix lists two machines with the number {mach_id}")
    own_machines = [n for n, record in machine_by_number.items() if is_machine_name(get_nested(record, "mach_name"))]
    details = {n: _read_machine_details(api, machine_by_number[n]) for n in own_machines}
    return build_snapshot(groups, machine_by_number, predevices, infos, details, hosts)


def _read_machine_details(api: LiqidApi, machine: MatrixObject) -> MatrixObject | None:
    """Read the contents of a Liqid machine as the machine reports them, or return None if it no longer exists."""
    try:
        data = api.get_data(f"machine/details/{get_nested(machine, 'mach_id')}")
    except MatrixRefusal:
        return None
    return next((record for record in data if isinstance(record, Mapping)), None)
