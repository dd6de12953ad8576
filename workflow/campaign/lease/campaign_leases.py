"""Leases of a campaign on its system: opens the system's fabric, names leases, says what could never fit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.common.paths import Results, lease_id
from campaign.fabrics.protocol import Fabric, Request
from campaign.lease.fenced_devices import FencedDevices
from campaign.lease.journal import Journal, is_owned
from campaign.lease.reconcile import Orphan, reconcile
from campaign.plan.campaign.open_fabric import fabric_of, request_of
from campaign.plan.campaign.resolve import Campaign
from campaign.slurm import submitted_jobs
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile


def lease_of(results: Results, name: str) -> str | None:
    """The lease that an id stands for in these results; None for an id of other results."""
    head, tail = lease_id(results, "|").split("|")
    return name[len(head) : -len(tail)] if name.startswith(head) and name.endswith(tail) else None


def request(
    campaign: Campaign,
    results: Results,
    lease: str,
    configuration: Configuration,
    allowed_hosts: tuple[str, ...] = (),
) -> Request:
    """Raises Incompatible when the tenancy does not allow it."""
    return request_of(campaign.system, lease_id(results, lease), campaign.name, configuration, allowed_hosts)


def use_of(results: Results, journal: Journal) -> str:
    """Id of the lease's last use: its number is how often the lease was asked for, or the next one that no other use has.

    The journal of other uses may be lost, or be on another machine from which the results came.
    """
    asked = [entry["time_s"] for entry in journal.entries() if entry.get("state") == "PLANNED"]
    number = len(asked)
    while (other := files.read_json(results.leases / f"{journal.lease_id}.{number}.json")) and asked:
        if other.get("requested_s") == asked[-1]:
            break
        number += 1
    return f"{journal.lease_id}.{number}"


@dataclass(frozen=True)
class ObtainedComposition:
    """An obtained composition, the use of the lease that it belongs to, and its differences from the request.

    holding: `Journal.holding` of the lease.
    """

    use: str
    composition: Composition
    mismatches: tuple[str, ...]
    holding: str = ""

    def require(self, journals: Path) -> None:
        """LaunchError: the lease has been released, or holds another composition by now."""
        if Journal(journals, self.use.rpartition(".")[0]).holding != self.holding:
            raise LaunchError(f"{self.use}: is not held any more, so nothing that is measured on it now gets a record")


def obtained_on_demand(results: Results, system: str, job_id: str) -> ObtainedComposition:
    """What Slurm's ResumeProgram had composed for a job (`campaign compose --name job-12`); LaunchError when it has not."""
    journal = Journal(results.journals(system), lease_id(results, kept_name(f"job-{job_id}")))
    if journal.state not in ("READY", "IN_USE"):
        raise LaunchError(
            f"job {job_id}: the allocation has started, and its hosts are not composed ({journal.state or 'never asked for'}); "
            "look at the log of the ResumeProgram"
        )
    document = journal.document()
    return ObtainedComposition(
        use_of(results, journal),
        Composition.from_document(document["obtained"]),
        tuple(document["mismatches"]),
        journal.holding,
    )


def kept_name(configuration: str) -> str:
    """The lease that holds a configuration beyond the process that composed it."""
    return f"kept-{configuration}"


def reconcile_orphans(fabric: Fabric, site: Site, *, dry_run: bool, skip: Collection[str] = ()) -> list[Orphan]:
    """Release leases whose owner died without releasing them (see `reconcile`), but not those in `skip`.

    A lease kept by hand has no owner on purpose once it is composed; one whose driver is still at work will be taken over.
    """

    def is_driven(name: str) -> bool:
        results = Results(site.root, str(Journal(site.journals, name).document()["campaign"]))
        lease = lease_of(results, name)
        return lease is not None and (
            files.is_locked(results.driver_lock(lease))
            or submitted_jobs.is_expected(results, lease, site.system.slurm.poll_s)
        )

    def is_alive(name: str) -> bool:
        return name in skip or site.is_live(name) or is_driven(name)

    return site.reconcile(fabric, is_alive=is_alive, dry_run=dry_run)


def keep_mark(directory: Path, name: str) -> Path:
    """The file that marks a lease as to be kept by hand, beyond the life of the process that composes it."""
    return directory / f"{name}.kept"


@dataclass(frozen=True)
class Site:
    """A system, and the results directory beside which its state is kept."""

    system: SystemFile
    root: Path

    @property
    def journals(self) -> Path:
        return Results(self.root, "").journals(self.system.name)

    @property
    def fenced(self) -> FencedDevices:
        return FencedDevices(Results(self.root, "").system_state(self.system.name))

    def fabric(self) -> AbstractContextManager[Fabric]:
        return fabric_of(self.system, Results(self.root, "").system_state(self.system.name))

    @property
    def kind(self) -> str:
        return str(self.system.fabric["kind"])

    def is_live(self, lease_id: str) -> bool:
        """True for a lease that a live process owns, or that is kept by hand: composed whole, and not leaked."""
        if is_owned(self.journals, lease_id):
            return True
        kept = keep_mark(self.journals, lease_id).exists()
        return kept and Journal(self.journals, lease_id).state in ("READY", "IN_USE", "DEGRADED")

    def reconcile(
        self, fabric: Fabric, *, is_alive: Callable[[str], bool] | None = None, dry_run: bool = False, **options: Any
    ) -> list[Orphan]:
        """Release leases without an owner (see `reconcile`); those that are released are no longer kept."""
        found = reconcile(fabric, self.journals, is_alive=is_alive or self.is_live, dry_run=dry_run, **options)
        for orphan in found:
            if orphan.outcome == "released":
                keep_mark(self.journals, orphan.lease_id).unlink(missing_ok=True)
        return found


def lease_document(document: dict[str, Any], lease: str, name: str) -> dict[str, Any]:
    """A lease's journal as the results keep it: one document a use, milestones flat."""
    named = {"configuration": (document["requested"] or {}).get("name", lease), "lease": lease, "lease_id": name}
    flat = {key: value for key, value in document.items() if key != "times"}
    return {**flat, **document["times"], "schema_version": "lease/1", **named}
