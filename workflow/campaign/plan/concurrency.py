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
    return sum(len(group.names()) for group in campaign.system.hosts)


def isolation(campaign: Campaign) -> str:
    """The protocol's isolation; by default hosts are their own where they are real or replayed, and otherwise share a machine."""
    shared = on_one_machine(campaign) and not replays(campaign)
    return campaign.protocol.isolation or ("machine" if shared else "host")


def on_one_machine(campaign: Campaign) -> bool:
    return campaign.system.launcher == "local" or campaign.system.emulation is not None


def replays(campaign: Campaign) -> bool:
    """Whether all of its ranks wait in the place of devices, so that many of them share a core."""
    return all(workload.predicts for workload in campaign.workloads.values())


@dataclass(frozen=True)
class Limit:
    """What all leases together may take, by name: cores of the machine that runs `campaign measure` (parts of cores for replays),
    hosts, devices of the pool by model, drives of the pool, and hosts with devices of their own, by model ("own a100").

    The fabric's own lock guards devices; this keeps leases from waiting for each other.
    """

    campaign: Campaign
    amounts: dict[str, int]

    @classmethod
    def of(cls, campaign: Campaign, cores: int) -> Limit:
        system, pool, own = campaign.system, Counter[str](), Counter[str]()
        cores *= RANKS_A_CORE if replays(campaign) else 1
        for entry in system.pool:
            if entry.kind != "nic":
                pool[DRIVES if entry.kind == "nvme" else f"pooled {entry.model}"] += entry.count
        for group in system.hosts:
            own.update({f"own {each.model}": len(group.names()) for each in group.devices if each.kind != "nvme"})
        return cls(campaign, {CORES: cores, HOSTS: host_count(campaign), **pool, **own})

    @property
    def whole(self) -> Amounts:
        return tuple(self.amounts.values())

    def share(self, configuration: Configuration) -> Amounts:
        """What a lease takes: all cores where leases must not disturb each other, one for its process where Slurm runs it, else one
        a rank; never more than there is."""
        cores = max(1, configuration.ranks) if self.campaign.system.launcher == "local" else 1
        if isolation(self.campaign) == "machine":
            cores = self.amounts[CORES]
        taken = Counter({CORES: cores, HOSTS: configuration.hosts})
        taken[DRIVES] += configuration.hosts * (configuration.storage == "fabric-nvme")
        for host in configuration.host_shapes:
            for each in host.devices:
                taken[f"pooled {each.model}"] += each.fabric
                taken[f"own {each.model}"] += each.local > 0
        return tuple(min(taken[name], most) for name, most in self.amounts.items())


def wall_s(
    campaign: Campaign, leases: Sequence[tuple[Configuration, int, float]], *, looks_ahead: bool = False
) -> float:
    """Duration of leases (configuration, composition, seconds), in this order, where the isolation permits it at once."""
    if isolation(campaign) == "machine":
        return sum(seconds for _, _, seconds in leases)
    limit = Limit.of(campaign, sum(configuration.ranks for configuration, _, _ in leases) or 1)
    shares = {configuration.name: limit.share(configuration) for configuration, _, _ in leases}
    jobs = [Job(shares[configuration.name], seconds, block) for configuration, block, seconds in leases]
    return makespan(jobs, limit.whole, looks_ahead=looks_ahead)
