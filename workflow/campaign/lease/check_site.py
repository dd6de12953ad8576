"""Checks of a site outside any campaign: its fabric, leftovers of earlier leases, and durations of its operations.

All functions open the fabric by a system file alone. Their callers announce every change in advance. `check_hosts` has the
requirements of a lease except the control plane.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from campaign.common.errors import CampaignError, ConfigError, FabricError
from campaign.common.processes.signals import deferred
from campaign.common.wording import plural
from campaign.fabrics.banks import RULES, named_drawer
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions as ControlledOptions
from campaign.fabrics.errors import Refused
from campaign.fabrics.operations import Steps
from campaign.fabrics.protocol import Fabric, Request
from campaign.fabrics.registry import fabric_kind
from campaign.lease.campaign_leases import Site
from campaign.lease.journal import Journal, journaled
from campaign.lease.lifecycle import acquire, release
from campaign.lease.reconcile import Orphan
from campaign.plan.campaign.open_fabric import owner
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Inventory, use_of
from campaign.spec.operation_times import OPERATIONS, OperationTimes, Session, Timed
from campaign.spec.system_file import SystemFile

Severity = Literal["ok", "note", "problem", "stop"]
"""Severity. problem: some leases cannot work; stop: no lease can work, or the system file is wrong."""


_RELEASE = "'campaign fabric reconcile SYSTEM --release --grace 0' releases it"


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
"""Further check of an open fabric, with the inventory that was already read."""


def _check_nothing(fabric: Fabric, inventory: Inventory) -> Iterable[Finding]:
    return ()


def check(site: Site, check_more: SiteCheck = _check_nothing) -> Iterator[Finding]:
    """Check everything in the control plane that can be read without a change, and yield each finding as soon as it is known.

    Args:
        site: the system and its state.
        check_more: further check of the open fabric, done last.
    """
    kind, adapter = site.kind, fabric_kind(site.kind)
    if adapter.unverified:
        told = issubclass(adapter.options, ControlledOptions)  # else there is nothing to record
        remedy = "; 'campaign fabric record' writes what you see, for the authors" if told else ""
        yield Finding("adapter", "note", f"{kind}: unverified: {adapter.unverified}{remedy}")
    else:
        yield Finding("adapter", "ok", f"{kind}: {adapter.summary}")
    yield from _transport(site)
    yield from check_control_plane(site, check_more)


def check_control_plane(site: Site, check_more: SiteCheck = _check_nothing) -> Iterator[Finding]:
    """Check the requirements of a lease on the control plane except its transport, then run a further check.

    A failure of the control plane at any time is reported as a problem.

    Args:
        site: the system and its state.
        check_more: further check of the same open fabric.
    """
    started = time.monotonic()
    try:
        with site.fabric() as fabric:
            inventory = fabric.inventory()
            asked = f" in {fabric.controlled.requests} requests" if fabric.controlled else ""
            took = f"{(time.monotonic() - started) * 1e3:.0f} ms{asked}"
            login = "signed in and read" if any((site.system.fabric.get("credentials") or {}).values()) else "read"
            pooled = len({device.physical for device in inventory.devices if not device.local})
            yield Finding("answer", "ok", f"{login} {pooled} devices of the pool in {took}")
            yield from _against(site.system, inventory, told=fabric.capabilities().tells_models)
            yield from _rules(fabric, inventory)
            yield from _holders(site, fabric, inventory)
            for fence in site.fenced.current():
                yield Finding("fenced", "note", f"{fence.words()} ('campaign fabric fences {site.system.name}')")
            yield from check_more(fabric, inventory)
    except (ConfigError, Refused) as error:
        yield Finding("answer", "stop", str(error))
    except CampaignError as error:
        yield Finding("answer", "problem", str(error))


def _transport(site: Site) -> Iterator[Finding]:
    """Check that connections to the control plane are encrypted and verified."""
    options = {key: value for key, value in site.system.fabric.items() if key in ControlledOptions.model_fields}
    boxes = site.system.fabric.get("boxes")
    if isinstance(boxes, dict):
        plain = [name for name, url in boxes.items() if str(url).startswith("http://")]
        words = "not encrypted, and no login is known: whoever reaches them can give orders; keep them in a network of their own"
        yield (
            Finding("transport", "note", f"{', '.join(plain)}: {words}") if plain else Finding("transport", "ok", "TLS")
        )
        return
    url = str(options.get("url", ""))
    if url.startswith("http://") and options.get("tunnel") is True:
        yield Finding("transport", "note", f"{url}: not encrypted by itself; the system file says that it is a tunnel")
    elif url.startswith("http://"):
        words = "not encrypted: anybody on the network can read the password; use https, or say `tunnel: true`"
        yield Finding("transport", "problem", f"{url}: {words}")
    elif url and options.get("verify_tls") is False:
        words = "its certificate is not verified (verify_tls: false); give ca_file"
        yield Finding("transport", "problem", f"{url}: {words}")
    elif url:
        yield Finding("transport", "ok", f"{url}: TLS, its certificate is verified")


def _against(system: SystemFile, inventory: Inventory, *, told: bool) -> Iterator[Finding]:
    """Compare the pool of the fabric with the pool in the system file.

    Args:
        system: system file.
        inventory: inventory of the fabric.
        reports_models: True if the fabric reports the models of devices.
    """
    pooled = {(d.physical, (d.model, d.use)): d for d in inventory.devices if not d.local}
    expected: Counter[tuple[str, str]] = Counter()
    for entry in system.pool:
        expected[entry.model, use_of(entry.kind)] += entry.count
    there = Counter(key for _, key in pooled)
    names = {device.called or device.model for device in pooled.values()}
    for model, use in sorted(expected | there):
        found, listed, words = there[model, use], expected[model, use], model if use == "device" else f"{model} ({use})"
        if found == listed and not told:
            claim = f"{found} {words}, as in the system file; the model is claimed by the file, not told by the fabric"
            yield Finding("pool", "note", claim)
        elif found == listed:
            yield Finding("pool", "ok", f"{found} {words}, as in the system file")
        elif not listed:
            yield Finding("pool", "note", f"{found} {words} that the system file does not list; plans do not use them")
        else:
            known = "" if found else f"; the fabric has {', '.join(map(repr, sorted(names))) or 'nothing'}"
            help_ = f" (map its names: `fabric: models: {{NAME: {model}}}`)" if known and names else ""
            words = f"{found} {words} found, the system file lists {listed}{known}{help_}"
            yield Finding("pool", "problem" if found else "stop", words)
    drawers = dict.fromkeys(d.location.rpartition("/slot")[0] for d in inventory.devices if not d.local)
    for entry in system.pool:
        if entry.drawer is not None and drawers and named_drawer(entry.drawer, drawers) is None:
            words = f"drawer {entry.drawer!r} (`pool: drawer`) has no device; those that have: {', '.join(drawers)}"
            yield Finding("pool", "note", words)
    for device in inventory.devices:
        name = f"{device.fabric_id} ({device.model})"
        if device.health != "ok" or device.state in ("failed", "unknown", "unavailable"):
            yield Finding("pool", "note", f"{name}: {device.state}, health {device.health}")
        elif device.link is not None and device.link.degraded:
            yield Finding("pool", "note", f"{name}: {device.link.shortfall}")


def _rules(fabric: Fabric, inventory: Inventory) -> Iterator[Finding]:
    """Check the capabilities of the fabric, and which hosts reach which devices."""
    able = fabric.capabilities()
    if able.read_only:
        yield Finding("modes", "stop", able.read_only)
    most = f"at most {able.max_devices_per_host} devices a host" if able.max_devices_per_host else "no limit told"
    yield Finding("modes", "ok", f"devices are attached {able.attach_mode.replace('_', ' ')}; {most}")
    if able.note:
        yield Finding("modes", "note", able.note)
    if fabric.controlled is None:
        return
    banks = fabric.controlled.banks()
    unreached = fabric.controlled.out_of_reach()
    reach = {bank.name: [host for host in bank.hosts if (bank.drawer, host) not in unreached] for bank in banks}
    for bank in banks:
        rule = f" ({RULES[bank.mode]})" if bank.hosts_max < len(bank.hosts) or bank.mode != "advanced" else ""
        words = f"{bank.name}: {len(bank.slots)} places, reached by {', '.join(reach[bank.name]) or 'no host'}{rule}"
        yield Finding("reach", "ok" if reach[bank.name] else "problem", words)
    reaching = {name for names in reach.values() for name in names}
    for (_, host), words in unreached.items():
        yield Finding("reach", "problem" if host in reaching else "stop", words)
    told = {host for _, host in unreached}
    if lost := [host.name for host in inventory.hosts if host.name not in {*reaching, *told}]:
        words = f"the fabric reaches no device from {', '.join(lost)} (map their names under `fabric: hosts`)"
        yield Finding("reach", "stop" if banks else "problem", words)


def _holders(site: Site, fabric: Fabric, inventory: Inventory) -> Iterator[Finding]:
    """Report the leases that hold devices, and the devices that others hold."""
    tags = fabric.held()
    for name, tag in sorted(tags.items()):
        lives = site.is_live(name)
        words = f"{name} of {tag.owner} holds {', '.join(tag.devices) or 'hosts'}"
        left = "" if lives else "; no process here owns it: run 'campaign fabric reconcile'"
        yield Finding("holders", "ok" if lives else "note", words + left)
    foreign = Counter(d.holder for d in inventory.devices if d.holder is not None and d.holder not in tags)
    for holder, count in sorted(foreign.items(), key=str):
        yield Finding("holders", "note", f"{holder} holds {count} devices; they are not touched")


def trial(site: Site, say: Callable[[str], None]) -> Iterator[Finding]:
    """Compose one free pooled device onto one free host and release it, with times. This changes the fabric.

    Args:
        site: the system and its state.
        report: function that is called with the reason of each wait.
    """
    name = f"check.{int(time.time())}"
    with site.fabric() as fabric:
        inventory = fabric.inventory()
        free = next((d for d in inventory.devices if not d.local and d.computes and d.state == "free"), None)
        if free is None:
            yield Finding("trial", "problem", "no device of the pool is free; try again when one is")
            return
        configuration = Configuration(name, 1, 1, 0, 1, free.model, "fabric", "local")
        asked = Request(name, "check", site.system.tenancy.owner or owner(), configuration, site.system.allowed_hosts())
        try:
            lease = acquire(fabric, asked, site.journals, wait_s=0, poll_s=0.5, on_wait=say, attempts=1)
        except FabricError as error:
            left = Journal(site.journals, name).document()["leaked"]
            words = f"lease {name} is left with {', '.join(left)}: {_RELEASE}" if left else "nothing is left"
            yield Finding("trial", "problem", f"composing failed: {error}; {words}")
            return
        with deferred():
            document = release(fabric, lease, poll_s=0.5)
            try:
                fabric.bring_home()
            except FabricError as error:
                yield Finding("trial", "problem", f"not brought back to where it was: {error}")
    times = document["times"]
    attached_s, visible_s = times["fabric_done_s"] - times["requested_s"], times["host_visible_s"]
    host_words = "not looked at" if visible_s is None else f"{visible_s - times['fabric_done_s']:.2f} s"
    (host,) = lease.composition.hosts
    told = f"fabric {attached_s:.2f} s, host {host_words}"
    yield Finding("trial", "ok", f"composed {free.model} onto {host.name}: {told}")
    for problem in lease.mismatches:
        yield Finding("trial", "note", problem)
    if document["state"] == "RELEASED":
        took_s = times["released_s"] - times["release_started_s"]
        yield Finding("trial", "ok", f"released in {took_s:.2f} s; nothing is left")
    else:
        words = f"lease {name} is left with {', '.join(document['leaked'])}: {_RELEASE}"
        yield Finding("trial", "problem", f"could not be released; {words}")


def left_behind(
    site: Site, *, dry_run: bool, grace_s: float, unjournaled: Collection[str] | None = None, force: bool = False
) -> tuple[list[Orphan], list[str], list[str]]:
    """Release the leases without an owner, and attach devices again to the host where they were found.

    Returns the leases, texts about foreign holders and their devices, and texts about unattached devices that are away from that
    host.

    Args:
        site: the system and its state.
        dry_run: lists everything without changing it.
        grace_s: minimum age in seconds of the last activity of a lease.
        unjournaled_owners: see `reconcile_leases`.
        force: makes hosts release devices that are still in use.
    """
    with site.fabric() as fabric:
        if fabric.controlled is not None:
            fabric.controlled.force = force
        orphans = site.reconcile(fabric, dry_run=dry_run, grace_s=grace_s, unjournaled=unjournaled)
        known = {*fabric.held(), *(orphan.lease_id for orphan in orphans)}
        with deferred():
            away = fabric.away() if dry_run else fabric.bring_home()
        devices = fabric.inventory().devices
        moves = [
            f"{d.fabric_id} to {away[d.fabric_id]}"
            for d in devices
            if d.fabric_id in away and not (dry_run and d.attached_to)
        ]
        foreign: dict[str, list[str]] = {}
        for device in devices:
            if device.holder is not None and device.holder not in known:
                foreign.setdefault(device.holder, []).append(device.fabric_id)
    return orphans, [f"{holder}: {', '.join(ids)}" for holder, ids in foreign.items()], moves


def journaled_times(site: Site) -> OperationTimes:
    """Collect the times of fabric operations from the lease journals of a system, with one session per campaign.

    Raises ConfigError if no operation was timed yet.
    """
    entries: defaultdict[str, list[tuple[float, dict[str, object]]]] = defaultdict(list)
    for name in journaled(site.journals):
        campaign = ""
        for entry in Journal(site.journals, name).entries():
            campaign = str(entry.get("campaign") or campaign)
            if isinstance(entry.get("timed"), dict):
                entries[campaign].append((float(entry["time_s"]), entry["timed"]))
    sessions = []
    for campaign, found in entries.items():
        found.sort(key=lambda each: each[0])
        began = datetime.fromtimestamp(found[0][0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        sessions.append(Session(campaign, timed_operations((timed for _, timed in found), site.kind), began))
    if not sessions:
        raise ConfigError(
            f"{site.system.name}: no lease of it has times of operations below {site.journals}; measure a campaign first, or "
            "give the results directory (--results)"
        )
    source = f"leases of {plural(len(sessions), 'campaign')} on {site.system.name}"
    return OperationTimes(site.kind, source, "", tuple(sorted(sessions, key=lambda session: session.began)))


def timed_operations(entries: Iterable[Mapping[str, Any]], kind: str) -> tuple[Timed, ...]:
    """Parse the timed operations of composing and releasing from journal entries. Damaged entries are left out.

    The operation `rest` is the time of composing that no foreseen operation explains. Each entry is a group.

    Args:
        entries: values of `timed` in the journals.
        kind: kind of the fabric.
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
