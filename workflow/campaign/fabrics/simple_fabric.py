"""Base class of fabrics without a separate control plane: claims in a state file, devices attached one by one.

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
from campaign.fabrics.banks import Bank, build_unlimited_banks, find_violation
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.operations import get_device_box, time_operation
from campaign.fabrics.placement.selection import select_devices
from campaign.fabrics.protocol import Capabilities, Fabric, LeaseRequest, Selection, Tag
from campaign.fabrics.state_file import (
    FabricState,
    StateFile,
    apply_claim,
    apply_slot,
    assign_slots,
    build_composition,
    enter_claim,
)
from campaign.spec.hardware import Composition, Device, Host, Inventory, list_built_in_devices
from campaign.spec.operation_times import Operation
from campaign.spec.site_hardware import HostSpec


class SimpleFabric(Fabric):
    """Base class of fabrics that have no separate control plane; see `protocol.Fabric`.

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
        built_in: Iterable[Device] | None = None,
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
            ports: ports of the fabric by host.
        """
        self.hosts = {host.name: host for host in hosts}
        self.built_in_devices = (
            tuple(device for host in hosts for device in list_built_in_devices(host))
            if built_in is None
            else tuple(built_in)
        )
        self.pool = {device.fabric_id: device for device in pool}
        locations = (device.location for device in self.pool.values())
        self.banks = build_unlimited_banks(locations, tuple(self.hosts)) if banks is None else tuple(banks)
        self.ports = ports or {}
        self.state = StateFile(state_dir / f"{self.kind}.json")

    def attach(self, device: Device, host: str, lease_id: str) -> None:
        """Attach one free device of the pool to a host. Repeating the call does no harm.

        Raises FabricError if the device is not attached, and OutcomeUnknown if it may be attached.
        """

    def detach(self, device: Device, host: str, lease_id: str) -> None:
        """Detach one device from a host. Repeating the call, or detaching an unattached device, does no harm.

        Raises FabricError if the device is still attached.
        """

    def apply_state(self, device: Device, state: FabricState) -> Device:
        """Return a device of the pool, updated with its recorded state."""
        slot = state.devices.get(device.fabric_id)
        return device if slot is None else apply_slot(device, slot)

    def check_selection(self, state: FabricState, selection: Selection) -> None:
        """Check that the selection is still allowed, before anything is claimed.

        Raises Conflict or Incompatible if it is not.
        """

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities and limits of the fabric."""
        device_counts = (
            sum(device.can_compute for device in self.built_in_devices if device.attached_to == name)
            + sum(len(bank.slots) for bank in self.banks if name in bank.hosts)
            for name in self.hosts
        )
        return Capabilities(
            max_devices_per_host=max(device_counts, default=0),
            gives_host_id=self.gives_host_id,
            verified=self.verified,
            note=self.note,
            atomic=self.atomic,
        )

    def read_inventory(self) -> Inventory:
        """Build the inventory from the system file and the claims in the state file."""
        return self.build_inventory(self.state.read())

    def build_inventory(self, state: FabricState) -> Inventory:
        """Build the inventory of hosts and devices with the holders that the state records."""
        hosts = tuple(
            Host(
                spec.name,
                spec.cores,
                spec.memory_gib,
                self.ports.get(spec.name, ()),
                state.find_host_holder(spec.name),
            )
            for spec in self.hosts.values()
        )
        built_in_devices = (apply_claim(device, state) for device in self.built_in_devices)
        return Inventory(
            hosts, (*built_in_devices, *(self.apply_state(device, state) for device in self.pool.values()))
        )

    def select_devices(self, request: LeaseRequest, inventory: Inventory) -> Selection:
        """Choose the devices for a request by the rules of the banks."""
        return select_devices(request, inventory, self.banks)

    def compose(self, selection: Selection) -> None:
        """Claim the selection, then attach its devices."""
        with self.lock_transaction(selection.request.lease_id):
            self.claim_selection(selection)
            self.attach_claimed_devices(selection)

    def read_back(self, lease_id: str) -> Composition | None:
        """Return the composition of the attached devices of a lease, or None if the lease has no claim."""
        state = self.state.read()
        lease_claim = state.leases.get(lease_id)
        if lease_claim is None:
            return None
        attached_ids = {name for name in state.list_lease_devices(lease_id) if state.devices[name].state == "in_use"}
        devices = {d.fabric_id: d for d in self.build_inventory(state).devices if d.fabric_id in attached_ids}
        return build_composition(self.hosts, (host for host in lease_claim.hosts if host.name in self.hosts), devices)

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Detach the devices of the lease, and return the fabric ids of those that could not be detached."""
        if lease_id not in self.state.read().leases:
            return ()
        with self.lock_transaction(lease_id):
            return self.detach_lease_devices(lease_id)

    def list_lease_tags(self) -> Mapping[str, Tag]:
        """Return the tags of all leases in the state file, by lease id."""
        return self.state.read().build_lease_tags()

    def lock_transaction(self, lease_id: str) -> AbstractContextManager[None]:
        """Hold the transaction lock inside the block, unless composing is a single step."""
        return nullcontext() if self.atomic else self.state.lock_transaction(lease_id)

    def claim_selection(self, selection: Selection) -> None:
        """Reserve the hosts and devices of a selection in one change of the state file.

        Raises Incompatible or Conflict.
        """
        lease_id = selection.request.lease_id
        hosts_by_location = {
            self.pool[n].location: h.host for h in selection.hosts for n in h.fabric_ids if n in self.pool
        }
        if rule := find_violation(self.banks, hosts_by_location):
            raise Incompatible(f"{lease_id}: {rule}", rule)
        with self.state.edit() as state:
            self.check_selection(state, selection)
            occupied_locations = {
                self.pool[name].location: slot.host
                for name, slot in state.devices.items()
                if slot.host is not None and slot.lease not in (None, lease_id) and name in self.pool
            }
            if not enter_claim(state, selection):
                return
            if rule := find_violation(self.banks, occupied_locations | hosts_by_location):
                holders = dict.fromkeys(slot.lease for slot in state.devices.values() if slot.lease)
                raise Conflict(f"{lease_id}: {rule}", (name for name in holders if name != lease_id))
            assign_slots(state, selection, () if self.atomic else self.pool)

    def attach_claimed_devices(self, selection: Selection) -> None:
        """Attach the claimed devices that are not attached yet.

        Raises PartialFailure with the devices that could not be attached.
        """
        lease_id, attached_ids, errors = selection.request.lease_id, list[str](), dict[str, FabricError]()
        for name, host in self.list_unattached_devices(selection):
            try:
                with time_device_operation(self.pool[name], "attach"):
                    self.attach(self.pool[name], host, lease_id)
            except OutcomeUnknown:
                raise
            except FabricError as error:
                errors[name] = error
            else:
                attached_ids.append(name)
                with self.state.edit() as state:
                    state.get_or_create_slot(name).state = "in_use"
        if errors:
            details = "; ".join(f"{name}: {error}" for name, error in errors.items())
            raise PartialFailure(f"{lease_id}: some devices could not be attached: {details}", attached_ids, errors)

    def list_unattached_devices(self, selection: Selection) -> list[tuple[str, str]]:
        """Return (fabric id, host) of the devices of the selection that are not attached yet, in order."""
        state, lease_id = self.state.read(), selection.request.lease_id
        return [
            (name, host.host)
            for host in selection.hosts
            for name in host.fabric_ids
            if (slot := state.get_or_create_slot(name)).lease == lease_id and slot.state == "composing"
        ]

    def detach_lease_devices(self, lease_id: str) -> tuple[str, ...]:
        """Detach all devices of a lease, remove its claims, and return the fabric ids of devices that could not be detached.

        The lease keeps these devices and their hosts.
        """
        undetached_ids: list[str] = []
        for name, slot in self.state.read().devices.items():
            if slot.lease == lease_id and name in self.pool and not self.atomic:
                try:
                    with time_device_operation(self.pool[name], "detach"):
                        self.detach(self.pool[name], str(slot.host), lease_id)
                except OutcomeUnknown:
                    raise
                except FabricError:
                    undetached_ids.append(name)
                else:
                    with self.state.edit() as state:
                        state.free_device(name)
        with self.state.edit() as state:
            state.drop_lease(lease_id, keep_ids=undetached_ids)
        return tuple(undetached_ids)


def time_device_operation(device: Device, operation: Operation) -> AbstractContextManager[object]:
    """Time an operation on one device."""
    return time_operation(operation, device.kind, get_device_box(device))
