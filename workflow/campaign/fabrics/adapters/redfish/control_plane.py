"""Control plane of a Redfish service, which reads a view of its devices and distributes each change over its hosts."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.fabrics.adapters.redfish import ownership
from campaign.fabrics.adapters.redfish.compose import SystemComposer
from campaign.fabrics.adapters.redfish.ownership import ServiceView
from campaign.fabrics.adapters.redfish.resources import ServiceReader
from campaign.fabrics.adapters.redfish.service import RedfishOptions, RedfishService
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import ControlPlane, FabricView, LeaseChange, RememberHandle
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, PartialFailure
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile
from campaign.spec.site_hardware import HostSpec, PoolSpec


class RedfishControlPlane(ControlPlane):
    """Control plane of a Redfish service.

    The last reading is kept, because a change is planned on the view right before it.
    """

    def __init__(
        self, options: RedfishOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        """Create the client of the service without sending a request."""
        self.client = HttpClient(options)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._state = state
        self._pool_size = sum(spec.count for spec in pool)
        self._service = RedfishService(self.client, options.auth, poll_s=options.poll_s)
        self._reader = ServiceReader(self._service)
        self._last_view: ServiceView | None = None

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities of the service, with the limits of its zones if they have been read."""
        zones = self._last_view.reading.zones if self._last_view is not None else ()
        limits = [limit for zone in zones if (limit := dict(zone.limits).get("MaxProcessor")) is not None]
        return Capabilities(
            attach_mode=self._options.attach_mode,
            max_devices_per_host=max(limits) if limits and len(limits) == len(zones) else self._pool_size,
            gives_host_id=True,
            note="the adapter was run against emulators and third-party clients and servers, but not against a vendor's service",
            read_only="" if self._last_view is None else self._last_view.reading.read_only,
        )

    def read_view(self) -> FabricView:
        """Read the Redfish service and return the view of its devices."""
        return self._read_view().view

    def _read_view(self) -> ServiceView:
        """Read the Redfish service and the claims of leases, and return both combined."""
        # Claims are read first, so that a system that is composed during the reading only counts as not shown yet.
        state = self._state.read()
        self._last_view = ownership.build_service_view(self._reader.read_service(), self._hosts, self._options, state)
        return self._last_view

    def list_banks(self, view: FabricView) -> Sequence[Bank]:
        """Return one bank of slots per group of zones, with the hosts that share a zone with its devices."""
        return ownership.build_banks(self._last_view or self._read_view(), view)

    def find_rule_violation(self, change: LeaseChange, view: FabricView) -> str | None:
        """Return the rule of the Redfish service that a change breaks, or None if the change is allowed."""
        return ownership.find_rule_violation(self._last_view or self._read_view(), change)

    def attach(self, change: LeaseChange, remember: RememberHandle) -> None:
        """Compose one Redfish system per host of a lease.

        Raises Incompatible if a rule forbids the change, and PartialFailure if a host fails after another one was done.
        """
        service_view = self._last_view or self._read_view()
        if rule := ownership.find_rule_violation(service_view, change):
            raise Incompatible(f"{change.tag.lease_id}: {rule}", rule)
        composer = SystemComposer(self._service, service_view, self._options, change)
        attached_ids: list[str] = []
        for host, names in change.hosts.items():
            host_block = service_view.hosts.get(host)
            if host_block is None:  # The host has no pooled devices, and no block that could be held.
                continue
            try:
                composer.compose_system(host, host_block, remember)
            except (Busy, Conflict, Incompatible, NoMatch) as error:
                if attached_ids:
                    raise PartialFailure(
                        f"{host}: {error}; earlier hosts of the lease are composed", attached_ids, names
                    ) from error
                raise
            attached_ids.extend(names)

    def detach(self, change: LeaseChange) -> tuple[str, ...]:
        """Delete the Redfish systems of a lease, and return the fabric ids of devices that the service did not release.

        Raises Busy if the service is busy at the first host, when nothing was changed yet.
        """
        service_view = self._last_view or self._read_view()
        composer = SystemComposer(self._service, service_view, self._options, change)
        stuck_ids: list[str] = []
        for number, host in enumerate(
            dict.fromkeys((*change.hosts, *service_view.list_lease_hosts(change.tag.lease_id)))
        ):
            try:
                composer.delete_system(host)
            except (Busy, Conflict, Incompatible) as error:
                if isinstance(error, Busy) and number == 0:
                    raise  # Nothing was changed.
                stuck_ids.extend(change.hosts.get(host) or (host,))
        return tuple(dict.fromkeys(stuck_ids))

    def close(self) -> None:
        """End the session of the service."""
        self._service.close()
