"""Requests to Sunfish, and to the agent behind it where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.redfish.answers import Missing, uri, uris
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.dialects.sunfish.agent import Agent
from campaign.fabrics.dialects.sunfish.connections import (
    Connection,
    Endpoint,
    Shown,
    Use,
    connection,
    connection_id,
    endpoint,
    kind,
    managing_agent,
    reach,
    the_fabric,
    use,
)
from campaign.fabrics.dialects.sunfish.options import Options
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import STORAGE_KIND, Device, DeviceState, HostSpec, PoolSpec
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.json_values import Json, at, listing, text
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile

FABRICS = "/redfish/v1/Fabrics"


class Store(Service):
    """Sunfish itself: the reference server names no sessions and asks nobody to log in, so that a login is for nobody there."""

    def _log_in(self, root: Json) -> None:
        if self._auth == "session" and root and not self._open and at(root, "Links", "Sessions") is None:
            self._open = True
        else:
            super()._log_in(root)


class Plane(ControlPlane):
    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        self.client = Client(options)
        self._service = Store(self.client, options.auth)
        self._options = options
        self._hosts = {options.hosts.get(host.name, host.name): host.name for host in hosts}
        self._fabric: Json = {}
        self._entities: dict[str, Json] = {}
        self._shown = Shown()
        self._reach: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, str] = {}
        self._uses: dict[str, Use] = {}
        self._doubted: set[str] = set()
        self._agent: Agent | None = None
        self._collections: dict[str, str] = {}

    def capabilities(self) -> Capabilities:
        ghosts = ", ".join(one.path for one in self._shown.ghosts)
        told = (
            f". Sunfish still lists what its agent has deleted; its administrator may remove: {ghosts}"
            if ghosts
            else ""
        )
        return Capabilities(
            max_devices_per_host=max(1, len(self._shown.targets)),
            note="follows the Sunfish reference server; not run against an agent with hardware. UUIDs and serials are told only "
            f"where the agent does{told}",
        )

    def view(self) -> View:
        if not self._fabric:
            self._fabric = the_fabric(self._service.members(FABRICS), self._options.fabric)
            self._agent = self._asked_agent()
        endpoints = tuple(map(endpoint, self._members("Endpoints") or ()))
        if not endpoints:
            where = ", ".join(self._addresses("Endpoints"))
            raise FabricError(
                f"fabric {self._fabric.get('Id')}: there are no endpoints ({where}); has its agent registered?"
            )
        zones = tuple(
            uris(listing(one, "Links", "Endpoints"))
            for one in self._members("Zones") or ()
            if one.get("ZoneType") in ("ZoneOfEndpoints", None)
        )
        self._shown = Shown(
            endpoints,
            tuple(map(connection, self._members("Connections") or ())),
            zones,
            None if self._agent is None else self._agent.connections(),
            {one.path: self._entity(one) for one in endpoints if not one.initiates},
            frozenset(self._doubted),
        )
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, initiators in reach(self._shown).items():
            groups.setdefault(initiators, []).append(name)
        # One drawer for devices that share their zones.
        self._reach = {f"{self._fabric.get('Id')}-{index}": ends for index, ends in enumerate(groups, start=1)}
        self._places = {
            name: f"{drawer}/slot{slot}"
            for drawer, ends in self._reach.items()
            for slot, name in enumerate(groups[ends], start=1)
        }
        self._uses = {target.id: use(target, self._shown) for target in self._shown.targets}
        devices = tuple(self._device(target, self._uses[target.id]) for target in self._shown.targets)
        ghosts = {one.path for one in self._shown.ghosts}
        listed = (one for one in self._shown.connections if one.path not in ghosts)
        marks = (one.tag for one in (*listed, *(self._shown.agent or ())))
        return View(devices, {}, lease_tag.by_lease(marks, devices))

    def _asked_agent(self) -> Agent | None:
        """The agent that has the fabric, where it is to be asked, and Sunfish or the system file says where it is."""
        if not self._options.ask_agent:
            return None
        if self._options.agent_url is not None:
            split = urlsplit(self._options.agent_url)
            return Agent(self._options, f"{split.scheme}://{split.netloc}", split.path)
        source, path = managing_agent(self._fabric), uri(self._fabric)
        host = None if source is None else text(self._service.find(source), "HostName")
        return None if host is None or path is None else Agent(self._options, host, f"{path}/Connections")

    def _addresses(self, name: str) -> list[str]:
        """Where a collection of the fabric may be: where it was, where the link leads to, below the fabric.

        The links of the reference server's development branch lead nowhere.
        """
        below = f"{uri(self._fabric) or ''}/{name}"
        places = (self._collections.get(name), uri(self._fabric.get(name)), below)
        return list(dict.fromkeys(place for place in places if place))

    def _members(self, name: str) -> list[dict[str, Any]] | None:
        """The members of a collection of the fabric; None where there is none: Sunfish makes it with its first member."""
        for path in self._addresses(name):
            try:
                found = self._service.members(path)
            except Missing:
                continue
            self._collections[name] = path
            return found
        return None

    def _connections_path(self) -> str:
        """Where connections are made: in the collection that there is, else in the one below the fabric."""
        return self._collections.get("Connections") or self._addresses("Connections")[-1]

    def _entity(self, one: Endpoint) -> Json:
        """What an endpoint stands for; read once, as a device does not become another."""
        if one.entity is None:
            return {}
        if one.entity not in self._entities:
            self._entities[one.entity] = self._service.find(one.entity) or {}
        return self._entities[one.entity]

    def _device(self, target: Endpoint, used: Use) -> Device:
        entity = self._shown.entities.get(target.path, {})
        serial = entity.get("UUID") or entity.get("SerialNumber")
        host = None if used.initiator is None else self._hosts.get(used.initiator, used.initiator)
        # Without a mark it is somebody's; what is in disagreement may have lost ours, and the claims say whose it is.
        others = f"somebody, on {host}" if host is not None and not used.words else None
        return Device(
            target.id,
            kind(target, entity),
            str(entity.get("Model") or "unknown"),
            target.uuid or (str(serial) if serial else None),
            self._places[target.id],
            local=False,
            attached_to=host,
            holder=used.lease_id or others,
            state=_state(target, used),
            health=target.health,
        )

    def banks(self, view: View) -> Sequence[Bank]:
        """One bank for devices that share their zones; there is no limit to how many hosts share it."""
        return open_banks(
            self._places.values(),
            lambda drawer: tuple(self._hosts[one] for one in self._reach[drawer] if one in self._hosts),
        )

    def objection(self, change: Change, view: View) -> str | None:
        for host, names in change.hosts.items():
            if names and self._initiator(host) is None:
                wanted = self._options.hosts.get(host, host)
                return f"endpoints: the fabric has no initiator endpoint {wanted} for host {host}; name it in `hosts`"
        return None

    def _initiator(self, host: str) -> Endpoint | None:
        return next((one for one in self._shown.endpoints if one.initiates and self._hosts.get(one.id) == host), None)

    def attach(self, change: Change, remember: Remember) -> None:
        done: list[str] = []
        units = [(host, name) for host, names in change.hosts.items() for name in names]
        for host, name in units:
            try:
                self._connect(host, name, change)
            except OutcomeUnknown:
                raise
            except FabricError as error:
                if not done:
                    raise
                failed = [other for _, other in units if other not in done]
                raise PartialFailure(f"{error}; attached: {', '.join(done)}", done, failed) from error
            done.append(name)

    def _connect(self, host: str, name: str, change: Change) -> None:
        """Have one device connected. Sunfish does not look whether the endpoints exist, so that this does."""
        target = next((one for one in self._shown.targets if one.id == name), None)
        initiator = self._initiator(host)
        if target is None or initiator is None:
            what = f"endpoint {name}" if target is None else f"an initiator endpoint of {host}"
            raise Incompatible(f"{change.tag.lease_id}: the fabric has no {what}", "endpoints: both ends must exist")
        if self._connected(name, change.tag.lease_id, self._shown.connections):
            return
        ends = {"InitiatorEndpoints": [{"@odata.id": initiator.path}], "TargetEndpoints": [{"@odata.id": target.path}]}
        drive = kind(target, self._shown.entities.get(target.path, {})) == STORAGE_KIND
        path, own = self._connections_path(), connection_id(change.tag.lease_id, name)
        body = {
            "@odata.type": "#Connection.v1_1_0.Connection",
            "@odata.id": f"{path}/{own}",
            "Id": own,
            "Name": lease_tag.encode(change.tag),
            "ConnectionType": "Storage" if drive else self._options.connection_type,
            "Links": ends,
        }
        try:
            self._service.change("POST", path, body, assumed=body)
        except Busy:
            # 409: there is one of this Id. Ours, when an earlier answer was lost.
            there = list(map(connection, self._members("Connections") or ()))
            if not self._connected(name, change.tag.lease_id, there):
                raise Conflict(f"{name}: Sunfish has another connection {body['Id']}", ("Sunfish",)) from None

    def _connected(self, name: str, lease_id: str, there: Sequence[Connection]) -> list[Connection]:
        """Connections of a lease to an endpoint (by Id); those with another name, or none, are somebody else's."""
        path = next((one.path for one in self._shown.targets if one.id == name), None)
        return [one for one in there if path in one.targets and one.tag is not None and one.tag.lease_id == lease_id]

    def detach(self, change: Change) -> tuple[str, ...]:
        lease_id = change.tag.lease_id
        names = [name for names in change.hosts.values() for name in names]
        words = {name: text for name in names if (text := self._disconnect(name, lease_id))}
        if self.client.rehearses:
            return ()
        if not words and not any(self._uses[name].words for name in names if name in self._uses):
            return ()
        # What was not answered, or was in disagreement before, is told by what all ends show now.
        now = {device.fabric_id: device for device in self.view().devices}
        stuck = [
            name for name in names if name in now and now[name].attached_to and now[name].holder in (None, lease_id)
        ]
        if not stuck:
            return ()
        told = "; ".join(
            filter(None, (part for name in stuck for part in (self._uses[name].words, words.get(name, ""))))
        )
        done = [name for name in names if name not in stuck]
        raise PartialFailure(f"{lease_id}: not given back: {', '.join(stuck)}: {told}", done, stuck)

    def _disconnect(self, name: str, lease_id: str) -> str:
        """Delete what connects a device to a lease; gives what went wrong, in words."""
        if self.client.rehearses:
            self._service.change("DELETE", f"{self._connections_path()}/{connection_id(lease_id, name)}")
            return ""
        for one in self._connected(name, lease_id, self._shown.connections):
            try:
                self._service.change("DELETE", one.path)
            except Missing:
                continue
            except OutcomeUnknown as error:
                self._doubted.add(one.id)
                return str(error)
            except FabricError as error:
                return str(error)
            self._doubted.discard(one.id)
        return ""

    def close(self) -> None:
        self._service.close()
        if self._agent is not None:
            self._agent.client.close()


def _state(target: Endpoint, used: Use) -> DeviceState:
    if used.words:
        return "unknown"
    if used.initiator is not None:
        return "in_use"
    if target.health == "critical":
        return "failed"
    return "free" if target.enabled else "unavailable"
