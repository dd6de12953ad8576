"""Simulated fabric: chassis modelled on the Falcon 4016, with configurable latencies and faults.

Contention is real. The state outlives the process, two processes never get the same device, and one transaction runs at a time.
A process killed halfway leaves devices half composed, as on a real fabric. Latencies are slept: fixed ones, and recorded ones of
another fabric (`times`). They are zero by default.

A chassis has two drawers of eight slots and four host ports. A port is cabled to one host and reaches one or both drawers.
Modes:

- `standard_one_host`: all eight slots of the drawer belong to one host (16 devices with both drawers on one host).
- `standard_two_hosts`: two connections with four slots each; one host may take both.
- `advanced`: slots move between hosts on the fly; at most three hosts hold devices of a drawer at one time.

Source: the public description of the Falcon 4016 in the literature on composable systems.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.common.errors import ConfigError, FabricError
from campaign.common.files import hash_document
from campaign.fabrics.banks import (
    MAX_HOSTS_PER_ADVANCED_DRAWER,
    MODE_RULES,
    SLOTS_PER_CONNECTION,
    SLOTS_PER_DRAWER,
    Bank,
    Mode,
    find_violation,
)
from campaign.fabrics.errors import Busy, OutcomeUnknown, PartialFailure
from campaign.fabrics.operations import OperationSteps, time_operation
from campaign.fabrics.protocol import Selection
from campaign.fabrics.registry import FabricKind
from campaign.fabrics.simple_fabric import SimpleFabric, time_device_operation
from campaign.fabrics.state_file import DeviceSlot, FabricState, apply_slot
from campaign.spec.hardware import Composition, Device, Link, list_built_in_devices
from campaign.spec.operation_times import Operation, read_published_times
from campaign.spec.site_hardware import HostSpec, PoolSpec

Port = Literal["H1", "H2", "H3", "H4"]

PORTS: tuple[Port, ...] = ("H1", "H2", "H3", "H4")
# Link of a host adapter and of a slot: PCIe 4.0 with 16 lanes.
LINK_LANES = 16
PCIE_GENERATION = 4


class DrawerOptions(BaseModel):
    """Options of one drawer with eight slots."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="name of the drawer, unique in its chassis", pattern=r"^[A-Za-z0-9_.-]+$")
    mode: Mode = Field(default="advanced", description="mode of the drawer, which determines how hosts share its slots")
    ports: tuple[Port, ...] | None = Field(
        default=None,
        description="host ports that reach the drawer, in the order of their connections; "
        "default: all cabled ports in advanced mode, else H1-H2 for the first drawer and H3-H4 for the second",
    )


class ChassisOptions(BaseModel):
    """Options of one chassis with up to two drawers and four host ports."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="name of the chassis, unique in its system", pattern=r"^[A-Za-z0-9_.-]+$")
    drawers: tuple[DrawerOptions, ...] = Field(
        default=(DrawerOptions(name="drawer1"), DrawerOptions(name="drawer2")),
        description="drawers of the chassis; default: drawer1 and drawer2, both in advanced mode",
        min_length=1,
        max_length=2,
    )
    ports: dict[Port, str] | None = Field(
        default=None, description="host that is cabled to each port; default: the next hosts of the system, in order"
    )


def build_banks(chassis: Sequence[ChassisOptions], hosts: Sequence[HostSpec]) -> tuple[Bank, ...]:
    """Build the banks of all chassis from their cabling and modes.

    Raises ConfigError with the chassis, the drawer and the rule that is broken.
    """
    all_banks: list[Bank] = []
    for unit, ports in resolve_cabling(chassis, hosts):
        for index, drawer in enumerate(unit.drawers):
            all_banks.extend(_build_drawer_banks(unit.name, index, drawer, ports))
    names = [bank.name for bank in all_banks]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"chassis: the name {', '.join(sorted(duplicates))} is used twice; use unique names")
    return tuple(all_banks)


def resolve_cabling(
    chassis: Sequence[ChassisOptions], hosts: Sequence[HostSpec]
) -> Iterator[tuple[ChassisOptions, dict[Port, str]]]:
    """Yield each chassis with the host that is cabled to each of its ports.

    The default cabling skips hosts that earlier chassis use.
    """
    host_names, used_hosts = [host.name for host in hosts], set[str]()
    for unit in chassis:
        hosts_by_port: Mapping[Port, str] = dict(
            zip(PORTS, (name for name in host_names if name not in used_hosts), strict=False)
        )
        hosts_by_port = hosts_by_port if unit.ports is None else unit.ports
        for port, host in hosts_by_port.items():
            if host not in host_names:
                problem = f"port {port}: unknown host {host!r}; use one of: {', '.join(host_names)}"
                raise ConfigError(f"chassis {unit.name}: {problem}")
        used_hosts.update(hosts_by_port.values())
        yield unit, {port: hosts_by_port[port] for port in PORTS if port in hosts_by_port}


def find_host_ports(chassis: Sequence[ChassisOptions], hosts: Sequence[HostSpec]) -> dict[str, tuple[str, ...]]:
    """Return the ports that each host is cabled to, such as falcon1/H2."""
    host_ports: dict[str, tuple[str, ...]] = {}
    for box, ports in resolve_cabling(chassis, hosts):
        for port, host in ports.items():
            host_ports[host] = (*host_ports.get(host, ()), f"{box.name}/{port}")
    return host_ports


def _build_drawer_banks(
    chassis: str, index: int, drawer: DrawerOptions, hosts_by_port: Mapping[Port, str]
) -> list[Bank]:
    """Build the banks of one drawer. Raises ConfigError if its cabling does not fit its mode."""
    name = f"{chassis}/{drawer.name}"
    ports = _select_ports(index, drawer, hosts_by_port)
    if ports_without_host := [port for port in ports if port not in hosts_by_port]:
        raise ConfigError(
            f"{name}: port {ports_without_host[0]} is not cabled; cabled ports: {', '.join(hosts_by_port) or 'none'}"
        )
    hosts = tuple(dict.fromkeys(hosts_by_port[port] for port in ports))
    all_slots = frozenset(range(1, SLOTS_PER_DRAWER + 1))
    if drawer.mode == "advanced":
        return [Bank(name, name, "advanced", all_slots, hosts, MAX_HOSTS_PER_ADVANCED_DRAWER)]
    if drawer.mode == "standard_one_host":
        if len(hosts) > 1:
            raise ConfigError(
                f"{name}: several hosts are cabled to it: {', '.join(hosts)} ({MODE_RULES['standard_one_host']})"
            )
        return [Bank(name, name, "standard_one_host", all_slots, hosts, 1)]
    if len(ports) > 2:
        raise ConfigError(f"{name}: {len(ports)} connections are cabled to it ({MODE_RULES['standard_two_hosts']})")
    return [
        Bank(
            f"{name}/connection{connection + 1}",
            name,
            "standard_two_hosts",
            frozenset(range(connection * SLOTS_PER_CONNECTION + 1, (connection + 1) * SLOTS_PER_CONNECTION + 1)),
            (hosts_by_port[ports[connection]],) if connection < len(ports) else (),
            2,
        )
        for connection in range(2)
    ]


def _select_ports(index: int, drawer: DrawerOptions, hosts_by_port: Mapping[Port, str]) -> tuple[Port, ...]:
    """Return the ports that reach a drawer, in the order of their connections."""
    if drawer.ports is not None:
        return tuple(dict.fromkeys(drawer.ports))
    if drawer.mode == "advanced":
        return tuple(hosts_by_port)
    count = 1 if drawer.mode == "standard_one_host" else 2
    default_ports = [port for port in PORTS[2 * index : 2 * index + 2] if port in hosts_by_port]
    # A drawer without cabled ports of its own shares a cabled port: that of the next host, or else of the same host.
    shared_ports = (
        list(hosts_by_port)[min(index, len(hosts_by_port) - 1) :]
        if count == 1 and hosts_by_port
        else list(hosts_by_port)
    )
    return tuple((default_ports or shared_ports)[:count])


def make_host_id(kind: str, fabric_id: str) -> str:
    """Derive the id that a host reports for a device: the UUID of a GPU, the MAC of a card, or the serial number of a drive.

    The id of a slot is always the same.
    """
    name = uuid.uuid5(uuid.NAMESPACE_OID, fabric_id)
    if kind == "nic":
        return ":".join(f"{byte:02x}" for byte in b"\x02" + name.bytes[:5])
    return name.hex[:16].upper() if kind == "nvme" else f"{kind.upper()}-{name}"


def place_devices(chassis: Sequence[ChassisOptions], pool: Sequence[PoolSpec]) -> list[Device]:
    """Place the devices of the pool in slots, in order. The id of a device is its location.

    Raises ConfigError if there are more devices than slots.
    """
    drawers = [f"{unit.name}/{drawer.name}" for unit in chassis for drawer in unit.drawers]
    free_slots = {drawer: list(range(1, SLOTS_PER_DRAWER + 1)) for drawer in drawers}
    devices: list[Device] = []
    link = Link(LINK_LANES, PCIE_GENERATION, LINK_LANES, PCIE_GENERATION)
    # Devices with a named drawer are placed first, so that devices without one never take their slots.
    for spec in sorted(pool, key=lambda spec: spec.drawer is None):
        candidates = [name for name in drawers if spec.drawer in (None, name, name.rpartition("/")[2])]
        if not candidates:
            raise ConfigError(f"pool: unknown drawer {spec.drawer!r}; use one of: {', '.join(drawers)}")
        for _ in range(spec.count):
            drawer = next((name for name in candidates if free_slots[name]), None)
            if drawer is None:
                full_location = spec.drawer or "the chassis"
                raise ConfigError(
                    f"pool: {full_location} has too few free slots for {spec.count} x {spec.model!r} ({spec.kind})"
                )
            location, kind = f"{drawer}/slot{free_slots[drawer].pop(0)}", spec.kind
            devices.append(
                Device(location, kind, spec.model, make_host_id(kind, location), location, local=False, link=link)
            )
    return sorted(devices, key=lambda device: drawers.index(device.location.rpartition("/")[0]))


FaultKind = Literal[
    "busy",  # compose or release is refused because the fabric is busy; nothing changes
    "lost_request",  # compose never arrives, and the caller gets no reply
    "unknown_outcome",  # compose is done, the reply is lost
    "unknown_release",  # release is done, the reply is lost
    "partial_attach",  # one device is not attached, and the fabric reports the failure
    "short_attach",  # one device is not attached, and the fabric reports success
    "substituted_device",  # another free device is attached instead of the requested one
    "degraded_link",  # a device trains with half its lanes
    "device_never_visible",  # the device is attached, but the host never lists it
    "needs_rescan",  # the device is attached, but the host lists it only after a rescan
    "device_fails",  # a device breaks `after_s` seconds after it was attached, and stays broken
    "leak",  # one device cannot be released
]


class Fault(BaseModel):
    """One kind of fault that occurs `times` times for matching leases and devices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FaultKind = Field(description="kind of the fault")
    times: int = Field(default=1, ge=1, description="number of times that the fault occurs")
    lease: str = Field(default="*", description="ids of the affected leases, as a shell pattern")
    device: str = Field(default="*", description="fabric ids of the affected devices, as a shell pattern")
    after_s: float = Field(default=0.0, ge=0, description="for `device_fails`: seconds from attachment to failure")


class SimulatedOptions(BaseModel):
    """Options of the simulated fabric. All have defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    chassis: tuple[ChassisOptions, ...] = Field(
        default=(ChassisOptions(name="falcon1"),),
        min_length=1,
        description="chassis of the fabric; default: one chassis falcon1 with two drawers in advanced mode",
    )
    operation_s: float = Field(
        default=0.0, ge=0, description="minimum duration of every composition and release in seconds"
    )
    attach_s: float = Field(default=0.0, ge=0, description="additional seconds per attached device")
    detach_s: float = Field(default=0.0, ge=0, description="additional seconds per detached device")
    times: str = Field(
        default="",
        description="recorded times that are added to each reading, attachment and detachment, drawn at random. `h3`: times of "
        "GPUs in two Falcon 4005 boxes, which are also used for drives",
    )
    times_factor: float = Field(
        default=1.0, gt=0, description="factor by which the recorded times are multiplied, such as 0.01"
    )
    enumerate_s: float = Field(default=0.0, ge=0, description="seconds until a host sees a newly attached device")
    faults: tuple[Fault, ...] = Field(default=(), description="simulated faults")


class SimulatedFabric(SimpleFabric):
    """Fabric of simulated chassis; see `protocol.Fabric`."""

    kind = "simulated"
    gives_host_id = True
    note = "this fabric is simulated: it applies the rules of the chassis, but devices are as fast as the real hosts"

    def __init__(
        self, options: SimulatedOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
    ) -> None:
        built_in_devices = (device for host in hosts for device in list_built_in_devices(host))
        super().__init__(
            hosts,
            place_devices(options.chassis, pool),
            state_dir,
            built_in=(
                replace(device, host_id=make_host_id(device.kind, device.fabric_id)) for device in built_in_devices
            ),
            banks=build_banks(options.chassis, hosts),
            ports=find_host_ports(options.chassis, hosts),
        )
        self._options = options
        self._times = read_published_times(options.times).scale_times(options.times_factor) if options.times else None
        self._random = Random()
        self._faults = {f"{n}-{hash_document(fault.model_dump(), 8)}": fault for n, fault in enumerate(options.faults)}

    def _sleep_for_operation(self, operation: Operation, kind: str, min_s: float) -> None:
        """Sleep as long as an operation on one kind of device would take.

        Recorded times of GPUs are also used for drives.
        """
        drawn_s = self._times.sample_seconds(self._random, operation, kind and "gpu") if self._times else 0.0
        time.sleep(min_s + drawn_s)

    def _trigger_fault(self, kind: FaultKind, lease_id: str, device: str | None = None) -> Fault | None:
        """Return the fault that occurs now and count it in the state file, or return None if there is none."""
        matching = {
            key: fault
            for key, fault in self._faults.items()
            if fault.kind == kind
            and fnmatchcase(lease_id, fault.lease)
            and fnmatchcase(device or fault.device, fault.device)
        }
        if not matching:
            return None
        with self.state.edit() as state:
            for key, fault in matching.items():
                remaining = state.faults.get(key, fault.times)
                if remaining > 0:
                    state.faults[key] = remaining - 1
                    return fault
        return None

    def apply_state(self, device: Device, state: FabricState) -> Device:
        """Return a device of the pool, updated with its recorded state, link and health."""
        slot = state.devices.get(device.fabric_id)
        if slot is None:
            return device
        return replace(
            apply_slot(device, slot),
            state="failed" if slot.is_broken and slot.lease is None else slot.state,
            health="critical" if slot.is_broken else "ok",
            link=device.link and replace(device.link, width=slot.width or LINK_LANES),
        )

    def compose(self, selection: Selection) -> None:
        """Claim and attach the selection, with the configured latencies and faults."""
        lease_id = selection.request.lease_id
        with self.lock_transaction(lease_id):
            self._raise_if_busy(lease_id)
            if self._trigger_fault("lost_request", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the request to compose got no reply")
            self.claim_selection(selection)
            if self.list_unattached_devices(selection):
                with time_operation("inventory"):
                    self._sleep_for_operation("inventory", "", self._options.operation_s)
            else:
                time.sleep(self._options.operation_s)
            self.attach_claimed_devices(selection)
            if self._trigger_fault("unknown_outcome", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the reply to the request to compose was lost")

    def attach_claimed_devices(self, selection: Selection) -> None:
        """Attach the claimed devices with the configured latencies and faults.

        Raises PartialFailure with the devices that could not be attached.
        """
        lease_id, attached_ids, failed_ids = selection.request.lease_id, list[str](), list[str]()
        for device, host in self.list_unattached_devices(selection):
            with time_device_operation(self.pool[device], "attach"):
                self._sleep_for_operation("attach", self.pool[device].kind, self._options.attach_s)
                if self._trigger_fault("partial_attach", lease_id, device):
                    failed_ids.append(device)
                elif not self._trigger_fault("short_attach", lease_id, device):
                    self.attach(self.pool[device], host, lease_id)
                    attached_ids.append(device)
        if failed_ids:
            raise PartialFailure(f"{lease_id}: {', '.join(failed_ids)} could not be attached", attached_ids, failed_ids)

    def find_visible_devices(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices that their hosts list now, given the simulated faults."""
        slots, now_s = self.state.read().devices, time.time()

        def is_visible(slot: DeviceSlot, host: str) -> bool:
            """Return True if the host lists the device in this slot now."""
            is_enumerated = slot.visible_s is not None and slot.visible_s <= now_s and not slot.needs_rescan
            return is_enumerated and not slot.is_broken and slot.host == host

        return frozenset(
            device.fabric_id
            for host in composition.hosts
            for device in (*host.devices, *host.storage)
            if device.local or is_visible(slots.get(device.fabric_id, DeviceSlot()), host.name)
        )

    def list_devices_to_verify(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the pooled devices, which are verified on their hosts."""
        return frozenset(device.fabric_id for device in composition.devices if not device.local)

    def rescan_hosts(self, composition: Composition) -> None:
        """Make devices visible that appear only after a rescan."""
        with self.state.edit() as state:
            for device in composition.devices:
                if device.fabric_id in state.devices:
                    state.devices[device.fabric_id].needs_rescan = False

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Detach the devices of the lease with the configured latencies and faults.

        Returns the fabric ids of devices that could not be detached.
        """
        if lease_id not in self.state.read().leases:
            return ()
        with self.lock_transaction(lease_id):
            self._raise_if_busy(lease_id)
            time.sleep(self._options.operation_s)
            undetached_ids = self.detach_lease_devices(lease_id)
            if self._trigger_fault("unknown_release", lease_id):
                raise OutcomeUnknown(f"{lease_id}: the reply to the request to release was lost")
        return undetached_ids

    def detach(self, device: Device, host: str, lease_id: str) -> None:
        """Detach one device with the configured latency. Raises FabricError if a fault prevents it."""
        self._sleep_for_operation("detach", device.kind, self._options.detach_s)
        if self._trigger_fault("leak", lease_id, device.fabric_id):
            raise FabricError(f"{device.fabric_id}: the device cannot be detached")

    def _raise_if_busy(self, lease_id: str) -> None:
        """Raise Busy if a simulated fault of this kind occurs now."""
        if self._trigger_fault("busy", lease_id):
            raise Busy(f"{lease_id}: the fabric is busy", ("the fabric itself",))

    def attach(self, device: Device, host: str, lease_id: str) -> None:
        """Attach one device, or another device if a fault substitutes it."""
        attached_id = self._choose_attached_device(device, host, lease_id)
        faults: dict[FaultKind, Fault | None] = {
            kind: self._trigger_fault(kind, lease_id, attached_id)
            for kind in ("device_never_visible", "needs_rescan", "degraded_link", "device_fails")
        }
        now_s = time.time()
        with self.state.edit() as state:
            if attached_id != device.fabric_id:
                state.free_device(device.fabric_id)
                holding = state.leases[lease_id]
                holding.hosts = tuple(
                    claimed_host.model_copy(
                        update={
                            "devices": tuple(attached_id if d == device.fabric_id else d for d in claimed_host.devices)
                        }
                    )
                    for claimed_host in holding.hosts
                )
            slot = state.get_or_create_slot(attached_id)
            slot.lease, slot.host, slot.state = lease_id, host, "in_use"
            slot.visible_s = None if faults["device_never_visible"] else now_s + self._options.enumerate_s
            slot.needs_rescan = faults["needs_rescan"] is not None
            slot.width = LINK_LANES // 2 if faults["degraded_link"] else None
            slot.fails_s = now_s + faults["device_fails"].after_s if faults["device_fails"] else slot.fails_s

    def _choose_attached_device(self, device: Device, host: str, lease_id: str) -> str:
        """Return the id of the device that is attached: the requested one, or a substitute if that fault occurs.

        A substitute is a free device of the same kind and another model that the host may hold.
        """
        state = self.state.read()
        for candidate in self.pool.values():
            current = self.apply_state(candidate, state)
            fits = candidate.kind == device.kind and candidate.model != device.model
            if current.state == "free" and fits and find_violation(self.banks, {candidate.location: host}) is None:
                fault = self._trigger_fault("substituted_device", lease_id, device.fabric_id)
                return (candidate if fault else device).fabric_id
        return device.fabric_id


FABRIC = FabricKind(
    "a Falcon-4016-like chassis and its pool, simulated with latencies and faults",
    SimulatedOptions,
    SimulatedFabric,
    steps=OperationSteps(per_composition=("inventory",)),
)
