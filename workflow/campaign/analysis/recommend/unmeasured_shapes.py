"""Names of shapes that the hosts and pool of a system allow and that were not measured. Pure.

Only numbers of hosts and devices are considered. Drawers, cabling and other rules of a fabric are checked when a campaign is
planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from campaign.plan.campaign.expand_shapes import name_of
from campaign.spec.cell import Attach, Configuration
from campaign.spec.expression import Expression
from campaign.spec.system_file import SystemFile

_WHOLE = ["hosts", "devices_per_host", "local_devices_per_host", "device", "attach"]
_DENSE = 16
"""Up to this many hosts, or devices of a host, every number is listed; beyond, powers of two and measured ones."""


@dataclass(frozen=True)
class Pool:
    """Devices of one model in a system.

    local_counts: number of local devices of each usable host; pooled_count: number of devices that the fabric can attach to any
    host.
    """

    own: tuple[int, ...]
    pooled: int

    def allows(self, hosts: int, local: int, fabric: int) -> bool:
        """Return whether the given number of hosts can have the given devices each.

        Args:
            hosts: number of hosts.
            local: number of local devices per host.
            fabric: number of devices per host that the fabric attaches.
        """
        return sum(count >= local for count in self.own) >= hosts and hosts * fabric <= self.pooled


def unmeasured_shapes(system: SystemFile, cells: pd.DataFrame, constraints: Sequence[Expression] = ()) -> list[str]:
    """Return the names of shapes of the measured device models that the system allows and that no run used.

    All devices of each host are in use, and the storage is that of the host.

    Args:
        system: the system file.
        cells: the cells table.
        constraints: conditions on the shape.
    """
    tried = cells[(cells["n_ok"] > 0) | (cells["n_failed"] > 0)]
    names, several = [], tried["device"].nunique() > 1
    for device, measured in tried.groupby("device", sort=False):
        whole = measured[measured["devices_used"] == measured["devices_per_host"]]
        known = set(whole[_WHOLE].itertuples(index=False, name=None))
        for shape in allowed_shapes(pool_of(system, str(device)), str(device), measured):
            axes = shape.axes()
            if tuple(axes[name] for name in _WHOLE) not in known and all(holds(axes) for holds in constraints):
                names.append(name_of(shape, with_device=several))
    return names


def pool_of(system: SystemFile, device: str) -> Pool:
    """Return the usable devices of a model in a system."""
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


def allowed_shapes(pool: Pool, device: str, measured: pd.DataFrame) -> Iterator[Configuration]:
    """Yield all shapes of a device model that the numbers of a pool allow.

    Args:
        pool: devices of the model.
        device: the device model.
        measured_cells: cells of this device model; peer-to-peer and uneven hybrids are listed only if one was measured.
    """
    mixed = measured["attach"].str.startswith("hybrid")
    hybrids = sorted({int(n) for n in measured.loc[mixed, "local_devices_per_host"]})
    p2p = bool(measured["attach"].str.endswith("-p2p").any())
    for hosts in _counts(len(pool.own), measured["hosts"]):
        for count in _counts(max(pool.own, default=0) + pool.pooled, measured["devices_per_host"]):
            for attach, local in _attachments(count, hybrids, p2p):
                if pool.allows(hosts, local, count - local):
                    yield Configuration("", hosts, count, local, count, device, attach, "local")


def _attachments(devices: int, hybrids: Sequence[int], p2p: bool) -> Iterator[tuple[Attach, int]]:
    """Yield each way to attach a number of devices to a host, with the number of local devices."""
    yield "local", devices
    yield "fabric", 0
    if p2p and devices > 1:
        yield "fabric-p2p", 0
    for local in sorted({devices // 2, *hybrids}):
        if 0 < local < devices:
            yield "hybrid", local
            if p2p and devices - local > 1:
                yield "hybrid-p2p", local


def _counts(maximum: int, measured: pd.Series[int]) -> list[int]:
    """Return all numbers up to a maximum; if it is large, only powers of two, measured numbers and the maximum."""
    if maximum <= _DENSE:
        return list(range(1, maximum + 1))
    powers = {2**power for power in range(maximum.bit_length()) if 2**power <= maximum}
    return sorted({*powers, *(int(n) for n in measured if n <= maximum), maximum})
