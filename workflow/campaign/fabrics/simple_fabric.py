"""Base class of fabrics without a control plane of their own: claims in a state file, devices attached one by one.

A subclass defines how one device of the pool is attached to a host (`attach`) and detached again (`detach`). Without these
methods, a lease is only a claim. The base class provides the rest: selection, one composition at a time, resuming after a crash,
failures per device, and release.

The state file `<state_dir>/<kind>.json` is replaced as a whole under a lock (`state_file`):

    {"schema_version": 1,
     "leases":  {"<lease id>": {"campaign": .., "owner": .., "since_s": <Unix time>,
                                "hosts": [{"name": .., "devices": [<fabric id>, ..], "storage": [..]}]}},
     "devices": {"<fabric id>": {"lease": .., "host": .., "state": "composing" | "in_use"}},
     "faults":  {}}

A device without an entry is free. A device in state `composing` is claimed but not attached yet. The other keys are those of
`state_file.FabricState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from campaign.common.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks, violation
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.operations import box_of, timing
from campaign.fabrics.placement.selection import select
from campaign.fabrics.protocol import Capabilities, Fabric, Request, Selection, Tag
from campaign.fabrics.state_file import State, StateFile, claim, composed, held, occupy, occupy_slots
from campaign.spec.hardware import Composition, Device, Host, Inventory, own_devices
from campaign.spec.operation_times import Operation
from campaign.spec.site_hardware import HostSpec


class SimpleFabric(Fabric):
    """Base class of fabrics without a control plane of their own; see `protocol.Fabric`.

    Attributes:
        kind: name of the state file.
        atomic: nothing is attached, so composing is one change of the state file.
        gives_host_id: see `Capabilities`.
        verified: see `Capabilities`.
        note: see `Capabilities`.
    """

    kind: str
    atomic = False
    gives_host_id = False
    verified = True
    note = ""

    def __init__(
        self,
        hosts: Sequence[HostSpec],
        pool: Iterable[Device],
        state_dir: Path,
        *,
        own: Iterable[Device] | None = None,
        banks: Sequence[Bank] | None = None,
        ports: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Open a fabric with its state file.

        Args:
            hosts: hosts of the system.
            pool: devices that can be attached, such as `pool_devices(..)` of the pool in the system file.
            state_dir: directory of the state file.
            built_in: devices that are built into hosts. Default: as in the system file.
            banks: rules on which hosts may hold which devices of the pool. Default: every host reaches all of them.
        """
        self.hosts = {host.name: host for host in hosts}
        self.own = tuple(device for host in hosts for device in own_devices(host)) if own is None else tuple(own)
        self.pool = {device.fabric_id: device for device in pool}
        locations = (device.location for device in self.pool.values())
        self.banks = open_banks(locations, tuple(self.hosts)) if banks is None else tuple(banks)
        self.ports = ports or {}
        self.state = StateFile(state_dir / f"{self.kind}.json")

    def attach(self, device: Device, host: str, lease_id: str) -> None:
        """Attach one free device of the pool to a host. Repeating the call does no harm.

        Raises FabricError if the device is not attached, and OutcomeUnknown if it may be attached.
        """

    def detach(self, device: Device, host: str, lease_id: str) -> None:
        """Detach one device from a host. Repeating the call does no harm, nor does a device that was never attached.

        Raises FabricError if the device is still attached.
        """

    def present(self, device: Device, state: State) -> Device:
        """Return a device of the pool in its current state."""
        slot = state.devices.get(device.fabric_id)
        return device if slot is None else held(device, slot)

    def refuse(self, state: State, selection: Selection) -> None:
        """Check that the selection is still allowed, before anything is claimed.

        Raises Conflict or Incompatible if it is not.
        """

    def capabilities(self) -> Capabilities:
        """Return the capabilities and limits of the fabric."""
        most = (
            sum(device.computes for device in self.own if device.attached_to == name)
            + sum(len(bank.slots) for bank in self.banks if name in bank.hosts)
            for name in self.hosts
        )
        return Capabilities(
            max_devices_per_host=max(most, default=0),
            gives_host_id=self.gives_host_id,
            verified=self.verified,
            note=self.note,
            atomic=self.atomic,
        )

    def inventory(self) -> Inventory:
        """Build the inventory from the system file and the claims in the state file."""
        return self.inventory_of(self.state.read())

    def inventory_of(self, state: State) -> Inventory:
        """Build the inventory of hosts and devices with the holders that the state records."""
        hosts = tuple(
            Host(
                spec.name,
                spec.cores,
                spec.memory_gib,
                self.ports.get(spec.name, ()),
                state.holder_of_host(spec.name),
            )
            for spec in self.hosts.values()
        )
        own = (occupy(device, state) for device in self.own)
        return Inventory(hosts, (*own, *(self.present(device, state) for device in self.pool.values())))

    def select(self, request: Request, inventory: Inventory) -> Selection:
        """Choose the devices for a request by the rules of the banks."""
        return select(request, inventory, self.banks)

    def compose(self, selection: Selection) -> None:
        """Claim the selection, then attach its devices."""
        with self.exclusive(selection.request.lease_id):
            self.claim(selection)
            self.attach_claimed(selection)

    def read_back(self, lease_id: str) -> Composition | None:
        """Return the composition of the attached devices of a lease, or None if the lease has no claim."""
        state = self.state.read()
        holding = state.leases.get(lease_id)
        if holding is None:
            return None
        attached = {name for name in state.held_by(lease_id) if state.devices[name].state == "in_use"}
        devices = {d.fabric_id: d for d in self.inventory_of(state).devices if d.fabric_id in attached}
        return composed(self.hosts, (host for host in holding.hosts if host.name in self.hosts), devices)

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Detach the devices of the lease, and return the fabric ids of those that could not be detached."""
        if lease_id not in self.state.read().leases:
            return ()
        with self.exclusive(lease_id):
            return self.detach_held(lease_id)

    def held(self) -> Mapping[str, Tag]:
        """Return the tags of all leases in the state file, by lease id."""
        return self.state.read().tags()

    def exclusive(self, lease_id: str) -> AbstractContextManager[None]:
        """Hold the transaction lock inside the block, unless composing is a single step."""
        return nullcontext() if self.atomic else self.state.transaction(lease_id)

    def claim(self, selection: Selection) -> None:
        """Reserve the hosts and devices of a selection in one change of the state file.

        Raises Incompatible or Conflict.
        """
        lease_id = selection.request.lease_id
        asked = {self.pool[n].location: h.host for h in selection.hosts for n in h.ids if n in self.pool}
        if broken := violation(self.banks, asked):
            raise Incompatible(f"{lease_id}: {broken}", broken)
        with self.state.change() as state:
            self.refuse(state, selection)
            others = {
                self.pool[name].location: slot.host
                for name, slot in state.devices.items()
                if slot.host is not None and slot.lease not in (None, lease_id) and name in self.pool
            }
            if not claim(state, selection):
                return
            if broken := violation(self.banks, others | asked):
                holders = dict.fromkeys(slot.lease for slot in state.devices.values() if slot.lease)
                raise Conflict(f"{lease_id}: {broken}", (name for name in holders if name != lease_id))
            occupy_slots(state, selection, () if self.atomic else self.pool)

    def attach_claimed(self, selection: Selection) -> None:
        """Attach the claimed devices that are not attached yet.

        Raises PartialFailure with the devices that could not be attached.
        """
        lease_id, done, failed = selection.request.lease_id, list[str](), dict[str, FabricError]()
        for name, host in self.unattached(selection):
            try:
                with timed(self.pool[name], "attach"):
                    self.attach(self.pool[name], host, lease_id)
            except OutcomeUnknown:
                raise
            except FabricError as error:
                failed[name] = error
            else:
                done.append(name)
                with self.state.change() as state:
                    state.slot(name).state = "in_use"
        if failed:
            words = "; ".join(f"{name}: {error}" for name, error in failed.items())
            raise PartialFailure(f"{lease_id}: could not be attached: {words}", done, failed)

    def unattached(self, selection: Selection) -> list[tuple[str, str]]:
        """Return (fabric id, host) of the devices of the selection that are not attached yet, in order."""
        state, lease_id = self.state.read(), selection.request.lease_id
        return [
            (name, host.host)
            for host in selection.hosts
            for name in host.ids
            if (slot := state.slot(name)).lease == lease_id and slot.state == "composing"
        ]

    def detach_held(self, lease_id: str) -> tuple[str, ...]:
        """Detach all devices of a lease, remove its claims, and return the fabric ids of devices that could not be detached.

        The lease keeps these devices and their hosts.
        """
        stuck: list[str] = []
        for name, slot in self.state.read().devices.items():
            if slot.lease == lease_id and name in self.pool and not self.atomic:
                try:
                    with timed(self.pool[name], "detach"):
                        self.detach(self.pool[name], str(slot.host), lease_id)
                except OutcomeUnknown:
                    raise
                except FabricError:
                    stuck.append(name)
                else:
                    with self.state.change() as state:
                        state.free(name)
        with self.state.change() as state:
            state.drop(lease_id, keeping=stuck)
        return tuple(stuck)


def timed(device: Device, operation: Operation) -> AbstractContextManager[object]:
    """Time an operation on one device."""
    return timing(operation, device.kind, box_of(device))
