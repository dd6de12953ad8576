"""A simulated fabric: chassis, drawers, ports and modes as in `chassis`, with latencies and faults on request.

It contends honestly: its state outlives the process, two processes never get one device, one transaction runs at a time,
and a process killed half way leaves devices half composed, as the real thing does. Latencies are slept, not claimed:
their defaults are zero because no end-to-end attach time is published.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from campaign.errors import ConfigError
from campaign.fabrics import placement
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.placement.banks import Bank, violation
from campaign.fabrics.protocol import (
    Capabilities,
    Composition,
    Host,
    HostSpec,
    Inventory,
    PoolSpec,
    Request,
    Selection,
    Tag,
)
from campaign.fabrics.simulated.chassis import ChassisOptions, banks, fill, ports_of
from campaign.fabrics.simulated.faults import Fault, FaultKind, Faults
from campaign.fabrics.simulated.slots import LANES, host_id, pooled, present, visible
from campaign.fabrics.state_file import Slot, StateFile, claim, composed, occupy, own_devices, wanted


class Occupied(BaseModel):
    """A slot that somebody outside this program holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = Field(description="fabric id of the device, such as falcon1/drawer1/slot3")
    by: str = Field(description="who holds it, as messages shall name them")


class Options(BaseModel):
    """Options of the simulated fabric; all have defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    chassis: tuple[ChassisOptions, ...] = Field(
        default=(ChassisOptions(name="falcon1"),),
        min_length=1,
        description="the chassis; default: one, falcon1, with two drawers in advanced mode",
    )
    operation_s: float = Field(default=0.0, ge=0, description="seconds that every compose or release takes at least")
    attach_s: float = Field(default=0.0, ge=0, description="further seconds per device attached")
    detach_s: float = Field(default=0.0, ge=0, description="further seconds per device detached")
    enumerate_s: float = Field(default=0.0, ge=0, description="seconds until a host sees a device that was attached")
    occupied: tuple[Occupied, ...] = Field(default=(), description="slots that others hold, and never give back")
    faults: tuple[Fault, ...] = Field(default=(), description="what goes wrong, and how often")


def open_fabric(
    options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
) -> SimulatedFabric:
    """Raises ConfigError when cabling, modes or the pool contradict the chassis."""
    fabric = SimulatedFabric(options, hosts, pool, state_dir)
    known = {device.fabric_id for device in fabric.inventory().devices}
    for entry in options.occupied:
        if entry.device not in known:
            raise ConfigError(f"occupied: no device {entry.device!r} in the pool")
    return fabric


class SimulatedFabric:
    """See `protocol.Fabric`."""

    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path) -> None:
        self._options = options
        self._hosts = {host.name: host for host in hosts}
        self._banks: tuple[Bank, ...] = banks(options.chassis, hosts)
        self._ports = ports_of(options.chassis, hosts)
        own = (device for host in hosts for device in own_devices(host))
        self._local = tuple(replace(device, host_id=host_id(device.kind, device.fabric_id)) for device in own)
        self._pooled = tuple(pooled(slotted) for slotted in fill(options.chassis, pool))
        self._occupied = {entry.device: entry.by for entry in options.occupied}
        self._state = StateFile(state_dir / "simulated.json")
        self._faults = Faults(options.faults, self._state)

    def capabilities(self) -> Capabilities:
        full = [
            sum(d.computes for d in self._local if d.attached_to == name)
            + sum(len(bank.slots) for bank in self._banks if name in bank.hosts)
            for name in self._hosts
        ]
        return Capabilities(
            attach_mode="hot",
            max_devices_per_host=max(full, default=0),
            supports_modify=False,
            exclusive_transaction=True,
            gives_host_id=True,
            verified=True,
            note="a simulation: rules of the chassis are its own, device speeds are those of the hosts underneath",
        )

    def inventory(self) -> Inventory:
        state, now = self._state.read(), time.time()
        hosts = tuple(
            Host(spec.name, spec.cores, spec.memory_gib, self._ports[spec.name], state.holder_of_host(spec.name))
            for spec in self._hosts.values()
        )
        local = (occupy(device, state) for device in self._local)
        return Inventory(hosts, (*local, *(present(device, state, now, self._occupied) for device in self._pooled)))

    def select(self, request: Request, inventory: Inventory) -> Selection:
        return placement.select(request, inventory, self._banks)

    def compose(self, selection: Selection) -> None:
        lease_id = selection.request.lease_id
        with self._state.transaction(lease_id):
            self._refuse_if_busy(lease_id)
            if self._faults.strike("lost_request", lease_id):
                raise OutcomeUnknown(f"{lease_id}: no reply to compose")
            self._claim(selection)
            time.sleep(self._options.operation_s)
            done: list[str] = []
            failed: list[str] = []
            for device, host in self._unattached(selection):
                time.sleep(self._options.attach_s)
                if self._faults.strike("partial_attach", lease_id, device):
                    failed.append(device)
                elif not self._faults.strike("short_attach", lease_id, device):
                    done.append(self._attach(device, host, lease_id))
            if failed:
                raise PartialFailure(f"{lease_id}: {', '.join(failed)} could not be attached", done, failed)
            if self._faults.strike("unknown_outcome", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the reply to compose was lost")

    def read_back(self, lease_id: str) -> Composition | None:
        state, now = self._state.read(), time.time()
        holding = state.leases.get(lease_id)
        if holding is None:
            return None
        devices = {device.fabric_id: occupy(device, state) for device in self._local}
        devices |= {device.fabric_id: present(device, state, now, self._occupied) for device in self._pooled}
        attached = {
            name: device
            for name, device in devices.items()
            if (slot := state.devices.get(name)) is not None and slot.lease == lease_id and slot.state == "in_use"
        }
        return composed(self._hosts, (host for host in holding.hosts if host.name in self._hosts), attached)

    def host_sees(self, composition: Composition) -> frozenset[str]:
        state, now = self._state.read(), time.time()
        return frozenset(
            device.fabric_id
            for host in composition.hosts
            for device in (*host.devices, *host.storage)
            if device.local or visible(state.devices.get(device.fabric_id, Slot()), host.name, now)
        )

    def rescan(self, composition: Composition) -> None:
        with self._state.change() as state:
            for device in composition.devices:
                if device.fabric_id in state.devices:
                    state.devices[device.fabric_id].needs_rescan = False

    def release(self, lease_id: str) -> tuple[str, ...]:
        if lease_id not in self._state.read().leases:
            return ()
        with self._state.transaction(lease_id):
            self._refuse_if_busy(lease_id)
            time.sleep(self._options.operation_s)
            stuck: list[str] = []
            for name in self._state.read().held_by(lease_id):
                moves = any(device.fabric_id == name for device in self._pooled)
                if moves:
                    time.sleep(self._options.detach_s)
                if moves and self._faults.strike("leak", lease_id, name):
                    stuck.append(name)
                else:
                    self._detach(name)
            self._forget(lease_id, stuck)
            if self._faults.strike("unknown_release", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the reply to release was lost")
        return tuple(stuck)

    def held(self) -> Mapping[str, Tag]:
        return self._state.read().tags()

    def close(self) -> None:
        """Nothing is open between calls."""

    def _refuse_if_busy(self, lease_id: str) -> None:
        if self._faults.strike("busy", lease_id):
            raise Busy(f"{lease_id}: the fabric is occupied", ("the fabric itself",))

    def _claim(self, selection: Selection) -> None:
        """Reserve hosts and slots under the lock, after the rules; raises Incompatible or Conflict."""
        lease_id = selection.request.lease_id
        places = {device.fabric_id: device.location for device in self._pooled}
        asked = {places[name]: host.host for host in selection.hosts for name in host.ids if name in places}
        if broken := violation(self._banks, asked):
            raise Incompatible(f"{lease_id}: {broken}", broken)
        if foreign := [name for name in selection.ids if name in self._occupied]:
            holders = dict.fromkeys(self._occupied[name] for name in foreign)
            raise Conflict(f"{lease_id}: {', '.join(foreign)} held by {', '.join(holders)}", holders)
        with self._state.change() as state:
            others = {
                places[name]: slot.host
                for name, slot in state.devices.items()
                if slot.host is not None and slot.lease != lease_id and name in places
            }
            if not claim(state, selection):
                return
            if broken := violation(self._banks, others | asked):
                holders = dict.fromkeys(slot.lease for slot in state.devices.values() if slot.lease)
                raise Conflict(f"{lease_id}: {broken}", (name for name in holders if name != lease_id))
            for host in wanted(selection):
                for name in (*host.devices, *host.storage):
                    slot = state.slot(name)
                    slot.lease, slot.host = lease_id, host.name
                    slot.state = "composing" if name in places else "in_use"

    def _unattached(self, selection: Selection) -> list[tuple[str, str]]:
        """(fabric id, host) of what is still to be attached, in order."""
        state = self._state.read()
        return [
            (name, host.host)
            for host in selection.hosts
            for name in host.ids
            if state.slot(name).lease == selection.request.lease_id and state.slot(name).state == "composing"
        ]

    def _attach(self, device: str, host: str, lease_id: str) -> str:
        """Attach one device, or the one that the fabric mistakes for it; gives the id of what was attached."""
        actual = self._mistaken(device, host, lease_id)
        struck: dict[FaultKind, Fault | None] = {
            kind: self._faults.strike(kind, lease_id, actual)
            for kind in ("device_never_visible", "needs_rescan", "degraded_link", "device_fails")
        }
        now = time.time()
        with self._state.change() as state:
            if actual != device:
                state.devices.pop(device)
                holding = state.leases[lease_id]
                holding.hosts = tuple(
                    held.model_copy(update={"devices": tuple(actual if d == device else d for d in held.devices)})
                    for held in holding.hosts
                )
            slot = state.slot(actual)
            slot.lease, slot.host, slot.state = lease_id, host, "in_use"
            slot.visible_s = None if struck["device_never_visible"] else now + self._options.enumerate_s
            slot.needs_rescan = struck["needs_rescan"] is not None
            slot.width = LANES // 2 if struck["degraded_link"] else None
            slot.fails_s = now + struck["device_fails"].after_s if struck["device_fails"] else slot.fails_s
        return actual

    def _mistaken(self, device: str, host: str, lease_id: str) -> str:
        """A free device of another model that could be attached in place of `device`, when that fault strikes."""
        state = self._state.read()
        asked = next(one for one in self._pooled if one.fabric_id == device)
        for other in self._pooled:
            free = present(other, state, time.time(), self._occupied).state == "free"
            fits = other.kind == asked.kind and other.model != asked.model
            if free and fits and violation(self._banks, {other.location: host}) is None:
                return other.fabric_id if self._faults.strike("substituted_device", lease_id, device) else device
        return device

    def _detach(self, name: str) -> None:
        with self._state.change() as state:
            fails_s = state.devices.pop(name).fails_s
            if fails_s is not None and fails_s <= time.time():
                state.devices[name] = Slot(fails_s=fails_s)

    def _forget(self, lease_id: str, stuck: Sequence[str]) -> None:
        """Drop the lease; hosts that still have a stuck device stay with it."""
        with self._state.change() as state:
            holding = state.leases[lease_id]
            hosts = {state.devices[name].host for name in stuck}
            holding.hosts = tuple(host for host in holding.hosts if host.name in hosts)
            if not holding.hosts:
                del state.leases[lease_id]
