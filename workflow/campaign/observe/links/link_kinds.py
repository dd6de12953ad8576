"""Kinds of link between two devices. Pure.

Two local devices of a host: `local`. Any device behind the fabric: `fabric`. Different hosts: `network`, also where a device is
behind the fabric: then the way is `fabric + network`, and its slowest link counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LOCAL, FABRIC, NETWORK = "local", "fabric", "network"
KINDS = (LOCAL, FABRIC, NETWORK, f"{FABRIC} + {NETWORK}")
"""From the shortest way to the longest."""


def kind_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The kind of way between two devices as the document describes them (`host`, `attach`)."""
    crossed = []
    if FABRIC in (one["attach"], other["attach"]):
        crossed.append(FABRIC)
    if one["host"] != other["host"]:
        crossed.append(NETWORK)
    return " + ".join(crossed) or LOCAL


def kinds(devices: Sequence[Mapping[str, Any]]) -> list[list[str | None]]:
    """[device][device], None on the diagonal."""
    return [[None if one is other else kind_of(one, other) for other in devices] for one in devices]


def links_of(kind: str) -> list[str]:
    """The links of a kind of way: names of keys in a system file's `links`."""
    return kind.split(" + ")
