"""Compositions made by hand. They outlive the process that composed them, until they are released."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.common.errors import ConfigError, FabricError
from campaign.common.files import make_directory
from campaign.common.paths import Results, lease_id
from campaign.common.processes.signals import defer_ending_signals
from campaign.fabrics.protocol import Capabilities, Fabric, LeaseRequest
from campaign.lease.campaign_leases import Site, get_kept_marker, make_kept_lease_name, make_request, reconcile_orphans
from campaign.lease.fabric_calls import WaitBudget
from campaign.lease.journal import Journal, LeaseOwnership
from campaign.lease.lifecycle import acquire_lease
from campaign.plan.campaign.load import detect_noun, validate
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.lease_plans import campaign_part_from_lease_plan
from campaign.spec.cell import Configuration, drop_layout
from campaign.spec.hardware import Composition, Inventory
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import read_yaml

_WAIT_TIMEOUT_S = 30.0


def _load_campaign_and_site(path: Path, root: Path, configuration: str | None = None) -> tuple[Campaign, Site]:
    """Load a campaign from a campaign file or a lease plan (.json), with its system.

    If the campaign has several systems, the system of the configuration is used. Raises ConfigError if none is given then.
    """
    campaign = campaign_part_from_lease_plan(read_lease_plan(path)) if path.suffix == ".json" else load_campaign(path)
    if not campaign.part:
        if configuration is None:
            raise ConfigError(
                f"{path}: the campaign has several systems ({campaign.system_names}); give the system file of one of them"
            )
        campaign = campaign.part_on(_find_configuration(campaign, configuration))
    return campaign, Site(campaign.system, root)


def _load_site(path: Path, root: Path) -> Site:
    """Load a system from a campaign file, a lease plan, or its own file."""
    if (
        path.suffix in (".yaml", ".yml")
        and path.is_file()
        and detect_noun((source := read_yaml(path)).data) == "system"
    ):
        return Site(validate(source, SystemFile, path.stem), root)
    return _load_campaign_and_site(path, root)[1]


def _find_configuration(campaign: Campaign, name: str) -> Configuration:
    """Find a configuration of a campaign by its name. Raises ConfigError if there is none."""
    configurations = {configuration.name: configuration for configuration in campaign.configurations}
    if name not in configurations:
        raise ConfigError(
            f"{campaign.path}: the campaign has no configuration '{name}'; it has: {', '.join(configurations)}"
        )
    return configurations[name]


def _make_kept_request(
    campaign: Campaign, root: Path, name: str, kept_as: str | None, hosts: Sequence[str]
) -> LeaseRequest:
    results, configuration = Results(root, campaign.name), _find_configuration(campaign, name)
    return make_request(campaign, results, make_kept_lease_name(kept_as or name), configuration, tuple(hosts))


def compose_kept_lease(
    path: Path, root: Path, name: str, hosts: Sequence[str] = (), kept_as: str | None = None
) -> dict[str, Any]:
    """Compose a configuration, leave it composed, and return the lease's document.

    Args:
        path: campaign file or lease plan.
        root: directory of all results.
        name: name of the configuration.
        hosts: hosts that may be used, empty for any.
        kept_as: name under which the composition is kept, so that several of one configuration can exist.
    """
    campaign, site = _load_campaign_and_site(path, root, name)
    known_hosts = [host for group in campaign.system.hosts for host in group.list_names()]
    _find_configuration(campaign, name)
    if unknown_hosts := sorted(set(hosts) - set(known_hosts)):
        message = f"has no host {', '.join(unknown_hosts)}; it has: {', '.join(known_hosts)}"
        raise ConfigError(f"system {campaign.system.name} {message}")
    request = _make_kept_request(campaign, root, name, kept_as, hosts)
    marker = get_kept_marker(site.journals_directory, request.lease_id)
    was_kept = marker.exists()
    # The lease is marked in advance, so that 'campaign release' finds it even if a crash leaves it half composed.
    make_directory(site.journals_directory)
    marker.touch()
    with site.open_fabric() as fabric:
        try:
            lease = acquire_lease(fabric, request, site.journals_directory, wait_s=_WAIT_TIMEOUT_S, poll_s=0.5)
        except BaseException:
            marker.unlink(missing_ok=True)
            raise
        document = lease.make_document()
        lease.ownership.close()
    other_hosts = [host.name for host in lease.composition.hosts if hosts and host.name not in hosts]
    if was_kept and other_hosts:
        raise FabricError(
            f"{kept_as or name}: already composed on {', '.join(other_hosts)}; use 'campaign release' before composing it elsewhere"
        )
    return document


def rehearse_compose(
    path: Path, root: Path, name: str, hosts: Sequence[str] = (), kept_as: str | None = None
) -> list[str]:
    """Return the requests that composing and releasing a configuration would send to the fabric. Changes nothing.

    Args:
        path: campaign file or lease plan.
        root: directory of all results.
        name: name of the configuration.
        hosts: hosts that may be used, empty for any.
        kept_as: name under which the composition would be kept.
    """
    campaign, site = _load_campaign_and_site(path, root, name)
    with site.open_fabric() as fabric:
        selection = fabric.select_devices(
            _make_kept_request(campaign, root, name, kept_as, hosts), fabric.read_inventory()
        )
        lines = [f"# {host.host}: {', '.join(host.fabric_ids) or 'no device'}" for host in selection.hosts]
        if fabric.control_plane_access is None:
            return [*lines, f"# a fabric of kind {site.fabric_kind} needs no requests over the network"]
        compose_requests, release_requests = fabric.control_plane_access.preview_requests(selection)
    for title, requests in (("to compose", compose_requests), ("to release", release_requests)):
        count = f"{len(requests)} request{'s' if len(requests) != 1 else ''}"
        lines += ["", f"# {title}: {count} that would change something; nothing was sent"]
        for request in requests:
            headers = "".join(f"\n  {key}: {value}" for key, value in request.headers.items())
            body = f"\n  {json.dumps(request.body)}" if request.body is not None else ""
            lines.append(f"{request.method} {request.url}{headers}{body}")
    return lines


def release_kept_lease(path: Path, root: Path, name: str, kept_as: str | None = None) -> str:
    """Release a kept configuration, and return a message about the outcome.

    Raises FabricError with the devices that are still held.
    """
    campaign, site = _load_campaign_and_site(path, root, name)
    kept_lease_id = lease_id(Results(root, campaign.name), make_kept_lease_name(kept_as or name))
    marker = get_kept_marker(site.journals_directory, kept_lease_id)
    if not marker.exists():
        if kept_as is None:
            _find_configuration(campaign, name)
        return f"{kept_as or name}: no composition is kept; a campaign's own leases end by themselves (see 'campaign status')"
    with site.open_fabric() as fabric:
        WaitBudget(_WAIT_TIMEOUT_S, 0.5, None).call_when_free(
            lambda: LeaseOwnership(site.journals_directory, kept_lease_id)
        ).close()
        # A half-composed lease is released directly, without composing it first.
        with defer_ending_signals():
            orphans = site.reconcile_leases(fabric, is_alive=lambda candidate: candidate != kept_lease_id)
    for orphan in orphans:
        if orphan.outcome != "released":
            devices_text = f" {', '.join(orphan.devices)}" if orphan.devices else ""
            reason_text = f" ({orphan.message})" if orphan.message else ""
            raise FabricError(
                f"{kept_as or name}: the fabric did not release{devices_text}{reason_text}; try again later"
            )
    marker.unlink(missing_ok=True)
    return f"{kept_as or name}: released"


def release_orphans(path: Path, root: Path, *, dry_run: bool) -> list[str]:
    """Release the leases of this results directory that have no owner, and return one line per lease."""
    site = _load_site(path, root)
    with site.open_fabric() as fabric:
        orphans = reconcile_orphans(fabric, site, dry_run=dry_run)
        if not dry_run:
            with defer_ending_signals():
                fabric.return_displaced_devices()
    return [
        f"{orphan.lease_id}: {orphan.outcome.replace('_', ' ')} {', '.join(orphan.devices)}".rstrip()
        + (f" ({orphan.message})" if orphan.message else "")
        for orphan in orphans
    ]


def read_inventory(path: Path, root: Path) -> tuple[str, Capabilities, Inventory]:
    """Return the system's name, the capabilities of its fabric, and the inventory with fenced devices marked as failed."""
    site = _load_site(path, root)
    with site.open_fabric() as fabric:
        return (
            site.system.name,
            fabric.describe_capabilities(),
            site.fenced_devices.mark_fenced(fabric.read_inventory()),
        )


def verify_compositions(path: Path, root: Path) -> list[Mapping[str, Any]]:
    """Return one document per composition on the fabric: its lease, owner, devices, and mismatches.

    `host_sees` of a device is None if no host agent is configured.
    """
    site = _load_site(path, root)
    documents: list[Mapping[str, Any]] = []
    with site.open_fabric() as fabric:
        for name, tag in sorted(fabric.list_lease_tags().items()):
            composition = fabric.read_back(name)
            visibility = _get_host_visibility(fabric, composition) if composition else {}
            facts = {"lease": name, "campaign": tag.campaign, "owner": tag.owner, "live": site.is_live(name)}
            mismatches = _find_mismatches(Journal(site.journals_directory, name), composition)
            documents.append(
                {**facts, "devices": _make_device_documents(composition, visibility), "mismatches": mismatches}
            )
    return documents


def _get_host_visibility(fabric: Fabric, composition: Composition) -> dict[str, bool]:
    """Return whether the host lists each device that it should list, by fabric id."""
    visible_devices = fabric.find_visible_devices(composition)
    return {name: name in visible_devices for name in fabric.list_devices_to_verify(composition)}


def _make_device_documents(composition: Composition | None, visibility: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return one document per device of a composition."""
    return [
        {
            "host": host.name,
            "device": device.fabric_id,
            "model": device.model,
            "location": device.location,
            "host_sees": visibility.get(device.fabric_id),
            "health": device.health,
        }
        for host in (composition.hosts if composition else ())
        for device in (*host.devices, *host.storage)
    ]


def _find_mismatches(journal: Journal, composition: Composition | None) -> list[str]:
    """Return the differences between a composition and its request."""
    requested_document = journal.make_document()["requested"]
    if composition is None:
        return ["the fabric does not report this lease"]
    return (
        list(composition.list_mismatches(Configuration(**drop_layout(requested_document))))
        if requested_document
        else []
    )
