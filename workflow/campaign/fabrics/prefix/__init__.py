"""Remote devices and parts of devices, which nothing attaches: a run uses them through words before its command, and variables.

A lease holds whole hosts and whole devices. What stands in the pool is remote: its drawer is the server that it is in. Where that
is a host of the system, the host lends its devices: they are no remote devices of its own, and whoever holds one of them holds
the host, as runs that share a host disturb each other. A part of a device keeps the device from other leases for the same reason.
Slurm is not told: keep other jobs off hosts that lend, by a partition or a reservation of their own.

Unverified: Bitfusion, whose product has ended (maintenance until 2025), MIG and MPS; their options are by public documentation
(`bitfusion run -n N -p FRACTION -- ...`, MIG UUIDs in CUDA_VISIBLE_DEVICES, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE). Bitfusion's `-p`
parts memory only, computing is shared; MIG parts both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path

from campaign.documents.cell import Configuration
from campaign.errors import ConfigError, FabricError
from campaign.fabrics.errors import Conflict, Incompatible, Unhealthy
from campaign.fabrics.hardware import Device, DeviceSpec, Host, HostSpec, Inventory, PoolSpec
from campaign.fabrics.placement.devices import POOL
from campaign.fabrics.prefix.options import Options, devices_at
from campaign.fabrics.protocol import Capabilities, Request, Selection
from campaign.fabrics.registry import Example, FabricKind
from campaign.fabrics.simple_fabric import SimpleFabric
from campaign.fabrics.state_file import State

RULE = "prefix: a host that a lease uses does not lend its devices"
_MOST_CHOICES = 500


class PrefixFabric(SimpleFabric):
    """Nothing is asked from afar: what cannot be used shows when a run is started."""

    kind = "prefix"
    atomic = True
    verified = False
    note = (
        "nothing is attached: runs are started with a prefix and an environment. Bitfusion's product has ended, MIG and "
        "MPS are by documentation; a run that cannot use its devices is what shows it"
    )

    def capabilities(self) -> Capabilities:
        reached = Counter(
            (host, device.model)
            for device in (*self.own, *self.pool.values())
            for host in self.hosts
            if device.computes and (device.attached_to == host if device.local else _server(device) != host)
        )
        return replace(super().capabilities(), max_devices_per_host=max(reached.values(), default=0))

    def select(self, request: Request, inventory: Inventory) -> Selection:
        known = [host.name for host in inventory.hosts]
        lends = any(bank.drawer in self.hosts for bank in self.banks)
        hosts = [name for name in known if not request.allowed_hosts or name in request.allowed_hosts]
        asked = request.configuration
        if asked.layout:
            rule = "hosts of a fabric of kind prefix are composed alike"
            raise Incompatible(f"{request.lease_id}: {asked.words()}: {rule}; use devices_per_host", rule)
        if not lends or not asked.fabric_devices_per_host or set(request.allowed_hosts) - set(known):
            return super().select(request, inventory)
        reasons: list[FabricError] = []
        for chosen in islice(combinations(hosts, asked.hosts), _MOST_CHOICES):
            left = replace(
                inventory, devices=tuple(d for d in inventory.devices if d.local or _server(d) not in chosen)
            )
            try:
                found = super().select(replace(request, allowed_hosts=chosen), left)
            except FabricError as error:
                reasons.append(error)
            else:
                return replace(found, request=request)
        for reason in sorted(reasons, key=lambda reason: isinstance(reason, Unhealthy)):
            if isinstance(reason, Conflict | Unhealthy):
                raise reason
        super().select(request, inventory.freed())  # raises where it is not for the rule
        raise Incompatible(
            f"{request.lease_id}: configuration {asked.name!r} asks for {asked.fabric_devices_per_host} remote {asked.device!r} "
            f"for each of {asked.hosts} hosts, and the other hosts have fewer ({RULE})",
            RULE,
        )

    def refuse(self, state: State, selection: Selection) -> None:
        """Conflict where a host lends its devices to somebody else, or another part of a device is held, since it was selected."""
        lease_id, inventory = selection.request.lease_id, self.inventory_of(state)
        holders = {one.name: one.holder for one in sorted(inventory.hosts, key=lambda host: host.name)}
        holders |= {device.fabric_id: device.holder for device in inventory.devices}
        chosen = {*(host.host for host in selection.hosts), *selection.ids}
        taken = {name: by for name, by in holders.items() if name in chosen and by not in (None, lease_id)}
        if taken:
            what = ", ".join(f"{name} by {holder}" for name, holder in taken.items())
            raise Conflict(f"{lease_id}: no longer free: {what}", dict.fromkeys(str(each) for each in taken.values()))

    def inventory_of(self, state: State) -> Inventory:
        devices = {device.fabric_id: device for device in (*self.own, *self.pool.values())}
        using = {host.name: lease for lease, held in state.leases.items() for host in held.hosts}
        lending: dict[str, str] = {}
        physical: dict[str, str] = {}
        for name, slot in state.devices.items():
            device = devices.get(name)
            if device is not None and slot.lease is not None:
                physical[device.physical] = slot.lease
                if not device.local:
                    lending[_server(device)] = slot.lease
        hosts = tuple(
            Host(spec.name, spec.cores, spec.memory_gib, spec.ports, using.get(spec.name) or lending.get(spec.name))
            for spec in self.hosts.values()
        )
        servers = {**lending, **using}
        return Inventory(hosts, tuple(self._present(d, state, physical, servers) for d in devices.values()))

    def _present(self, device: Device, state: State, physical: Mapping[str, str], servers: Mapping[str, str]) -> Device:
        slot = state.devices.get(device.fabric_id)
        if slot is not None and slot.lease is not None:
            return replace(device, holder=slot.lease, attached_to=slot.host, state="in_use")
        by = physical.get(device.physical)
        if by is None and not device.local and _server(device) in self.hosts:
            by = servers.get(_server(device))
        return device if by is None else replace(device, holder=by, state="reserved")


def _server(device: Device) -> str:
    """Where a remote device is."""
    return device.location.rpartition("/slot")[0]


def open_fabric(options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path) -> PrefixFabric:
    """Raises ConfigError when entries, hosts and pool do not fit each other."""
    own = {host.name: Counter[tuple[str, str]]() for host in hosts}
    for host in hosts:
        for spec in host.devices:
            own[host.name][spec.kind, spec.model] += spec.count
    drawers: dict[str, Counter[tuple[str, str]]] = {}
    for entry in pool:
        drawers.setdefault(entry.drawer or POOL, Counter())[entry.kind, entry.model] += entry.count
    for rule in options.launch:
        places = {**(own if rule.covers(local=True) else {}), **(drawers if rule.covers(local=False) else {})}
        there = [name for name, counts in places.items() if any(model == rule.device for _, model in counts)]
        if not there:
            where = {"local": "no host", "pool": "not the pool"}.get(rule.where or "", "neither a host nor the pool")
            raise ConfigError(f"launch: {where} has '{rule.device}'; correct the name, or list the devices")
        if unknown := sorted(set(rule.ids) - set(there)):
            raise ConfigError(
                f"launch: {rule.device}: ids: {unknown[0]} has no such device; hosts and drawers that have: {', '.join(there)}"
            )
    local = tuple(device for name, counts in own.items() for device in devices_at(name, counts, options, local=True))
    remote = tuple(
        device for name, counts in drawers.items() for device in devices_at(name, counts, options, local=False)
    )
    return PrefixFabric(hosts, remote, state_dir, own=local)


FABRIC = FabricKind(
    "remote and partial devices that need no attach: a launch prefix and environment",
    Options,
    open_fabric,
    unverified="Bitfusion, whose product has ended; MIG and MPS are by NVIDIA's documentation",
    tested="the contract suite and stand-in programs",
    example=Example(
        {"launch": [{"device": "a100", "fraction": "1/2", "prefix": ["remote", "{devices}", "--"]}]},
        hosts=tuple(HostSpec(name, 8, 32.0, (DeviceSpec("nvme", "ssd", 1),)) for name in ("host1", "host2")),
        pool=(PoolSpec("gpu", "a100", 1, "server1"),),
        configuration=Configuration("c", 1, 2, 0, 2, "a100", "fabric", "nvme"),
    ),
)
