"""Recording of a site's control plane for the authors of its adapter: requests and answers as a document without names."""

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
from campaign.common.processes.signals import deferred
from campaign.fabrics import fabric_modules
from campaign.fabrics.http.recording import StandIns, document
from campaign.fabrics.protocol import Fabric, HostSelection, Request, Selection
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import Finding
from campaign.lease.journal import Journal, Ownership
from campaign.plan.campaign.open_fabric import owner
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Inventory

_ATTACHED = "still attached: 'campaign fabric reconcile SYSTEM --release --grace 0' detaches it"


@dataclass(frozen=True)
class SiteRecording:
    """Recording of a site's control plane.

    Attributes:
        document: requests, answers and findings, with names replaced.
        findings: results of the checks.
        names: names and their replacements (`names.replaced`).
    """

    document: dict[str, Any]
    findings: list[Finding]
    names: StandIns


def record(
    site: Site, keep: tuple[str, ...] = (), trial: tuple[str, str] | None = None, say: Callable[[str], object] = str
) -> SiteRecording:
    """Record all requests of an adapter and the answers.

    Nothing is changed without a trial. Raises ConfigError for a fabric without a control plane, and for an impossible trial.

    Args:
        site: the system and its state.
        kept_words: words that are not replaced.
        trial: id of a free device and name of a host. The device is attached to the host and detached again.
        report: called with errors in full, including names.
    """
    models = {entry.model for entry in site.system.pool}
    with site.fabric() as fabric:
        control = fabric.controlled
        if control is None:
            raise ConfigError(f"{site.system.name}: {site.kind} has no control plane to record")
        with control.recording() as exchanges:
            findings = list(walk(fabric, site.journals, trial, say))
        try:
            models |= {name for one in fabric.inventory().devices for name in (one.model, one.called)}
        except CampaignError as error:
            say(f"names of models are replaced too, because the inventory could not be read: {error}")
        spec = find_spec(fabric_modules()[site.kind])
        sources = (Path(spec.origin),) if spec is not None and spec.origin else ()
        hosts = [name for group in site.system.hosts for name in group.names()]
        names = StandIns(control.scrub, (*models, *keep), (*hosts, owner()), sources)
        pool = [entry.model_dump(exclude_defaults=True) for entry in site.system.pool]
        system: dict[str, Any] = {"hosts": hosts, "pool": pool, "trial": list(trial or ())}
        told = document(site.kind, site.system.fabric, system, exchanges, names)
    head = {"campaign": __version__, "findings": [asdict(finding) for finding in findings]}
    return SiteRecording({**head, **told}, findings, names)


def walk(
    fabric: Fabric, journals: Path, trial: tuple[str, str] | None = None, say: Callable[[str], object] = str
) -> Iterator[Finding]:
    """Read everything that an adapter reads, attach and detach one device on request, and yield the findings.

    The findings have no names or times, because replaying a recording must give the same ones.

    Args:
        fabric: open fabric.
        journals_directory: directory of the journal that a trial writes before it changes anything.
        trial: see `record_site`.
        report: see `record_site`.
    """
    try:
        inventory = fabric.inventory()
        yield Finding("inventory", "ok", _counted(inventory))
        held = fabric.held()
        yield Finding(
            "holders", "ok", f"{len(held)} leases, of {sum(len(tag.devices) for tag in held.values())} devices"
        )
        banks = fabric.controlled.banks() if fabric.controlled is not None else ()
        yield Finding(
            "reach", "ok", ", ".join(f"{len(one.slots)} by {len(one.hosts)} hosts" for one in banks) or "nothing"
        )
        if trial is not None:
            yield from _trial(fabric, journals, inventory, *trial, say)
            yield Finding("inventory", "ok", _counted(fabric.inventory()))
    except ConfigError:
        raise
    except CampaignError as error:
        say(str(error))
        yield Finding("answer", "problem", type(error).__name__)


def _counted(inventory: Inventory) -> str:
    pooled = Counter((d.model, d.state, d.health) for d in inventory.devices if not d.local)
    return "; ".join(f"{count} {' '.join(each)}" for each, count in sorted(pooled.items())) or "no devices"


def _trial(
    fabric: Fabric, journals: Path, inventory: Inventory, device: str, host: str, say: Callable[[str], object]
) -> Iterator[Finding]:
    """Attach a free device of the pool to a free host, check that it appears there, and detach it."""
    found = next((one for one in inventory.devices if one.fabric_id == device and not one.local), None)
    free = [one.fabric_id for one in inventory.devices if not one.local and one.holder is None and one.state == "free"]
    if found is None or device not in free:
        raise ConfigError(f"--trial {device}: not a free device of the pool; free are: {', '.join(free) or 'none'}")
    if host not in {one.name for one in inventory.hosts if one.holder is None}:
        there = ", ".join(one.name for one in inventory.hosts if one.holder is None)
        raise ConfigError(f"--trial {host}: not a free host of the system; free are: {there or 'none'}")
    name = f"record.{int(time.time())}"
    wanted = Configuration(name, 1, 1, 0, 1, found.model, "fabric", "local")
    chosen = HostSelection(host, fabric=(device,)) if found.computes else HostSelection(host, storage=(device,))
    ownership, journal = Ownership(journals, name), Journal(journals, name)
    journal.advance("PLANNED", campaign="record", owner=owner(), requested=None)
    journal.advance("RESERVED", selected=[asdict(chosen)])
    journal.advance("COMPOSING")
    try:
        try:
            fabric.compose(Selection(Request(name, "record", owner(), wanted, (host,)), (chosen,)))
            yield Finding("attach", "ok", "the control plane accepted it")
        except CampaignError as error:
            say(str(error))
            yield Finding("attach", "problem", type(error).__name__)
        obtained = None
        try:
            obtained = fabric.read_back(name)
        except CampaignError as error:
            say(str(error))
        shown = obtained is not None and device in {one.fabric_id for one in obtained.devices}
        yield Finding(
            "attach", "ok" if shown else "problem", f"the device is {'' if shown else 'not '}shown on the host"
        )
    finally:
        with deferred():
            detached = _detach(fabric, journal, say)
            ownership.close()
    yield Finding("detach", "ok" if detached else "problem", "done" if detached else _ATTACHED)


def _detach(fabric: Fabric, journal: Journal, say: Callable[[str], object]) -> bool:
    """Release the device that a trial attached. Returns False if that failed, after reporting the error."""
    journal.advance("ABORTING")
    try:
        left = fabric.release(journal.lease_id)
        if not left:
            journal.advance("FABRIC_FREE")
            journal.advance("RELEASED")
        fabric.bring_home()
    except CampaignError as error:
        say(str(error))
        return False
    return not left
