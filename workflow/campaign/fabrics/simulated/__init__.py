"""A simulated fabric: chassis, drawers, ports and modes as in `chassis`, with latencies and faults on request.

It contends honestly: its state outlives the process, two processes never get one device, one transaction runs at a time,
and a process killed half way leaves devices half composed, as the real thing does. Latencies are slept, not claimed:
fixed ones, and recorded ones of another fabric (`times`). They are zero by default.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.documents.operation_times import Operation, published_times
from campaign.errors import ConfigError, FabricError
from campaign.fabrics.banks import violation
from campaign.fabrics.errors import Busy, Conflict, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import Composition, Device, HostSpec, PoolSpec
from campaign.fabrics.moves import Steps
from campaign.fabrics.operation_log import timing
from campaign.fabrics.placement.devices import own_devices
from campaign.fabrics.protocol import Selection
from campaign.fabrics.registry import FabricKind
from campaign.fabrics.simple_fabric import SimpleFabric, timed
from campaign.fabrics.simulated.chassis_topology import LANES, ChassisOptions, banks, fill, host_id, ports_of
from campaign.fabrics.state_file import Slot, State, held_or_staying
from campaign.files import content_hash

FaultKind = Literal[
    "busy",  # compose or release is refused because the fabric is busy; nothing changes
    "lost_request",  # compose never arrives, and the caller cannot know
    "unknown_outcome",  # compose is done, the reply is lost
    "unknown_release",  # release is done, the reply is lost
    "partial_attach",  # one device is not attached, and the fabric says so
    "short_attach",  # one device is not attached, and the fabric reports success
    "substituted_device",  # another free device of the drawer is attached in place of the one asked for
    "degraded_link",  # a device trains with half its lanes
    "device_never_visible",  # attached, but the host never enumerates it
    "needs_rescan",  # attached, but the host enumerates it only after a rescan
    "device_fails",  # a device breaks `after_s` seconds after it was attached, and stays broken
    "leak",  # one device cannot be released
]


class Fault(BaseModel):
    """One kind of fault, to happen `times` times to what matches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FaultKind = Field(description="what goes wrong")
    times: int = Field(default=1, ge=1, description="how often it happens before it stops")
    lease: str = Field(default="*", description="lease ids that it happens to, as a shell pattern")
    device: str = Field(default="*", description="fabric ids that it happens to, as a shell pattern")
    after_s: float = Field(default=0.0, ge=0, description="device_fails only: seconds from attachment to failure")


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
    times: str = Field(
        default="",
        description="recorded times that reading the chassis, attaching and detaching a device take as well, drawn at random: "
        "`h3` for those of GPUs in two Falcon 4005 boxes; they stand for drives, too",
    )
    times_factor: float = Field(
        default=1.0, gt=0, description="factor of the recorded times; 0.01: a hundredth of what was recorded"
    )
    enumerate_s: float = Field(default=0.0, ge=0, description="seconds until a host sees a device that was attached")
    occupied: tuple[Occupied, ...] = Field(default=(), description="slots that others hold, and never give back")
    faults: tuple[Fault, ...] = Field(default=(), description="what goes wrong, and how often")


class SimulatedFabric(SimpleFabric):
    """See `protocol.Fabric`."""

    kind = "simulated"
    keeps_attached = True
    gives_host_id = True
    note = "a simulation: rules of the chassis are its own, device speeds are those of the hosts underneath"

    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path) -> None:
        ports = ports_of(options.chassis, hosts)
        own = (device for host in hosts for device in own_devices(host))
        super().__init__(
            [replace(host, ports=ports[host.name]) for host in hosts],
            fill(options.chassis, pool),
            state_dir,
            own=(replace(device, host_id=host_id(device.kind, device.fabric_id)) for device in own),
            banks=banks(options.chassis, hosts),
        )
        self._options = options
        self._occupied = {entry.device: entry.by for entry in options.occupied}
        if unknown := set(self._occupied) - set(self.pool):
            raise ConfigError(f"occupied: no device {min(unknown)!r} in the pool")
        self._times = published_times(options.times).scaled(options.times_factor) if options.times else None
        self._random = Random()
        self._faults = {f"{n}-{content_hash(fault.model_dump(), 8)}": fault for n, fault in enumerate(options.faults)}

    def _take(self, operation: Operation, kind: str, least_s: float) -> None:
        """Sleep for as long as an operation on a device of a kind takes; a drive is moved as a GPU was."""
        drawn_s = self._times.sample(self._random, operation, kind and "gpu") if self._times else 0.0
        time.sleep(least_s + drawn_s)

    def _strikes(self, kind: FaultKind, lease_id: str, device: str | None = None) -> Fault | None:
        """The fault that happens now, counted as happened in the state file; None when nothing goes wrong."""
        matching = {
            key: fault
            for key, fault in self._faults.items()
            if fault.kind == kind
            and fnmatchcase(lease_id, fault.lease)
            and fnmatchcase(device or fault.device, fault.device)
        }
        if not matching:
            return None
        with self.state.change() as state:
            for key, fault in matching.items():
                left = state.faults.get(key, fault.times)
                if left > 0:
                    state.faults[key] = left - 1
                    return fault
        return None

    def present(self, device: Device, state: State) -> Device:
        if (by := self._occupied.get(device.fabric_id)) is not None:
            return replace(device, holder=by, attached_to=by, state="in_use")
        slot = state.devices.get(device.fabric_id)
        if slot is None:
            return device
        return replace(
            held_or_staying(device, slot),
            state="failed" if slot.broken and slot.lease is None else slot.state,
            health="critical" if slot.broken else "ok",
            link=device.link and replace(device.link, width=slot.width or LANES),
        )

    def refuse(self, state: State, selection: Selection) -> None:
        if foreign := [name for name in selection.ids if name in self._occupied]:
            holders = dict.fromkeys(self._occupied[name] for name in foreign)
            raise Conflict(f"{selection.request.lease_id}: {', '.join(foreign)} held by {', '.join(holders)}", holders)

    def compose(self, selection: Selection) -> None:
        lease_id = selection.request.lease_id
        with self.exclusive(lease_id):
            self._refuse_if_busy(lease_id)
            if self._strikes("lost_request", lease_id):
                raise OutcomeUnknown(f"{lease_id}: no reply to compose")
            self.claim(selection)
            if self.unattached(selection):
                with timing("inventory"):
                    self._take("inventory", "", self._options.operation_s)
            else:
                time.sleep(self._options.operation_s)
            self.attach_claimed(selection)
            if self._strikes("unknown_outcome", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the reply to compose was lost")

    def attach_claimed(self, selection: Selection) -> None:
        lease_id, done, failed = selection.request.lease_id, list[str](), list[str]()
        self.make_way(lease_id)
        for device, host in self.unattached(selection):
            with timed(self.pool[device], "attach"):
                self._take("attach", self.pool[device].kind, self._options.attach_s)
                if self._strikes("partial_attach", lease_id, device):
                    failed.append(device)
                elif not self._strikes("short_attach", lease_id, device):
                    self.attach(self.pool[device], host, lease_id)
                    done.append(device)
        if failed:
            raise PartialFailure(f"{lease_id}: {', '.join(failed)} could not be attached", done, failed)

    def host_sees(self, composition: Composition) -> frozenset[str]:
        slots, now = self.state.read().devices, time.time()

        def arrived(slot: Slot, host: str) -> bool:
            there = slot.visible_s is not None and slot.visible_s <= now and not slot.needs_rescan
            return there and not slot.broken and slot.host == host

        return frozenset(
            device.fabric_id
            for host in composition.hosts
            for device in (*host.devices, *host.storage)
            if device.local or arrived(slots.get(device.fabric_id, Slot()), host.name)
        )

    def looked_for(self, composition: Composition) -> frozenset[str]:
        return frozenset(device.fabric_id for device in composition.devices if not device.local)

    def rescan(self, composition: Composition) -> None:
        with self.state.change() as state:
            for device in composition.devices:
                if device.fabric_id in state.devices:
                    state.devices[device.fabric_id].needs_rescan = False

    def release(self, lease_id: str) -> tuple[str, ...]:
        if lease_id not in self.state.read().leases:
            return ()
        with self.exclusive(lease_id):
            self._refuse_if_busy(lease_id)
            time.sleep(self._options.operation_s)
            stuck = self.detach_held(lease_id)
            if self._strikes("unknown_release", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the reply to release was lost")
        return stuck

    def detach(self, device: Device, host: str, lease_id: str) -> None:
        self._take("detach", device.kind, self._options.detach_s)
        if self._strikes("leak", lease_id, device.fabric_id):
            raise FabricError(f"{device.fabric_id}: cannot be detached")

    def _refuse_if_busy(self, lease_id: str) -> None:
        if self._strikes("busy", lease_id):
            raise Busy(f"{lease_id}: the fabric is busy", ("the fabric itself",))

    def attach(self, device: Device, host: str, lease_id: str) -> None:
        """Attach one device, or the one that the fabric mistakes for it."""
        actual = self._mistaken(device, host, lease_id)
        struck: dict[FaultKind, Fault | None] = {
            kind: self._strikes(kind, lease_id, actual)
            for kind in ("device_never_visible", "needs_rescan", "degraded_link", "device_fails")
        }
        now = time.time()
        with self.state.change() as state:
            if actual != device.fabric_id:
                state.free(device.fabric_id)
                holding = state.leases[lease_id]
                holding.hosts = tuple(
                    held.model_copy(
                        update={"devices": tuple(actual if d == device.fabric_id else d for d in held.devices)}
                    )
                    for held in holding.hosts
                )
            slot = state.slot(actual)
            slot.lease, slot.host, slot.state = lease_id, host, "in_use"
            slot.visible_s = None if struck["device_never_visible"] else now + self._options.enumerate_s
            slot.needs_rescan = struck["needs_rescan"] is not None
            slot.width = LANES // 2 if struck["degraded_link"] else None
            slot.fails_s = now + struck["device_fails"].after_s if struck["device_fails"] else slot.fails_s

    def _mistaken(self, device: Device, host: str, lease_id: str) -> str:
        """A free device of another model that could be attached in place of `device`, when that fault strikes."""
        state = self.state.read()
        for other in self.pool.values():
            now = self.present(other, state)
            free = now.state == "free" and not now.stays
            fits = other.kind == device.kind and other.model != device.model
            if free and fits and violation(self.banks, {other.location: host}) is None:
                struck = self._strikes("substituted_device", lease_id, device.fabric_id)
                return (other if struck else device).fabric_id
        return device.fabric_id


FABRIC = FabricKind(
    "a Falcon-4016-like chassis and its pool, simulated with latencies and faults",
    Options,
    SimulatedFabric,
    steps=Steps(once=("inventory",)),
    keeps_attached=True,
)
