"""Reading a service that composes: two requests for all blocks and systems where it expands, and what cannot change only once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from campaign.errors import FabricError
from campaign.fabrics.dialects.redfish import resources
from campaign.fabrics.dialects.redfish.answers import uri
from campaign.fabrics.dialects.redfish.resources import Block, Part, System, Zone
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.http.json_values import Json

_WELL_KNOWN_SYSTEMS = "/redfish/v1/Systems"


@dataclass(frozen=True)
class Reading:
    """A service at one moment; blocks and systems by address. composes: False for a chassis that only shows what it has."""

    blocks: Mapping[str, Block]
    systems: Mapping[str, System]
    zones: tuple[Zone, ...]
    parts: Mapping[str, tuple[Part, ...]]
    composes: bool = True
    blocks_at: str = ""
    systems_at: str = _WELL_KNOWN_SYSTEMS
    affinity: bool = False

    @cached_property
    def _zones(self) -> Mapping[str, frozenset[str]]:
        told = ((path, zone) for path, block in self.blocks.items() for zone in block.zones)
        return _grouped((*told, *((path, zone.uri) for zone in self.zones for path in zone.blocks)))

    @cached_property
    def _systems_by_block(self) -> Mapping[str, frozenset[str]]:
        return _grouped((path, system.uri) for system in self.systems.values() for path in system.blocks or ())

    def zones_of(self, block: Block) -> frozenset[str]:
        """Addresses of the zones that a block is in, by whichever of the two says so."""
        return self._zones.get(block.uri, frozenset())

    def listing(self, block: Block) -> frozenset[str]:
        """Addresses of the systems that say they have a block: the other end of the block's own `systems`."""
        return self._systems_by_block.get(block.uri, frozenset())


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        found.setdefault(one, set()).add(other)
    return {one: frozenset(others) for one, others in found.items()}


class Reader:
    """Reads one service again and again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._empty: Reading | None = None
        self._parts: dict[str, Json] = {}

    def read(self) -> Reading:
        """Everything as it is now. Raises FabricError for a service that has no resource blocks, or has them switched off."""
        if self._empty is None:
            self._empty = self._found()
        empty = self._empty
        blocks = [resources.block(body) for body in self._service.members(empty.blocks_at, levels=2)]
        systems = map(resources.system, self._service.members(empty.systems_at) if empty.composes else ())
        return replace(
            empty,
            blocks={block.uri: block for block in blocks},
            systems={system.uri: system for system in systems},
            parts={block.uri: tuple(self._part(*one) for one in block.parts) for block in blocks if not block.is_host},
        )

    def _part(self, kind: str, body: Json) -> Part:
        """A part as it was expanded; else as it was read first, without what may have changed since."""
        path = uri(body)
        if path is None or set(body) - {"@odata.id", "@odata.type"}:
            return resources.part(kind, body)
        if path not in self._parts:
            self._parts[path] = self._service.get(path)
        return replace(resources.part(kind, self._parts[path]), link=None, health="ok")

    def _found(self) -> Reading:
        """Where blocks are, and what is said of them once and for all."""
        root, where = self._service.root(), self._service.client.base
        systems_at = uri(root.get("Systems")) or _WELL_KNOWN_SYSTEMS
        service_at = uri(root.get("CompositionService"))
        if service_at is None:
            blocks_at = uri(root.get("ResourceBlocks"))
            if blocks_at is None:
                raise FabricError(
                    f"{where}: a Redfish service without CompositionService and without ResourceBlocks; "
                    "a chassis that attaches by zones of its fabric is for the adapter `redfish-zones`"
                )
            return Reading({}, {}, (), {}, composes=False, blocks_at=blocks_at, systems_at=systems_at)
        composing = self._service.get(service_at)
        enabled, blocks_at = composing.get("ServiceEnabled"), uri(composing.get("ResourceBlocks"))
        if enabled is not None and not resources.truth(enabled):
            raise FabricError(
                f"{where}: its CompositionService is switched off (ServiceEnabled is {enabled!r}); switch it on at the service"
            )
        if blocks_at is None:
            raise FabricError(f"{where}: its CompositionService has no ResourceBlocks")
        zones = tuple(map(resources.zone, self._service.collection(composing, "ResourceZones")))
        return Reading(
            {},
            {},
            self._described(zones, systems_at),
            {},
            blocks_at=blocks_at,
            systems_at=systems_at,
            affinity=resources.truth(composing.get("AllowZoneAffinity")),
        )

    def _described(self, zones: tuple[Zone, ...], systems_at: str) -> tuple[Zone, ...]:
        """Zones with the limits that their capabilities state; where zones state none, those of the collection of systems."""
        if zones and not any(zone.cases for zone in zones):
            cases, objects = resources.capabilities(self._service.find(systems_at) or {})
            zones = tuple(replace(zone, cases=cases, capabilities=objects) for zone in zones)
        paths = dict.fromkeys(path for zone in zones for path in zone.capabilities)
        said = {path: resources.limits(self._service.find(path) or {}) for path in paths}
        return tuple(
            replace(zone, limits=tuple(limit for path in zone.capabilities for limit in said[path])) for zone in zones
        )
