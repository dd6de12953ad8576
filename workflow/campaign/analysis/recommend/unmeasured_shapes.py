"""Names of shapes that the hosts and pool of a system allow and that were not measured. Pure.

Only numbers of hosts and devices are considered. Drawers, cabling and other rules of a fabric are checked when a campaign is
planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from campaign.plan.campaign.expand_shapes import default_name
from campaign.spec.cell import Attach, Configuration
from campaign.spec.expression import Expression
from campaign.spec.system_file import SystemFile

_SHAPE_AXES = ["hosts", "devices_per_host", "local_devices_per_host", "device", "attach"]
_MAX_COUNT_LISTED_FULLY = 16
"""Up to this many hosts, or devices of a host, every number is listed; beyond, powers of two and measured ones."""


@dataclass(frozen=True)
class DeviceModelPool:
    """Devices of one model in a system.

    local_counts: number of local devices of each usable host; pooled_count: number of devices that the fabric can attach to any
    host.
    """

    local_counts: tuple[int, ...]
    pooled_count: int

    def is_possible(self, hosts: int, local: int, fabric: int) -> bool:
        """Return whether the given number of hosts can have the given devices each.

        Args:
            hosts: number of hosts.
            local: number of local devices per host.
            fabric: number of devices per host that the fabric attaches.
        """
        return sum(count >= local for count in self.local_counts) >= hosts and hosts * fabric <= self.pooled_count


def list_unmeasured_shapes(
    system: SystemFile, cells: pd.DataFrame, constraints: Sequence[Expression] = ()
) -> list[str]:
    """List the shapes, of measured device models, that the system allows but that no run used.

    All devices of each host are in use, and the storage is that of the host.

    Args:
        system: the system file.
        cells: the cells table.
        constraints: conditions on the shape.
    """
    tried_cells = cells[(cells["n_ok"] > 0) | (cells["n_failed"] > 0)]
    names, has_several_models = [], tried_cells["device"].nunique() > 1
    for device, measured_cells in tried_cells.groupby("device", sort=False):
        full_hosts = measured_cells[measured_cells["devices_used"] == measured_cells["devices_per_host"]]
        measured_shapes = set(full_hosts[_SHAPE_AXES].itertuples(index=False, name=None))
        for shape in generate_allowed_shapes(build_device_pool(system, str(device)), str(device), measured_cells):
            axes = shape.axes()
            if tuple(axes[name] for name in _SHAPE_AXES) not in measured_shapes and all(
                constraint(axes) for constraint in constraints
            ):
                names.append(default_name(shape, with_device=has_several_models))
    return names


def build_device_pool(system: SystemFile, device: str) -> DeviceModelPool:
    """Count the usable devices of a model in a system, local and pooled."""
    usable_hosts = set(system.list_usable_hosts())
    local_counts = [
        sum(entry.count for entry in group.devices if entry.kind == "gpu" and entry.model == device)
        for group in system.hosts
        for name in group.list_names()
        if name in usable_hosts
    ]
    pool = () if system.fabric.get("kind") == "static" else system.pool
    pooled_count = sum(entry.count for entry in pool if entry.kind == "gpu" and entry.model == device)
    return DeviceModelPool(tuple(local_counts), min(pooled_count, system.tenancy.quota.get(device, pooled_count)))


def generate_allowed_shapes(
    pool: DeviceModelPool, device: str, measured_cells: pd.DataFrame
) -> Iterator[Configuration]:
    """Yield all shapes of a device model that the device counts of a pool allow.

    Args:
        pool: devices of the model.
        device: the device model.
        measured_cells: cells of this device model; peer-to-peer and uneven hybrids are listed only if one was measured.
    """
    is_hybrid = measured_cells["attach"].str.startswith("hybrid")
    hybrids = sorted({int(n) for n in measured_cells.loc[is_hybrid, "local_devices_per_host"]})
    p2p = bool(measured_cells["attach"].str.endswith("-p2p").any())
    for hosts in _list_counts(len(pool.local_counts), measured_cells["hosts"]):
        for count in _list_counts(
            max(pool.local_counts, default=0) + pool.pooled_count, measured_cells["devices_per_host"]
        ):
            for attach, local in _generate_attachments(count, hybrids, p2p):
                if pool.is_possible(hosts, local, count - local):
                    yield Configuration("", hosts, count, local, count, device, attach, "local")


def _generate_attachments(devices: int, hybrids: Sequence[int], p2p: bool) -> Iterator[tuple[Attach, int]]:
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


def _list_counts(maximum: int, measured_counts: pd.Series[int]) -> list[int]:
    """List all counts up to a maximum; if it is large, only powers of two, measured counts and the maximum."""
    if maximum <= _MAX_COUNT_LISTED_FULLY:
        return list(range(1, maximum + 1))
    powers = {2**power for power in range(maximum.bit_length()) if 2**power <= maximum}
    return sorted({*powers, *(int(n) for n in measured_counts if n <= maximum), maximum})
