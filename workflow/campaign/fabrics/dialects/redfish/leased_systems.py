"""Which systems of a service are our leases': by the address that the service answered, by their blocks, or by name. Pure.

The address is the evidence: services rename what they are asked to name, or cut it. Where the answer was lost, a system of the
blocks that were asked for is ours. Names tell where nothing was remembered, such as when the state file was lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from campaign.fabrics.control_plane.lease_tag import decode
from campaign.fabrics.dialects.redfish.resources import Block, System
from campaign.fabrics.protocol import Tag
from campaign.fabrics.state_file import State

ASKED = "?"
"""What is remembered in place of an address while nobody has answered."""
_NAME = re.compile(r"composable-campaign lease=(\S+) host=(\S+)")


@dataclass(frozen=True, slots=True)
class Leased:
    """Whose a system is. host: the one that it was composed for."""

    tag: Tag
    host: str


@dataclass(frozen=True, slots=True)
class Seat:
    """What a host is on the fabric: the block that is composed for it, or the physical system that is expanded."""

    host: str
    block: Block | None
    system: System | None = None


def name_of(lease_id: str, host: str) -> str:
    """The Name of the system that a lease composes for a host."""
    return f"composable-campaign lease={quote(lease_id, safe='-_.+')} host={quote(host, safe='-_.+')}"


def read_name(name: str) -> tuple[str, str] | None:
    """(lease id, host) of such a Name; None for any other."""
    found = _NAME.fullmatch(name.strip())
    return (unquote(found[1]), unquote(found[2])) if found else None


def handle_of(host: str) -> str:
    """What the address of a host's system is remembered as."""
    return f"system:{host}"


def made(path: str, system: System) -> str:
    """What is remembered of a system that was composed: its address, and what tells it from a later one at this address."""
    return f"{path}\t{_identity(system)}"


def _identity(system: System) -> str:
    return f"{system.type or ''}/{system.uuid or ''}"


def address_of(handle: str) -> str | None:
    """The address in what is remembered; None while it is not known."""
    path = handle.partition("\t")[0]
    return None if path in ("", ASKED) else path


def named(system: System) -> Leased | None:
    """The lease that Name or Id say. Physical systems are nobody's, whatever they say."""
    found = read_name(system.name) or read_name(unquote(system.id))
    if found is None or system.type not in (None, "Composed"):
        return None
    tag = decode(system.description)
    if tag is None or tag.lease_id != found[0]:
        tag = Tag(found[0], "", "", 0.0, ())  # campaign and owner are unknown
    return Leased(tag, found[1])


def leased_systems(
    systems: Mapping[str, System],
    seats: Mapping[str, Seat],
    blocks: Mapping[str, Block],
    state: State,
    *,
    constrained: bool,
) -> dict[str, Leased]:
    """Leased systems by address. blocks: of each device, by fabric id; constrained: the service chose the devices."""
    found = {path: leased for path, system in systems.items() if (leased := named(system)) is not None}
    tags = state.tags()
    for lease_id, holding in state.leases.items():
        for held in holding.hosts:
            handle, seat = holding.handles.get(handle_of(held.name), ""), seats.get(held.name)
            if not handle or seat is None or seat.block is None or seat.system is not None:
                continue
            names = (name for name in (*held.devices, *held.storage) if name in blocks)
            wanted = {seat.block.uri, *(blocks[name].uri for name in names)}
            candidates = (system for system in systems.values() if system.uri not in found)
            if handle == ASKED:
                fitting = (
                    one for one in candidates if _is_made_of(one, seat.block.uri, wanted, constrained=constrained)
                )
            else:
                fitting = (one for one in candidates if is_at(one, handle, wanted))
            if (one := next(fitting, None)) is not None:
                found[one.uri] = Leased(tags[lease_id], held.name)
    return found


def is_at(system: System, handle: str, wanted: set[str]) -> bool:
    """Whether it is the system that was remembered, not one that somebody else composed there later: addresses are given anew."""
    path, _, identity = handle.partition("\t")
    same = not identity or identity == _identity(system)
    return system.uri == path and same and (not system.blocks or not wanted.isdisjoint(system.blocks))


def _is_made_of(system: System, host: str, wanted: set[str], *, constrained: bool) -> bool:
    """Whether it has everything that was asked for; somebody may have added to it since."""
    blocks = set(system.blocks or ())
    return wanted <= blocks or (constrained and host in blocks and len(blocks) >= len(wanted))
