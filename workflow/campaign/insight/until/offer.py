"""What a campaign can measure, lease by lease and cell by cell, and the device time that each part is expected to take. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from campaign.documents.cell import Cell, Configuration
from campaign.documents.metric import THROUGHPUT, Metric
from campaign.documents.run_numbers import runs_of
from campaign.plan.cost.estimates import Work
from campaign.plan.cost.forecast import Forecaster
from campaign.plan.cost.several_systems import SystemForecasters
from campaign.plan.plan import Plan
from campaign.plan.reference import without_references


@dataclass(frozen=True)
class OfferedLease:
    """One lease of the whole plan. cells: without the reference, whose runs are part of what the lease takes once.

    once_h: device-hours that it takes whatever is measured on it; cells_h: of all runs of each cell; nan where they are unknown.
    """

    name: str
    configuration: Configuration
    composition: int
    cells: tuple[Cell, ...]
    once_h: float
    cells_h: tuple[float, ...]


@dataclass(frozen=True)
class Offer:
    """All leases of a campaign, in the order of the plan, with all that they could measure. metric: what the campaign is about."""

    leases: tuple[OfferedLease, ...]
    metric: Metric = THROUGHPUT

    @property
    def device_hours(self) -> float | None:
        """Of the whole matrix; None where it is unknown."""
        total = sum(lease.once_h + sum(lease.cells_h) for lease in self.leases)
        return total if math.isfinite(total) else None


def offer_of(plan: Plan, forecaster: Forecaster | SystemForecasters) -> Offer:
    """What the whole plan offers, also what has been measured. plan: of the whole matrix, without a budget."""
    works = [
        replace(lease.work, runs=tuple((cell, len(runs_of(cell.settings))) for cell in lease.cells))
        for lease in plan.leases
    ]
    kept, prices = without_references(works, forecaster.prices(works, Work.devices))
    leases = tuple(
        OfferedLease(
            lease.name,
            lease.configuration,
            lease.composition,
            tuple(cell for cell, _ in work.runs),
            once / 3600,
            tuple(each * count / 3600 for each, (_, count) in zip(run_s, work.runs, strict=True)),
        )
        for lease, work, once, run_s in zip(plan.leases, kept, prices.once_s, prices.run_s, strict=True)
    )
    return Offer(leases, plan.campaign.metric)
