"""Leases of a campaign on its system: opens the system's fabric, names leases, says what could never fit."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import locks
from campaign.cell import Configuration, content_hash
from campaign.config.resolve import Campaign
from campaign.config.system_file import SystemFile
from campaign.errors import ConfigError, FabricError, LaunchError
from campaign.fabrics import open_fabric
from campaign.fabrics.protocol import Composition, DeviceSpec, Fabric, HostSpec, PoolSpec, Request, Selection
from campaign.fabrics.tenancy import Tenant, admitted
from campaign.journal import Journal, is_owned
from campaign.paths import Results
from campaign.reconcile import Orphan, reconcile
from campaign.slurm import jobs


@contextmanager
def fabric_of(system: SystemFile, state: Path) -> Iterator[Fabric]:
    """The system's fabric, open; `state` is the directory that campaigns on this system share."""
    options = {key: value for key, value in system.fabric.items() if key != "kind"}
    hosts = [
        HostSpec(
            name, group.cores, group.memory_gib, tuple(DeviceSpec(d.kind, d.model, d.count) for d in group.devices)
        )
        for group in system.hosts
        for name in group.names()
    ]
    pool = [PoolSpec(entry.kind, entry.model, entry.count, entry.drawer) for entry in system.pool]
    try:
        fabric = open_fabric(system.fabric["kind"], options, hosts, pool, state)
    except ConfigError as error:
        raise ConfigError(f"system {system.name}: {error}") from error
    try:
        yield Tenant(fabric, system.tenancy.quota) if system.tenancy.quota else fabric
    finally:
        fabric.close()


def owner() -> str:
    """Who holds leases in this process's name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return "unknown"


def lease_id(results: Results, lease: str) -> str:
    """Id of a lease on the fabric: readable, and different for two results directories of one campaign name."""
    return f"{results.campaign}.{lease}.{content_hash(str(results.directory.resolve()), 6)}"


def lease_of(results: Results, name: str) -> str | None:
    """The lease that an id stands for in these results; None for an id of other results."""
    head, tail = lease_id(results, "|").split("|")
    return name[len(head) : -len(tail)] if name.startswith(head) and name.endswith(tail) else None


def journals(results: Results, system: str) -> Path:
    return results.system_state(system) / "leases"


def request(
    campaign: Campaign, results: Results, lease: str, configuration: Configuration, allowed_hosts: tuple[str, ...] = ()
) -> Request:
    """Raises Incompatible when the system's tenancy does not allow it."""
    return _request(campaign.system, lease_id(results, lease), campaign.name, configuration, allowed_hosts)


def _request(
    system: SystemFile, name: str, campaign: str, configuration: Configuration, allowed_hosts: tuple[str, ...] = ()
) -> Request:
    links = {model: (device.pcie.width, device.pcie.gen) for model, device in system.devices.items() if device.pcie}
    asked = Request(name, campaign, system.tenancy.owner or owner(), configuration, allowed_hosts, links)
    return admitted(asked, system.tenancy.quota, system.allowed_hosts())


def use_number(journal: Journal) -> int:
    """How often the lease has been asked for, this time included: tells the uses of one lease id apart."""
    return sum(entry.get("state") == "PLANNED" for entry in journal.entries())


@dataclass(frozen=True)
class Obtained:
    """A composition that is there, the use of the lease that it belongs to, and how it differs from what was requested."""

    use: str
    composition: Composition
    mismatches: tuple[str, ...]


def obtained_on_demand(results: Results, system: str, job_id: str) -> Obtained:
    """What Slurm's ResumeProgram had composed for a job (`campaign compose --name job-12`); LaunchError when it has not."""
    journal = Journal(journals(results, system), lease_id(results, kept_name(f"job-{job_id}")))
    if journal.state not in ("READY", "IN_USE"):
        raise LaunchError(
            f"job {job_id}: the allocation has started, and its hosts are not composed ({journal.state or 'never asked for'}); "
            "look at the log of the ResumeProgram"
        )
    document = journal.document()
    return Obtained(
        f"{journal.lease_id}.{use_number(journal)}",
        Composition.from_document(document["obtained"]),
        tuple(document["mismatches"]),
    )


def kept_name(configuration: str) -> str:
    """The lease that holds a configuration beyond the process that composed it."""
    return f"kept-{configuration}"


def unfit(fabric: Fabric, campaign: Campaign) -> Callable[[Configuration], str | None]:
    """A function that says why a configuration does not fit the system even when nobody else uses it, or None."""
    select = getattr(fabric, "select_planned", None)
    if select is None:
        empty = fabric.inventory().freed()

        def select(request: Request) -> Selection:
            return fabric.select(request, empty)

    def reason(configuration: Configuration) -> str | None:
        try:
            select(_request(campaign.system, "plan", campaign.name, configuration))
        except FabricError as error:
            return str(error)
        return None

    return reason


def reconcile_orphans(
    fabric: Fabric, root: Path, system: str, *, dry_run: bool, skip: Collection[str] = (), grace_s: float = 0.0
) -> list[Orphan]:
    """Release leases whose owner died without releasing them (see `reconcile`), but not those in `skip`.

    A lease kept by hand has no owner on purpose, and one whose driver is still at work will be taken over.
    """
    directory = Results(root, "").system_state(system) / "leases"

    def is_alive(name: str) -> bool:
        return name in skip or is_owned(directory, name) or is_kept(directory, name) or _is_driven(name)

    def _is_driven(name: str) -> bool:
        campaign = str(Journal(directory, name).document()["campaign"])
        results = Results(root, campaign)
        lease = lease_of(results, name)
        return lease is not None and (
            locks.is_held(results.work(lease) / "driver.lock") or jobs.is_expected(results, lease)
        )

    return reconcile(fabric, directory, is_alive=is_alive, dry_run=dry_run, grace_s=grace_s)


def keep_mark(directory: Path, name: str) -> Path:
    """The file that marks a lease as kept by hand, beyond the life of the process that composed it."""
    return directory / f"{name}.kept"


def is_kept(directory: Path, name: str) -> bool:
    return keep_mark(directory, name).exists()


def lease_document(document: dict[str, Any], lease: str, name: str) -> dict[str, Any]:
    """A lease's journal as the results keep it: one document a use, milestones flat."""
    flat = {key: value for key, value in document.items() if key != "times"}
    configuration = (document["requested"] or {}).get("name", lease)
    return {
        **flat,
        **document["times"],
        "configuration": configuration,
        "schema_version": "lease/1",
        "lease": lease,
        "lease_id": name,
    }
