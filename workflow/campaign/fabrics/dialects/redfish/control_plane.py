"""The dialect as `ControlPlane`: what a service shows, and how a change is spread over its hosts (`composing` for each of them)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.redfish import ownership
from campaign.fabrics.dialects.redfish.compose_system import Composing
from campaign.fabrics.dialects.redfish.expand_system import Expanding
from campaign.fabrics.dialects.redfish.host_power import Power
from campaign.fabrics.dialects.redfish.options import Options
from campaign.fabrics.dialects.redfish.ownership import Seat, ServiceView
from campaign.fabrics.dialects.redfish.read_service import Reader
from campaign.fabrics.dialects.redfish.reserved_marks import Reserving
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, PartialFailure
from campaign.fabrics.http.client import Client
from campaign.fabrics.protocol import Capabilities

_REFUSALS = (Busy, Conflict, Incompatible, NoMatch)


class Plane(ControlPlane):
    """See `control.plane.ControlPlane`. What was read last is kept: a change is planned on the view that came just before it."""

    def __init__(self, options: Options, hosts: Sequence[str], pooled: int) -> None:
        """hosts: of the system file; pooled: devices that it says are in the pool."""
        self.client = Client(options)
        self._options = options
        self._hosts = tuple(hosts)
        self._pooled = pooled
        self._service = Service(self.client, options.auth, poll_s=options.poll_s)
        self._reader = Reader(self._service)
        self._seen: ServiceView | None = None

    def capabilities(self) -> Capabilities:
        return Capabilities(
            attach_mode=self._options.attach_mode,
            max_devices_per_host=self._limit(),
            gives_host_id=True,
            note="run against emulators and foreign Redfish clients and servers; not against a vendor's service",
        )

    def _limit(self) -> int:
        zones = self._seen.reading.zones if self._seen is not None else ()
        limits = [dict(zone.limits).get("MaxProcessor") for zone in zones]
        stated = [limit for limit in limits if limit is not None]
        return max(stated) if stated and len(stated) == len(limits) else self._pooled

    def view(self) -> View:
        self._seen = ownership.service_view(self._reader.read(), self._hosts, self._options)
        return self._seen.view

    def _last(self) -> ServiceView:
        if self._seen is None:
            self.view()
        assert self._seen is not None
        return self._seen

    def banks(self, view: View) -> Sequence[Bank]:
        return ownership.banks(self._last(), view)

    def objection(self, change: Change, view: View) -> str | None:
        return ownership.objection(self._last(), change)

    def attach(self, change: Change, remember: Remember) -> None:
        seen = self._last()
        if rule := ownership.objection(seen, change):
            raise Incompatible(f"{change.tag.lease_id}: {rule}", rule)
        # Where the service chooses, marks on what was selected say nothing of what it will take.
        reserving = Reserving(self._service, seen, change, self._options.reserve and not self._constrained(seen))
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
                self._attach_host(seen, seat, change, remember)
            except _REFUSALS as error:
                # A reservation that is refused half-way is taken back by itself.
                if begun:
                    reserving.take_back(names)
                if done:
                    raise PartialFailure(f"{host}: {error}; other hosts are done", done, names) from error
                raise
            done.extend(names)

    def _attach_host(self, seen: ServiceView, seat: Seat, change: Change, remember: Remember) -> None:
        power = Power(self._service, self._options)
        if seat.system is not None:
            Expanding(self._service, seen, power).attach(seat, seat.system, change.hosts[seat.host])
            return
        Composing(self._service, seen, power, constrained=self._constrained(seen)).attach(seat, change, remember)

    def _constrained(self, seen: ServiceView) -> bool:
        way = self._options.composition
        return way == "constrained" or (way == "auto" and seen.constrained())

    def detach(self, change: Change) -> tuple[str, ...]:
        seen = self._last()
        power = Power(self._service, self._options)
        stuck: list[str] = []
        changed = False
        marked = dict.fromkeys(host for host in seen.hosts_of(change.tag.lease_id) if host not in change.hosts)
        for host, names in {**change.hosts, **dict.fromkeys(marked, ())}.items():
            seat = seen.seats.get(host)
            try:
                if seat is not None and seat.system is not None:
                    Expanding(self._service, seen, power).detach(seat, seat.system, names, self.client.rehearses)
                else:
                    Composing(self._service, seen, power).detach(host, change)
            except OutcomeUnknown:
                raise
            except Busy:
                if not changed:
                    raise
                stuck.extend(names or (host,))
            except (Conflict, Incompatible, PartialFailure):
                stuck.extend(names or (host,))
            changed = True
        free = [name for names in change.hosts.values() for name in names if name not in stuck]
        kept = Reserving(self._service, seen, change, self._options.reserve).clear(free)
        return tuple(dict.fromkeys((*stuck, *kept)))

    def close(self) -> None:
        with suppress(FabricError):
            self._service.close()
