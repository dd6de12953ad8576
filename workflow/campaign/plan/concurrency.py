"""What leases share, and which of them may be held at one time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from campaign.config.resolve import Campaign
from campaign.documents.cell import Configuration
from campaign.plan.plan import host_count, isolation


@dataclass(frozen=True)
class Share:
    """cores: of the machine that runs `campaign measure`; devices: behind the fabric."""

    cores: int
    hosts: int
    devices: int

    def __add__(self, other: Share) -> Share:
        return Share(self.cores + other.cores, self.hosts + other.hosts, self.devices + other.devices)

    def fits(self, limit: Share) -> bool:
        return all(getattr(self, each.name) <= getattr(limit, each.name) for each in fields(self))


NOTHING = Share(0, 0, 0)


def limit_of(campaign: Campaign, cores: int) -> Share:
    """What all leases together may take. The fabric's own lock guards devices; this keeps leases from waiting for each other."""
    pool = sum(entry.count for entry in campaign.system.pool if entry.kind not in ("nvme", "nic"))
    return Share(cores, host_count(campaign), pool)


def share_of(campaign: Campaign, configuration: Configuration, limit: Share) -> Share:
    """What a lease takes: all cores where leases must not disturb each other, one for its process where Slurm runs it, one a rank
    elsewhere; never more than there is."""
    cores = max(1, configuration.ranks) if campaign.system.launcher == "local" else 1
    if isolation(campaign) == "machine":
        cores = limit.cores
    devices = min(configuration.fabric_devices, limit.devices)
    return Share(min(cores, limit.cores), min(configuration.hosts, limit.hosts), devices)
