"""Compositions by hand: kept beyond the process that composed them, until they are released."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.config.open_fabric import fabric_of
from campaign.config.resolve import Campaign, load_campaign
from campaign.documents.cell import Configuration
from campaign.documents.lease_plan import read_lease_plan
from campaign.errors import ConfigError, FabricError
from campaign.fabrics.hardware import Composition, Inventory
from campaign.fabrics.protocol import Capabilities
from campaign.lease.campaign_leases import (
    is_kept,
    journals,
    keep_mark,
    kept_name,
    lease_id,
    reconcile_orphans,
    request,
)
from campaign.lease.fabric_calls import Turn
from campaign.lease.journal import Journal, Ownership, is_owned
from campaign.lease.lifecycle import acquire
from campaign.lease.reconcile import reconcile
from campaign.paths import Results
from campaign.plan.lease_plans import campaign_of

_WAIT_S = 30.0


def _campaign(path: Path) -> Campaign:
    """The campaign of a campaign file, or of a lease plan (.json)."""
    return campaign_of(read_lease_plan(path)) if path.suffix == ".json" else load_campaign(path)


def _configuration(campaign: Campaign, name: str) -> Configuration:
    for configuration in campaign.configurations:
        if configuration.name == name:
            return configuration
    names = ", ".join(configuration.name for configuration in campaign.configurations)
    raise ConfigError(f"{campaign.path}: no configuration '{name}'; there are: {names}")


def compose(path: Path, root: Path, name: str, hosts: Sequence[str] = (), kept_as: str | None = None) -> dict[str, Any]:
    """Compose a configuration and leave it composed; gives the lease's document.

    hosts: those it may be on, empty for any; kept_as: what it is kept under, so that several of one configuration can be kept.
    """
    campaign = _campaign(path)
    results = Results(root, campaign.name)
    configuration = _configuration(campaign, name)
    if unknown := sorted(set(hosts) - {known for group in campaign.system.hosts for known in group.names()}):
        known = ", ".join(known for group in campaign.system.hosts for known in group.names())
        raise ConfigError(f"system {campaign.system.name}: no host {', '.join(unknown)}; there are: {known}")
    directory = journals(results, campaign.system.name)
    mine = request(campaign, results, kept_name(kept_as or name), configuration, tuple(hosts))
    was_kept = is_kept(directory, mine.lease_id)
    # Marked before it exists: a lease that a crash leaves half composed is then found by 'release', not taken for garbage.
    directory.mkdir(parents=True, exist_ok=True)
    keep_mark(directory, mine.lease_id).touch()
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        try:
            lease = acquire(fabric, mine, directory, wait_s=_WAIT_S, poll_s=0.5)
        except FabricError:
            keep_mark(directory, mine.lease_id).unlink(missing_ok=True)
            raise
        document = lease.document()
        lease.ownership.close()
    elsewhere = [host.name for host in lease.composition.hosts if hosts and host.name not in hosts]
    if was_kept and elsewhere:
        raise FabricError(
            f"{kept_as or name}: is kept already, and on {', '.join(elsewhere)}; 'campaign release' it first to have it elsewhere"
        )
    return document


def rehearse(path: Path, root: Path, name: str, hosts: Sequence[str] = (), kept_as: str | None = None) -> list[str]:
    """What composing and releasing a configuration would ask of the fabric now, request by request; nothing is changed."""
    campaign = _campaign(path)
    results = Results(root, campaign.name)
    asked = request(campaign, results, kept_name(kept_as or name), _configuration(campaign, name), tuple(hosts))
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        selection = fabric.select(asked, fabric.inventory())
        lines = [f"# {host.host}: {', '.join(host.ids) or 'no device'}" for host in selection.hosts]
        if fabric.controlled is None:
            return [*lines, f"# a fabric of kind {campaign.system.fabric['kind']} is asked nothing over the network"]
        composing, releasing = fabric.controlled.rehearse(selection)
    for title, sent in (("to compose", composing), ("to release", releasing)):
        count = f"{len(sent)} request{'s' if len(sent) != 1 else ''}"
        lines += ["", f"# {title}: {count} that would change something; nothing was sent"]
        for each in sent:
            headers = "".join(f"\n  {key}: {value}" for key, value in each.headers.items())
            body = f"\n  {json.dumps(each.body)}" if each.body is not None else ""
            lines.append(f"{each.method} {each.url}{headers}{body}")
    return lines


def release(path: Path, root: Path, name: str, kept_as: str | None = None) -> str:
    """Release a configuration that is kept; says what happened. FabricError names what would not go."""
    campaign = _campaign(path)
    results = Results(root, campaign.name)
    directory = journals(results, campaign.system.name)
    mine = lease_id(results, kept_name(kept_as or name))
    if not is_kept(directory, mine):
        if kept_as is None:
            _configuration(campaign, name)
        return f"{kept_as or name}: nothing is kept; a campaign's own leases end by themselves (see 'campaign status')"
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        turn = Turn(_WAIT_S, 0.5, None)
        turn.get(lambda: Ownership(directory, mine)).close()
        # What is half composed is not composed first in order to be released.
        ended = reconcile(fabric, directory, is_alive=lambda other: other != mine, dry_run=False)
    for orphan in ended:
        if orphan.outcome != "released":
            held = f" {', '.join(orphan.devices)}" if orphan.devices else ""
            why = f" ({orphan.message})" if orphan.message else ""
            raise FabricError(f"{kept_as or name}: the fabric would not release{held}{why}; try again later")
    keep_mark(directory, mine).unlink(missing_ok=True)
    return f"{kept_as or name}: released"


def release_orphans(path: Path, root: Path, *, dry_run: bool) -> list[str]:
    """Release leases of this results directory that nobody owns; one line each."""
    campaign = _campaign(path)
    results = Results(root, campaign.name)
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        orphans = reconcile_orphans(fabric, root, campaign.system.name, dry_run=dry_run)
    return [f"{o.lease_id}: {o.outcome.replace('_', ' ')} {', '.join(o.devices)} {o.message}".rstrip() for o in orphans]


def read_inventory(path: Path, root: Path) -> tuple[str, Capabilities, Inventory]:
    """The system's name, what its fabric can do, and what there is."""
    campaign = _campaign(path)
    results = Results(root, campaign.name)
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        return campaign.system.name, fabric.capabilities(), fabric.inventory()


def verify(path: Path, root: Path) -> list[Mapping[str, Any]]:
    """Every composition held on the fabric as it is now: lease, holder, and each device with what both ends say of it."""
    campaign = _campaign(path)
    results = Results(root, campaign.name)
    directory = journals(results, campaign.system.name)
    found: list[Mapping[str, Any]] = []
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        for name, tag in sorted(fabric.held().items()):
            composition = fabric.read_back(name)
            seen = fabric.host_sees(composition) if composition else frozenset[str]()
            found.append(
                {
                    "lease": name,
                    "campaign": tag.campaign,
                    "owner": tag.owner,
                    "live": is_owned(directory, name) or is_kept(directory, name),
                    "devices": _devices(composition, seen),
                    "mismatches": _mismatches(Journal(directory, name), composition),
                }
            )
    return found


def _devices(composition: Composition | None, seen: frozenset[str]) -> list[dict[str, Any]]:
    return [
        {
            "host": host.name,
            "device": device.fabric_id,
            "model": device.model,
            "location": device.location,
            "host_sees": device.fabric_id in seen,
            "health": device.health,
        }
        for host in (composition.hosts if composition else ())
        for device in (*host.devices, *host.storage)
    ]


def _mismatches(journal: Journal, composition: Composition | None) -> list[str]:
    requested = journal.document()["requested"]
    if composition is None:
        return ["the fabric does not know this lease"]
    return list(composition.mismatches(Configuration(**requested))) if requested else []
