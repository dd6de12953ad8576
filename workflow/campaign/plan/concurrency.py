"""Resources that concurrent leases share, as Snakemake resources, and the duration of concurrent leases. Pure."""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import Configuration

HOSTS, DRIVES, CORES, RANKS = "hosts", "drives", "cores", "ranks"
PACED_RANKS_PER_CORE = 3
"""Number of ranks per core that keep the pace of an emulated device. They compute, and sleep for the rest of the device's time.
The pace should be a tenth of what a core reaches. Runs report their loss of pace (`pace_lost_pct`)."""


def resolve_isolation(campaign: Campaign) -> str:
    """Return the isolation of the protocol, or the default: `host` on real hosts, `machine` if hosts share a machine."""
    return campaign.protocol.isolation or ("machine" if is_on_one_machine(campaign) else "host")


def is_on_one_machine(campaign: Campaign) -> bool:
    """Return whether this machine runs or emulates one of the campaign's systems."""
    return any(part.system.launcher == "local" or part.system.emulation is not None for part in campaign.parts)


def is_paced(campaign: Campaign) -> bool:
    """Return whether the ranks are slowed to the pace of emulated devices.

    Such ranks sleep for most of the emulated time, so concurrent leases do not slow each other down.
    """
    emulation = campaign.system.emulation
    has_pace = emulation is not None and bool(emulation.pace)
    return has_pace and all(workload.needs_torch for workload in campaign.workloads.values())


def _find_paced_systems(campaign: Campaign) -> set[str]:
    """Return the names of systems whose ranks keep a pace on this machine, and whose leases run side by side."""
    return {
        part.system.name
        for part in campaign.parts
        if part.system.launcher == "local" and is_paced(part) and resolve_isolation(part) != "machine"
    }


def _format_resource(campaign: Campaign, system: str, name: str) -> str:
    """Return the name of a resource as an identifier.

    It begins with the system's name if the campaign has several systems.
    """
    return re.sub(r"\W", "_", name if len(campaign.systems) == 1 else f"{system}_{name}")


def resource_limits(campaign: Campaign) -> dict[str, int]:
    """Return the amount of each resource that all leases together may use.

    The resources of a system are hosts, pooled devices by model, pooled drives, and hosts with built-in devices by model. The
    lock of the fabric guards devices. These limits only keep leases from waiting for each other. Ranks that keep a pace are a
    resource of this machine.
    """
    amounts: Counter[str] = Counter()
    for name, system in campaign.systems.items():
        for entry in system.pool:
            if entry.kind != "nic":
                amounts[
                    _format_resource(campaign, name, DRIVES if entry.kind == "nvme" else f"pool_{entry.model}")
                ] += entry.count
        usable = set(system.list_usable_hosts())
        for group in system.hosts:
            count = len(usable.intersection(group.list_names()))
            amounts[_format_resource(campaign, name, HOSTS)] += count
            for device in group.devices:
                if device.kind != "nvme":
                    amounts[_format_resource(campaign, name, f"own_{device.model}")] += count
    if paced_systems := _find_paced_systems(campaign):
        # The largest lease can always run, alone if it has more ranks.
        ranks = [part.ranks for part in campaign.configurations if part.system in paced_systems]
        amounts[RANKS] = max(PACED_RANKS_PER_CORE * len(os.sched_getaffinity(0)), *ranks)
    return dict(amounts)


def resource_needs(campaign: Campaign, configuration: Configuration) -> dict[str, int]:
    """Return the amount of each resource that a lease of a configuration uses.

    Resources that no system has are left out.
    """
    available, system = resource_limits(campaign), configuration.system
    amounts: Counter[str] = Counter({_format_resource(campaign, system, HOSTS): configuration.hosts})
    if configuration.storage == "fabric-nvme":
        amounts[_format_resource(campaign, system, DRIVES)] = configuration.hosts
    amounts[_format_resource(campaign, system, f"pool_{configuration.device}")] = configuration.fabric_devices
    if configuration.local_devices_per_host:
        amounts[_format_resource(campaign, system, f"own_{configuration.device}")] = configuration.hosts
    if system in _find_paced_systems(campaign):
        amounts[RANKS] = configuration.ranks
    return {name: amounts[name] for name in available}


def count_threads(campaign: Campaign, configuration: Configuration, cores: int) -> int:
    """Return the number of this machine's cores that a lease uses.

    A lease uses all cores if leases must not disturb each other, and one core for its process if Slurm runs it. Otherwise it
    uses one core per rank, or one core if its ranks keep a pace. The number of such ranks is limited by itself (`RANKS`).
    """
    part = campaign.part_on(configuration)
    if resolve_isolation(part) == "machine":
        return cores
    if part.system.launcher != "local" or is_paced(part):
        return 1
    return min(cores, configuration.ranks)


def schedule_starts(leases: Iterable[tuple[Mapping[str, int], float]], limits: Mapping[str, int]) -> Iterator[float]:
    """Yield the start times (seconds) of concurrent leases of one system. No lease starts before an earlier one.

    The iteration ends at the first lease that needs more than the limits.

    Args:
        leases: resource needs and duration (seconds) of each lease.
        limits: amount of each resource.
    """
    free, running, now_s = dict(limits), list[tuple[float, int, Mapping[str, int]]](), 0.0
    for number, (need, seconds) in enumerate(leases):
        while any(amount_needed > free[name] for name, amount_needed in need.items()):
            if not running:
                return
            now_s, _, freed = heapq.heappop(running)
            free = {name: amount + freed.get(name, 0) for name, amount in free.items()}
        free = {name: amount - need.get(name, 0) for name, amount in free.items()}
        heapq.heappush(running, (now_s + seconds, number, need))
        yield now_s


def estimate_wall_s(
    campaign: Campaign, leases: Sequence[tuple[Configuration, float]], cores: int | None = None
) -> float:
    """Estimate the wall time (seconds) of leases that start in this order, each as soon as its resources are free.

    Leases of different systems do not wait for each other.

    Args:
        campaign: the campaign.
        leases: configuration and duration (seconds) of each lease.
        cores: cores of this machine that its leases share; None for all.
    """
    if all(resolve_isolation(part) == "machine" for part in campaign.parts):
        return sum(seconds for _, seconds in leases)
    cores = cores or os.cpu_count() or 1
    needs_by_configuration = {
        configuration.name: resource_needs(campaign, configuration)
        | {CORES: count_threads(campaign, configuration, cores) if is_on_one_machine(campaign) else 0}
        for configuration in {configuration.name: configuration for configuration, _ in leases}.values()
    }
    available, ends = resource_limits(campaign) | {CORES: cores}, [0.0]
    for system in campaign.systems:
        queue = [
            (needs_by_configuration[configuration.name], seconds)
            for configuration, seconds in leases
            if configuration.system == system
        ]
        ends += [start + seconds for start, (_, seconds) in zip(schedule_starts(queue, available), queue, strict=False)]
    return max(ends)
