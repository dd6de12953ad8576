"""The hosts of this job, and the composition on them."""

from __future__ import annotations

import os
from dataclasses import replace

from campaign.errors import LaunchError
from campaign.fabrics.hardware import ComposedHost, Composition, Device
from campaign.slurm.parse import expand_hosts


def hosts_of_allocation() -> tuple[str, ...]:
    """Hosts of the job that this process runs in, in Slurm's order. LaunchError: it runs in none."""
    text = os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST") or ""
    try:
        hosts = expand_hosts(text)
    except ValueError as error:
        raise LaunchError(f"SLURM_JOB_NODELIST: {error}") from error
    if not hosts:
        raise LaunchError("this process is not in a job of Slurm: SLURM_JOB_NODELIST is not set")
    return hosts


def placed(composition: Composition, hosts: tuple[str, ...]) -> Composition:
    """The composition on the hosts that Slurm chose (`placement: scheduler`).

    Hosts in both stay as they are. Each other host of the composition is renamed to an unused host of the allocation, in order.
    LaunchError: the numbers of hosts differ.
    """
    known = {host.name: host for host in composition.hosts}
    if len(hosts) != len(known):
        raise LaunchError(f"the allocation has {len(hosts)} hosts, {len(known)} were requested: {', '.join(hosts)}")
    spare = iter([host for host in composition.hosts if host.name not in hosts])
    return Composition(tuple(known[name] if name in known else _moved(next(spare), name) for name in hosts))


def _moved(host: ComposedHost, name: str) -> ComposedHost:
    def moved(device: Device) -> Device:
        # A host's own devices are named after it; what the other host calls its devices is not known.
        fabric_id, location = (
            f"{name}{text.removeprefix(host.name)}" if text.startswith(f"{host.name}/") else text
            for text in (device.fabric_id, device.location)
        )
        to = name if device.attached_to == host.name else device.attached_to
        return replace(device, fabric_id=fabric_id, location=location, attached_to=to, host_id=None)

    devices, storage = (tuple(moved(device) for device in group) for group in (host.devices, host.storage))
    return replace(host, name=name, devices=devices, storage=storage)
