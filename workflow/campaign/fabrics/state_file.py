"""State that an adapter keeps between processes: one JSON file, changed under a lock and replaced as a whole.

Readers need no lock, because the file is replaced by rename. `StateFile.edit` gives the state to one process at a time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.common.files import (
    NO_SPACE_ERRNOS,
    hold_lock,
    overwrite_in_place,
    read_bytes,
    read_text,
    try_lock,
    write_atomic,
)
from campaign.fabrics.errors import Busy, Conflict, ProtocolViolation
from campaign.fabrics.protocol import Selection, Tag
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.site_hardware import HostSpec

_RESERVED_BYTES = 4096


class _StoredModel(BaseModel):
    """Base class of the models in the state file. Unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid")


class DetachedDevice(_StoredModel):
    """Last known fabric data of a device that this program detached.

    Some fabrics do not list a device that is attached to no host.

    Attributes:
        called: id of the device on the fabric.
        port: port that it was attached to.
        others: ids of the other devices at that time.
    """

    called: str
    port: str
    others: dict[str, str] = Field(default_factory=dict)


class DeviceSlot(_StoredModel):
    """Deviations of one device from the default. A device without an entry is free and works."""

    lease: str | None = None
    host: str | None = None
    state: Literal["free", "composing", "in_use"] = "free"
    visible_s: float | None = Field(
        default=None, description="Unix time from which the host sees the device; null: never"
    )
    needs_rescan: bool = False
    fails_s: float | None = Field(default=None, description="Unix time from which the device is broken")
    width: int | None = Field(default=None, description="number of trained lanes, if lower than possible")
    found: str | None = Field(
        default=None, description="host on which the device was found and to which it is still attached"
    )

    @property
    def is_broken(self) -> bool:
        """True if the device has failed, that is, from the time `fails_s` on."""
        return self.fails_s is not None and self.fails_s <= time.time()


class ClaimedHost(_StoredModel):
    """Devices (fabric ids) that a lease requested for one host."""

    name: str
    devices: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()


class LeaseClaim(_StoredModel):
    """Claim of one lease, which also serves as the tag that identifies the lease as ours."""

    campaign: str
    owner: str
    since_s: float
    hosts: tuple[ClaimedHost, ...]
    seen_before: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="identities or addresses of devices that hosts had before the attachment, by host",
    )
    handles: dict[str, str] = Field(
        default_factory=dict, description="ids of objects that the fabric created for the lease, by name"
    )


class FabricState(_StoredModel):
    """Contents of the state file: the claims of leases and the states of devices."""

    schema_version: Literal[1] = 1
    devices: dict[str, DeviceSlot] = Field(default_factory=dict)
    leases: dict[str, LeaseClaim] = Field(default_factory=dict)
    detached: dict[str, DetachedDevice] = Field(
        default_factory=dict, description="data of detached devices, written before the detachment"
    )
    homes: dict[str, str] = Field(default_factory=dict, description="host on which each device was found")
    faults: dict[str, int] = Field(default_factory=dict, description="number of times that each fault can still occur")

    def get_or_create_slot(self, fabric_id: str) -> DeviceSlot:
        """Return the entry of a device. Add an empty entry if there is none."""
        return self.devices.setdefault(fabric_id, DeviceSlot())

    def list_lease_devices(self, lease_id: str) -> tuple[str, ...]:
        """Return the fabric ids of the devices that the lease claims, attached or not."""
        return tuple(name for name, slot in self.devices.items() if slot.lease == lease_id)

    def find_host_holder(self, name: str) -> str | None:
        """Return the lease that claims the host, or None if no lease does."""
        return next(
            (lease for lease, lease_claim in self.leases.items() if name in {host.name for host in lease_claim.hosts}),
            None,
        )

    def free_device(self, fabric_id: str) -> None:
        """Remove the device from its lease. A broken device stays broken."""
        slot = self.devices.pop(fabric_id)
        if slot.is_broken:
            self.devices[fabric_id] = DeviceSlot(fails_s=slot.fails_s)

    def drop_lease(self, lease_id: str, keep_ids: Collection[str] = ()) -> None:
        """Remove the claims of a lease, except for some devices.

        The devices in `keep_ids` and their hosts stay with the lease.
        """
        for name in self.list_lease_devices(lease_id):
            if name not in keep_ids:
                self.free_device(name)
        lease_claim = self.leases.get(lease_id)
        if lease_claim is not None:
            lease_claim.hosts = tuple(h for h in lease_claim.hosts if not {*h.devices, *h.storage}.isdisjoint(keep_ids))
            if not lease_claim.hosts:
                del self.leases[lease_id]

    def mark_removed_from_origin(self, fabric_id: str) -> None:
        """Record that a device is no longer attached to the host where it was found.

        Either this program detached it, or another client moved it.
        """
        self.devices[fabric_id].found = None
        if self.devices[fabric_id].lease is None:
            self.free_device(fabric_id)

    def list_displaced_devices(self) -> dict[str, str]:
        """Return the original host of each displaced device, by fabric id.

        A device is displaced if a lease detached it from that host, and no lease holds the device or the host now.
        """
        slots = ((name, host, self.devices.get(name)) for name, host in self.homes.items())
        return {
            name: host
            for name, host, slot in slots
            if (slot is None or slot.lease is None) and self.find_host_holder(host) is None
        }

    def build_lease_tags(self) -> dict[str, Tag]:
        """Build the tag of each lease in the state, by lease id."""
        return {
            lease: Tag(
                lease, lease_claim.campaign, lease_claim.owner, lease_claim.since_s, self.list_lease_devices(lease)
            )
            for lease, lease_claim in self.leases.items()
        }


def build_claimed_hosts(selection: Selection) -> tuple[ClaimedHost, ...]:
    """Convert a selection to the hosts stored in the state file."""
    return tuple(
        ClaimedHost(name=host.host, devices=(*host.local, *host.fabric), storage=host.storage)
        for host in selection.hosts
    )


class StateFile:
    """State file of one fabric at `path`. Its lock files are in the same directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> FabricState:
        """Return the state as last written, or an empty state if there is no file.

        Raises ProtocolViolation, with the path, if the file is damaged.
        """
        try:
            return FabricState.model_validate_json(read_bytes(self.path))
        except FileNotFoundError:
            return FabricState()
        except ValidationError as error:
            raise ProtocolViolation(
                f"{self.path}: the fabric state is invalid ({error.error_count()} problems); "
                "release held devices manually, then remove the file"
            ) from error

    @contextmanager
    def edit(self) -> Iterator[FabricState]:
        """Yield the state for changes under a lock, and write it when the block ends without an exception.

        If the block raises an exception, the file is unchanged.
        """
        with hold_lock(self.path.with_suffix(".lock")):
            state = self.read()
            yield state
            content = (state.model_dump_json(indent=1) + "\n").encode()
            try:
                # Reserves space, so that releasing devices can still overwrite the file when the disk is full.
                write_atomic(self.path, content.ljust(2 * len(content) + _RESERVED_BYTES), durable=True)
            except OSError as error:
                if (
                    error.errno not in NO_SPACE_ERRNOS
                    or not self.path.exists()
                    or not overwrite_in_place(self.path, content)
                ):
                    raise

    @contextmanager
    def lock_transaction(self, lease_id: str) -> Iterator[None]:
        """Hold the lock for operations that change the fabric inside the block, however long they take.

        Raises Busy with the lease that holds the lock. The kernel drops the lock of a dead process, so a killed transaction
        never blocks the next one.
        """
        path = self.path.with_suffix(".transaction")
        with try_lock(path, lease_id) as is_acquired:
            if not is_acquired:
                holder = read_text(path)
                raise Busy(
                    f"the fabric is busy with {holder or 'another process that is starting'}",
                    (holder,) if holder else (),
                )
            yield


def apply_claim(device: Device, state: FabricState) -> Device:
    """Return a built-in device of a host with its current holder."""
    slot = state.devices.get(device.fabric_id)
    if slot is None or slot.lease is None:
        return device
    return replace(device, holder=slot.lease, state="in_use")


def apply_slot(device: Device, slot: DeviceSlot) -> Device:
    """Return a device of the pool with the holder recorded in its slot, if there is one."""
    return (
        replace(device, holder=slot.lease, attached_to=slot.host, state=slot.state)
        if slot.lease is not None
        else device
    )


def enter_claim(state: FabricState, selection: Selection) -> bool:
    """Record the claim of a selection in the state.

    Returns False if this lease already has exactly this selection. Raises Conflict if other leases hold parts of it.
    """
    request, hosts = selection.request, build_claimed_hosts(selection)
    lease_claim = state.leases.get(request.lease_id)
    if lease_claim is not None:
        if (lease_claim.campaign, lease_claim.owner, lease_claim.hosts) != (request.campaign, request.owner, hosts):
            raise Conflict(
                f"{request.lease_id} already holds other devices for {lease_claim.owner} (campaign {lease_claim.campaign})",
                holders=(request.lease_id,),
            )
        return False
    holders = {host.name: holder for host in hosts if (holder := state.find_host_holder(host.name)) is not None}
    holders |= {
        name: lease for name in selection.fabric_ids if (lease := state.get_or_create_slot(name).lease) is not None
    }
    if holders:
        held_items = ", ".join(f"{name} is held by {holder}" for name, holder in holders.items())
        raise Conflict(
            f"{request.lease_id}: selected hosts or devices are no longer free: {held_items}",
            holders=dict.fromkeys(holders.values()),
        )
    state.leases[request.lease_id] = LeaseClaim(
        campaign=request.campaign, owner=request.owner, since_s=time.time(), hosts=hosts
    )
    return True


def assign_slots(state: FabricState, selection: Selection, to_attach: Container[str]) -> None:
    """Assign the devices of a claimed selection to their lease and hosts.

    Devices in `to_attach` are marked as still to be attached, the others as in use.
    """
    for host in selection.hosts:
        for name in host.fabric_ids:
            slot = state.get_or_create_slot(name)
            slot.lease, slot.host = selection.request.lease_id, host.host
            slot.state = "composing" if name in to_attach else "in_use"


def find_devices_to_remove(state: FabricState, lease_id: str) -> dict[str, str]:
    """Return the devices that must be detached before a claimed lease is attached, with their hosts by fabric id.

    These devices are still where they were found: devices of the lease itself, and other devices on its hosts.
    """
    hosts = {host.name for host in state.leases[lease_id].hosts}
    return {
        name: slot.found
        for name, slot in state.devices.items()
        if slot.found is not None and (slot.lease == lease_id or slot.found in hosts)
    }


def build_composition(
    specs: Mapping[str, HostSpec], hosts: Iterable[ClaimedHost], devices: Mapping[str, Device]
) -> Composition:
    """Build the composition of stored hosts from the devices that are really attached.

    Missing devices are left out.
    """

    def find_devices(names: Iterable[str]) -> tuple[Device, ...]:
        """Return the devices with these ids that are really attached."""
        return tuple(devices[name] for name in names if name in devices)

    host_specs = [(host, specs[host.name]) for host in hosts]
    return Composition(
        tuple(
            ComposedHost(host.name, spec.cores, spec.memory_gib, find_devices(host.devices), find_devices(host.storage))
            for host, spec in host_specs
        )
    )
