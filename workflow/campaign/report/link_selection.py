"""Which measurements of links figures show: one of each configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shown:
    """One configuration and its links/1 document."""

    configuration: str
    document: Mapping[str, Any]


def shown(links: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """The last measurement before runs of each configuration, else the last of all; in the order of first appearance.

    links: as `FigureData.links`, with `configuration`, `when` and `document`.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for each in links:
        before = found.get(each["configuration"])
        if before is None or each["when"] == "before" or before["when"] != "before":
            found[each["configuration"]] = each
    return [Shown(name, each["document"]) for name, each in found.items()]


def size_words(size_bytes: float) -> str:
    """A message size for people: '8 B', '64 KiB', '256 MiB'."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:g} B"
