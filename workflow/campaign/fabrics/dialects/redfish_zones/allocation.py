"""A chassis' whole allocation as one document, and the way back: every objection first, then removals, then additions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.errors import ConfigError, first_problem
from campaign.fabrics.banks import CABLING_RULE, RULES, Mode, violation
from campaign.fabrics.control_plane.lease_tag import decode
from campaign.fabrics.dialects.redfish_zones.layout import HostPort, Layout
from campaign.fabrics.dialects.redfish_zones.zones import Zones
from campaign.fabrics.errors import Conflict, Incompatible, NoMatch, ProtocolViolation


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SavedZone(_Closed):
    """The zone of one host port."""

    devices: tuple[str, ...] = Field(description="fabric ids of what is in it, the host port left out")
    description: str | None = Field(default=None, description="its Description, which may be a lease's mark")


class Allocation(_Closed):
    """Every zone of a chassis at one moment."""

    schema_version: Literal[1] = Field(default=1, description="of this document")
    kind: Literal["redfish-zones"] = Field(default="redfish-zones", description="the adapter that wrote it")
    time: str = Field(description="when it was read (ISO 8601, UTC)")
    fabric: str = Field(description="Id of the fabric, in lower case")
    modes: dict[str, Mode] = Field(default_factory=dict, description="modes of the drawers")
    zones: dict[str, SavedZone] = Field(description="zones by the label of their host port")


def export(layout: Layout) -> dict[str, Any]:
    saved = Allocation(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        fabric=layout.fabric,
        modes={drawer: layout.modes[drawer] for drawer in layout.drawers if drawer in layout.modes},
        zones={
            port.label: SavedZone(devices=_ids(layout, port), description=port.zone.description)
            for port in layout.ports
        },
    )
    return saved.model_dump(mode="json")


def restore(look: Callable[[], Layout], zones: Zones, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Bring zones to what the document says. Zones that it does not name are left alone.

    Raises ConfigError for another kind of document, Incompatible for other modes or a broken rule, NoMatch for parts that are not
    there, Conflict for zones that no campaign marked and that have other devices: all of them before anything is changed.
    ProtocolViolation: the chassis then shows something else.
    """
    try:
        saved = Allocation.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, "document")
        raise ConfigError(f"not an allocation of a chassis with zones: {problem}") from error
    layout = look()
    differing = _differing(layout, saved)
    told: list[str] = []
    for adding in (False, True):
        for port in differing:
            wanted = saved.zones[port.label]
            told += _step(layout, zones, port, wanted, adding=adding)
    after = look()
    left = [port.label for port in after.ports if port.label in saved.zones and _differs(after, port, saved)]
    if left:
        raise ProtocolViolation(
            f"after {'; '.join(told) or 'nothing was changed'}: {', '.join(left)} differ from the document"
        )
    return tuple(told)


def _differing(layout: Layout, saved: Allocation) -> list[HostPort]:
    """The ports whose zones are to be changed; raises whatever forbids it."""
    ports = {port.label: port for port in layout.ports}
    if layout.fabric != saved.fabric:
        raise NoMatch(f"the document is of fabric {saved.fabric}, this is {layout.fabric}")
    for drawer, mode in saved.modes.items():
        there = layout.modes.get(drawer)
        if there != mode:
            raise Incompatible(
                f"{drawer} was in mode {mode} and is in {there or 'no known mode'}: modes are changed on the chassis itself, "
                "as that takes every device from its host",
                RULES[mode],
            )
    known = {end.id for end in layout.pooled}
    gone = sorted({name for zone in saved.zones.values() for name in zone.devices} - known)
    if unknown := [*(f"host port {label}" for label in saved.zones if label not in ports), *gone]:
        raise NoMatch(f"no longer present: {', '.join(unknown)}")
    found = [ports[label] for label in saved.zones if _differs(layout, ports[label], saved)]
    foreign = [port for port in found if port.devices and decode(port.zone.description) is None]
    moved = {name for port in found for name in saved.zones[port.label].devices}
    foreign += [p for p in layout.ports if p not in found and p not in foreign and moved & set(_ids(layout, p))]
    if foreign:
        words = [f"{port.words} ({', '.join(_ids(layout, port))})" for port in foreign]
        raise Conflict(f"held by others: {'; '.join(words)}", [port.words for port in foreign])
    _obey(layout, saved)
    return found


def _obey(layout: Layout, saved: Allocation) -> None:
    """Raise Incompatible when the whole, as it would be, breaks a rule or has a device twice."""
    attached: dict[str, str] = {}
    for port in layout.ports:
        zone = saved.zones.get(port.label)
        for name in zone.devices if zone is not None else _ids(layout, port):
            for path in layout.paths([name]):
                location = layout.location(path)
                if location in attached:
                    raise Incompatible(f"{name} is in two zones of the document", "a device is in one zone")
                if port.label not in [reaching.label for reaching in layout.connections(path)]:
                    raise Incompatible(f"{location} cannot be attached to {port.words}", CABLING_RULE)
                attached[location] = port.holder
    if rule := violation(layout.banks, attached):
        raise Incompatible(f"the document is not allowed: {rule}", rule)


def _step(layout: Layout, zones: Zones, port: HostPort, wanted: SavedZone, *, adding: bool) -> list[str]:
    """Take away what does not belong into a zone, or add what is missing together with its description; in words, what was done."""
    now = zones.read(port)
    if set(now.devices) != set(port.devices) and not adding:
        raise Conflict(f"{port.words} was changed by another client", (port.words,))
    there, ids = list(now.devices), {end.path: end.id for end in layout.pooled}
    paths = layout.paths(wanted.devices)
    kept = [path for path in there if path in paths]
    if not adding:
        if len(kept) < len(there):
            zones.change(now, [now.endpoint, *kept], None)
            return [f"{port.label}: detached {', '.join(ids[path] for path in there if path not in kept)}"]
        return []
    missing = [path for path in paths if path not in there]
    description = wanted.description or ""
    described = None if description == (now.zone.description or "") else description
    if missing:
        zones.change(now, [now.endpoint, *kept, *missing], described)
        return [f"{port.label}: attached {', '.join(ids[path] for path in missing)}"]
    if described is not None:
        zones.change(now, None, described)
        return [f"{port.label}: described anew"]
    return []


def _differs(layout: Layout, port: HostPort, saved: Allocation) -> bool:
    """Other devices, or another lease's mark; what a zone is otherwise described as is not worth a change."""
    wanted = saved.zones[port.label]
    return set(_ids(layout, port)) != set(wanted.devices) or decode(port.zone.description) != decode(wanted.description)


def _ids(layout: Layout, port: HostPort) -> tuple[str, ...]:
    return tuple(layout.endpoints[path].id for path in port.devices if path in layout.endpoints)
