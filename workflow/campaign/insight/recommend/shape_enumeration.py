"""What can be built of a system's hosts and pool: every shape that their numbers allow. Pure.

Drawers, cabling and other rules of a fabric are not looked at here; planning a campaign does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml
from pydantic import ValidationError

from campaign.config.system_file import SystemFile
from campaign.documents.cell import Attach

COLUMNS = ("hosts", "devices_per_host", "local_devices_per_host", "devices_used", "device", "attach", "storage")
_DENSE = (
    16  # up to so many hosts, or devices of a host, every number is looked at; beyond, powers of two and measured ones
)


@dataclass(frozen=True)
class Pool:
    """Devices of one model. own: of each host that may be used, its own; pooled: those that the fabric can attach to any."""

    own: tuple[int, ...]
    pooled: int

    def allows(self, hosts: int, local: int, fabric: int) -> bool:
        return sum(count >= local for count in self.own) >= hosts and hosts * fabric <= self.pooled


def campaign_of(context: Mapping[str, Any]) -> Mapping[str, Any]:
    """The campaign as used, as the tables hold it; empty where they hold no readable one."""
    try:
        document = yaml.load(context.get("campaign_yaml", ""), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}
    return document if isinstance(document, dict) else {}


def system_of(document: Mapping[str, Any]) -> SystemFile | None:
    """The system file in a campaign as used; None where there is no readable one."""
    try:
        return SystemFile.model_validate(document["system"])
    except (ValidationError, KeyError):
        return None


def pool_of(system: SystemFile, device: str) -> Pool:
    """What the system has of a device model, and may use."""
    allowed = set(system.allowed_hosts())
    own = [
        sum(entry.count for entry in group.devices if entry.kind == "gpu" and entry.model == device)
        for group in system.hosts
        for name in group.names()
        if not allowed or name in allowed
    ]
    static = system.fabric.get("kind") == "static"
    pooled = 0 if static else sum(e.count for e in system.pool if e.kind == "gpu" and e.model == device)
    quota = system.tenancy.quota.get(device)
    return Pool(tuple(own), pooled if quota is None else min(pooled, quota))


def possible(pool: Pool, device: str, measured: pd.DataFrame, storages: Sequence[str]) -> pd.DataFrame:
    """All shapes of the device model that the numbers allow, all devices of each host in use, with these kinds of storage.

    measured: measured configurations, columns as COLUMNS.
    """
    most = max(pool.own, default=0) + pool.pooled
    hosts = _counts(len(pool.own), measured["hosts"])
    each = _counts(most, measured["devices_per_host"])
    mixed = measured["attach"].str.startswith("hybrid")
    hybrids = sorted({int(n) for n in measured.loc[mixed, "local_devices_per_host"]})
    p2p = bool(measured["attach"].str.endswith("-p2p").any())
    rows = [
        dict(zip(COLUMNS, (h, d, local, d, device, attach, storage), strict=True))
        for h in hosts
        for d in each
        for attach, local in _splits(d, hybrids, p2p)
        if pool.allows(h, local, d - local)
        for storage in storages
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


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


def name(row: Mapping[Any, Any]) -> str:
    """What a shape without a name is called, as `campaign plan` would call it: '2x4-fabric'."""
    used = "" if row["devices_used"] == row["devices_per_host"] else f"{row['devices_used']}of"
    parts = [f"{row['hosts']}x{used}{row['devices_per_host']}", str(row["attach"])]
    if row["attach"].startswith("hybrid") and row["local_devices_per_host"] * 2 != row["devices_per_host"]:
        parts[-1] += str(row["local_devices_per_host"])
    return "-".join([*parts, *([str(row["storage"])] if row["storage"] != "local" else [])])
