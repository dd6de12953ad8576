"""The adapter as `ControlPlane`: what a service shows, and how a change is spread over its hosts (`Composing` for each of them)."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.fabrics.adapters.redfish import ownership
from campaign.fabrics.adapters.redfish.compose import Composing, Reserving
from campaign.fabrics.adapters.redfish.ownership import ServiceView
from campaign.fabrics.adapters.redfish.resources import ServiceReader
from campaign.fabrics.adapters.redfish.service import RedfishOptions, Service
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.http.client import Client
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile


class RedfishPlane(ControlPlane):
    """What was read last is kept: a change is planned on the view that came just before it."""

    def __init__(
        self, options: RedfishOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        self.client = Client(options)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._state = state
        self._pooled = sum(spec.count for spec in pool)
        self._service = Service(self.client, options.auth, poll_s=options.poll_s)
        self._reader = ServiceReader(self._service)
        self._seen: ServiceView | None = None

    def capabilities(self) -> Capabilities:
        zones = self._seen.reading.zones if self._seen is not None else ()
        limits = [limit for zone in zones if (limit := dict(zone.limits).get("MaxProcessor")) is not None]
        return Capabilities(
            attach_mode=self._options.attach_mode,
            max_devices_per_host=max(limits) if limits and len(limits) == len(zones) else self._pooled,
            gives_host_id=True,
            note="run against emulators and foreign Redfish clients and servers; not against a vendor's service",
            read_only="" if self._seen is None or self._seen.reading.composes else ownership.READ_ONLY,
        )

    def view(self) -> View:
        return self._read().view

    def _read(self) -> ServiceView:
        # Claims first: a system that is composed while the service is read is then no more than one that is not shown yet.
        claimed = self._state.read()
        self._seen = ownership.service_view(self._reader.read(), self._hosts, self._options, claimed)
        return self._seen

    def banks(self, view: View) -> Sequence[Bank]:
        return ownership.banks(self._seen or self._read(), view)

    def objection(self, change: Change, view: View) -> str | None:
        return ownership.objection(self._seen or self._read(), change)

    def attach(self, change: Change, remember: Remember) -> None:
        seen = self._seen or self._read()
        if rule := ownership.objection(seen, change):
            raise Incompatible(f"{change.tag.lease_id}: {rule}", rule)
        composing = Composing(self._service, seen, self._options, change)
        # Where the service chooses, marks on what was selected say nothing of what it will take.
        reserving = Reserving(self._service, seen, change, self._options.reserve and not composing.constrained)
        reserving.begin(remember)
        done: list[str] = []
        for host, names in change.hosts.items():
            seat = seen.seats.get(host)
            if seat is None:  # no pooled devices, and nothing on the fabric to hold it by
                continue
            begun = False
            try:
                reserving.reserve(names)
                begun = True
                composing.attach(seat, remember)
            except (Busy, Conflict, Incompatible, NoMatch) as error:
                # A reservation that is refused half-way is taken back by itself.
                if begun:
                    reserving.take_back(names)
                if done:
                    raise PartialFailure(f"{host}: {error}; other hosts are done", done, names) from error
                raise
            done.extend(names)

    def detach(self, change: Change) -> tuple[str, ...]:
        seen = self._seen or self._read()
        composing = Composing(self._service, seen, self._options, change)
        stuck: list[str] = []
        for number, host in enumerate(dict.fromkeys((*change.hosts, *seen.hosts_of(change.tag.lease_id)))):
            names = change.hosts.get(host, ())
            try:
                composing.detach(host, seen.seats.get(host), names)
            except OutcomeUnknown:
                raise
            except (Busy, Conflict, Incompatible, PartialFailure) as error:
                if isinstance(error, Busy) and number == 0:
                    raise  # nothing was changed
                stuck.extend(names or (host,))
        free = [name for names in change.hosts.values() for name in names if name not in stuck]
        kept = Reserving(self._service, seen, change, self._options.reserve).clear(free)
        return tuple(dict.fromkeys((*stuck, *kept)))

    def close(self) -> None:
        self._service.close()
