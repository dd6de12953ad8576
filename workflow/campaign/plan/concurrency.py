"""Resources that concurrent leases share, as Snakemake resources, and the duration of concurrent leases. Pure."""

from __future__ import annotations

import heapq
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import Configuration

HOSTS, DRIVES, CORES = "hosts", "drives", "cores"
PACED_RANKS_A_CORE = 2
"""Ranks that train at the pace of an emulated device, for each core: they compute, and sleep for what is left of the device's time.
The pace is to be a tenth of what a core reaches; runs report what they lost (`pace_lost_pct`)."""


def isolation(campaign: Campaign) -> str:
    """Return the isolation of the campaign: that of the protocol, or the default.

    The default is `host` on real hosts and `machine` if emulated hosts share a machine.
    """
    return campaign.protocol.isolation or ("machine" if on_one_machine(campaign) else "host")


def on_one_machine(campaign: Campaign) -> bool:
    """Return whether this machine runs or emulates one of the campaign's systems."""
    return any(part.system.launcher == "local" or part.system.emulation is not None for part in campaign.parts)


def keeps_pace(campaign: Campaign) -> bool:
    """Return whether the ranks keep the pace of emulated devices.

    Such ranks wait for most of the emulated time, so that concurrent leases do not slow each other.
    """
    emulation = campaign.system.emulation
    paced = emulation is not None and bool(emulation.pace)
    return paced and all(workload.needs_torch for workload in campaign.workloads.values())


def _resource(campaign: Campaign, system: str, name: str) -> str:
    """Return the name of a resource as an identifier.

    It begins with the system's name if the campaign has several systems.
    """
    return re.sub(r"\W", "_", name if len(campaign.systems) == 1 else f"{system}_{name}")


def limits(campaign: Campaign) -> dict[str, int]:
    """Return the amount of each resource that all leases together may use.

    Resources are, per system: hosts, pooled devices by model, pooled drives, and hosts with built-in devices by model. The
    fabric's own lock guards devices; these limits keep leases from waiting for each other.
    """
    amounts: Counter[str] = Counter()
    for name, system in campaign.systems.items():
        for entry in system.pool:
            if entry.kind != "nic":
                amounts[_resource(campaign, name, DRIVES if entry.kind == "nvme" else f"pool_{entry.model}")] += (
                    entry.count
                )
        usable = set(system.usable_hosts())
        for group in system.hosts:
            count = len(usable.intersection(group.names()))
            amounts[_resource(campaign, name, HOSTS)] += count
            for each in group.devices:
                if each.kind != "nvme":
                    amounts[_resource(campaign, name, f"own_{each.model}")] += count
    return dict(amounts)


def needs(campaign: Campaign, configuration: Configuration) -> dict[str, int]:
    """Return the amount of each resource that a lease of a configuration uses.

    Resources that no system has are left out.
    """
    there, system = limits(campaign), configuration.system
    taken: Counter[str] = Counter({_resource(campaign, system, HOSTS): configuration.hosts})
    if configuration.storage == "fabric-nvme":
        taken[_resource(campaign, system, DRIVES)] = configuration.hosts
    taken[_resource(campaign, system, f"pool_{configuration.device}")] = configuration.fabric_devices
    if configuration.local_devices_per_host:
        taken[_resource(campaign, system, f"own_{configuration.device}")] = configuration.hosts
    return {name: taken[name] for name in there}


def threads(campaign: Campaign, configuration: Configuration, cores: int) -> int:
    """Return the number of this machine's cores that a lease uses.

    A lease uses all cores if leases must not disturb each other, and one core for its process if Slurm runs it. Otherwise it
    uses one core per rank, or half a core per rank if the ranks keep a pace.
    """
    part = campaign.on(configuration)
    if isolation(part) == "machine":
        return cores
    if part.system.launcher != "local":
        return 1
    a_core = PACED_RANKS_A_CORE if keeps_pace(part) else 1
    return min(cores, math.ceil(configuration.ranks / a_core))


def starts(leases: Iterable[tuple[Mapping[str, int], float]], limits: Mapping[str, int]) -> Iterator[float]:
    """Yield the start times (seconds) of concurrent leases of one system. No lease starts before an earlier one.

    The iteration ends at the first lease that needs more than the limits.

    Args:
        leases: resource needs and duration (seconds) of each lease.
        limits: amount of each resource.
    """
    free, under_way, now = dict(limits), list[tuple[float, int, Mapping[str, int]]](), 0.0
    for number, (need, seconds) in enumerate(leases):
        while any(taken > free[name] for name, taken in need.items()):
            if not under_way:
                return
            now, _, ended = heapq.heappop(under_way)
            free = {name: amount + ended.get(name, 0) for name, amount in free.items()}
        free = {name: amount - need.get(name, 0) for name, amount in free.items()}
        heapq.heappush(under_way, (now + seconds, number, need))
        yield now


def wall_s(campaign: Campaign, leases: Sequence[tuple[Configuration, float]], cores: int | None = None) -> float:
    """Estimate the wall time (seconds) of leases that start in this order, each as soon as its resources are free.

    Leases of different systems do not wait for each other.

    Args:
        campaign: the campaign.
        leases: configuration and duration (seconds) of each lease.
        cores: cores of this machine that its leases share; None for all.
    """
    if all(isolation(part) == "machine" for part in campaign.parts):
        return sum(seconds for _, seconds in leases)
    cores = cores or os.cpu_count() or 1
    known = {
        each.name: needs(campaign, each) | {CORES: threads(campaign, each, cores) if on_one_machine(campaign) else 0}
        for each in {each.name: each for each, _ in leases}.values()
    }
    there, ends = limits(campaign) | {CORES: cores}, [0.0]
    for system in campaign.systems:
        line = [(known[each.name], seconds) for each, seconds in leases if each.system == system]
        ends += [start + seconds for start, (_, seconds) in zip(starts(line, there), line, strict=False)]
    return max(ends)
