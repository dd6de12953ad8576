"""Compositions made by hand, which stay after the process that composed them until they are released."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.common.errors import ConfigError, FabricError
from campaign.common.files import make_directory
from campaign.common.paths import Results, lease_id
from campaign.common.processes.signals import deferred
from campaign.fabrics.protocol import Capabilities, Fabric, Request
from campaign.lease.campaign_leases import Site, keep_mark, kept_name, reconcile_orphans, request
from campaign.lease.fabric_calls import Turn
from campaign.lease.journal import Journal, Ownership
from campaign.lease.lifecycle import acquire
from campaign.plan.campaign.load import noun_of, validate
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.lease_plans import campaign_of
from campaign.spec.cell import Configuration, drop_layout
from campaign.spec.hardware import Composition, Inventory
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import read_yaml

_WAIT_S = 30.0


def _opened(path: Path, root: Path, configuration: str | None = None) -> tuple[Campaign, Site]:
    """Load a campaign from a campaign file or a lease plan (.json), with its system.

    If the campaign has several systems, that of the configuration is used. Raises ConfigError if no configuration is given then.
    """
    campaign = campaign_of(read_lease_plan(path)) if path.suffix == ".json" else load_campaign(path)
    if not campaign.part:
        if configuration is None:
            raise ConfigError(
                f"{path}: has several systems ({campaign.system_names}); give the system file of one of them"
            )
        campaign = campaign.on(_configuration(campaign, configuration))
    return campaign, Site(campaign.system, root)


def _site(path: Path, root: Path) -> Site:
    """Load a system from a campaign file, a lease plan, or its own file."""
    if path.suffix in (".yaml", ".yml") and path.is_file() and noun_of((source := read_yaml(path)).data) == "system":
        return Site(validate(source, SystemFile, path.stem), root)
    return _opened(path, root)[1]


def _configuration(campaign: Campaign, name: str) -> Configuration:
    """Find a configuration of a campaign by its name. Raises ConfigError if there is none."""
    known = {configuration.name: configuration for configuration in campaign.configurations}
    if name not in known:
        raise ConfigError(f"{campaign.path}: no configuration '{name}'; there are: {', '.join(known)}")
    return known[name]


def _request(campaign: Campaign, root: Path, name: str, kept_as: str | None, hosts: Sequence[str]) -> Request:
    results, configuration = Results(root, campaign.name), _configuration(campaign, name)
    return request(campaign, results, kept_name(kept_as or name), configuration, tuple(hosts))


def compose(path: Path, root: Path, name: str, hosts: Sequence[str] = (), kept_as: str | None = None) -> dict[str, Any]:
    """Compose a configuration, leave it composed, and return the lease's document.

    Args:
        path: campaign file or lease plan.
        root: directory of all results.
        name: name of the configuration.
        hosts: hosts that may be used, empty for any.
        kept_as: name under which the composition is kept, so that several of one configuration can exist.
    """
    campaign, site = _opened(path, root, name)
    known = [host for group in campaign.system.hosts for host in group.names()]
    _configuration(campaign, name)
    if unknown := sorted(set(hosts) - set(known)):
        words = f"no host {', '.join(unknown)}; there are: {', '.join(known)}"
        raise ConfigError(f"system {campaign.system.name}: {words}")
    mine = _request(campaign, root, name, kept_as, hosts)
    mark = keep_mark(site.journals, mine.lease_id)
    was_kept = mark.exists()
    # Marked in advance, so that 'release' finds a lease that a crash leaves half composed, and it is not taken for garbage.
    make_directory(site.journals)
    mark.touch()
    with site.fabric() as fabric:
        try:
            lease = acquire(fabric, mine, site.journals, wait_s=_WAIT_S, poll_s=0.5)
        except BaseException:
            mark.unlink(missing_ok=True)
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
    """Return the requests to the fabric that composing and releasing a configuration would send now. Nothing is changed.

    Args:
        path: campaign file or lease plan.
        root: directory of all results.
        name: name of the configuration.
        hosts: hosts that may be used, empty for any.
        kept_as: name under which the composition would be kept.
    """
    campaign, site = _opened(path, root, name)
    with site.fabric() as fabric:
        selection = fabric.select(_request(campaign, root, name, kept_as, hosts), fabric.inventory())
        lines = [f"# {host.host}: {', '.join(host.ids) or 'no device'}" for host in selection.hosts]
        if fabric.controlled is None:
            return [*lines, f"# a fabric of kind {site.kind} is asked nothing over the network"]
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
    """Release a kept configuration, and return a message about the outcome.

    Raises FabricError with the devices that are still held.
    """
    campaign, site = _opened(path, root, name)
    mine = lease_id(Results(root, campaign.name), kept_name(kept_as or name))
    mark = keep_mark(site.journals, mine)
    if not mark.exists():
        if kept_as is None:
            _configuration(campaign, name)
        return f"{kept_as or name}: nothing is kept; a campaign's own leases end by themselves (see 'campaign status')"
    with site.fabric() as fabric:
        Turn(_WAIT_S, 0.5, None).get(lambda: Ownership(site.journals, mine)).close()
        # A half-composed lease is released directly, without composing it first.
        with deferred():
            ended = site.reconcile(fabric, is_alive=lambda other: other != mine)
    for orphan in ended:
        if orphan.outcome != "released":
            held = f" {', '.join(orphan.devices)}" if orphan.devices else ""
            why = f" ({orphan.message})" if orphan.message else ""
            raise FabricError(f"{kept_as or name}: the fabric would not release{held}{why}; try again later")
    mark.unlink(missing_ok=True)
    return f"{kept_as or name}: released"


def release_orphans(path: Path, root: Path, *, dry_run: bool) -> list[str]:
    """Release the leases of this results directory that have no owner, and return one line per lease."""
    site = _site(path, root)
    with site.fabric() as fabric:
        orphans = reconcile_orphans(fabric, site, dry_run=dry_run)
        if not dry_run:
            with deferred():
                fabric.bring_home()
    return [f"{o.lease_id}: {o.outcome.replace('_', ' ')} {', '.join(o.devices)} {o.message}".rstrip() for o in orphans]


def read_inventory(path: Path, root: Path) -> tuple[str, Capabilities, Inventory]:
    """Return the system's name, the capabilities of its fabric, and the inventory with fenced devices as failed ones."""
    site = _site(path, root)
    with site.fabric() as fabric:
        return site.system.name, fabric.capabilities(), site.fenced.mark(fabric.inventory())


def verify(path: Path, root: Path) -> list[Mapping[str, Any]]:
    """Return every composition on the fabric as it is now, with its lease, holder, and devices as both ends report them.

    `host_sees` is None if no host agent is configured.
    """
    site = _site(path, root)
    found: list[Mapping[str, Any]] = []
    with site.fabric() as fabric:
        for name, tag in sorted(fabric.held().items()):
            composition = fabric.read_back(name)
            seen = _seen(fabric, composition) if composition else {}
            about = {"lease": name, "campaign": tag.campaign, "owner": tag.owner, "live": site.is_live(name)}
            mismatches = _mismatches(Journal(site.journals, name), composition)
            found.append({**about, "devices": _devices(composition, seen), "mismatches": mismatches})
    return found


def _seen(fabric: Fabric, composition: Composition) -> dict[str, bool]:
    """Return True or False per device that the host should list, by the fabric id."""
    seen = fabric.host_sees(composition)
    return {name: name in seen for name in fabric.looked_for(composition)}


def _devices(composition: Composition | None, seen: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return one document per device of a composition."""
    return [
        {
            "host": host.name,
            "device": device.fabric_id,
            "model": device.model,
            "location": device.location,
            "host_sees": seen.get(device.fabric_id),
            "health": device.health,
        }
        for host in (composition.hosts if composition else ())
        for device in (*host.devices, *host.storage)
    ]


def _mismatches(journal: Journal, composition: Composition | None) -> list[str]:
    """Return the differences between a composition and its request."""
    requested = journal.document()["requested"]
    if composition is None:
        return ["the fabric does not know this lease"]
    return list(composition.mismatches(Configuration(**drop_layout(requested)))) if requested else []
