"""What can be built of a system's hosts and pool: every shape that their numbers allow. Pure.

Drawers, cabling and other rules of a fabric are not looked at here; planning a campaign does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from campaign.config.system_file import SystemFile
from campaign.documents.cell import Attach, Configuration, Storage

COLUMNS = ("hosts", "devices_per_host", "local_devices_per_host", "devices_used", "device", "attach", "storage")
_DENSE = 16
"""Up to so many hosts, or devices of a host, every number is looked at; beyond, powers of two and measured ones."""


@dataclass(frozen=True)
class Pool:
    """Devices of one model. own: of each host that may be used, its own; pooled: those that the fabric can attach to any."""

    own: tuple[int, ...]
    pooled: int

    def allows(self, hosts: int, local: int, fabric: int) -> bool:
        return sum(count >= local for count in self.own) >= hosts and hosts * fabric <= self.pooled


def pool_of(system: SystemFile, device: str) -> Pool:
    """What the system has of a device model, and may use."""
    allowed = set(system.usable_hosts())
    own = [
        sum(entry.count for entry in group.devices if entry.kind == "gpu" and entry.model == device)
        for group in system.hosts
        for name in group.names()
        if name in allowed
    ]
    pool = () if system.fabric.get("kind") == "static" else system.pool
    pooled = sum(entry.count for entry in pool if entry.kind == "gpu" and entry.model == device)
    return Pool(tuple(own), min(pooled, system.tenancy.quota.get(device, pooled)))


def possible(pool: Pool, device: str, measured: pd.DataFrame, storages: Sequence[Storage]) -> Iterator[Configuration]:
    """All shapes of the device model that the numbers allow, all devices of each host in use, with these kinds of storage.

    measured: measured configurations, columns as COLUMNS.
    """
    mixed = measured["attach"].str.startswith("hybrid")
    hybrids = sorted({int(n) for n in measured.loc[mixed, "local_devices_per_host"]})
    p2p = bool(measured["attach"].str.endswith("-p2p").any())
    for hosts in _counts(len(pool.own), measured["hosts"]):
        for count in _counts(max(pool.own, default=0) + pool.pooled, measured["devices_per_host"]):
            for attach, local in _splits(count, hybrids, p2p):
                if pool.allows(hosts, local, count - local):
                    for storage in storages:
                        yield Configuration("", hosts, count, local, count, device, attach, storage)


def _splits(devices: int, hybrids: Sequence[int], p2p: bool) -> Iterator[tuple[Attach, int]]:
    """Ways to attach so many devices of a host, and how many of them are its own. p2p: whether peer-to-peer was measured at all."""
    yield "local", devices
    yield "fabric", 0
    if p2p and devices > 1:
        yield "fabric-p2p", 0
    for local in sorted({devices // 2, *hybrids}):
        if 0 < local < devices:
            yield "hybrid", local
            if p2p and devices - local > 1:
                yield "hybrid-p2p", local


def _counts(most: int, measured: pd.Series[int]) -> list[int]:
    if most <= _DENSE:
        return list(range(1, most + 1))
    powers = {2**power for power in range(most.bit_length()) if 2**power <= most}
    return sorted({*powers, *(int(n) for n in measured if n <= most), most})
