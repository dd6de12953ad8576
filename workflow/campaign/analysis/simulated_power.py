"""Simulated precision of the comparisons that a planned campaign will make.

A simulated campaign has the configurations, cells and leases of the plan, and no difference between configurations. Each cell is
compared with the equal cell of the first configuration by the report's own function
(`campaign.analysis.statistics.comparisons`), and all comparisons are one family. A difference is found if its p-value passes
the first step of Holm's adjustment. So each comparison yields the smallest planted difference that it would have found, and 80
of 100 comparisons find the 80 % quantile of these differences.

Results are in standard deviations of the mean of one composition: the report's statistics do not depend on the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import scipy

from campaign.analysis.statistics.comparisons import build_design, compute_ratios
from campaign.analysis.statistics.ratios import TEST_POWER
from campaign.common.intervals import SIGNIFICANCE_LEVEL, student_quantile
from campaign.plan.plan import Plan
from campaign.spec.run_numbers import compute_run_number

_SIMULATED_COMPOSITIONS = (2, 3, 4, 5, 8, 20)
_MAX_CONFIGURATIONS, _MAX_CELLS = 40, 400
_MIN_CAMPAIGNS, _MAX_CAMPAIGNS, _SIMULATED_CELLS, _SIMULATED_RUNS = 4, 800, 8_000, 80_000
_UNIT = 0.01
"""Simulated standard deviation of the mean of a composition: small, so that its logarithm is almost linear."""


@dataclass(frozen=True)
class IntervalPrecision:
    """Half-width of the 95 % interval and detectable difference, in standard deviations of the mean of one composition."""

    half_width: float
    detectable: float


@dataclass(frozen=True)
class PlannedComparisons:
    """Planned cells that the report will compare with each other.

    Args:
        cells: one row per cell of one composition: configuration, workload, batch (number of its kind), lease, system.
        tests: number of comparisons in the family.
        lease_order: order of leases in the protocol.
    """

    cells: pd.DataFrame
    tests: int
    lease_order: str

    @classmethod
    def from_plan(cls, plan: Plan) -> PlannedComparisons:
        """Build the comparisons from a plan.

        A plan of one configuration is compared with a copy of itself.
        """
        first = min(lease.composition for lease in plan.leases)
        rows = [
            (lease.configuration.name, cell.workload, (cell.batch, cell.precision, str(sorted(cell.options.items()))),
             lease.name, lease.configuration.system)
            for lease, cell in plan.cells
            if lease.composition == first
        ]  # fmt: skip
        cells = pd.DataFrame(rows, columns=["configuration", "workload", "batch", "lease", "system"])
        if cells["configuration"].nunique() == 1:
            cells = pd.concat([cells, cells.assign(configuration="", lease="copy of " + cells["lease"])])
        return cls.from_cells(cells, plan.campaign.protocol.lease_order)

    @classmethod
    def from_cells(cls, cells: pd.DataFrame, lease_order: str) -> PlannedComparisons:
        """Build the comparisons from cells; of a large plan, keep only the cells that the simulation needs."""
        coded_cells = cells.apply(lambda labels: pd.factorize(labels)[0])
        compared_cells = coded_cells[coded_cells["configuration"] > 0].merge(
            coded_cells.loc[coded_cells["configuration"] == 0, ["workload", "batch"]], on=["workload", "batch"]
        )
        subset = coded_cells[coded_cells["configuration"] < _MAX_CONFIGURATIONS]
        kinds = subset.groupby(["workload", "batch"], sort=False).ngroup()
        subset = subset[kinds < max(1, _MAX_CELLS // subset["configuration"].nunique())]
        return cls(subset.reset_index(drop=True), max(1, len(compared_cells)), lease_order)

    @property
    def max_cells_per_lease(self) -> int:
        """Largest number of cells of one workload on a lease."""
        return int(self.cells.groupby(["lease", "workload"]).size().max())

    def simulate_precision(self, compositions: int, deviate_together: bool) -> IntervalPrecision:
        """Simulate campaigns and return the precision of their comparisons, computed as in the report.

        Args:
            compositions: number of compositions of each configuration, at least 2.
            deviate_together: true if all cells of a lease deviate together; false if each deviates independently.
        """
        cells, cell_count = self.cells, len(self.cells)
        campaigns = min(_MAX_CAMPAIGNS, _SIMULATED_CELLS // cell_count, _SIMULATED_RUNS // (cell_count * compositions))
        campaigns = max(_MIN_CAMPAIGNS, campaigns)
        random = np.random.default_rng(1)
        # Each simulated campaign has workloads and leases of its own, so that nothing is pooled over campaigns.
        campaign_index, cell, block = np.indices((campaigns, cell_count, compositions)).reshape(3, -1)
        planned_labels = {name: cells[name].to_numpy()[cell] for name in cells}
        lease = (campaign_index * (int(cells["lease"].max()) + 1) + planned_labels["lease"]) * compositions + block
        deviation = (
            random.standard_normal(int(lease.max()) + 1)[lease]
            if deviate_together
            else random.standard_normal(lease.size)
        )
        table = pd.DataFrame({
            "cell_id": campaign_index * cell_count + cell,
            "workload": campaign_index * (int(cells["workload"].max()) + 1) + planned_labels["workload"],
            "batch": planned_labels["batch"],
            "system": planned_labels["system"],
            "configuration": planned_labels["configuration"],
            "campaign": campaign_index,
            "lease_id": lease,
            "repetition": np.array([compute_run_number(n + 1, 1) for n in range(compositions)])[block],
            "started": block.astype("float64"),
            "status": "ok",
            "value": np.exp(_UNIT * deviation),
        })  # fmt: skip
        table = table.assign(
            configuration=table["configuration"].astype("str"), lease_id=table["lease_id"].astype("str")
        )
        cell_design = build_design(table, {"lease_order": self.lease_order})
        first = cells[cells["configuration"] == 0].reset_index(names="against")
        pairs = cells[cells["configuration"] > 0].reset_index(names="cell")
        pairs = pairs.merge(first[["workload", "batch", "against"]], on=["workload", "batch"])
        offset = (np.arange(campaigns) * cell_count)[:, None]
        compared_cells, references = (
            pd.Series((offset + pairs[name].to_numpy()).ravel()) for name in ("cell", "against")
        )
        log_ratios = compute_ratios(compared_cells, references, cell_design).estimate
        error = np.sqrt(log_ratios.variance)
        critical_values = scipy.special.stdtrit(log_ratios.freedom, 1.0 - SIGNIFICANCE_LEVEL / self.tests / 2.0)
        detectable = np.quantile(critical_values * error - np.log(log_ratios.ratio), TEST_POWER)
        return IntervalPrecision(
            float(np.median(student_quantile(log_ratios.freedom) * error)) / _UNIT, float(detectable) / _UNIT
        )


class SimulatedPrecision:
    """Precision of a plan's comparisons as a function of the number of compositions.

    A few numbers of compositions are simulated once each; precision in between is interpolated.
    """

    def __init__(self, comparisons: PlannedComparisons) -> None:
        self._has_shared_leases = comparisons.max_cells_per_lease > 1
        self._simulate = cache(comparisons.simulate_precision)

    def estimate(self, compositions: int, shared_fraction: float) -> IntervalPrecision:
        """Estimate the precision that a given number of compositions achieves.

        Args:
            compositions: number of compositions of each configuration, at least 2.
            shared_fraction: fraction of the variance that the cells of a lease share.
        """
        lower = max(k for k in _SIMULATED_COMPOSITIONS if k <= compositions)
        upper = min((k for k in _SIMULATED_COMPOSITIONS if k >= compositions), default=lower)
        # Apart from the factor of 1 / sqrt(k), precision changes slowly with the number of compositions.
        upper_weight = (1 / lower - 1 / compositions) / (1 / lower - 1 / upper) if upper > lower else 0.0
        ends = [(k, weight) for k, weight in ((lower, 1 - upper_weight), (upper, upper_weight)) if weight > 0]

        def interpolate(name: str) -> float:
            return float(
                sum(
                    w * np.sqrt(k / compositions) * self._interpolate_correlation(name, k, shared_fraction)
                    for k, w in ends
                )
            )

        return IntervalPrecision(interpolate("half_width"), interpolate("detectable"))

    def _interpolate_correlation(self, name: str, compositions: int, shared_fraction: float) -> float:
        """Interpolate a quantity between the cases of independently and jointly deviating cells.

        The weight is the square of the shared fraction, since the degrees of freedom fall by the square.
        """
        independent_value = float(getattr(self._simulate(compositions, False), name))
        if not self._has_shared_leases or shared_fraction == 0:
            return independent_value
        correlated_value = float(getattr(self._simulate(compositions, True), name))
        return independent_value + shared_fraction**2 * (correlated_value - independent_value)
