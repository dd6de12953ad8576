"""Lease plans: one self-contained document per lease, built from the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from campaign.common import files
from campaign.plan.campaign.resolve import Campaign, campaign_from_document
from campaign.plan.campaign.resolve_slurm_options import merge_slurm_options, parse_slurm_options
from campaign.plan.matrix import Specifications
from campaign.plan.oom_frontier import CampaignBatches, MemoryFrontier
from campaign.plan.plan import Plan, PlannedLease
from campaign.spec.cell import Configuration
from campaign.spec.lease_plan import HASHED_PARTS, LeaseForecast, LeasePlan, PlannedCell, compute_digest
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import list_run_numbers


class LeaseDigests:
    """Digests of the runs and settings of leases (`LeasePlan.digest`)."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.campaign_hash = files.hash_document(campaign.to_document())
        self._slurm: dict[str, dict[str, Any]] = {}

    def __call__(self, lease: PlannedLease) -> str:
        return compute_digest(
            lease.name, lease.digest, self.allocation_options(lease.configuration), self.campaign_hash
        )

    def allocation_options(self, configuration: Configuration) -> dict[str, Any]:
        """Return the Slurm options of a configuration's allocation, or an empty dict without Slurm."""
        system = self.campaign.part_on(configuration).system
        if system.launcher != "slurm":
            return {}
        if configuration.name not in self._slurm:
            options = merge_slurm_options(system, configuration, self.campaign.person)
            self._slurm[configuration.name] = options.model_dump(mode="json", exclude_defaults=True)
        return self._slurm[configuration.name]


def hash_plan(plan: Plan) -> str:
    """Hash the planned leases.

    The hash does not depend on expected durations and costs.
    """
    digest = LeaseDigests(plan.campaign)
    # Earlier versions hashed the limit of a plan in this place, which was None without a limit.
    return files.hash_document([plan.where, None, *map(digest, plan.leases)], 12)


def build_lease_plans(plan: Plan) -> Iterator[LeasePlan]:
    """Yield the documents of all leases in the order of the plan."""
    campaign = plan.campaign
    stored_campaign, digests = campaign.to_document(), LeaseDigests(campaign)
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
                runs=list_run_numbers(cell.settings),
                specification=specifications.hash_parts(cell, cell.settings),
                reference=cell.reference,
                memory_key=specifications.hash_memory_use(cell),
            )
            for cell in lease.cells
        )
        part_hashes = {cell.specification[part] for cell in cells for part in HASHED_PARTS}
        forecast, runs = lease.expected, lease.work.run_count
        yield LeasePlan(
            campaign=campaign.name,
            lease=lease.name,
            configuration=lease.configuration,
            composition=lease.composition,
            run_set=lease.digest,
            cells=cells,
            parts={name: specifications.parts[name] for name in sorted(part_hashes)},
            batches={
                planned_cell.memory_key: tuple(batches(cell))
                for planned_cell, cell in zip(cells, lease.cells, strict=True)
            },
            forecast=LeaseForecast(
                runs=runs,
                expected_s=_round_or_none(forecast.expected_s),
                low_s=_round_or_none(forecast.low_s),
                high_s=_round_or_none(forecast.high_s),
                runs_s=_round_or_none(forecast.parts["runs"]),
                basis=forecast.basis,
            )
            if runs
            else None,
            charge=lease.charge,
            slurm=digests.allocation_options(lease.configuration),
            campaign_hash=digests.campaign_hash,
            campaign_as_used=stored_campaign,
        )


def _round_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def campaign_part_from_lease_plan(document: LeasePlan) -> Campaign:
    """Build the campaign of a lease as it was when the plan was made.

    If the campaign has several systems, the part on the lease's system is returned.
    """
    return replace(
        campaign_from_lease_plan(document).part_on(document.configuration), person=parse_slurm_options(document.slurm)
    )


def campaign_from_lease_plan(document: LeasePlan) -> Campaign:
    """Build the campaign of a lease on all its systems, as it was when the plan was made."""
    return campaign_from_document(document.campaign_as_used)


def build_lease_frontier(document: LeasePlan, store: RecordStore, *, skip: bool) -> MemoryFrontier:
    """Build the memory frontier for the cells of a lease.

    Args:
        document: the lease plan.
        store: records of the results directory.
        skip: True if implied runs are left out.
    """
    return MemoryFrontier(
        store, document.memory_key, lambda cell: document.batches[document.memory_key(cell)], skip=skip
    )
