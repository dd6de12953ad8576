"""What leases share, and which of them may be held at one time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from campaign.config.resolve import Campaign
from campaign.documents.cell import Configuration
from campaign.plan.packing import Amounts, Job, makespan

CORES, HOSTS, DRIVES = "cores", "hosts", "drives"
RANKS_A_CORE = 16
"""Replayed ranks for each core: they sleep, but for their collectives."""


def host_count(campaign: Campaign) -> int:
    """Hosts of all systems that are measured on."""
    return sum(len(group.names()) for part in campaign.parts for group in part.system.hosts)


def isolation(campaign: Campaign) -> str:
    """The protocol's isolation; by default hosts are their own where they are real or replayed, and otherwise share a machine."""
    shared = on_one_machine(campaign) and not replays(campaign)
    return campaign.protocol.isolation or ("machine" if shared else "host")


def on_one_machine(campaign: Campaign) -> bool:
    """Whether this machine stands for a system, or for one of several."""
    return any(part.system.launcher == "local" or part.system.emulation is not None for part in campaign.parts)


def replays(campaign: Campaign) -> bool:
    """Whether all of its ranks wait in the place of devices, so that many of them share a core."""
    return all(workload.predicts for workload in campaign.workloads.values())


@dataclass(frozen=True)
class Limit:
    """What all leases together may take, by name: cores of the machine that runs `campaign measure` (parts of cores for replays),
    hosts, devices of the pool by model, drives of the pool, and hosts with devices of their own, by model ("own a100"); of each
    system its own ("grace hosts"), but for the cores.

    The fabric's own lock guards devices; this keeps leases from waiting for each other.
    """

    campaign: Campaign
    amounts: dict[str, int]

    @classmethod
    def of(cls, campaign: Campaign, cores: int) -> Limit:
        amounts = Counter({CORES: cores * (RANKS_A_CORE if replays(campaign) else 1)})
        for name, system in campaign.systems.items():
            for entry in system.pool:
                if entry.kind != "nic":
                    amounts[f"{name} {DRIVES if entry.kind == 'nvme' else f'pooled {entry.model}'}"] += entry.count
            for group in system.hosts:
                amounts[f"{name} {HOSTS}"] += len(group.names())
                own = {f"{name} own {each.model}": len(group.names()) for each in group.devices if each.kind != "nvme"}
                amounts.update(own)
        return cls(campaign, dict(amounts))

    @property
    def whole(self) -> Amounts:
        return tuple(self.amounts.values())

    def share(self, configuration: Configuration) -> Amounts:
        """What a lease takes: all cores where leases must not disturb each other, one for its process where Slurm runs it, else one
        a rank; never more than there is."""
        part = self.campaign.on(configuration)
        name = part.system.name
        cores = max(1, configuration.ranks) if part.system.launcher == "local" else 1
        if isolation(part) == "machine":
            cores = self.amounts[CORES]
        taken = Counter({CORES: cores, f"{name} {HOSTS}": configuration.hosts})
        taken[f"{name} {DRIVES}"] += configuration.hosts * (configuration.storage == "fabric-nvme")
        for host in configuration.host_shapes:
            for each in host.devices:
                taken[f"{name} pooled {each.model}"] += each.fabric
                taken[f"{name} own {each.model}"] += each.local > 0
        return tuple(min(taken[name], most) for name, most in self.amounts.items())


def wall_s(
    campaign: Campaign, leases: Sequence[tuple[Configuration, int, float]], *, looks_ahead: bool = False
) -> float:
    """Duration of leases (configuration, composition, seconds), in this order, where the isolation permits it at once."""
    if all(isolation(part) == "machine" for part in campaign.parts):
        return sum(seconds for _, _, seconds in leases)
    limit = Limit.of(campaign, sum(configuration.ranks for configuration, _, _ in leases) or 1)
    shares = {configuration.name: limit.share(configuration) for configuration, _, _ in leases}
    jobs = [Job(shares[configuration.name], seconds, block) for configuration, block, seconds in leases]
    return makespan(jobs, limit.whole, looks_ahead=looks_ahead)
