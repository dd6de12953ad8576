"""Devices as a system file declares them: those that are built into hosts, and those of the pool. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from campaign.fabrics.hardware import Device, HostSpec, PoolSpec

POOL = "pool"
"""Drawer of devices whose entry names none."""


def own_devices(host: HostSpec) -> tuple[Device, ...]:
    """A host's own devices, ids like `host1/gpu0`, numbered per kind."""
    found: list[Device] = []
    numbers: Counter[str] = Counter()
    for spec in host.devices:
        for _ in range(spec.count):
            name = f"{host.name}/{spec.kind}{numbers[spec.kind]}"
            numbers[spec.kind] += 1
            found.append(Device(name, spec.kind, spec.model, None, host.name, local=True, attached_to=host.name))
    return tuple(found)


def pool_devices(pool: Iterable[PoolSpec]) -> tuple[Device, ...]:
    """Devices of the pool; id and location are `<drawer>/slot<n>`."""
    found: list[Device] = []
    slots: Counter[str] = Counter()
    for spec in pool:
        drawer = spec.drawer or POOL
        for _ in range(spec.count):
            slots[drawer] += 1
            location = f"{drawer}/slot{slots[drawer]}"
            found.append(Device(location, spec.kind, spec.model, None, location, local=False))
    return tuple(found)
