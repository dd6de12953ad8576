"""Reading a chassis whole, with few requests: what is in zones each time, what a device is once, the rest now and then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from campaign.errors import ConfigError, FabricError
from campaign.fabrics.dialects.redfish.answers import Missing, uri
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.dialects.redfish_zones import resources
from campaign.fabrics.dialects.redfish_zones.layout import Layout, host_ports
from campaign.fabrics.dialects.redfish_zones.options import Options
from campaign.fabrics.dialects.redfish_zones.resources import Card, Enclosure, Endpoint, Port, Zone
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.hardware import HostSpec
from campaign.fabrics.http.json_values import Json

_STEADY_S = 10.0
"""Seconds for which modes, and links of ports in unchanged zones, are not read again."""
_ONE_BY_ONE = 3


class Reader:
    """Reads a service into a `Layout`."""

    def __init__(self, service: Service, options: Options, hosts: Sequence[HostSpec]) -> None:
        self._service = service
        self._options = options
        self._hosts = hosts
        self._fabric: Json | None = None
        self._switches: list[tuple[str, str]] | None = None  # Id, path of Ports
        self._cards: dict[tuple[str, str | None], Card] = {}
        self._enclosures: tuple[Enclosure, ...] = ()
        self._modes_until = 0.0
        self._ports: tuple[Port, ...] = ()
        self._ports_with: list[Zone] = []
        self._ports_until = 0.0

    def read(self) -> Layout:
        """Raises ProtocolViolation for a fabric without zones or endpoints, ConfigError for names that it does not have."""
        fabric = self._found()
        zones = [resources.zone(one) for one in self._service.collection(fabric, "Zones")]
        ends = {one.path: one for one in map(resources.endpoint, self._service.collection(fabric, "Endpoints"))}
        counts = Counter(end.id for end in ends.values())
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ProtocolViolation(f"{self._service.client.base}: several endpoints are named {', '.join(twice)}")
        return Layout(
            str(fabric.get("Id")).lower(),
            ends,
            host_ports(zones, ends, self._hosts, self._options),
            self._read_ports(fabric, zones),
            self._details([end for end in ends.values() if not end.host_port]),
            self._chassis(),
            self._options.modes,
        )

    def doubt(self) -> None:
        """Read everything anew next time, such as when the chassis has refused what its modes allow."""
        self._modes_until = self._ports_until = 0.0

    def _found(self) -> Json:
        """The fabric, looked for once."""
        if self._fabric is not None:
            return self._fabric
        where, root, name = self._service.client.base, self._service.root(), self._options.fabric
        if uri(root.get("Fabrics")) is None:
            raise FabricError(f"{where}: the service has no Fabrics; check that `url` is that of the chassis")
        fabrics = {str(one.get("Id")): one for one in self._service.collection(root, "Fabrics")}
        if name is None and len(fabrics) == 1:
            (name,) = fabrics
        if name not in fabrics:
            raise ConfigError(
                f"{where}: {'no fabric ' + name if name else 'several fabrics'}; there are: {', '.join(fabrics) or 'none'} "
                "(name one of them as `fabric`)"
            )
        if any(uri(fabrics[str(name)].get(part)) is None for part in ("Zones", "Endpoints")):
            raise ProtocolViolation(f"{where}: fabric {name} has no Zones or no Endpoints")
        self._fabric = fabrics[str(name)]
        return self._fabric

    def _read_ports(self, fabric: Json, zones: list[Zone]) -> tuple[Port, ...]:
        """Links may train anew when a device gets a host, so a zone that has more than before makes this worth its requests."""
        before = {zone.path: set(zone.endpoints) for zone in self._ports_with}
        grown = not before or any(set(zone.endpoints) - before.get(zone.path, set()) for zone in zones)
        self._ports_with = zones
        if not grown and time.monotonic() < self._ports_until:
            return self._ports
        if self._switches is None:
            switches = self._service.collection(fabric, "Switches")
            paths = ((str(one.get("Id")), uri(one.get("Ports"))) for one in switches)
            self._switches = [(name, path) for name, path in paths if path is not None]
        self._ports = tuple(
            resources.port(one, switch) for switch, path in self._switches for one in self._service.members(path)
        )
        self._ports_until = time.monotonic() + _STEADY_S
        return self._ports

    def _details(self, ends: Sequence[Endpoint]) -> dict[str, Card]:
        """What devices' own resources tell, by the endpoint's path; read once a device, by collection where many are new."""
        new = [end for end in ends if end.details and (end.details, end.identity) not in self._cards]
        groups: dict[str, list[Endpoint]] = {}
        for end in new:
            groups.setdefault(str(end.details).rpartition("/")[0], []).append(end)
        for parent, group in groups.items():
            told = self._collected(parent) if len(group) > _ONE_BY_ONE else {}
            for end in group:
                path = str(end.details)
                card = told.get(path) or resources.card(self._service.find(path) or {})
                self._cards[path, end.identity] = card
        return {end.path: self._cards[end.details, end.identity] for end in ends if end.details}

    def _collected(self, path: str) -> dict[str, Card]:
        try:
            return {str(uri(one)): resources.card(one) for one in self._service.members(path)}
        except (Missing, ProtocolViolation):
            return {}  # what is above a resource need not be a collection

    def _chassis(self) -> tuple[Enclosure, ...]:
        if time.monotonic() >= self._modes_until:
            self._enclosures = tuple(
                map(resources.enclosure, self._service.collection(self._service.root(), "Chassis"))
            )
            self._modes_until = time.monotonic() + _STEADY_S
        return self._enclosures
