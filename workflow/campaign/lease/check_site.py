"""Checks of a site outside any campaign: its fabric, leftovers of earlier leases, and durations of its operations.

All functions need only a system file to open the fabric. Their callers announce every change in advance. `check_hosts` checks
the requirements of a lease other than the control plane.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from campaign.common.errors import CampaignError, ConfigError, FabricError
from campaign.common.processes.signals import defer_ending_signals
from campaign.common.wording import pluralize, shorten_names
from campaign.fabrics.banks import MODE_RULES, find_drawer
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions as ControlledOptions
from campaign.fabrics.errors import Refused
from campaign.fabrics.operations import OperationSteps
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.fabrics.registry import FABRICS, load_fabric_kind
from campaign.lease.campaign_leases import Site
from campaign.lease.journal import Journal, list_journaled_leases
from campaign.lease.lifecycle import acquire_lease, release_lease
from campaign.lease.reconcile import Orphan
from campaign.plan.campaign.open_fabric import current_owner
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Inventory, get_device_noun
from campaign.spec.operation_times import OPERATIONS, OperationTime, OperationTimes, RecordingSession
from campaign.spec.system_file import SystemFile

Severity = Literal["ok", "note", "problem", "stop"]
"""Severity of a finding. problem: some leases cannot work; stop: no lease can work, or the system file is wrong."""


_MAX_IDS = 4
"""Maximum number of fabric ids of devices that are printed per model."""
_RELEASE_REMEDY = "'campaign fabric reconcile SYSTEM --release --grace 0' releases it"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        what: subject of the check.
        verdict: severity.
        words: state of the subject, and the remedy if there is a problem.
    """

    what: str
    verdict: Severity
    words: str


SiteCheck = Callable[[Fabric, Inventory], Iterable[Finding]]
"""Additional check of an open fabric with its inventory."""


def _check_nothing(fabric: Fabric, inventory: Inventory) -> Iterable[Finding]:
    return ()


def check_fabric(site: Site, check_more: SiteCheck = _check_nothing) -> Iterator[Finding]:
    """Check everything that can be read from the control plane without changing it.

    Each finding is yielded as soon as it is known.

    Args:
        site: the system and its state.
        check_more: additional check of the open fabric, made last.
    """
    kind, adapter = site.fabric_kind, load_fabric_kind(site.fabric_kind)
    if adapter.unverified:
        is_recordable = issubclass(adapter.options, ControlledOptions)  # Other kinds have no control plane to record.
        remedy = "; 'campaign fabric record' writes a recording for the authors" if is_recordable else ""
        yield Finding("adapter", "note", f"{kind}: unverified: {adapter.unverified}{remedy}")
    else:
        yield Finding("adapter", "ok", f"{kind}: {adapter.summary}")
    yield from _check_transport(site)
    yield from check_control_plane(site, check_more)


def check_control_plane(site: Site, check_more: SiteCheck = _check_nothing) -> Iterator[Finding]:
    """Check what leases require of the control plane, except its transport, then run an additional check.

    A failure of the control plane at any time is reported as a problem.

    Args:
        site: the system and its state.
        check_more: additional check of the same open fabric.
    """
    start_s = time.monotonic()
    try:
        with site.open_fabric() as fabric:
            inventory = fabric.read_inventory()
            yield _check_answer(site, fabric, inventory, start_s)
            yield from _check_pool(site.system, inventory, reports_models=fabric.describe_capabilities().tells_models)
            yield from _check_capabilities(fabric, inventory)
            yield from _check_holders(site, fabric, inventory)
            for fence in site.fenced_devices.read_active():
                yield Finding("fenced", "note", f"{fence.describe()} ('campaign fabric fences {site.system.name}')")
            yield from check_more(fabric, inventory)
    except (ConfigError, Refused) as error:
        yield Finding("answer", "stop", str(error))
    except CampaignError as error:
        yield Finding("answer", "problem", str(error))


def _check_answer(site: Site, fabric: Fabric, inventory: Inventory, start_s: float) -> Finding:
    """Return what the fabric answered, or that nothing was asked.

    Raises FabricError if the fabric does not answer.

    Args:
        site: the system and its state.
        fabric: the open fabric.
        inventory: inventory of the fabric.
        start_s: start of reading the inventory, on the monotonic clock.
    """
    device_text = pluralize(
        len({device.physical_id for device in inventory.devices if not device.local}), "pool device"
    )
    if fabric.control_plane_access is None:
        answer = fabric.probe()
        listed_text = f"{device_text} listed in the system file"
        if answer is not None:
            return Finding("answer", "ok", f"{answer}, in {(time.monotonic() - start_s) * 1e3:.0f} ms; {listed_text}")
        if site.fabric_kind in FABRICS:
            return Finding("answer", "ok", f"there is no control plane to ask; {listed_text}")
        return Finding("answer", "note", f"nothing was asked, because the adapter has no method `probe`; {listed_text}")
    login_text = "signed in and read" if any((site.system.fabric.get("credentials") or {}).values()) else "read"
    request_count = fabric.control_plane_access.request_count
    duration_ms = (time.monotonic() - start_s) * 1e3
    return Finding("answer", "ok", f"{login_text} {device_text} in {duration_ms:.0f} ms in {request_count} requests")


def _check_transport(site: Site) -> Iterator[Finding]:
    """Check that connections to the control plane are encrypted and verified."""
    options = {key: value for key, value in site.system.fabric.items() if key in ControlledOptions.model_fields}
    boxes = site.system.fabric.get("boxes")
    if isinstance(boxes, dict):
        unencrypted_boxes = [name for name, url in boxes.items() if str(url).startswith("http://")]
        message = (
            "no encryption and no login, so anyone on their network can control them; keep them on a separate network"
        )
        yield (
            Finding("transport", "note", f"{', '.join(unencrypted_boxes)}: {message}")
            if unencrypted_boxes
            else Finding("transport", "ok", "TLS")
        )
        return
    url = str(options.get("url", ""))
    if url.startswith("http://") and options.get("tunnel") is True:
        yield Finding("transport", "note", f"{url}: not encrypted, but the system file declares a tunnel")
    elif url.startswith("http://") and "tunnel" not in load_fabric_kind(site.fabric_kind).options.model_fields:
        yield Finding("transport", "note", f"{url}: not encrypted, so anyone on the network can read what is sent")
    elif url.startswith("http://"):
        message = "not encrypted, so anyone on the network can read the password; use https, or set `tunnel: true`"
        yield Finding("transport", "problem", f"{url}: {message}")
    elif url and options.get("verify_tls") is False:
        message = "the certificate is not verified (verify_tls: false); set ca_file"
        yield Finding("transport", "problem", f"{url}: {message}")
    elif url:
        yield Finding("transport", "ok", f"{url}: TLS with a verified certificate")


def _check_pool(system: SystemFile, inventory: Inventory, *, reports_models: bool) -> Iterator[Finding]:
    """Compare the pool of the fabric with the pool in the system file.

    Args:
        system: system file.
        inventory: inventory of the fabric.
        reports_models: True if the fabric reports the models of devices.
    """
    pool_devices = {(d.physical_id, (d.model, d.noun)): d for d in inventory.devices if not d.local}
    listed_counts: Counter[tuple[str, str]] = Counter()
    for entry in system.pool:
        listed_counts[entry.model, get_device_noun(entry.kind)] += entry.count
    found_counts = Counter(key for _, key in pool_devices)
    names = {device.called or device.model for device in pool_devices.values()}
    for model, use in sorted(listed_counts | found_counts):
        found_count, listed_count, message = (
            found_counts[model, use],
            listed_counts[model, use],
            model if use == "device" else f"{model} ({use})",
        )
        if found_count == listed_count and not reports_models:
            claim = f"{found_count} {message}, as in the system file; the model is from the file, as the fabric does not report it"
            yield Finding("pool", "note", claim)
        elif found_count == listed_count:
            ids = [name for name, key in pool_devices if key == (model, use)]
            yield Finding(
                "pool", "ok", f"{found_count} {message}, as in the system file: {shorten_names(ids, _MAX_IDS)}"
            )
        elif not listed_count:
            yield Finding(
                "pool", "note", f"{found_count} {message} that the system file does not list; plans do not use them"
            )
        else:
            fabric_names_text = (
                "" if found_count else f"; the fabric has {', '.join(map(repr, sorted(names))) or 'nothing'}"
            )
            remedy = f" (map its names: `fabric: models: {{NAME: {model}}}`)" if fabric_names_text and names else ""
            message = (
                f"{found_count} {message} found, but the system file lists {listed_count}{fabric_names_text}{remedy}"
            )
            yield Finding("pool", "problem" if found_count else "stop", message)
    drawers = dict.fromkeys(d.location.rpartition("/slot")[0] for d in inventory.devices if not d.local)
    for entry in system.pool:
        if entry.drawer is not None and drawers and find_drawer(entry.drawer, drawers) is None:
            message = (
                f"drawer {entry.drawer!r} (`pool: drawer`) has no device; drawers with devices: {', '.join(drawers)}"
            )
            yield Finding("pool", "note", message)
    for device in inventory.devices:
        name = f"{device.fabric_id} ({device.model})"
        if device.health != "ok" or device.state in ("failed", "unknown", "unavailable"):
            yield Finding("pool", "note", f"{name}: {device.state}, health {device.health}")
        elif device.link is not None and device.link.is_degraded:
            yield Finding("pool", "note", f"{name}: {device.link.description}")


def _check_capabilities(fabric: Fabric, inventory: Inventory) -> Iterator[Finding]:
    """Check the capabilities of the fabric, and which hosts reach which devices."""
    capabilities = fabric.describe_capabilities()
    if capabilities.read_only:
        yield Finding("modes", "stop", capabilities.read_only)
    limit_text = (
        f"at most {capabilities.max_devices_per_host} devices per host"
        if capabilities.max_devices_per_host
        else "no limit is reported"
    )
    yield Finding("modes", "ok", f"devices are attached {capabilities.attach_mode.replace('_', ' ')}; {limit_text}")
    if capabilities.note:
        yield Finding("modes", "note", capabilities.note)
    if fabric.control_plane_access is None:
        return
    banks = fabric.control_plane_access.read_banks()
    unreached_drawers = fabric.control_plane_access.list_unreachable_drawers()
    reaching_hosts_by_bank = {
        bank.name: [host for host in bank.hosts if (bank.drawer, host) not in unreached_drawers] for bank in banks
    }
    for bank in banks:
        rule = f" ({MODE_RULES[bank.mode]})" if bank.hosts_max < len(bank.hosts) or bank.mode != "advanced" else ""
        message = (
            f"{bank.name}: {pluralize(len(bank.slots), 'slot')}, reached by "
            f"{', '.join(reaching_hosts_by_bank[bank.name]) or 'no host'}{rule}"
        )
        yield Finding("reach", "ok" if reaching_hosts_by_bank[bank.name] else "problem", message)
    reaching_hosts = {name for names in reaching_hosts_by_bank.values() for name in names}
    for (_, host), message in unreached_drawers.items():
        yield Finding("reach", "problem" if host in reaching_hosts else "stop", message)
    reported_hosts = {host for _, host in unreached_drawers}
    if unreached_hosts := [
        host.name for host in inventory.hosts if host.name not in {*reaching_hosts, *reported_hosts}
    ]:
        message = (
            f"the fabric reaches no device from {', '.join(unreached_hosts)} (map their names under `fabric: hosts`)"
        )
        yield Finding("reach", "stop" if banks else "problem", message)


def _check_holders(site: Site, fabric: Fabric, inventory: Inventory) -> Iterator[Finding]:
    """Report the leases that hold devices, and the devices that other parties hold."""
    tags = fabric.list_lease_tags()
    for name, tag in sorted(tags.items()):
        is_live = site.is_live(name)
        message = f"{name} of {tag.owner} holds {', '.join(tag.devices) or 'hosts'}"
        remedy = "" if is_live else "; no process here owns it; run 'campaign fabric reconcile'"
        yield Finding("holders", "ok" if is_live else "note", message + remedy)
    foreign_counts = Counter(d.holder for d in inventory.devices if d.holder is not None and d.holder not in tags)
    for holder, count in sorted(foreign_counts.items(), key=str):
        yield Finding("holders", "note", f"{holder} holds {pluralize(count, 'device')}, which will not be changed")


def run_trial(site: Site, report: Callable[[str], None]) -> Iterator[Finding]:
    """Compose one free pooled device onto one free host, release it, and report the durations. This changes the fabric.

    Args:
        site: the system and its state.
        report: function that is called with the reason of each wait.
    """
    name = f"check.{int(time.time())}"
    with site.open_fabric() as fabric:
        inventory = fabric.read_inventory()
        device = next((d for d in inventory.devices if not d.local and d.can_compute and d.state == "free"), None)
        if device is None:
            yield Finding("trial", "problem", "no pool device is free; try again later")
            return
        configuration = Configuration(name, 1, 1, 0, 1, device.model, "fabric", "local")
        request = LeaseRequest(
            name, "check", site.system.tenancy.owner or current_owner(), configuration, site.system.list_allowed_hosts()
        )
        try:
            lease = acquire_lease(
                fabric, request, site.journals_directory, wait_s=0, poll_s=0.5, on_wait=report, max_attempts=1
            )
        except FabricError as error:
            leaked_devices = Journal(site.journals_directory, name).make_document()["leaked"]
            message = (
                f"lease {name} still holds {', '.join(leaked_devices)}; {_RELEASE_REMEDY}"
                if leaked_devices
                else "everything was released"
            )
            yield Finding("trial", "problem", f"composing failed: {error}; {message}")
            return
        with defer_ending_signals():
            document = release_lease(fabric, lease, poll_s=0.5)
            try:
                fabric.return_displaced_devices()
            except FabricError as error:
                yield Finding("trial", "problem", f"the device was not attached to its original host again: {error}")
    times = document["times"]
    attached_s, visible_s = times["fabric_done_s"] - times["requested_s"], times["host_visible_s"]
    host_words = "not checked" if visible_s is None else f"{visible_s - times['fabric_done_s']:.2f} s"
    (host,) = lease.composition.hosts
    durations_text = f"fabric {attached_s:.2f} s, host {host_words}"
    yield Finding("trial", "ok", f"composed {device.model} onto {host.name}: {durations_text}")
    for problem in lease.mismatches:
        yield Finding("trial", "note", problem)
    if document["state"] == "RELEASED":
        took_s = times["released_s"] - times["release_started_s"]
        yield Finding("trial", "ok", f"everything was released in {took_s:.2f} s")
    else:
        message = f"lease {name} still holds {', '.join(document['leaked'])}; {_RELEASE_REMEDY}"
        yield Finding("trial", "problem", f"the release failed: {message}")


def clean_up_site(
    site: Site, *, dry_run: bool, grace_s: float, unjournaled_owners: Collection[str] | None = None, force: bool = False
) -> tuple[list[Orphan], list[str], list[str]]:
    """Release leases without an owner, and reattach devices to the hosts from which leases took them.

    Returns the leases, texts about other holders and their devices, and texts about devices that are attached again.

    Args:
        site: the system and its state.
        dry_run: whether to change nothing and only list everything.
        grace_s: minimum time in seconds since the last activity of a lease.
        unjournaled_owners: see `reconcile_leases`.
        force: whether hosts must release devices that are still in use.
    """
    with site.open_fabric() as fabric:
        if fabric.control_plane_access is not None:
            fabric.control_plane_access.force = force
        orphans = site.reconcile_leases(fabric, dry_run=dry_run, grace_s=grace_s, unjournaled_owners=unjournaled_owners)
        known_holders = {*fabric.list_lease_tags(), *(orphan.lease_id for orphan in orphans)}
        with defer_ending_signals():
            home_by_device = fabric.list_displaced_devices() if dry_run else fabric.return_displaced_devices()
        devices = fabric.read_inventory().devices
        moves = [
            f"{d.fabric_id} to {home_by_device[d.fabric_id]}"
            for d in devices
            if d.fabric_id in home_by_device and not (dry_run and d.attached_to)
        ]
        devices_by_foreign_holder: dict[str, list[str]] = {}
        for device in devices:
            if device.holder is not None and device.holder not in known_holders:
                devices_by_foreign_holder.setdefault(device.holder, []).append(device.fabric_id)
    return orphans, [f"{holder}: {', '.join(ids)}" for holder, ids in devices_by_foreign_holder.items()], moves


def collect_operation_times(site: Site) -> OperationTimes:
    """Collect the times of fabric operations from the lease journals of a system, with one session per campaign.

    Raises ConfigError if no operation was timed yet.
    """
    entries: defaultdict[str, list[tuple[float, dict[str, object]]]] = defaultdict(list)
    for name in list_journaled_leases(site.journals_directory):
        campaign = ""
        for entry in Journal(site.journals_directory, name).read_entries():
            campaign = str(entry.get("campaign") or campaign)
            if isinstance(entry.get("timed"), dict):
                entries[campaign].append((float(entry["time_s"]), entry["timed"]))
    sessions = []
    for campaign, campaign_entries in entries.items():
        campaign_entries.sort(key=lambda timed_entry: timed_entry[0])
        start_text = datetime.fromtimestamp(campaign_entries[0][0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        sessions.append(
            RecordingSession(
                campaign,
                parse_timed_operations((timing for _, timing in campaign_entries), site.fabric_kind),
                start_text,
            )
        )
    if not sessions:
        raise ConfigError(
            f"{site.system.name}: no lease in {site.journals_directory} has operation times; measure a campaign first, or "
            "give another results directory (--results)"
        )
    source = f"leases of {pluralize(len(sessions), 'campaign')} on {site.system.name}"
    return OperationTimes(site.fabric_kind, source, "", tuple(sorted(sessions, key=lambda session: session.began)))


def parse_timed_operations(entries: Iterable[Mapping[str, Any]], kind: str) -> tuple[OperationTime, ...]:
    """Parse the timed operations of composing and releasing from journal entries. Damaged entries are left out.

    The operation `rest` is the part of the composing time that no expected operation accounts for. Each entry is a group.

    Args:
        entries: values of `timed` in the journals.
        kind: kind of the fabric.
    """
    steps = load_fabric_kind(kind).steps or OperationSteps()
    foreseen_operations = {*steps.attach, *steps.detach, *steps.per_composition}
    operations: list[OperationTime] = []
    for group, entry in enumerate(entries, 1):
        try:
            rows = [
                OperationTime(operation, str(device), str(box), str(answer), float(seconds), group)
                for operation, device, box, answer, seconds in entry["rows"]
                if operation in OPERATIONS
            ]
            if entry["of"] == "composing":
                remainder_s = float(entry["seconds"]) - sum(
                    row.seconds for row in rows if row.operation in foreseen_operations
                )
                rows.append(OperationTime("rest", "", "", "", max(0.0, remainder_s), group))
        except (KeyError, TypeError, ValueError):
            continue
        operations += rows
    return tuple(operations)
