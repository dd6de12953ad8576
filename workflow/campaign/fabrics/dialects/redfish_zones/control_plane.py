"""The dialect: a lease's devices are put into the zones of its hosts' ports, marked there, and taken out again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from campaign.errors import FabricError
from campaign.fabrics.banks import CABLING_RULE, SLOTS, Bank, banks_by_mode, require_drawers, violation
from campaign.fabrics.control_plane.lease_tag import decode, encode
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.redfish.answers import Stale
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.dialects.redfish_zones import layout as layouts
from campaign.fabrics.dialects.redfish_zones.allocation import export, restore
from campaign.fabrics.dialects.redfish_zones.layout import HostPort, Layout
from campaign.fabrics.dialects.redfish_zones.options import Options
from campaign.fabrics.dialects.redfish_zones.read_chassis import Reader
from campaign.fabrics.dialects.redfish_zones.telemetry import events, readings
from campaign.fabrics.dialects.redfish_zones.zones import Zones, foreign
from campaign.fabrics.errors import Busy, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import Device, HostSpec, PoolSpec
from campaign.fabrics.http.client import Client
from campaign.fabrics.placement.devices import pool_devices
from campaign.fabrics.protocol import Capabilities, Event, Reading, Tag
from campaign.fabrics.state_file import StateFile

UNVERIFIED = "written from public pages and Redfish's specifications; never run against a real Falcon or FabreX"
UNMARKED = "zones are not marked: only the state file of this system says whose they are"


class Plane(ControlPlane):
    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        drawers = [spec.drawer for spec in pool if spec.drawer is not None]
        if drawers:
            require_drawers("modes", options.modes, drawers)
        self._ports = {host.name: options.host_ports(host) for host in hosts}
        self.client = Client(options)
        self.observed = self.portable = self
        self.telemetry = options.telemetry
        self.service = Service(self.client, options.auth, poll_s=options.poll_s)
        self.zones = Zones(self.service, options.endpoints, marks=options.tag == "description")
        self._options = options
        self._state = state
        self._reader = Reader(self.service, options, hosts)
        self._layout: Layout | None = None

    def capabilities(self) -> Capabilities:
        known = self._layout
        most = 2 * SLOTS if known is None else max((sum(len(b.slots) for b in known.banks), 1))
        return Capabilities(
            max_devices_per_host=most,
            gives_host_id=True,
            note=UNVERIFIED if self.zones.marks else f"{UNVERIFIED}; {UNMARKED}",
        )

    def look(self) -> Layout:
        self._layout = self._reader.read()
        return self._layout

    def view(self) -> View:
        # Claims first: one that is written while the chassis is read is then no more than a device that is not yet attached.
        claims = self._state.read().devices
        return layouts.view(self.look(), claims)

    def banks(self, view: View) -> Sequence[Bank]:
        return (self._layout or self.look()).banks

    def planned(self, pool: Sequence[PoolSpec], hosts: Sequence[str]) -> tuple[Sequence[Device], Sequence[Bank]]:
        """By the modes of the options. Which ports reach a drawer is the chassis' to tell, so that any host may have any drawer."""
        devices = pool_devices(pool)
        locations = (device.location for device in devices)
        return devices, banks_by_mode(locations, tuple(hosts), self._options.modes, self._connection)

    def _connection(self, host: str) -> int | None:
        """Of a host with one port: H1 and H3 are the first connections of their drawers, H2 and H4 the second ones."""
        numbers = [re.search(r"\d+$", port) for port in self._ports[host]]
        return (int(numbers[0][0]) - 1) % 2 if len(numbers) == 1 and numbers[0] is not None else None

    def objection(self, change: Change, view: View) -> str | None:
        known = self._layout or self.look()
        attached = {d.location: d.attached_to for d in view.devices if d.attached_to is not None}
        for host, names in change.hosts.items():
            for name in names:
                device, path = view.device(name), known.path_of.get(name)
                if device is None or path is None:
                    continue
                if not any(port.host == host for port in known.connections(path)):
                    return f"{device.location} cannot be attached to {host} ({CABLING_RULE})"
                attached[device.location] = host
        return violation(known.banks, attached)

    def attach(self, change: Change, remember: Remember) -> None:
        known = self._layout or self.look()
        tag, done = change.tag, list[str]()
        wanted = self._looked_at(known, change)
        for port, names in wanted:
            try:
                try:
                    self._put(port, known.paths(names), tag, remember)
                except Stale:
                    port = self.zones.read(port)
                    foreign(port, known.paths(change.hosts[str(port.host)]), tag)
                    self._put(port, known.paths(names), tag, remember)
            except OutcomeUnknown:
                raise
            except FabricError as error:
                if isinstance(error, Incompatible):
                    self._reader.doubt()
                if not done:
                    raise
                failed = [name for _, names in wanted for name in names if name not in done]
                raise PartialFailure(f"{tag.lease_id}: {port.words}: {error}", done, failed) from error
            done += names

    def _looked_at(self, known: Layout, change: Change) -> list[tuple[HostPort, list[str]]]:
        """Devices by the port whose zone takes them; every zone of the hosts is looked at before the first is changed.

        Raises Incompatible for a device that no port of its host reaches, Conflict for a zone that is not ours.
        """
        parts: dict[str, list[str]] = {}
        for host, name in ((host, name) for host, names in change.hosts.items() for name in names):
            reaching = (port for path in known.paths([name]) for port in known.connections(path))
            port = next((port for port in reaching if port.host == host), None)
            if port is None:
                raise Incompatible(f"{name} cannot be attached to {host} ({CABLING_RULE})", CABLING_RULE)
            parts.setdefault(port.label, []).append(name)
        now: dict[str, HostPort] = {}
        for host, names in change.hosts.items():
            for port in known.ports:
                if names and port.host == host:
                    now[port.label] = self.zones.read(port)
                    foreign(now[port.label], known.paths(names), change.tag)
        return [(now[label], names) for label, names in parts.items()]

    def _put(self, port: HostPort, paths: Sequence[str], tag: Tag, remember: Remember) -> None:
        missing = [path for path in paths if path not in port.zone.endpoints]
        unmarked = self.zones.marks and decode(port.zone.description) is None
        if unmarked:
            remember(_before(port), port.zone.description or "")
        if missing or unmarked:
            self.zones.change(port, [*port.zone.endpoints, *missing], encode(tag) if unmarked else None)

    def detach(self, change: Change) -> tuple[str, ...]:
        known = self._layout or self.look()
        stuck: list[str] = []
        changed = False
        for host, names in change.hosts.items():
            for port in (port for port in known.ports if port.holder == host):
                try:
                    try:
                        changed |= self._take(known, port, change, names)
                    except Stale:
                        changed |= self._take(known, port, change, names)
                except OutcomeUnknown:
                    raise
                except FabricError as error:
                    if isinstance(error, Busy) and not changed:
                        raise
                    there = self.zones.last(port).endpoints
                    stuck += [name for name in names if known.path_of.get(name) in there]
        return tuple(stuck)

    def _take(self, known: Layout, port: HostPort, change: Change, names: Sequence[str]) -> bool:
        """Take devices out of one zone, and our mark away; False when there was nothing to do."""
        port = self.zones.read(port)
        marked = decode(port.zone.description)
        if marked is not None and marked.lease_id != change.tag.lease_id:
            return False  # somebody else's by now
        going = {path for path in known.paths(names) if path in port.zone.endpoints}
        before = change.handles.get(_before(port), "") if marked is not None else None
        if self.client.rehearses and (attached := self._would_have(known, port, names)):
            going, before = attached, change.handles.get(_before(port)) if self.zones.marks else None
        if not going and before is None:
            return False
        left = [path for path in port.zone.endpoints if path not in going]
        self.zones.change(port, left if going else None, before)
        return True

    def _would_have(self, known: Layout, port: HostPort, names: Sequence[str]) -> set[str]:
        """What a rehearsed attachment would have put into a zone."""
        found = set()
        for path in known.paths(names):
            reaching = (one.label for one in known.connections(path) if one.holder == port.holder)
            if port.label == next(reaching, None):
                found.add(path)
        return found

    def readings(self) -> tuple[Reading, ...]:
        """PCIe links, their errors and traffic by device or port, and temperatures; what the chassis does not tell is left out."""
        self._reader.doubt()
        with self.client.operation():
            return tuple(readings(self.service, self.look()))

    def events(self, after: str | None = None) -> tuple[Event, ...]:
        """The chassis' logs in order of time; `after`: the cursor of an event, None: from the start."""
        with self.client.operation():
            return events(self.service, after)

    def export(self) -> dict[str, Any]:
        """Every zone with its devices, and the modes, as JSON."""
        with self.client.operation():
            return export(self.look())

    def restore(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Bring the zones to a saved allocation; see `allocation.restore` for what it refuses before anything is changed."""
        with self.client.operation():
            return restore(self.look, self.zones, document)

    def close(self) -> None:
        self.service.close()


def _before(port: HostPort) -> str:
    """Under which name a zone's own Description is remembered."""
    return f"description of {port.label}"
