"""What leases share, as resources of Snakemake, and how long they take side by side. Pure."""

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
    """The protocol's isolation; by default hosts are their own where they are real, and otherwise share a machine."""
    return campaign.protocol.isolation or ("machine" if on_one_machine(campaign) else "host")


def on_one_machine(campaign: Campaign) -> bool:
    """Whether this machine stands for a system, or for one of several."""
    return any(part.system.launcher == "local" or part.system.emulation is not None for part in campaign.parts)


def keeps_pace(campaign: Campaign) -> bool:
    """Whether its ranks take the time of emulated devices and wait for most of it, so that leases side by side are not slowed."""
    emulation = campaign.system.emulation
    paced = emulation is not None and bool(emulation.pace)
    return paced and all(workload.needs_torch for workload in campaign.workloads.values())


def _resource(campaign: Campaign, system: str, name: str) -> str:
    """Name of a resource: an identifier, which begins with the system where a campaign has several."""
    return re.sub(r"\W", "_", name if len(campaign.systems) == 1 else f"{system}_{name}")


def limits(campaign: Campaign) -> dict[str, int]:
    """What all leases together may take of each resource: hosts, pooled devices by model, pooled drives, and hosts with devices of
    their own by model; of each system its own.

    The fabric's own lock guards devices; this keeps leases from waiting for each other.
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
    """What a lease of a configuration takes of each resource; at most what there is of devices that hosts own."""
    there, system = limits(campaign), configuration.system
    taken: Counter[str] = Counter({_resource(campaign, system, HOSTS): configuration.hosts})
    if configuration.storage == "fabric-nvme":
        taken[_resource(campaign, system, DRIVES)] = configuration.hosts
    taken[_resource(campaign, system, f"pool_{configuration.device}")] = configuration.fabric_devices
    if configuration.local_devices_per_host:
        taken[_resource(campaign, system, f"own_{configuration.device}")] = configuration.hosts
    return {name: taken[name] for name in there}


def threads(campaign: Campaign, configuration: Configuration, cores: int) -> int:
    """Cores of this machine that a lease takes: all where leases must not disturb each other, one for its process where Slurm runs
    it, else one a rank, or half of one where ranks keep a pace."""
    part = campaign.on(configuration)
    if isolation(part) == "machine":
        return cores
    if part.system.launcher != "local":
        return 1
    a_core = PACED_RANKS_A_CORE if keeps_pace(part) else 1
    return min(cores, math.ceil(configuration.ranks / a_core))


def starts(leases: Iterable[tuple[Mapping[str, int], float]], limits: Mapping[str, int]) -> Iterator[float]:
    """When leases of one system (needs, seconds) start side by side, in seconds, where none starts before an earlier one.

    Ends with the first one that needs more than there is.
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
    """Seconds that leases (configuration, seconds) take where each starts, in this order, as soon as its resources are free.

    cores: those of this machine that leases on it share; by default all. Leases of different systems do not wait for each other.
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
