"""Endpoints and connections as Sunfish and the agent show them, and where they disagree. Pure; addresses are opaque."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from campaign.errors import FabricError
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.dialects.redfish.answers import uri, uris
from campaign.fabrics.hardware import Health
from campaign.fabrics.http.json_values import Json, mapping, mappings, text
from campaign.fabrics.protocol import Tag

_HEALTH: dict[str, Health] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}
_KINDS = {"Drive": "nvme", "Volume": "nvme", "NetworkController": "nic", "NetworkDeviceFunction": "nic"}
_TELLING = ("Processor", *_KINDS)
"""Entities that say what a device is; others say how it is wired."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end. connections: what it says it is part of, None where it says nothing, or says it of the time it was copied at;
    entity: address of what it stands for."""

    path: str
    id: str
    initiates: bool
    type: str
    entity: str | None
    uuid: str | None
    health: Health
    enabled: bool
    connections: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Connection:
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
class Shown:
    """Everything at one moment. agent: what the agent itself lists, None where it is not asked.

    doubted: Ids of connections whose deletion was sent and not answered, so that their being listed is no evidence any more.
    """

    endpoints: tuple[Endpoint, ...] = ()
    connections: tuple[Connection, ...] = ()
    zones: tuple[tuple[str, ...], ...] = ()
    agent: tuple[Connection, ...] | None = None
    entities: Mapping[str, Json] = field(default_factory=dict)
    doubted: frozenset[str] = frozenset()

    @property
    def ghosts(self) -> tuple[Connection, ...]:
        """Connections of leases that Sunfish lists and that the agent, which was asked, does not have (any more).

        Sunfish keeps them where it does not understand that the agent has deleted one. They hold nothing. One whose lease the agent
        still knows by name may have another Id there, and is no ghost.
        """
        if self.agent is None:
            return ()
        there = {word for one in self.agent for word in (one.id, one.name)}
        return tuple(one for one in self.connections if one.tag is not None and not {one.id, one.name} & there)

    @property
    def targets(self) -> tuple[Endpoint, ...]:
        return tuple(sorted((one for one in self.endpoints if not one.initiates), key=lambda one: one.id))

    def named(self, path: str) -> str | None:
        return next((one.id for one in self.endpoints if one.path == path), None)


def endpoint(body: Json) -> Endpoint:
    """DSP0268 Endpoint: who is connected is its first entity that says what it is, else its first one; one that is both is taken
    for what it is connected as, a target.

    Sunfish copies an agent's endpoints once, and does not bring the copies up to date.
    """
    entities = mappings(body, "ConnectedEntities")
    first = next((one for one in entities if one.get("EntityType") in _TELLING), mapping(next(iter(entities), None)))
    links, status = mapping(body, "Links"), mapping(body, "Status")
    copied = managing_agent(body) is not None
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
        uris(links["Connections"]) if "Connections" in links and not copied else None,
    )


def managing_agent(body: Json) -> str | None:
    """Address of the AggregationSource that an object came from; None for Sunfish's own."""
    return uri(mapping(body, "Oem", "Sunfish_RM").get("ManagingAgent"))


def connection(body: Json) -> Connection:
    ends = mapping(body, "Links")
    return Connection(
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


def connection_id(lease_id: str, endpoint_id: str) -> str:
    """The Id that a lease gives to its connection to an endpoint; the same at every try, so that none is made twice."""
    return "cc-" + hashlib.sha256(f"{lease_id}\n{endpoint_id}".encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Use:
    """Who uses an endpoint. initiator: Id of the other end; lease_id: by the connection's name; words: who disagrees, if any."""

    initiator: str | None = None
    lease_id: str | None = None
    words: str = ""


def use(target: Endpoint, shown: Shown) -> Use:
    """What all ends together say of one device."""
    ghosts = {one.path for one in shown.ghosts}
    listed = [one for one in shown.connections if target.path in one.targets and one.path not in ghosts]
    words: list[str] = []
    for one in listed:
        if target.connections is not None and one.path not in target.connections:
            words.append(f"Sunfish lists connection {one.id}, endpoint {target.id} does not")
        if shown.agent is not None and one.id not in {other.id for other in shown.agent}:
            words.append(f"Sunfish lists connection {one.id}, the agent does not")
        if shown.agent is None and one.id in shown.doubted:
            words.append(f"Sunfish lists connection {one.id}, whose deletion it did not answer")
    paths = {one.path for one in listed} | ghosts
    lost = [path for path in target.connections or () if path not in paths]
    words += [f"endpoint {target.id} lists {path}, which Sunfish does not connect to it" for path in lost]
    alone = [one for one in shown.agent or () if _is_of(one, target) and one.id not in {one.id for one in listed}]
    words += [f"the agent has connection {one.id} to {target.id}, Sunfish does not" for one in alone]
    ends = {end for one in listed for end in one.initiators}
    if len(ends) > 1:
        words.append(f"{target.id} is connected to {len(ends)} endpoints")
    initiator = min(ends, default=None) or next((end for one in alone for end in one.initiators), None)
    if initiator is None and lost:
        initiator = next(
            (one.path for one in shown.endpoints if one.initiates and set(one.connections or ()) & set(lost)), ""
        )
    marks = [tag.lease_id for one in (*listed, *alone) if (tag := one.tag) is not None]
    mine = marks[0] if len(set(marks)) == 1 and len(marks) == len(listed) + len(alone) else None
    host = None if initiator is None else shown.named(initiator) or initiator or "somewhere"
    return Use(host, mine, "; ".join(words))


def _is_of(one: Connection, target: Endpoint) -> bool:
    """True for a connection, as the agent lists it, to this endpoint; the agent may have other addresses than Sunfish."""
    tag = one.tag
    return target.path in one.targets or (tag is not None and one.id == connection_id(tag.lease_id, target.id))


def reach(shown: Shown) -> dict[str, tuple[str, ...]]:
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
