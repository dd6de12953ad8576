"""Recorded times of a system's fabric: what its own leases took, else the recordings of that kind of fabric that are published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.config.resolve import Campaign
from campaign.config.system_file import SystemFile
from campaign.documents.operation_times import (
    OPERATIONS,
    OperationTimes,
    Session,
    Timed,
    published_times,
    read_times,
)
from campaign.fabrics.moves import Steps
from campaign.fabrics.registry import fabric_kind
from campaign.plan.cost.composing import ENOUGH, Composing
from campaign.plan.cost.costs import Costs
from campaign.wording import plural


def composing_of(campaign: Campaign, costs: Sequence[Costs]) -> Composing:
    """What is known of the times of operations on a campaign's system; the campaign itself is the present session."""
    system = campaign.system
    steps = fabric_kind(str(system.fabric["kind"])).steps or Steps()
    rows: defaultdict[str, list[Timed]] = defaultdict(list)  # costs of a campaign may come from several files
    for each in costs:
        if each.system == system.name:
            rows[each.campaign] += timed_of(each, steps)
    now = rows.pop(campaign.name, [])
    before = tuple(Session(name, tuple(timed)) for name, timed in rows.items() if timed)
    published = given_times(system, campaign.system_source.path)
    if published is not None:  # a site's own file may have this campaign
        published = replace(published, sessions=tuple(s for s in published.sessions if s.name != campaign.name))
    if published is not None and steps.confirmed and not system.times:
        published = published.read_twice(float(system.fabric.get("poll_s", 0.0)))
    known = [
        *["this campaign"] * bool(now),
        *[f"{plural(len(before), 'earlier campaign')} on {system.name}"] * bool(before),
        *([published.source] if published and len(before) < ENOUGH else []),
    ]
    return Composing(published, before, " and ".join(known)).within(now)


def given_times(system: SystemFile, path: Path) -> OperationTimes | None:
    """Those that a system file names, or that come with the package for its kind of fabric."""
    if system.times:
        return read_times(path.parent / system.times).scaled(system.times_factor)
    if drawn := str(system.fabric.get("times", "")):  # by a simulation, for devices of every kind
        return published_times(drawn).scaled(float(system.fabric.get("times_factor", 1.0))).of_any_device()
    name = fabric_kind(str(system.fabric["kind"])).times
    return published_times(name).scaled(system.times_factor) if name else None


def timed_of(costs: Costs, steps: Steps) -> tuple[Timed, ...]:
    """Operations of all leases of a campaign, and as `rest` what composing took beside those that are foreseen."""
    foreseen = {*steps.attach, *steps.move, *steps.detach, *steps.once}
    found: list[Timed] = []
    for lease in costs.leases:
        for group, each in enumerate(lease.timed, len(found)):
            found += timed_rows(each, group, foreseen)
    return tuple(found)


def timed_rows(entry: Mapping[str, Any], group: int, foreseen: Iterable[str]) -> list[Timed]:
    """Of one composing or release as a journal has it; nothing of what is damaged."""
    wanted = set(foreseen)
    try:
        rows = [
            Timed(operation, str(device), str(box), str(answer), float(seconds), group)
            for operation, device, box, answer, seconds in entry["rows"]
            if operation in OPERATIONS
        ]
        if entry["of"] == "composing":
            rest = float(entry["seconds"]) - sum(row.seconds for row in rows if row.operation in wanted)
            rows.append(Timed("rest", "", "", "", max(0.0, rest), group))
    except (KeyError, TypeError, ValueError):
        return []
    return rows
