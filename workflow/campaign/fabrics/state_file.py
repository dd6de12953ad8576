"""What an adapter must remember between processes: one JSON file, changed under a lock and replaced whole.

Readers need no lock (the file is replaced by rename); `change` gives the state to exactly one process at a time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.fabrics.banks import Bank, violation
from campaign.fabrics.errors import Busy, Conflict, ProtocolViolation
from campaign.fabrics.hardware import ComposedHost, Composition, Device, HostSpec
from campaign.fabrics.protocol import Selection, Tag
from campaign.files import lock, try_lock, write_atomic


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Stay(_Stored):
    """A device that an ended lease left attached."""

    host: str
    epoch: str = Field(description="epoch of the lease that left it, see `protocol.Request`")


FOUND = "found"
"""In place of an epoch: what was attached when it was found, and the system file gives to the campaign."""


class Detached(_Stored):
    """What the fabric told of a device when this program detached it; some fabrics do not show what nobody has.

    called: how the fabric is told of it; port: where it was; others: how others were called then.
    """

    called: str
    port: str
    others: dict[str, str] = Field(default_factory=dict)


class Slot(_Stored):
    """What is not ordinary about one device; a device without an entry is free and well."""

    lease: str | None = None
    host: str | None = None
    state: Literal["free", "composing", "in_use"] = "free"
    visible_s: float | None = Field(default=None, description="Unix time from which the host sees it; null: never")
    needs_rescan: bool = False
    fails_s: float | None = Field(default=None, description="Unix time from which it is broken")
    width: int | None = Field(default=None, description="trained lanes, when fewer than possible")
    stays: Stay | None = Field(default=None, description="where it is attached since an earlier lease; null: nowhere")

    @property
    def unmoved(self) -> bool:
        """Claimed by a lease, and still attached where an earlier one left it."""
        return self.stays is not None and self.state == "composing"

    @property
    def broken(self) -> bool:
        return self.fails_s is not None and self.fails_s <= time.time()


class HeldHost(_Stored):
    """What a lease asked for on one host, in fabric ids."""

    name: str
    devices: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()


class Holding(_Stored):
    """One lease as the fabric knows it; this is also the tag by which it is known to be ours."""

    campaign: str
    owner: str
    since_s: float
    hosts: tuple[HeldHost, ...]
    epoch: str = ""
    seen_before: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="devices that hosts had before anything was attached, by identity or address"
    )
    handles: dict[str, str] = Field(
        default_factory=dict, description="what the fabric itself made for the lease, by name"
    )


class State(_Stored):
    schema_version: Literal[1] = 1
    devices: dict[str, Slot] = Field(default_factory=dict)
    leases: dict[str, Holding] = Field(default_factory=dict)
    detached: dict[str, Detached] = Field(default_factory=dict, description="written before a device is detached")
    homes: dict[str, str] = Field(default_factory=dict, description="host that a device was found on")
    faults: dict[str, int] = Field(default_factory=dict, description="how often each fault may still happen")

    def slot(self, fabric_id: str) -> Slot:
        return self.devices.setdefault(fabric_id, Slot())

    def held_by(self, lease_id: str) -> tuple[str, ...]:
        """Fabric ids that the lease holds, attached or not yet."""
        return tuple(name for name, slot in self.devices.items() if slot.lease == lease_id)

    def holder_of_host(self, name: str) -> str | None:
        return next((lease for lease, held in self.leases.items() if name in {host.name for host in held.hosts}), None)

    def free(self, fabric_id: str) -> None:
        """Nobody has the device any more, and it is attached nowhere; one that broke stays broken."""
        slot = self.devices.pop(fabric_id)
        if slot.broken:
            self.devices[fabric_id] = Slot(fails_s=slot.fails_s)

    def drop(self, lease_id: str, keeping: Collection[str] = ()) -> None:
        """Forget the claims of a lease; devices to keep stay with it, and so do the hosts that they are on.

        A device that the lease has not moved yet stays attached where it was.
        """
        for name in self.held_by(lease_id):
            if name not in keeping:
                self._give_up(name)
        holding = self.leases.get(lease_id)
        if holding is not None:
            holding.hosts = tuple(h for h in holding.hosts if not {*h.devices, *h.storage}.isdisjoint(keeping))
            if not holding.hosts:
                del self.leases[lease_id]

    def _give_up(self, fabric_id: str) -> None:
        slot = self.devices[fabric_id]
        if slot.stays is None:
            self.free(fabric_id)
        else:
            slot.lease, slot.host, slot.state = None, None, "free"

    def leave(self, lease_id: str, attached: Collection[str]) -> None:
        """Forget the claims of a lease, whose `attached` devices stay where they are."""
        epoch = self.leases[lease_id].epoch
        for name in self.held_by(lease_id):
            slot = self.devices[name]
            if name in attached and slot.host is not None:
                slot.stays = Stay(host=slot.host, epoch=epoch)
        self.drop(lease_id)

    def cleared(self, fabric_id: str) -> None:
        """A device that stayed attached has been detached."""
        self.devices[fabric_id].stays = None
        if self.devices[fabric_id].lease is None:
            self.free(fabric_id)

    def staying(self, epochs: str = "") -> dict[str, str]:
        """Host by fabric id of devices that nobody holds and that leases of such epochs left attached."""
        return {
            name: slot.stays.host
            for name, slot in self.devices.items()
            if slot.lease is None and slot.stays is not None and slot.stays.epoch.startswith(epochs)
        }

    def homeless(self) -> dict[str, str]:
        """Host by fabric id of devices that were found on it, and that neither a lease has nor one has left attached."""
        slots = ((name, host, self.devices.get(name)) for name, host in self.homes.items())
        return {name: host for name, host, slot in slots if slot is None or (slot.lease is None and slot.stays is None)}

    def tags(self) -> dict[str, Tag]:
        return {
            lease: Tag(lease, held.campaign, held.owner, held.since_s, self.held_by(lease))
            for lease, held in self.leases.items()
        }


def wanted(selection: Selection) -> tuple[HeldHost, ...]:
    """The selection as it is stored."""
    return tuple(
        HeldHost(name=host.host, devices=(*host.local, *host.fabric), storage=host.storage) for host in selection.hosts
    )


class StateFile:
    """The state of one fabric, in `path`; its locks are files beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> State:
        """The state as last written. Raises ProtocolViolation naming a damaged file."""
        try:
            return State.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return State()
        except ValidationError as error:
            raise ProtocolViolation(
                f"{self.path}: not a valid fabric state ({error.error_count()} problems); "
                "release held devices by hand, then remove the file"
            ) from error

    @contextmanager
    def change(self) -> Iterator[State]:
        """Give the state to change; it is written when the block ends well, and left as it was when it raises."""
        with lock(self.path.with_suffix(".lock")):
            state = self.read()
            yield state
            write_atomic(self.path, state.model_dump_json(indent=1) + "\n", durable=True)

    @contextmanager
    def transaction(self, lease_id: str) -> Iterator[None]:
        """Be the only mutating operation, for as long as it takes. Raises Busy naming the lease of the other one.

        The kernel drops the lock of a dead process, so a killed transaction never blocks the next one.
        """
        path = self.path.with_suffix(".transaction")
        with try_lock(path, lease_id) as mine:
            if not mine:
                other = path.read_text()
                raise Busy(f"the fabric is busy with lease {other or '(just starting)'}", (other,) if other else ())
            yield


def occupy(device: Device, state: State) -> Device:
    """A host's own device with its present holder."""
    slot = state.devices.get(device.fabric_id)
    if slot is None or slot.lease is None:
        return device
    return replace(device, holder=slot.lease, state="in_use")


def held_or_staying(device: Device, slot: Slot) -> Device:
    """A device of the pool with its present holder, or with where it stays since its last one."""
    if slot.lease is not None:
        return replace(device, holder=slot.lease, attached_to=slot.host, state=slot.state)
    return replace(device, attached_to=slot.stays.host, stays=slot.stays.epoch) if slot.stays is not None else device


def claim(state: State, selection: Selection) -> bool:
    """Enter the selection into the state, or raise Conflict; False when this lease has just this selection already."""
    request, hosts = selection.request, wanted(selection)
    holding = state.leases.get(request.lease_id)
    if holding is not None:
        if (holding.campaign, holding.owner, holding.hosts) != (request.campaign, request.owner, hosts):
            raise Conflict(
                f"{request.lease_id} already holds other devices, for {holding.owner} (campaign {holding.campaign})",
                holders=(request.lease_id,),
            )
        return False
    taken = {host.name: holder for host in hosts if (holder := state.holder_of_host(host.name)) is not None}
    taken |= {name: lease for name in selection.ids if (lease := state.slot(name).lease) is not None}
    if taken:
        what = ", ".join(f"{name} by {holder}" for name, holder in taken.items())
        raise Conflict(f"{request.lease_id}: no longer free: {what}", holders=dict.fromkeys(taken.values()))
    state.leases[request.lease_id] = Holding(
        campaign=request.campaign, owner=request.owner, since_s=time.time(), hosts=hosts, epoch=request.epoch
    )
    return True


def occupy_slots(state: State, selection: Selection, to_attach: Container[str]) -> None:
    """Mark devices of a claimed selection: in use, or to be attached first unless they are in place since this very epoch."""
    for host in selection.hosts:
        for name in host.ids:
            slot = state.slot(name)
            there = slot.stays == Stay(host=host.host, epoch=selection.request.epoch) and selection.request.epoch != ""
            slot.lease, slot.host = selection.request.lease_id, host.host
            slot.state = "composing" if name in to_attach and not there else "in_use"


def in_the_way(state: State, lease_id: str, banks: Sequence[Bank], locations: Mapping[str, str]) -> dict[str, str]:
    """Host by fabric id of what earlier leases left attached and has to go before a claimed lease is attached.

    That is: its own devices that are not in place, others on its hosts, and what its devices leave no room for.
    """
    hosts = {host.name for host in state.leases[lease_id].hosts}
    attached = {
        locations[name]: slot.host
        for name, slot in state.devices.items()
        if slot.lease and slot.host and name in locations
    }
    found = {}
    for name, slot in state.devices.items():
        if slot.stays is None or (slot.lease is not None and slot.state == "in_use"):
            continue
        place = {locations[name]: slot.stays.host} if name in locations else {}
        if slot.lease == lease_id or slot.stays.host in hosts or violation(banks, attached | place):
            found[name] = slot.stays.host
        else:
            attached |= place
    return found


def composed(specs: Mapping[str, HostSpec], hosts: Iterable[HeldHost], devices: Mapping[str, Device]) -> Composition:
    """The composition of stored hosts, out of the devices that are really there (missing ones are left out)."""

    def there(names: Iterable[str]) -> tuple[Device, ...]:
        return tuple(devices[name] for name in names if name in devices)

    asked = [(host, specs[host.name]) for host in hosts]
    return Composition(
        tuple(
            ComposedHost(host.name, spec.cores, spec.memory_gib, there(host.devices), there(host.storage))
            for host, spec in asked
        )
    )
