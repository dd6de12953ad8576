"""Control plane of a Redfish service, which reads a view of its devices and distributes each change over its hosts."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.fabrics.adapters.redfish import ownership
from campaign.fabrics.adapters.redfish.compose import Composing
from campaign.fabrics.adapters.redfish.ownership import ServiceView
from campaign.fabrics.adapters.redfish.resources import ServiceReader
from campaign.fabrics.adapters.redfish.service import RedfishOptions, Service
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, PartialFailure
from campaign.fabrics.http.client import Client
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile
from campaign.spec.site_hardware import HostSpec, PoolSpec


class RedfishPlane(ControlPlane):
    """Control plane of a Redfish service.

    The last reading is kept, because a change is planned on the view right before it.
    """

    def __init__(
        self, options: RedfishOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        """Create the client of the service without sending a request."""
        self.client = Client(options)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._state = state
        self._pooled = sum(spec.count for spec in pool)
        self._service = Service(self.client, options.auth, poll_s=options.poll_s)
        self._reader = ServiceReader(self._service)
        self._seen: ServiceView | None = None

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the service, with limits from its zones as far as they were read."""
        zones = self._seen.reading.zones if self._seen is not None else ()
        limits = [limit for zone in zones if (limit := dict(zone.limits).get("MaxProcessor")) is not None]
        return Capabilities(
            attach_mode=self._options.attach_mode,
            max_devices_per_host=max(limits) if limits and len(limits) == len(zones) else self._pooled,
            gives_host_id=True,
            note="run against emulators and foreign Redfish clients and servers; not against a vendor's service",
            read_only="" if self._seen is None else self._seen.reading.read_only,
        )

    def view(self) -> View:
        """Read the Redfish service and return the view of its devices."""
        return self._read().view

    def _read(self) -> ServiceView:
        # Read claims first: a system that is composed during the reading then merely counts as not shown yet.
        """Read the Redfish service and the claims of leases, and return both combined."""
        claimed = self._state.read()
        self._seen = ownership.service_view(self._reader.read(), self._hosts, self._options, claimed)
        return self._seen

    def banks(self, view: View) -> Sequence[Bank]:
        """Return one bank of slots per group of zones, with the hosts that share a zone with its devices."""
        return ownership.banks(self._seen or self._read(), view)

    def objection(self, change: Change, view: View) -> str | None:
        """Return the rule of the Redfish service that a change breaks, or None if the change is allowed."""
        return ownership.objection(self._seen or self._read(), change)

    def attach(self, change: Change, remember: Remember) -> None:
        """Compose one Redfish system per host of a lease.

        Raises Incompatible if a rule forbids the change, and PartialFailure if a host fails after another one was done.
        """
        seen = self._seen or self._read()
        if rule := ownership.objection(seen, change):
            raise Incompatible(f"{change.tag.lease_id}: {rule}", rule)
        composing = Composing(self._service, seen, self._options, change)
        done: list[str] = []
        for host, names in change.hosts.items():
            own = seen.hosts.get(host)
            if own is None:  # the host has no pooled devices and no block that could be held
                continue
            try:
                composing.attach(host, own, remember)
            except (Busy, Conflict, Incompatible, NoMatch) as error:
                if done:
                    raise PartialFailure(f"{host}: {error}; other hosts are done", done, names) from error
                raise
            done.extend(names)

    def detach(self, change: Change) -> tuple[str, ...]:
        """Delete the Redfish systems of a lease, and return the fabric ids of devices that the service did not release.

        Raises Busy if the service is busy at the first host, when nothing was changed yet.
        """
        seen = self._seen or self._read()
        composing = Composing(self._service, seen, self._options, change)
        stuck: list[str] = []
        for number, host in enumerate(dict.fromkeys((*change.hosts, *seen.hosts_of(change.tag.lease_id)))):
            try:
                composing.detach(host)
            except (Busy, Conflict, Incompatible) as error:
                if isinstance(error, Busy) and number == 0:
                    raise  # nothing was changed
                stuck.extend(change.hosts.get(host) or (host,))
        return tuple(dict.fromkeys(stuck))

    def close(self) -> None:
        """End the session of the service."""
        self._service.close()
