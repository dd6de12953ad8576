"""A Liqid Matrix as a control plane.

Unverified: no real Matrix was at hand. Inferred, and to be looked at first on one: the words for broken devices, that deleting a
machine disconnects at once, and that devices show their machine only after it was reprogrammed. Links are not told: what `lanes`
counts is not documented, so it does not say that a link is degraded.
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
    """What was viewed is used by the next change and then forgotten: nothing is read twice in a row."""

    def __init__(
        self, options: LiqidOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        self._api = Api(options)
        self.client = self._api.client
        self._options = options
        self._hosts = {options.hosts.get(host.name, host.name): host.name for host in hosts}
        self._viewed: Snapshot | None = None
        self._groups: tuple[Raw, ...] = ()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            attach_mode=self._options.attach_mode,
            note="written from Liqid's public SDKs (3.4); not run against a real Matrix",
        )

    def view(self) -> View:
        self._viewed = snapshot = self._read()
        return shown(snapshot)

    def _read(self) -> Snapshot:
        found = read(self._api, self._hosts, self._groups)
        # Groups come and go by hand, and rarely; while ours is missing they are looked for every time.
        self._groups = found.groups if found.group(self._options.group) else ()
        return found

    def banks(self, view: View) -> Sequence[Bank]:
        """Every host of a Matrix reaches every device; drawers are its shelves."""
        return open_banks(sorted(device.location for device in view.devices), tuple(self._hosts.values()))

    def attach(self, change: Change, remember: Remember) -> None:
        snapshot = self._taken()
        tags = (device.tag for device in snapshot.devices.values())
        fresh = all(tag is None or tag.lease_id != change.tag.lease_id for tag in tags)
        handles: dict[str, str] = {}

        def kept(name: str, handle: str) -> None:
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
        """Busy means that nothing was changed, so whatever was begun goes. Raises PartialFailure where it does not."""
        ids = tuple(name for names in change.hosts.values() for name in names)
        try:
            stuck = Detachment(self._api, self._options, self._read(), change).run()
        except FabricError as error:
            raise PartialFailure(f"{busy}; and taking back what was begun: {error}", (), ids) from error
        if stuck:
            raise PartialFailure(f"{busy}; and not taken back: {', '.join(stuck)}", (), ids) from busy

    def detach(self, change: Change) -> tuple[str, ...]:
        return Detachment(self._api, self._options, self._taken(), change).run()

    def _taken(self) -> Snapshot:
        viewed, self._viewed = self._viewed, None
        return viewed if viewed is not None else self._read()

    def close(self) -> None:
        """The session stays: another process of this campaign may use its label, and logging in anew ends it."""


def shown(snapshot: Snapshot) -> View:
    """The view of a snapshot. Pure."""
    slots: dict[tuple[int, int], int] = {}
    devices: list[Device] = []
    for device in sorted(snapshot.devices.values(), key=lambda one: (number(one.device_id) or 0, one.name)):
        if not device.computes:
            shelf = (device.rack, device.shelf)
            slots[shelf] = slots.get(shelf, 0) + 1
            location = f"rack{device.rack}-shelf{device.shelf}/slot{slots[shelf]}"
            devices += [_device(device, snapshot, location, attached) for attached in _ends(device, snapshot)]
    # Also leases whose marks are on what somebody took from them meanwhile, so that those can be taken away.
    tags = lease_tag.by_lease((one.tag for one in snapshot.devices.values()), devices)
    return View(tuple(devices), _host_holders(snapshot), tags, p2p=_p2p(snapshot))


def _p2p(snapshot: Snapshot) -> dict[str, bool]:
    """Whether devices of a machine reach each other, by the host in it."""
    words = {"on": True, "off": False}
    told = {number: words.get(str(at(raw, "p2p")).lower()) for number, raw in snapshot.machines.items()}
    return {host: p2p for number, p2p in told.items() if p2p is not None for host in snapshot.hosts_in(number)}


def _ends(seen: LiqidDevice, snapshot: Snapshot) -> Sequence[str | None]:
    """What a device is attached to: every host in its machine."""
    if seen.machine is None or seen.name in snapshot.odd:
        return [None]
    return snapshot.hosts_in(seen.machine) or [f"machine {snapshot.name_of(seen.machine)}"]


def _device(seen: LiqidDevice, snapshot: Snapshot, location: str, attached: str | None) -> Device:
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
    if seen.machine is not None:
        return "in_use"
    if seen.group is not None:
        return "reserved"
    if holder is not None:
        return "composing"
    return "failed" if seen.health == "critical" else "free"


def _host_holders(snapshot: Snapshot) -> dict[str, str]:
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
    """Read everything: as many requests for two devices as for two thousand, and one more for each machine of ours.

    groups: those known from before; they are listed anew only when a device is in one that is not among them.
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
    """A machine's own account of what is in it; None for one that is gone since it was listed."""
    try:
        data = api.get(f"machine/details/{at(machine, 'mach_id')}")
    except MatrixRefused:
        return None
    return next((each for each in data if isinstance(each, Mapping)), None)
