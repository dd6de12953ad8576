"""Leases of a campaign on its system, with the access to the system's fabric and the names of leases."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.common.paths import Results, lease_id
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.lease.fenced_devices import FencedDevices
from campaign.lease.journal import Journal, is_owned
from campaign.lease.reconcile import Orphan, reconcile_leases
from campaign.plan.campaign.open_fabric import build_request, open_system_fabric
from campaign.plan.campaign.resolve import Campaign
from campaign.slurm import submitted_jobs
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile


def find_lease_name(results: Results, lease_id_text: str) -> str | None:
    """Return the name of the lease with this id in these results, or None if the id belongs to other results."""
    prefix, suffix = lease_id(results, "|").split("|")
    return (
        lease_id_text[len(prefix) : -len(suffix)]
        if lease_id_text.startswith(prefix) and lease_id_text.endswith(suffix)
        else None
    )


def make_request(
    campaign: Campaign,
    results: Results,
    lease: str,
    configuration: Configuration,
    allowed_hosts: tuple[str, ...] = (),
) -> LeaseRequest:
    """Build the request for a lease. Raises Incompatible if the tenancy does not allow it."""
    return build_request(campaign.system, lease_id(results, lease), campaign.name, configuration, allowed_hosts)


def determine_use_id(results: Results, journal: Journal) -> str:
    """Return the id of the last use of a lease.

    Its number is the number of requests for the lease, or the next number that no other use has. The journal of other uses may be
    lost, or may be on another machine if the results were copied.
    """
    request_times = [entry["time_s"] for entry in journal.read_entries() if entry.get("state") == "PLANNED"]
    number = len(request_times)
    while (other_use := files.read_json(results.leases / f"{journal.lease_id}.{number}.json")) and request_times:
        if other_use.get("requested_s") == request_times[-1]:
            break
        number += 1
    return f"{journal.lease_id}.{number}"


@dataclass(frozen=True)
class ObtainedComposition:
    """Existing composition, with the use of the lease that it belongs to.

    Attributes:
        use: id of the use of the lease.
        composition: the composition.
        mismatches: differences between the composition and the request.
        holding: `Journal.holding_token` of the lease.
    """

    use: str
    composition: Composition
    mismatches: tuple[str, ...]
    holding: str = ""

    def require_held(self, journals: Path) -> None:
        """Raise LaunchError if the lease has since been released or now holds another composition."""
        if Journal(journals, self.use.rpartition(".")[0]).holding_token != self.holding:
            raise LaunchError(f"{self.use}: this composition is no longer held, so runs on it get no record")


def read_on_demand_composition(results: Results, system: str, job_id: str) -> ObtainedComposition:
    """Return the composition that Slurm's ResumeProgram made for a job (`campaign compose --name job-12`).

    Raises LaunchError if there is none.
    """
    journal = Journal(results.journals_directory(system), lease_id(results, make_kept_lease_name(f"job-{job_id}")))
    if journal.state not in ("READY", "IN_USE"):
        raise LaunchError(
            f"job {job_id}: the allocation has started, but its hosts are not composed ({journal.state or 'never requested'}); "
            "see the log of the ResumeProgram"
        )
    document = journal.make_document()
    return ObtainedComposition(
        determine_use_id(results, journal),
        Composition.from_document(document["obtained"]),
        tuple(document["mismatches"]),
        journal.holding_token,
    )


def make_kept_lease_name(configuration: str) -> str:
    """Return the name of the lease that keeps a configuration after the process that composed it has ended."""
    return f"kept-{configuration}"


def reconcile_orphans(fabric: Fabric, site: Site, *, dry_run: bool, skip: Collection[str] = ()) -> list[Orphan]:
    """Release the leases whose owner died without releasing them (see `reconcile_leases`).

    A lease that is kept by hand has no owner once it is composed and is not released. Nor is a lease whose driver still runs,
    because the next process takes it over.

    Args:
        fabric: fabric of the system.
        site: system and its state.
        dry_run: lists the leases without releasing them.
        skip: ids of leases that are left alone.
    """

    def is_driven(name: str) -> bool:
        """Return True if a driver or a submitted job still uses the lease."""
        results = Results(site.root, str(Journal(site.journals_directory, name).make_document()["campaign"]))
        lease = find_lease_name(results, name)
        return lease is not None and (
            files.is_locked(results.driver_lock_file(lease))
            or submitted_jobs.is_expected(results, lease, site.system.slurm.poll_s)
        )

    def is_alive(name: str) -> bool:
        return name in skip or site.is_live(name) or is_driven(name)

    return site.reconcile_leases(fabric, is_alive=is_alive, dry_run=dry_run)


def get_kept_marker(directory: Path, name: str) -> Path:
    """Return the path of the file that marks a lease as kept by hand after the process that composes it has ended."""
    return directory / f"{name}.kept"


@dataclass(frozen=True)
class Site:
    """System, with the results directory next to which its state is stored.

    Attributes:
        system: system file.
        root: directory of all results.
    """

    system: SystemFile
    root: Path

    @property
    def journals_directory(self) -> Path:
        """Directory of the lease journals."""
        return Results(self.root, "").journals_directory(self.system.name)

    @property
    def fenced_devices(self) -> FencedDevices:
        """Fenced devices of the system."""
        return FencedDevices(Results(self.root, "").system_state_directory(self.system.name))

    def open_fabric(self) -> AbstractContextManager[Fabric]:
        """Open the fabric of the system for a `with` block."""
        return open_system_fabric(self.system, Results(self.root, "").system_state_directory(self.system.name))

    @property
    def fabric_kind(self) -> str:
        """Kind of the fabric."""
        return str(self.system.fabric["kind"])

    def is_live(self, lease_id: str) -> bool:
        """Return True if a live process owns the lease, or if it is kept by hand, completely composed and not leaked."""
        if is_owned(self.journals_directory, lease_id):
            return True
        is_kept = get_kept_marker(self.journals_directory, lease_id).exists()
        return is_kept and Journal(self.journals_directory, lease_id).state in ("READY", "IN_USE", "DEGRADED")

    def reconcile_leases(
        self, fabric: Fabric, *, is_alive: Callable[[str], bool] | None = None, dry_run: bool = False, **options: Any
    ) -> list[Orphan]:
        """Release the leases without an owner (see `reconcile_leases`). Released leases are no longer marked as kept.

        Args:
            fabric: fabric of the system.
            is_alive: returns True for the id of a lease with a live owner. The default is `is_live`.
            dry_run: lists the leases without releasing them.
            **options: further options of `reconcile_leases`.
        """
        orphans = reconcile_leases(
            fabric, self.journals_directory, is_alive=is_alive or self.is_live, dry_run=dry_run, **options
        )
        for orphan in orphans:
            if orphan.outcome == "released":
                get_kept_marker(self.journals_directory, orphan.lease_id).unlink(missing_ok=True)
        return orphans


def make_lease_document(document: dict[str, Any], lease: str, fabric_lease_id: str) -> dict[str, Any]:
    """Return a lease's journal as stored in the results, one document per use, with the milestones as top-level keys.

    Args:
        document: document of the journal.
        lease: name of the lease.
        fabric_lease_id: id of the lease on the fabric.
    """
    names = {
        "configuration": (document["requested"] or {}).get("name", lease),
        "lease": lease,
        "lease_id": fabric_lease_id,
    }
    fields = {key: value for key, value in document.items() if key != "times"}
    return {**fields, **document["times"], "schema_version": "lease/1", **names}
