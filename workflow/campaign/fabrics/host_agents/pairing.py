"""Which device of a host is which device of the fabric. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from campaign.fabrics.hardware import Device
from campaign.fabrics.host_agents.protocol import HostDevice


def pair(devices: Iterable[Device], seen: Sequence[HostDevice]) -> dict[str, HostDevice]:
    """Fabric id -> the host's device: by identity; where the fabric gives none, in order among those of the kind that are left.

    A GPU without a driver shows no identity. Such ones stand for those that are missed, unless they are more, so that a detachment
    that was cut off can be finished; that they are not `ready` says that nobody sees what was asked for.
    """
    left = dict(enumerate(seen))
    found: dict[str, HostDevice] = {}
    unnamed: list[Device] = []
    missed: dict[str, list[Device]] = {}
    for device in devices:
        if not device.host_id:
            unnamed.append(device)
            continue
        wanted = normal(device.host_id)
        number = next((n for n, one in left.items() if wanted in (normal(one.identity), normal(one.address))), None)
        if number is not None:
            found[device.fabric_id] = left.pop(number)
        else:
            missed.setdefault(device.kind, []).append(device)
    for kind, those in missed.items():
        nameless = [n for n, one in left.items() if one.kind == kind and not one.identity and not one.ready]
        if len(nameless) <= len(those):
            found.update({device.fabric_id: left.pop(n) for device, n in zip(those, nameless, strict=False)})
    for device in unnamed:
        number = next((n for n, one in left.items() if one.kind == device.kind), None)
        if number is not None:
            found[device.fabric_id] = left.pop(number)
    return found


def normal(identity: str) -> str:
    """An identity without what only some tools write: `GPU-`, upper case, separators of a MAC, an eight-digit PCI domain."""
    text = identity.strip().lower().removeprefix("gpu-").removeprefix("uuid:")
    if text.count(":") == 2 and "." in text:  # PCI: domain:bus:device.function
        domain, rest = text.split(":", 1)
        return f"{domain[-4:]}:{rest}"
    return text.replace(":", "").replace("-", "")
