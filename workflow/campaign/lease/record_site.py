"""Recording of a site's control plane for the authors of its adapter, with requests and answers but without names."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from campaign import __version__
from campaign.common.errors import CampaignError, ConfigError
from campaign.common.processes.signals import defer_ending_signals
from campaign.fabrics import list_fabric_modules
from campaign.fabrics.http.recording import Anonymizer, build_recording
from campaign.fabrics.protocol import Fabric, HostSelection, LeaseRequest, Selection
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import Finding
from campaign.lease.journal import Journal, LeaseOwnership
from campaign.plan.campaign.open_fabric import current_owner
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Inventory

_STILL_ATTACHED = "still attached: 'campaign fabric reconcile SYSTEM --release --grace 0' detaches it"


@dataclass(frozen=True)
class SiteRecording:
    """Recording of a site's control plane.

    Attributes:
        document: requests, answers and findings, with names replaced.
        findings: results of the checks.
        names: names and their replacements.
    """

    document: dict[str, Any]
    findings: list[Finding]
    anonymizer: Anonymizer


def record_site(
    site: Site,
    kept_words: tuple[str, ...] = (),
    trial: tuple[str, str] | None = None,
    report: Callable[[str], object] = str,
) -> SiteRecording:
    """Record all requests of an adapter and the answers.

    Nothing is changed without a trial. Raises ConfigError if the fabric has no control plane or the trial is impossible.

    Args:
        site: the system and its state.
        kept_words: words that are not replaced.
        trial: id of a free device and name of a host. The device is attached to the host and detached again.
        report: function that is called with complete error messages, which include names.
    """
    models = {entry.model for entry in site.system.pool}
    with site.open_fabric() as fabric:
        control = fabric.control_plane_access
        if control is None:
            raise ConfigError(f"{site.system.name}: {site.fabric_kind} has no control plane to record")
        with control.record_requests() as exchanges:
            findings = list(walk_control_plane(fabric, site.journals_directory, trial, report))
        try:
            models |= {name for device in fabric.read_inventory().devices for name in (device.model, device.called)}
        except CampaignError as error:
            report(f"model names are replaced too, because the inventory could not be read: {error}")
        spec = find_spec(list_fabric_modules()[site.fabric_kind])
        sources = (Path(spec.origin),) if spec is not None and spec.origin else ()
        hosts = [name for group in site.system.hosts for name in group.list_names()]
        names = Anonymizer(control.redact_secrets, (*models, *kept_words), (*hosts, current_owner()), sources)
        pool = [entry.model_dump(exclude_defaults=True) for entry in site.system.pool]
        system: dict[str, Any] = {"hosts": hosts, "pool": pool, "trial": list(trial or ())}
        recording = build_recording(site.fabric_kind, site.system.fabric, system, exchanges, names)
    head = {"campaign": __version__, "findings": [asdict(finding) for finding in findings]}
    return SiteRecording({**head, **recording}, findings, names)


def walk_control_plane(
    fabric: Fabric,
    journals_directory: Path,
    trial: tuple[str, str] | None = None,
    report: Callable[[str], object] = str,
) -> Iterator[Finding]:
    """Read everything that an adapter reads, attach and detach one device on request, and yield the findings.

    The findings contain no names or times, because replaying a recording must give the same findings.

    Args:
        fabric: open fabric.
        journals_directory: directory of the journal that a trial writes before it changes anything.
        trial: see `record_site`.
        report: see `record_site`.
    """
    try:
        inventory = fabric.read_inventory()
        yield Finding("inventory", "ok", _format_device_counts(inventory))
        tags = fabric.list_lease_tags()
        yield Finding(
            "holders", "ok", f"{len(tags)} leases, of {sum(len(tag.devices) for tag in tags.values())} devices"
        )
        banks = fabric.control_plane_access.read_banks() if fabric.control_plane_access is not None else ()
        yield Finding(
            "reach", "ok", ", ".join(f"{len(bank.slots)} by {len(bank.hosts)} hosts" for bank in banks) or "nothing"
        )
        if trial is not None:
            yield from _run_trial(fabric, journals_directory, inventory, *trial, report)
            yield Finding("inventory", "ok", _format_device_counts(fabric.read_inventory()))
    except ConfigError:
        raise
    except CampaignError as error:
        report(str(error))
        yield Finding("answer", "problem", type(error).__name__)


def _format_device_counts(inventory: Inventory) -> str:
    counts = Counter((d.model, d.state, d.health) for d in inventory.devices if not d.local)
    return "; ".join(f"{count} {' '.join(words)}" for words, count in sorted(counts.items())) or "no devices"


def _run_trial(
    fabric: Fabric,
    journals_directory: Path,
    inventory: Inventory,
    device: str,
    host: str,
    report: Callable[[str], object],
) -> Iterator[Finding]:
    """Attach a free device of the pool to a free host, check that it appears there, and detach it."""
    trial_device = next(
        (candidate for candidate in inventory.devices if candidate.fabric_id == device and not candidate.local), None
    )
    free_devices = [
        candidate.fabric_id
        for candidate in inventory.devices
        if not candidate.local and candidate.holder is None and candidate.state == "free"
    ]
    if trial_device is None or device not in free_devices:
        raise ConfigError(
            f"--trial {device} is not a free device of the pool; free devices: {', '.join(free_devices) or 'none'}"
        )
    if host not in {candidate.name for candidate in inventory.hosts if candidate.holder is None}:
        free_hosts = ", ".join(candidate.name for candidate in inventory.hosts if candidate.holder is None)
        raise ConfigError(f"--trial {host} is not a free host of the system; free hosts: {free_hosts or 'none'}")
    name = f"record.{int(time.time())}"
    configuration = Configuration(name, 1, 1, 0, 1, trial_device.model, "fabric", "local")
    selection = (
        HostSelection(host, fabric=(device,)) if trial_device.can_compute else HostSelection(host, storage=(device,))
    )
    ownership, journal = LeaseOwnership(journals_directory, name), Journal(journals_directory, name)
    journal.enter_state("PLANNED", campaign="record", owner=current_owner(), requested=None)
    journal.enter_state("RESERVED", selected=[asdict(selection)])
    journal.enter_state("COMPOSING")
    try:
        try:
            fabric.compose(
                Selection(LeaseRequest(name, "record", current_owner(), configuration, (host,)), (selection,))
            )
            yield Finding("attach", "ok", "the control plane accepted it")
        except CampaignError as error:
            report(str(error))
            yield Finding("attach", "problem", type(error).__name__)
        composition = None
        try:
            composition = fabric.read_back(name)
        except CampaignError as error:
            report(str(error))
        is_shown = composition is not None and device in {candidate.fabric_id for candidate in composition.devices}
        yield Finding(
            "attach", "ok" if is_shown else "problem", f"the device is {'' if is_shown else 'not '}shown on the host"
        )
    finally:
        with defer_ending_signals():
            is_detached = _detach_trial_device(fabric, journal, report)
            ownership.close()
    yield Finding("detach", "ok" if is_detached else "problem", "done" if is_detached else _STILL_ATTACHED)


def _detach_trial_device(fabric: Fabric, journal: Journal, report: Callable[[str], object]) -> bool:
    """Release the device that a trial attached. Returns False if that failed, after reporting the error."""
    journal.enter_state("ABORTING")
    try:
        leaked_devices = fabric.release(journal.lease_id)
        if not leaked_devices:
            journal.enter_state("FABRIC_FREE")
            journal.enter_state("RELEASED")
        fabric.return_displaced_devices()
    except CampaignError as error:
        report(str(error))
        return False
    return not leaked_devices
