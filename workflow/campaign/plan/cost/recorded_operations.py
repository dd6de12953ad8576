"""Recorded times of a fabric's operations: those that journals have, and those that a system file names or the package has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from campaign.config.system_file import SystemFile
from campaign.documents.operation_times import OPERATIONS, OperationTimes, Timed, published_times, read_times
from campaign.fabrics.operations import Steps
from campaign.fabrics.registry import fabric_kind


def given_times(system: SystemFile, path: Path) -> OperationTimes | None:
    """Times of operations that a system file names, or that come with the package for its kind of fabric."""
    if system.times:
        return read_times(path.parent / system.times).scaled(system.times_factor)
    if drawn := str(system.fabric.get("times", "")):  # by a simulation, for devices of every kind
        return published_times(drawn).scaled(float(system.fabric.get("times_factor", 1.0))).of_any_device()
    name = fabric_kind(str(system.fabric["kind"])).times
    return published_times(name).scaled(system.times_factor) if name else None


def timed_operations(entries: Iterable[Mapping[str, Any]], kind: str) -> tuple[Timed, ...]:
    """Operations of composing and releasing as journals of a kind of fabric have them; of what is damaged, none.

    What composing took beside those that are foreseen is its `rest`. Each entry is a group.
    """
    steps = fabric_kind(kind).steps or Steps()
    foreseen = {*steps.attach, *steps.detach, *steps.once}
    found: list[Timed] = []
    for group, entry in enumerate(entries, 1):
        try:
            rows = [
                Timed(operation, str(device), str(box), str(answer), float(seconds), group)
                for operation, device, box, answer, seconds in entry["rows"]
                if operation in OPERATIONS
            ]
            if entry["of"] == "composing":
                rest = float(entry["seconds"]) - sum(row.seconds for row in rows if row.operation in foreseen)
                rows.append(Timed("rest", "", "", "", max(0.0, rest), group))
        except (KeyError, TypeError, ValueError):
            continue
        found += rows
    return tuple(found)
