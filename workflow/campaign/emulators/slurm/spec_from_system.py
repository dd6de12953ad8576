"""Specification of an emulated cluster from a system file: hosts, built-in devices, and a port per attachable device."""

from __future__ import annotations

import tempfile
from pathlib import Path

from campaign.common.errors import ConfigError, FabricError
from campaign.emulators.hosts.cluster_spec import ClusterHost, ClusterSpec, Registration
from campaign.emulators.hosts.emulation_plan import build_link_rates
from campaign.emulators.hosts.topology import LinkRates
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.plan.campaign.open_fabric import open_system_fabric
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec
from campaign.spec.system_file import SystemFile

_REGISTRATIONS: dict[str, Registration] = {
    "static": "static",
    "reservation": "static",
    "dynamic": "dynamic",
    "resume": "cloud",
}
_DEVICE_KIND = "gpu"


def build_cluster_spec(system: SystemFile, accounting: bool = True, slurm_conf: tuple[str, ...] = ()) -> ClusterSpec:
    """Build the specification of the cluster that `campaign cluster up` starts for a system.

    Hosts that do not change in Slurm (static, cloud) offer their own devices and all that could be attached. Dynamic hosts begin
    with their own devices. Raises ConfigError if one machine cannot emulate the system.

    Args:
        system: system file.
        accounting: True to run the accounting database.
        slurm_conf: further lines of slurm.conf.
    """
    kind, _, model = system.slurm.gres.partition(":")
    if kind != _DEVICE_KIND:
        raise ConfigError(
            f"system {system.name}: slurm.gres is '{system.slurm.gres}', but an emulated cluster supports only 'gpu'"
        )
    partitions = [options.partition for options in (system.slurm, *system.slurm.overrides) if options.partition]
    first, *further_partitions = dict.fromkeys(partitions or ["main"])
    lines = [f"PartitionName={name} MaxTime=INFINITE State=UP Nodes=ALL" for name in further_partitions]
    groups = [(group, name) for group in system.hosts for name in group.list_names()]
    hosts = tuple(
        _build_cluster_host(group, name, ports, system)
        for (group, name), ports in zip(groups, _count_ports(system), strict=True)
    )
    try:
        return ClusterSpec(
            hosts=hosts,
            partition=first,
            device=model or None,
            model=_find_device_name(system),
            # Every device needs a CPU for its rank.
            cpus=max(max(group.cores for group in system.hosts), *(host.slots for host in hosts)),
            memory_mib=round(min(group.memory_gib for group in system.hosts) * 1024),
            accounting=accounting,
            rates=build_link_rates(system.emulation, system.links) if system.emulation else LinkRates(),
            slurm_conf=(*lines, *slurm_conf),
        )
    except ValueError as error:
        raise ConfigError(f"system {system.name} cannot be emulated on one machine: {error}") from error


def _build_cluster_host(group: HostSpec, name: str, ports: int, system: SystemFile) -> ClusterHost:
    """Build the specification of one host."""
    own_devices = sum(device.count for device in group.devices if device.kind == _DEVICE_KIND)
    registration = _REGISTRATIONS[system.slurm.strategy]
    return ClusterHost(
        name=name,
        devices=own_devices if registration == "dynamic" else own_devices + ports,
        devices_max=own_devices + ports,
        fabric_ports=ports,
        local_ports=own_devices if system.emulation and system.links.local else 0,
        registration=registration,
    )


def _find_device_name(system: SystemFile) -> str:
    """Return the name by which the cluster reports its devices, all of which have the same gres."""
    models = [device.model for group in system.hosts for device in group.devices if device.kind == _DEVICE_KIND]
    models += [entry.model for entry in system.pool if entry.kind == _DEVICE_KIND]
    names = list(dict.fromkeys(models)) or [_DEVICE_KIND]
    if len(names) > 1:
        raise ConfigError(
            f"system {system.name}: the devices have {len(names)} models ({', '.join(names)}), but all devices of an emulated "
            "cluster must have the same model"
        )
    declared_device = system.devices.get(names[0])
    return (declared_device and declared_device.reported_as) or names[0]


def _count_ports(system: SystemFile) -> list[int]:
    """Return the number of pool devices that the rules of the fabric allow on each host at one time."""
    names = [name for group in system.hosts for name in group.list_names()]
    pool = [entry for entry in system.pool if entry.kind == _DEVICE_KIND]
    if not pool:
        return [0] * len(names)
    with tempfile.TemporaryDirectory() as state, open_system_fabric(system, Path(state)) as fabric:
        return [_count_attachable(fabric, name, pool[0].model, sum(entry.count for entry in pool)) for name in names]


def _count_attachable(fabric: Fabric, host: str, model: str, max_devices: int) -> int:
    """Return the largest number of pool devices that the fabric can attach to a host."""
    free_inventory = fabric.read_inventory().release_all()
    for count in range(max_devices, 0, -1):
        configuration = Configuration("ports", 1, count, 0, count, model, "fabric", "local")
        try:
            fabric.select_devices(LeaseRequest("ports", "cluster", "cluster", configuration, (host,)), free_inventory)
        except FabricError:
            continue
        return count
    return 0
