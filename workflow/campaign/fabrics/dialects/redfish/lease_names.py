"""How a composed system says whose it is: by its Name, which every service keeps, and its Description, where it is kept. Pure."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from campaign.fabrics.control_plane.lease_tag import decode
from campaign.fabrics.dialects.redfish.resources import System
from campaign.fabrics.protocol import Tag

_NAME = re.compile(r"composable-campaign lease=(\S+) host=(\S+)")


def name_of(lease_id: str, host: str) -> str:
    """The Name of the system that a lease composes for a host: what a retry finds it by."""
    return f"composable-campaign lease={quote(lease_id, safe='-_.+')} host={quote(host, safe='-_.+')}"


def read_name(name: str) -> tuple[str, str] | None:
    """(lease id, host) of such a Name; None for any other."""
    found = _NAME.fullmatch(name.strip())
    return (unquote(found[1]), unquote(found[2])) if found else None


def tag_of(system: System) -> Tag | None:
    """Whose a system is; with the Name alone, campaign and owner are unknown. Physical systems are nobody's, whatever they say."""
    named = read_name(system.name)
    if named is None or system.type not in (None, "Composed"):
        return None
    described = decode(system.description)
    return described if described is not None and described.lease_id == named[0] else Tag(named[0], "", "", 0.0, ())
