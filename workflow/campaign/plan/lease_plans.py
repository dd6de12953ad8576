"""Lease plans, which are self-contained documents, one per lease, made from the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from campaign.common import files
from campaign.plan.campaign.resolve import Campaign, from_document
from campaign.plan.campaign.resolve_slurm_options import given_options, options_of
from campaign.plan.matrix import Specifications
from campaign.plan.oom_frontier import CampaignBatches, Frontier
from campaign.plan.plan import Plan, PlannedLease
from campaign.spec.cell import Configuration
from campaign.spec.lease_plan import HASHED_PARTS, LeaseForecast, LeasePlan, PlannedCell, document_digest
from campaign.spec.record import Store
from campaign.spec.run_numbers import runs_of


class LeaseDigests:
    """Digests of the runs and settings of leases (`LeasePlan.digest`)."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.campaign_hash = files.hash_document(campaign.document())
        self._slurm: dict[str, dict[str, Any]] = {}

    def __call__(self, lease: PlannedLease) -> str:
        return document_digest(lease.name, lease.digest, self.slurm(lease.configuration), self.campaign_hash)

    def slurm(self, configuration: Configuration) -> dict[str, Any]:
        """Return the Slurm options of a configuration's allocation, or {} without Slurm."""
        system = self.campaign.on(configuration).system
        if system.launcher != "slurm":
            return {}
        if configuration.name not in self._slurm:
            options = options_of(system, configuration, self.campaign.person)
            self._slurm[configuration.name] = options.model_dump(mode="json", exclude_defaults=True)
        return self._slurm[configuration.name]


def plan_digest(plan: Plan) -> str:
    """Hash the planned leases.

    The hash does not depend on expected durations and costs.
    """
    digest = LeaseDigests(plan.campaign)
    # Earlier versions hashed in this place what a plan was limited by; without a limit, that was None.
    return files.hash_document([plan.where, None, *map(digest, plan.leases)], 12)


def lease_plans(plan: Plan) -> Iterator[LeasePlan]:
    """Yield the documents of all leases in the order of the plan."""
    campaign = plan.campaign
    as_used, digests = campaign.document(), LeaseDigests(campaign)
    specifications, batches = Specifications(campaign), CampaignBatches(campaign)
    for lease in plan.leases:
        cells = tuple(
            PlannedCell(
                id=cell.id,
                workload=cell.workload,
                batch=cell.batch,
                precision=cell.precision,
                options=dict(cell.options),
                settings=cell.settings,
                runs=runs_of(cell.settings),
                specification=specifications.hashed(cell, cell.settings),
                reference=cell.reference,
                memory_key=specifications.memory_key(cell),
            )
            for cell in lease.cells
        )
        shared = {cell.specification[part] for cell in cells for part in HASHED_PARTS}
        expected, runs = lease.expected, lease.work.count
        yield LeasePlan(
            campaign=campaign.name,
            lease=lease.name,
            configuration=lease.configuration,
            composition=lease.composition,
            run_set=lease.digest,
            cells=cells,
            parts={name: specifications.parts[name] for name in sorted(shared)},
            batches={
                planned.memory_key: tuple(batches(cell)) for planned, cell in zip(cells, lease.cells, strict=True)
            },
            forecast=LeaseForecast(
                runs=runs,
                expected_s=_rounded(expected.expected_s),
                low_s=_rounded(expected.low_s),
                high_s=_rounded(expected.high_s),
                runs_s=_rounded(expected.parts["runs"]),
                basis=expected.basis,
            )
            if runs
            else None,
            charge=lease.charge,
            slurm=digests.slurm(lease.configuration),
            campaign_hash=digests.campaign_hash,
            campaign_as_used=as_used,
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def campaign_of(document: LeasePlan) -> Campaign:
    """Build the campaign of a lease as it was when the plan was made.

    If the campaign has several systems, the part on the lease's system is returned.
    """
    return replace(whole_campaign_of(document).on(document.configuration), person=given_options(document.slurm))


def whole_campaign_of(document: LeasePlan) -> Campaign:
    """Build the campaign of a lease on all its systems, as it was when the plan was made."""
    return from_document(document.campaign_as_used)


def lease_frontier(document: LeasePlan, store: Store, *, skip: bool) -> Frontier:
    """Build the memory frontier for the cells of a lease.

    Args:
        document: the lease plan.
        store: records of the results directory.
        skip: whether implied runs are left out.
    """
    return Frontier(store, document.memory_key, lambda cell: document.batches[document.memory_key(cell)], skip=skip)
