"""OFMF/Sunfish: a Redfish store, before agents that have the fabrics: a device is attached by a Connection, which the agent makes.

Source: the Sunfish reference server and library, which were run (development branch and release 0.3), and the Redfish fabric
model (DSP0268). What the store says and what the agent did can differ: a DELETE may end without an answer, or with 500, the agent
having done it while Sunfish lists the connection for good. So the agent is asked too, and its word counts: a lease is released when
the agent no longer has its connections. What Sunfish goes on listing is reported, and its Id is never used again. What only one of
the two has is `unknown`, is no part of a composition, and is kept. The Name of a connection is the mark of a lease; connections
without it are left alone.

Unverified: an agent with hardware. The type of a connection to a GPU (`connection_type`) is not settled: Redfish knows Memory and
Storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from campaign.errors import FabricError
from campaign.fabrics.adapters.redfish.answers import Missing, uri, uris
from campaign.fabrics.adapters.redfish.service import Service
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View, WithoutLogin
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import STORAGE_KIND, Device, DeviceState, Health, HostSpec, PoolSpec
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.response import Json, listing, mapping, mappings, text
from campaign.fabrics.protocol import Capabilities, Tag
from campaign.fabrics.registry import FabricKind
from campaign.fabrics.state_file import StateFile


class SunfishOptions(WithoutLogin):
    """Sunfish: `hosts` gives the Id of each host's initiator endpoint."""

    fabric: str | None = Field(
        default=None, description="Id of the fabric that is used; default: the only one there is"
    )
    agent_url: str | None = Field(
        default=None,
        description="address of the agent's own list of connections "
        "(`https://agent.example:5001/redfish/v1/Fabrics/CXL/Connections`); default: the address that Sunfish has of the agent "
        "(`HostName`)",
        pattern=r"^https?://[^\s/?#@]+/[^\s?#]+$",
    )
    connection_type: str = Field(
        default="Memory", description="ConnectionType of connections to anything but drives", min_length=1
    )


_HEALTH: dict[str, Health] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}
_KINDS = {"Drive": "nvme", "Volume": "nvme", "NetworkController": "nic", "NetworkDeviceFunction": "nic"}
_TELLING = ("Processor", *_KINDS)
"""Entities that say what a device is; others say how it is wired."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end. entity: address of what it stands for."""

    path: str
    id: str
    initiates: bool
    type: str
    entity: str | None
    uuid: str | None
    health: Health
    enabled: bool


@dataclass(frozen=True, slots=True)
class SunfishConnection:
    """One connection; `name` is the tag of a lease, or anything else."""

    path: str
    id: str
    name: str
    initiators: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def tag(self) -> Tag | None:
        return lease_tag.decode(self.name)


@dataclass(frozen=True, slots=True)
class SunfishView:
    """Everything at one moment. listed: connections of Sunfish; agent: those that the agent itself lists."""

    endpoints: tuple[Endpoint, ...] = ()
    listed: tuple[SunfishConnection, ...] = ()
    zones: tuple[tuple[str, ...], ...] = ()
    agent: tuple[SunfishConnection, ...] = ()
    entities: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ghosts(self) -> tuple[SunfishConnection, ...]:
        """Connections of leases that Sunfish lists and that the agent does not have (any more).

        Sunfish keeps them where it does not understand that the agent has deleted one. They hold nothing. One that the agent has
        under another Id is no ghost.
        """
        ids = {one.id for one in self.listed}
        renamed = {one.name for one in self.agent if one.id not in ids}
        there = {one.id for one in self.agent}
        return tuple(
            one for one in self.listed if one.tag is not None and one.id not in there and one.name not in renamed
        )

    @property
    def connections(self) -> tuple[SunfishConnection, ...]:
        """What Sunfish lists, without ghosts."""
        ghosts = self.ghosts
        return tuple(one for one in self.listed if one not in ghosts)

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        return tuple(sorted((one for one in self.endpoints if not one.initiates), key=lambda one: one.id))

    def named(self, path: str) -> str | None:
        return next((one.id for one in self.endpoints if one.path == path), None)


def endpoint(body: Json) -> Endpoint:
    """DSP0268 Endpoint: who is connected is its first entity that says what it is, else its first one; one that is both is taken
    for what it is connected as, a target.

    Sunfish copies an agent's endpoints once: what they say of connections is out of date.
    """
    entities = mappings(body, "ConnectedEntities")
    first = next((one for one in entities if one.get("EntityType") in _TELLING), mapping(next(iter(entities), None)))
    status = mapping(body, "Status")
    uuids = (
        text(one, "DurableName") for one in mappings(first, "Identifiers") if one.get("DurableNameFormat") == "UUID"
    )
    return Endpoint(
        uri(body) or "",
        str(body.get("Id") or ""),
        first.get("EntityRole") == "Initiator",
        str(first.get("EntityType") or ""),
        uri(first.get("EntityLink")),
        next(filter(None, uuids), None),
        _HEALTH.get(str(status.get("Health", "OK")), "warning"),
        status.get("State", "Enabled") == "Enabled",
    )


def managing_agent(body: Json) -> str | None:
    """Address of the AggregationSource that an object came from; None for Sunfish's own."""
    return uri(mapping(body, "Oem", "Sunfish_RM").get("ManagingAgent"))


def connection(body: Json) -> SunfishConnection:
    ends = mapping(body, "Links")
    return SunfishConnection(
        uri(body) or "",
        str(body.get("Id") or ""),
        str(body.get("Name") or ""),
        uris(ends.get("InitiatorEndpoints")),
        uris(ends.get("TargetEndpoints")),
    )


def kind(one: Endpoint, entity: Json) -> str:
    """The system file's word for what an endpoint stands for."""
    if one.type == "Processor":
        return str(entity.get("ProcessorType") or "gpu").lower()
    return _KINDS.get(one.type, one.type.lower() or "unknown")


def connection_id(tag: Tag, endpoint_id: str) -> str:
    """The Id of a lease's connection to an endpoint: the same at every try of one composition, and never that of another one.

    Sunfish lists some for good that its agent has deleted, and takes their Ids for connected.
    """
    return f"{_digest(tag, endpoint_id)}-{int(tag.since_s * 1e6):x}"


def _digest(tag: Tag, endpoint_id: str) -> str:
    return "cc-" + hashlib.sha256(f"{tag.lease_id}\n{endpoint_id}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class EndpointUse:
    """Who uses an endpoint. initiator: Id of the other end; lease_id: by the connection's name; words: who disagrees, if any."""

    initiator: str | None = None
    lease_id: str | None = None
    words: str = ""


def use(target: Endpoint, shown: SunfishView) -> EndpointUse:
    """What Sunfish and its agent together say of one device."""
    listed = [one for one in shown.connections if target.path in one.targets]
    ids, theirs = {one.id for one in listed}, {one.id for one in shown.agent}
    words = [f"Sunfish lists connection {one.id}, the agent does not" for one in listed if one.id not in theirs]
    alone = [one for one in shown.agent if _is_of(one, target) and one.id not in ids]
    words += [f"the agent has connection {one.id} to {target.id}, Sunfish does not" for one in alone]
    ends = {end for one in listed for end in one.initiators}
    if len(ends) > 1:
        words.append(f"{target.id} is connected to {len(ends)} endpoints")
    initiator = min(ends, default=None) or next((end for one in alone for end in one.initiators), None)
    marks = [tag.lease_id for one in (*listed, *alone) if (tag := one.tag) is not None]
    mine = marks[0] if len(set(marks)) == 1 and len(marks) == len(listed) + len(alone) else None
    host = None if initiator is None else shown.named(initiator) or initiator
    return EndpointUse(host, mine, "; ".join(words))


def _is_of(one: SunfishConnection, target: Endpoint) -> bool:
    """True for a connection, as the agent lists it, to this endpoint; the agent may have other addresses than Sunfish."""
    tag = one.tag
    return target.path in one.targets or (tag is not None and one.id.startswith(_digest(tag, target.id)))


def reach(shown: SunfishView) -> dict[str, tuple[str, ...]]:
    """Ids of the initiators that each target (by Id) can be connected to: those it shares a zone with; all, without zones."""
    initiators = [one for one in shown.endpoints if one.initiates]
    zones = [frozenset(zone) for zone in shown.zones] or [frozenset(one.path for one in shown.endpoints)]
    found: dict[str, tuple[str, ...]] = {}
    for target in shown.targets:
        shared = [zone for zone in zones if target.path in zone]
        found[target.id] = tuple(one.id for one in initiators if any(one.path in zone for zone in shared))
    return found


def the_fabric(fabrics: Sequence[Json], wanted: str | None) -> Json:
    """The fabric that is used. Raises FabricError naming those there are."""
    found = [one for one in fabrics if wanted in (None, one.get("Id"))]
    if len(found) != 1:
        there = ", ".join(str(one.get("Id")) for one in fabrics) or "none"
        raise FabricError(f"fabric: {wanted or 'the only one'} is wanted; Sunfish has: {there}; name one in `fabric`")
    return found[0]


class Agent(Service):
    """The agent behind Sunfish: what it has is what the fabric does.

    It is told no login: whatever Sunfish says of its address, nobody's password goes there.
    """

    def __init__(self, options: SunfishOptions, host: str, path: str, sunfish: Client) -> None:
        """host: as Sunfish has it, with or without a scheme; path: its list of connections, below the host."""
        where = host if "://" in host else f"{urlsplit(options.url).scheme}://{host}"
        super().__init__(Client(options.model_copy(update={"url": where}), beside=sunfish), "none")
        self._path = path

    def root(self) -> dict[str, Any]:
        """Nothing: an agent need not have a root."""
        return {}

    def connections(self) -> tuple[SunfishConnection, ...]:
        """Everything that it lists; nothing where it has no list, as some have none while there is nothing to list.

        Raises FabricError for an agent that is not there, or that does not have the fabric at all.
        """
        try:
            try:
                return tuple(map(connection, self.members(self._path)))
            except Missing:
                if self.find(self._path.rpartition("/")[0]) is not None:
                    return ()
        except FabricError as error:
            raise FabricError(f"{error}: this is Sunfish's agent; {REMEDY}") from error
        raise FabricError(f"{self.client.base}{self._path}: the agent has no such fabric; {REMEDY}")


REMEDY = "give its list of connections in `agent_url`"


FABRICS = "/redfish/v1/Fabrics"


class SunfishPlane(ControlPlane):
    def __init__(
        self, options: SunfishOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        self.client = Client(options)
        self._service = Service(self.client, "none")
        self._options = options
        self._hosts = {options.hosts.get(host.name, host.name): host.name for host in hosts}
        self._fabric: Json = {}
        self._entities: dict[str, Json] = {}
        self._shown = SunfishView()
        self._reach: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, str] = {}
        self._uses: dict[str, EndpointUse] = {}
        self._agent: Agent | None = None

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_devices_per_host=max(1, len(self._shown.targets)),
            note="follows the Sunfish reference server; not run against an agent with hardware. UUIDs and serials are told only "
            "where the agent does",
            ghosts=tuple(one.path for one in self._shown.ghosts),
        )

    def view(self) -> View:
        if not self._fabric:
            self._fabric = the_fabric(self._service.members(FABRICS), self._options.fabric)
            self._agent = self._found_agent()
        endpoints = tuple(map(endpoint, self._members("Endpoints")))
        if not endpoints:
            raise FabricError(f"there are no endpoints ({self._below('Endpoints')}); has the agent registered?")
        zones = tuple(
            uris(listing(one, "Links", "Endpoints"))
            for one in self._members("Zones")
            if one.get("ZoneType") in ("ZoneOfEndpoints", None)
        )
        self._shown = SunfishView(
            endpoints,
            tuple(map(connection, self._members("Connections"))),
            zones,
            self._agent.connections() if self._agent is not None else (),
            {one.path: self._entity(one) for one in endpoints if not one.initiates},
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
        marks = (one.tag for one in (*self._shown.connections, *self._shown.agent))
        return View(devices, {}, lease_tag.by_lease(marks, devices))

    def _found_agent(self) -> Agent:
        """The agent that has the fabric, where Sunfish or the system file says that it is."""
        if self._options.agent_url is not None:
            split = urlsplit(self._options.agent_url)
            return Agent(self._options, f"{split.scheme}://{split.netloc}", split.path, self.client)
        source, path = managing_agent(self._fabric), uri(self._fabric)
        host = None if source is None else text(self._service.find(source), "HostName")
        if host is None or path is None:
            raise FabricError(f"{self.client.base}: Sunfish does not say where the agent of the fabric is; {REMEDY}")
        return Agent(self._options, host, f"{path}/Connections", self.client)

    def _below(self, name: str) -> str:
        """Where a collection of the fabric is: the links of the reference server's development branch lead nowhere."""
        return f"{uri(self._fabric) or ''}/{name}"

    def _members(self, name: str) -> list[dict[str, Any]]:
        """The members of a collection of the fabric; none where it is not there: Sunfish makes it with its first member."""
        try:
            return self._service.members(self._below(name))
        except Missing:
            return []

    def _entity(self, one: Endpoint) -> Json:
        """What an endpoint stands for; read once, as a device does not become another."""
        if one.entity is None:
            return {}
        if one.entity not in self._entities:
            self._entities[one.entity] = self._service.find(one.entity) or {}
        return self._entities[one.entity]

    def _device(self, target: Endpoint, used: EndpointUse) -> Device:
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
        path, own = self._below("Connections"), connection_id(change.tag, name)
        if own in {one.id for one in self._shown.connections}:
            return
        ends = {"InitiatorEndpoints": [{"@odata.id": initiator.path}], "TargetEndpoints": [{"@odata.id": target.path}]}
        drive = kind(target, self._shown.entities.get(target.path, {})) == STORAGE_KIND
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
            there = next((one for one in map(connection, self._members("Connections")) if one.id == own), None)
            if there is None or there.tag is None or there.tag.lease_id != change.tag.lease_id:
                raise Conflict(f"{name}: Sunfish has another connection {own}", ("Sunfish",)) from None

    def detach(self, change: Change) -> tuple[str, ...]:
        lease_id = change.tag.lease_id
        names = [name for names in change.hosts.values() for name in names]
        words = {name: text for name in names if (text := self._disconnect(name, change.tag))}
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
        told = "; ".join(part for name in stuck for part in (self._uses[name].words, words.get(name, "")) if part)
        done = [name for name in names if name not in stuck]
        raise PartialFailure(f"{lease_id}: not given back: {', '.join(stuck)}: {told}", done, stuck)

    def _disconnect(self, name: str, tag: Tag) -> str:
        """Delete what connects a device to a lease; gives what went wrong, in words."""
        if self.client.rehearses:
            self._service.change("DELETE", f"{self._below('Connections')}/{connection_id(tag, name)}")
            return ""
        path = next((one.path for one in self._shown.targets if one.id == name), None)
        told = []
        for one in self._shown.connections:
            if path not in one.targets or one.tag is None or one.tag.lease_id != tag.lease_id:
                continue  # with another name, or none, it is somebody else's
            try:
                self._service.change("DELETE", one.path)
            except Missing:
                continue
            except FabricError as error:
                told.append(str(error))
        return "; ".join(told)

    def close(self) -> None:
        self._service.close()
        if self._agent is not None:
            self._agent.client.close()


def _state(target: Endpoint, used: EndpointUse) -> DeviceState:
    if used.words:
        return "unknown"
    if used.initiator is not None:
        return "in_use"
    if target.health == "critical":
        return "failed"
    return "free" if target.enabled else "unavailable"


open_fabric = opening(SunfishPlane, "sunfish")

FABRIC = FabricKind(
    "OFMF/Sunfish: connections through an agent",
    SunfishOptions,
    open_fabric,
    unverified="an agent with hardware; whether one confirms a connection before it works",
    tested="its emulator, which does what runs of the public reference server did (development branch, with its own agent); "
    "no registry has that server, so tests do not run it",
    emulator="campaign.emulators.control_planes.sunfish",
)
