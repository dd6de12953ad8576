"""Quotas and allowed hosts of an owner on a shared system.

Requests outside these limits are refused before any request is sent to the fabric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from campaign.fabrics.errors import Conflict, Incompatible
from campaign.fabrics.protocol import Fabric, LeaseRequest, Selection
from campaign.spec.hardware import Inventory


def limit_request(request: LeaseRequest, quota: Mapping[str, int], allowed_hosts: tuple[str, ...]) -> LeaseRequest:
    """Restrict a request to the allowed hosts. Pure function.

    Raises Incompatible if the request names other hosts, or if it needs more devices than the quota allows.

    Args:
        request: request of a lease.
        quota: maximum number of devices held at one time, by model.
        allowed_hosts: names of the hosts that may be used; empty for all.
    """
    configuration = request.configuration
    quota_limit = quota.get(configuration.device)
    if quota_limit is not None and configuration.fabric_devices > quota_limit:
        raise Incompatible(
            f"{request.lease_id}: the configuration needs {configuration.fabric_devices} pooled {configuration.device!r}, but "
            f"{request.owner} may hold at most {quota_limit} (system file: tenancy.quota)",
            "tenancy.quota",
        )
    if not allowed_hosts:
        return request
    if forbidden_hosts := [name for name in request.allowed_hosts if name not in allowed_hosts]:
        raise Incompatible(
            f"{request.lease_id}: hosts {', '.join(forbidden_hosts)} are not allowed; use {', '.join(allowed_hosts)} "
            "(system file: tenancy.allowed_hosts)",
            "tenancy.allowed_hosts",
        )
    return replace(request, allowed_hosts=request.allowed_hosts or allowed_hosts)


class QuotaFabric:
    """Fabric that enforces a quota for each owner.

    Devices in other leases of the same owner count towards the quota.
    """

    def __init__(self, fabric: Fabric, quota: Mapping[str, int]) -> None:
        self.fabric = fabric
        self._quota = quota

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fabric, name)

    def select_devices(self, request: LeaseRequest, inventory: Inventory) -> Selection:
        """Choose devices for a request within the quota of its owner.

        Raises Conflict, naming the owner's other leases, if they hold too many devices, so that the caller can wait for them.
        """
        selection = self.fabric.select_devices(request, inventory)
        selected_ids = {name for host in selection.hosts for name in (*host.fabric, *host.storage)}
        pooled_devices = [device for device in inventory.devices if not device.local]
        requested_counts = Counter(device.model for device in pooled_devices if device.fabric_id in selected_ids)
        tags = self.fabric.list_lease_tags() if any(model in self._quota for model in requested_counts) else {}
        other_leases = {
            lease for lease, tag in tags.items() if tag.owner == request.owner and lease != request.lease_id
        }
        held_counts = Counter(device.model for device in pooled_devices if device.holder in other_leases)
        for model, quota_limit in self._quota.items():
            if requested_counts[model] and requested_counts[model] + held_counts[model] > quota_limit:
                holders = sorted(
                    {str(d.holder) for d in pooled_devices if d.holder in other_leases and d.model == model}
                )
                holders_text = f" ({', '.join(holders)})" if holders else ""
                raise Conflict(
                    f"{request.lease_id}: the lease needs {requested_counts[model]} {model!r}, and {request.owner} may hold at "
                    f"most {quota_limit}; other leases hold {held_counts[model]}{holders_text} (system file: tenancy.quota)",
                    holders,
                )
        return selection
