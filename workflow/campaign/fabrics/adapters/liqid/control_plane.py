"""Control plane of a Liqid Matrix.

No real Matrix was available. These assumptions must be checked first on one: the words for broken devices, that deleting a
machine disconnects its devices at once, and that devices show their machine only after it was reprogrammed. Links are not
reported: the meaning of `lanes` is not documented, so it does not show if a link is degraded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.liqid.api import Api, LiqidOptions, MatrixRefused
from campaign.fabrics.adapters.liqid.attach import Attachment, Detachment, assumed
from campaign.fabrics.adapters.liqid.snapshot import (
    INFO,
    KINDS,
    LiqidDevice,
    Raw,
    Snapshot,
    assemble,
    is_machine_name,
    number,
    seen,
)
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.errors import Busy, PartialFailure, ProtocolViolation
from campaign.fabrics.http.response import at
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile
from campaign.spec.hardware import STORAGE_KIND, Device, DeviceState
from campaign.spec.site_hardware import HostSpec, PoolSpec


class LiqidPlane(ControlPlane):
    """Control plane of a Liqid Matrix.

    The snapshot of a view is used by the next change and then dropped, so that nothing is read twice in a row.
    """

    def __init__(
        self, options: LiqidOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        """Create the client of the Matrix without sending a request."""
        self._api = Api(options)
        self.client = self._api.client
        self._options = options
        self._hosts = {options.hosts.get(host.name, host.name): host.name for host in hosts}
        self._viewed: Snapshot | None = None
        self._groups: tuple[Raw, ...] = ()

    def capabilities(self) -> Capabilities:
        """Return the capabilities of a Liqid Matrix, with the attach mode of the options."""
        return Capabilities(
            attach_mode=self._options.attach_mode,
            note="written from Liqid's public SDKs (3.4); not run against a real Matrix",
        )

    def view(self) -> View:
        """Read the Liqid Matrix and return the view of its devices."""
        self._viewed = snapshot = self._read()
        return shown(snapshot)

    def _read(self) -> Snapshot:
        """Read a snapshot of the Liqid Matrix. Known groups are reused once the campaign's group is among them."""
        found = read(self._api, self._hosts, self._groups)
        # Groups are created and deleted rarely, and by hand. They are read every time while the campaign's group is missing.
        self._groups = found.groups if found.group(self._options.group) else ()
        return found

    def banks(self, view: View) -> Sequence[Bank]:
        """Return one bank of slots per shelf. Every host of a Liqid Matrix reaches every device."""
        return open_banks(sorted(device.location for device in view.devices), tuple(self._hosts.values()))

    def attach(self, change: Change, remember: Remember) -> None:
        """Compose the Liqid machines of a lease and connect its devices.

        If the Matrix is busy, the steps of a first attempt are undone before Busy is raised again.
        """
        snapshot = self._taken()
        tags = (device.tag for device in snapshot.devices.values())
        fresh = all(tag is None or tag.lease_id != change.tag.lease_id for tag in tags)
        handles: dict[str, str] = {}

        def kept(name: str, handle: str) -> None:
            """Remember a handle both in the state file and for undoing this composition."""
            handles[name] = handle
            remember(name, handle)

        attachment = Attachment(self._api, self._options, snapshot, change, kept)
        try:
            attachment.run()
        except Busy as busy:
            if fresh:
                self._take_back(Change(change.tag, change.hosts, {**change.handles, **handles}), busy)
            raise
        if self.client.rehearses:
            self._viewed = assumed(change, snapshot, self._options.group, attachment.parts)

    def _take_back(self, change: Change, busy: Busy) -> None:
        """Undo the steps of a composition that was refused because another client edits the Matrix.

        Busy means that nothing was changed. Raises PartialFailure if the steps cannot be undone.
        """
        ids = tuple(name for names in change.hosts.values() for name in names)
        try:
            stuck = Detachment(self._api, self._options, self._read(), change).run()
        except FabricError as error:
            raise PartialFailure(f"{busy}; and taking back what was begun: {error}", (), ids) from error
        if stuck:
            raise PartialFailure(f"{busy}; and not taken back: {', '.join(stuck)}", (), ids) from busy

    def detach(self, change: Change) -> tuple[str, ...]:
        """Release the devices of a lease, and return the names of devices that the Matrix did not release."""
        return Detachment(self._api, self._options, self._taken(), change).run()

    def _taken(self) -> Snapshot:
        """Return the snapshot of the last view once, or read a new one."""
        viewed, self._viewed = self._viewed, None
        return viewed if viewed is not None else self._read()

    def close(self) -> None:
        """Keep the session open.

        Another process of this campaign may use its label, and a new login would end that session.
        """


def shown(snapshot: Snapshot) -> View:
    """Build the view of all devices in a snapshot of a Liqid Matrix. Pure."""
    slots: dict[tuple[int, int], int] = {}
    devices: list[Device] = []
    for device in sorted(snapshot.devices.values(), key=lambda one: (number(one.device_id) or 0, one.name)):
        if not device.computes:
            shelf = (device.rack, device.shelf)
            slots[shelf] = slots.get(shelf, 0) + 1
            location = f"rack{device.rack}-shelf{device.shelf}/slot{slots[shelf]}"
            devices += [_device(device, snapshot, location, attached) for attached in _ends(device, snapshot)]
    # Includes leases whose marked devices other users have taken meanwhile, so that these marks can be removed.
    tags = lease_tag.by_lease((one.tag for one in snapshot.devices.values()), devices)
    return View(tuple(devices), _host_holders(snapshot), tags, p2p=_p2p(snapshot))


def _p2p(snapshot: Snapshot) -> dict[str, bool]:
    """Return, by host, True or False for peer-to-peer between the devices of its machine. Unknown values are left out."""
    words = {"on": True, "off": False}
    told = {number: words.get(str(at(raw, "p2p")).lower()) for number, raw in snapshot.machines.items()}
    return {host: p2p for number, p2p in told.items() if p2p is not None for host in snapshot.hosts_in(number)}


def _ends(seen: LiqidDevice, snapshot: Snapshot) -> Sequence[str | None]:
    """Return the hosts in the machine of a device, or a description of the machine if it has no host.

    The result is [None] if the device is in no machine or its records are contradictory.
    """
    if seen.machine is None or seen.name in snapshot.odd:
        return [None]
    return snapshot.hosts_in(seen.machine) or [f"machine {snapshot.name_of(seen.machine)}"]


def _device(seen: LiqidDevice, snapshot: Snapshot, location: str, attached: str | None) -> Device:
    """Build the device of a view from a device of a Liqid Matrix."""
    odd = seen.name in snapshot.odd
    holder = snapshot.holder(seen)
    return Device(
        seen.name,
        KINDS[seen.path],
        seen.model,
        seen.serial or None if KINDS[seen.path] == STORAGE_KIND else None,
        location,
        local=False,
        attached_to=attached,
        holder=holder,
        state="unknown" if odd else _state(seen, holder),
        health=seen.health,
    )


def _state(seen: LiqidDevice, holder: str | None) -> DeviceState:
    """Derive the state of a device from its machine, group, holder and health."""
    if seen.machine is not None:
        return "in_use"
    if seen.group is not None:
        return "reserved"
    if holder is not None:
        return "composing"
    return "failed" if seen.health == "critical" else "free"


def _host_holders(snapshot: Snapshot) -> dict[str, str]:
    """Return the holder of each host that is held, by host.

    A host without a compute device on the Matrix gets an explanation as its holder.
    """
    found: dict[str, str] = {}
    for compute, host in snapshot.hosts.items():
        seen = snapshot.devices.get(compute)
        if seen is None:
            found[host] = f"nobody: the Matrix has no compute device {compute!r} (see `hosts` of the fabric's options)"
            continue
        holder = snapshot.holder(seen)
        if holder is None and seen.machine is not None:
            holder = snapshot.lease_of(seen.machine)
        if holder is not None:
            found[host] = holder
    return found


def read(api: Api, hosts: Mapping[str, str], groups: Sequence[Any] = ()) -> Snapshot:
    """Read all machines, groups and devices of a Matrix into a snapshot.

    The number of requests does not depend on the number of devices. It takes one more request per machine of this program.

    Args:
        api: client of the Matrix.
        hosts: host name by the name of its compute device.
        groups: groups known from an earlier reading; they are read again only if a device is in an unknown group.
    """
    machines, predevices = (api.get(path) for path in ("machine", "predevice"))
    found = [device for each in predevices if (device := seen(each, None)) is not None]
    known = {None, *(number(at(group, "grp_id")) for group in groups)}
    if not groups or any(device.group not in known for device in found):
        groups = api.get("group")
    infos = {path: api.get(f"device/info/{INFO[path]}") for path in dict.fromkeys(device.path for device in found)}
    by_number: dict[int, Any] = {}
    for each in machines:
        mach_id = number(at(each, "mach_id"))
        if mach_id is not None and by_number.setdefault(mach_id, each) != each:
            raise ProtocolViolation(f"the Matrix lists two machines of the number {mach_id}")
    ours = [n for n, each in by_number.items() if is_machine_name(at(each, "mach_name"))]
    details = {n: _details(api, by_number[n]) for n in ours}
    return assemble(groups, by_number, predevices, infos, details, hosts)


def _details(api: Api, machine: Raw) -> Raw | None:
    """Read the contents of a Liqid machine as the machine reports them, or return None if it no longer exists."""
    try:
        data = api.get(f"machine/details/{at(machine, 'mach_id')}")
    except MatrixRefused:
        return None
    return next((each for each in data if isinstance(each, Mapping)), None)
