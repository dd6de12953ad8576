"""Quotas and allowed hosts of an owner on a shared system.

Requests outside these limits are refused before any request is sent to the fabric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from campaign.fabrics.errors import Conflict, Incompatible
from campaign.fabrics.protocol import Fabric, Request, Selection
from campaign.spec.hardware import Inventory


def admitted(request: Request, quota: Mapping[str, int], allowed_hosts: tuple[str, ...]) -> Request:
    """Restrict a request to the allowed hosts. Pure function.

    Raises Incompatible if the request names other hosts, or if it needs more devices than the quota.

    Args:
        request: request of a lease.
        quota: maximum number of devices held at one time, by model.
        allowed_hosts: names of the hosts that may be used; empty for all.
    """
    wanted = request.configuration
    most = quota.get(wanted.device)
    if most is not None and wanted.fabric_devices > most:
        raise Incompatible(
            f"{request.lease_id}: {wanted.fabric_devices} pooled {wanted.device!r} are more than the {most} that "
            f"{request.owner} may hold (system file: tenancy.quota)",
            "tenancy.quota",
        )
    if not allowed_hosts:
        return request
    if outside := [name for name in request.allowed_hosts if name not in allowed_hosts]:
        raise Incompatible(
            f"{request.lease_id}: {', '.join(outside)} are not allowed; allowed are {', '.join(allowed_hosts)} "
            "(system file: tenancy.allowed_hosts)",
            "tenancy.allowed_hosts",
        )
    return replace(request, allowed_hosts=request.allowed_hosts or allowed_hosts)


class Tenant:
    """Fabric with a quota for each owner.

    Devices in other leases of the same owner count towards the quota.
    """

    def __init__(self, fabric: Fabric, quota: Mapping[str, int]) -> None:
        self.fabric = fabric
        self._quota = quota

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fabric, name)

    def select(self, request: Request, inventory: Inventory) -> Selection:
        """Choose devices for a request within the quota of its owner.

        Raises Conflict with the owner's other leases if they hold too many devices, so that the caller can wait for them.
        """
        selection = self.fabric.select(request, inventory)
        moving = {name for host in selection.hosts for name in (*host.fabric, *host.storage)}
        pooled = [device for device in inventory.devices if not device.local]
        asked = Counter(device.model for device in pooled if device.fabric_id in moving)
        tags = self.fabric.held() if any(model in self._quota for model in asked) else {}
        mine = {lease for lease, tag in tags.items() if tag.owner == request.owner and lease != request.lease_id}
        held = Counter(device.model for device in pooled if device.holder in mine)
        for model, most in self._quota.items():
            if asked[model] and asked[model] + held[model] > most:
                holders = sorted({str(d.holder) for d in pooled if d.holder in mine and d.model == model})
                raise Conflict(
                    f"{request.lease_id}: {asked[model]} {model!r} beside the {held[model]} that {', '.join(holders) or 'nobody'} "
                    f"has are more than the {most} that {request.owner} may hold (system file: tenancy.quota)",
                    holders,
                )
        return selection
