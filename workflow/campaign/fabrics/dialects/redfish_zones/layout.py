"""The chassis as a whole: which zone is whose host's, which device is where and with whom, and which rules hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from campaign.errors import ConfigError
from campaign.fabrics.banks import HOSTS_IN_ADVANCED, SLOTS, SLOTS_PER_CONNECTION, UNLIMITED, Bank, Mode
from campaign.fabrics.control_plane.lease_tag import by_lease, decode
from campaign.fabrics.control_plane.protocol import View
from campaign.fabrics.dialects.redfish_zones.options import Options
from campaign.fabrics.dialects.redfish_zones.resources import Card, Enclosure, Endpoint, Port, Zone
from campaign.fabrics.hardware import Device, HostSpec
from campaign.fabrics.state_file import Slot


@dataclass(frozen=True, slots=True)
class HostPort:
    """One zone with its host port. host: the system file's name of who is cabled to it, None: nobody that it knows."""

    label: str
    endpoint: str
    host: str | None
    zone: Zone

    @property
    def words(self) -> str:
        return f"host port {self.label}"

    @property
    def holder(self) -> str:
        """What a device in its zone is attached to."""
        return self.host or self.words

    @property
    def devices(self) -> tuple[str, ...]:
        """Paths of its zone's endpoints, the host port's own left out."""
        return tuple(path for path in self.zone.endpoints if path != self.endpoint)


@dataclass(frozen=True)
class Layout:
    """Everything that was read at one moment."""

    fabric: str
    endpoints: Mapping[str, Endpoint]
    ports: tuple[HostPort, ...]
    switch_ports: tuple[Port, ...] = ()
    cards: Mapping[str, Card] = field(default_factory=dict)
    enclosures: tuple[Enclosure, ...] = ()
    options_modes: Mapping[str, Mode] = field(default_factory=dict)

    @cached_property
    def pooled(self) -> tuple[Endpoint, ...]:
        """The devices, in natural order of their ids."""
        found = (endpoint for endpoint in self.endpoints.values() if not endpoint.host_port)
        return tuple(sorted(found, key=lambda one: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", one.id)]))

    @cached_property
    def port_of(self) -> Mapping[str, Port]:
        """A device's port of a switch, by the endpoint's path; either end may tell it."""
        paths = {port.path: port for port in self.switch_ports}
        told = {end: port for port in self.switch_ports if not port.upstream for end in port.endpoints}
        for one in self.pooled:
            for path in one.ports:
                if path in paths and not paths[path].upstream:
                    told.setdefault(one.path, paths[path])
        return {one.path: told[one.path] for one in self.pooled if one.path in told}

    @cached_property
    def path_of(self) -> Mapping[str, str]:
        """Paths of endpoints by their ids."""
        return {endpoint.id: endpoint.path for endpoint in self.endpoints.values()}

    def paths(self, fabric_ids: Iterable[str]) -> list[str]:
        """Paths of those that are there."""
        return [self.path_of[name] for name in fabric_ids if name in self.path_of]

    @cached_property
    def places(self) -> Mapping[str, tuple[str | None, int]]:
        """(drawer, slot) of every device by path; no drawer: the fabric has none."""
        found: dict[str, tuple[str | None, int]] = {}
        for number, one in enumerate(self.pooled, 1):
            told = self.cards.get(one.path, Card()).place
            place = told if told.slot is not None else one.place
            port = self.port_of.get(one.path)
            drawer, slot = place.drawer, place.slot
            if drawer is None and port is not None and port.switch in self.modes:
                drawer = port.switch
                slot = slot or int((re.findall(r"\d+", port.id) or ["0"])[-1]) or None
            found[one.path] = (drawer, slot or number)
        if len(set(found.values())) < len(found):  # slots that are not unique say nothing
            return {one.path: (None, number) for number, one in enumerate(self.pooled, 1)}
        return found

    @cached_property
    def modes(self) -> Mapping[str, Mode]:
        """Modes by drawer that the chassis tells (of itself, or of what it is in), else the options."""
        paths = {one.path: one for one in self.enclosures}
        told = {
            one.id: mode
            for one in self.enclosures
            if (mode := one.mode or (paths[one.within].mode if one.within in paths else None)) is not None
        }
        return {**{name.rpartition("/")[2]: mode for name, mode in self.options_modes.items()}, **told}

    @cached_property
    def drawers(self) -> tuple[str, ...]:
        return tuple(sorted({drawer for drawer, _ in self.places.values() if drawer is not None}))

    def full_name(self, drawer: str) -> str:
        """`falcon/drawer1`, where the chassis says what the drawer is in."""
        within = next((one.within for one in self.enclosures if one.id == drawer), None)
        outer = (one.id for one in self.enclosures if within is not None and one.path == within)
        return f"{next(outer, self.fabric)}/{drawer}"

    def location(self, path: str) -> str:
        drawer, slot = self.places[path]
        return f"{self.full_name(drawer) if drawer else self.fabric}/slot{slot}"

    def reaching(self, drawer: str) -> list[HostPort]:
        """Ports that reach a drawer, in the order of its connections: as its switch tells, else two ports a drawer (one a host)."""
        switches = {port.switch for path, port in self.port_of.items() if self.places.get(path, (None, 0))[0] == drawer}
        ends = [
            end for port in self.switch_ports if port.upstream and port.switch in switches for end in port.endpoints
        ]
        told = [port for port in self.ports if port.endpoint in ends]
        tells = any(port.upstream and port.endpoints for port in self.switch_ports)
        mode = self.modes.get(drawer, "advanced")
        if mode == "advanced":
            return told if tells else list(self.ports)
        index = self.drawers.index(drawer)
        ports = told if tells else list(self.ports[2 * index : 2 * index + 2] or self.ports)
        return ports[: 1 if mode == "standard_one_host" else 2]

    def connections(self, location_of: str) -> list[HostPort]:
        """Ports whose zone a device (by path) can be in."""
        drawer, slot = self.places[location_of]
        if drawer is None:
            return list(self.ports)
        ports = self.reaching(drawer)
        if self.modes.get(drawer) == "standard_two_hosts":
            connection = (slot - 1) // SLOTS_PER_CONNECTION
            return ports[connection : connection + 1]
        return ports

    @cached_property
    def banks(self) -> tuple[Bank, ...]:
        found: list[Bank] = []
        for drawer in self.drawers:
            name, mode, ports = self.full_name(drawer), self.modes.get(drawer, "advanced"), self.reaching(drawer)
            if mode != "standard_two_hosts":
                most = HOSTS_IN_ADVANCED if mode == "advanced" else 1
                found.append(Bank(name, name, mode, frozenset(range(1, SLOTS + 1)), _hosts(ports), most))
                continue
            for number in range(2):
                first = number * SLOTS_PER_CONNECTION + 1
                slots = frozenset(range(first, first + SLOTS_PER_CONNECTION))
                hosts = _hosts(ports[number : number + 1])
                found.append(Bank(f"{name}/connection{number + 1}", name, mode, slots, hosts, 2))
        if everywhere := frozenset(slot for drawer, slot in self.places.values() if drawer is None):
            found.append(Bank(self.fabric, self.fabric, "advanced", everywhere, _hosts(self.ports), UNLIMITED))
        return tuple(found)


def _hosts(ports: Sequence[HostPort]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(port.holder for port in ports))


def host_ports(
    zones: Sequence[Zone], endpoints: Mapping[str, Endpoint], hosts: Sequence[HostSpec], options: Options
) -> tuple[HostPort, ...]:
    """The zones that are a host port's, in order of their labels, with whose they are.

    Raises ConfigError for a port that the system file names and the chassis does not have, or names for two hosts.
    """
    found: dict[str, tuple[Endpoint, Zone]] = {}
    for one in zones:
        for path in one.endpoints:
            if path in endpoints and endpoints[path].host_port:
                found.setdefault(path, (endpoints[path], one))
    owners: dict[str, str] = {}
    for host in hosts:
        named = options.host_ports(host)
        for name in named or (host.name,):
            here = next((path for path, (end, _) in found.items() if name in end.labels), None)
            if here is None and named:
                there = ", ".join(end.labels[0] for end, _ in found.values()) or "none"
                raise ConfigError(f"{host.name}: no host port {name} on the chassis; there are: {there} (see `ports`)")
            if here is not None and owners.setdefault(here, host.name) != host.name:
                raise ConfigError(
                    f"host port {name} is assigned to {owners[here]} and to {host.name}; a port has one host"
                )
    ports = (HostPort(end.labels[0], path, owners.get(path), one) for path, (end, one) in found.items())
    return tuple(sorted(ports, key=lambda port: (len(port.label), port.label)))


def view(layout: Layout, claims: Mapping[str, Slot]) -> View:
    """What the chassis shows, with whose it is: by the mark of a zone, else by our claims, else somebody's on that port."""
    within: dict[str, list[HostPort]] = {}
    for port in layout.ports:
        for path in port.devices:
            within.setdefault(path, []).append(port)
    zones = {port.zone.path: port for port in layout.ports}
    devices: list[Device] = []
    for end in layout.pooled:
        here = within.get(end.path, [])
        agreed = end.zones is None or set(end.zones) == {port.zone.path for port in here}
        here = here or [zones[path] for path in end.zones or () if path in zones]
        device = _device(layout, end)
        ends = [
            replace(device, attached_to=port.holder, holder=_holder(end.id, port, claims), state="in_use")
            for port in here
        ]
        devices += [one if agreed else replace(one, state="unknown") for one in ends or [device]]
    tags = by_lease((decode(port.zone.description) for port in layout.ports), devices)
    return View(tuple(devices), _holders(layout, devices), tags)


def _device(layout: Layout, end: Endpoint) -> Device:
    told, port = layout.cards.get(end.path, Card()), layout.port_of.get(end.path)
    link = port.link if port is not None and port.link is not None else told.link
    return Device(
        end.id,
        end.kind,
        told.model or end.name,
        end.identity or told.serial,
        layout.location(end.path),
        local=False,
        state="failed" if end.health == "critical" and end.state == "free" else end.state,
        health=end.health,
        link=link,
    )


def _holder(fabric_id: str, port: HostPort, claims: Mapping[str, Slot]) -> str:
    """Whose a device in the zone of a port is. A mark counts for what its lease claimed, or for all when nobody here knows it."""
    tag, claim = decode(port.zone.description), claims.get(fabric_id)
    lease = claim.lease if claim is not None and claim.host == port.holder else None
    if lease is not None and (tag is None or tag.lease_id == lease):
        return lease
    if tag is not None and all(other.lease != tag.lease_id for other in claims.values()):
        return tag.lease_id
    return port.words


def _holders(layout: Layout, devices: Sequence[Device]) -> dict[str, str]:
    """Hosts that are somebody's: of the lease that marked a zone of theirs, else of whoever has devices there."""
    found: dict[str, str] = {}
    hosts = {port.host for port in layout.ports}
    for device in devices:
        if device.attached_to in hosts and device.attached_to is not None and device.holder is not None:
            found.setdefault(device.attached_to, device.holder)
    for port in layout.ports:
        tag = decode(port.zone.description)
        if tag is not None and port.host is not None:
            found[port.host] = tag.lease_id
    return found
