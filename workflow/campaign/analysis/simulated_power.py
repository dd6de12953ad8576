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

from campaign.analysis.statistics.comparisons import design, ratios
from campaign.analysis.statistics.ratios import POWER
from campaign.common.intervals import SIGNIFICANCE_LEVEL, student_quantile
from campaign.plan.plan import Plan
from campaign.spec.run_numbers import run_number

_SIMULATED_COMPOSITIONS = (2, 3, 4, 5, 8, 20)
_MAX_CONFIGURATIONS, _MAX_CELLS = 40, 400
_MIN_CAMPAIGNS, _MAX_CAMPAIGNS, _SIMULATED_CELLS, _SIMULATED_RUNS = 4, 800, 8_000, 80_000
_UNIT = 0.01
"""Simulated standard deviation of the mean of a composition: small, so that its logarithm is as good as linear."""


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
        """Build the comparisons of a plan.

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
        """Build the comparisons of cells; of a large plan, keep only as many cells as the simulation needs."""
        numbered = cells.apply(lambda labels: pd.factorize(labels)[0])
        compared = numbered[numbered["configuration"] > 0].merge(
            numbered.loc[numbered["configuration"] == 0, ["workload", "batch"]], on=["workload", "batch"]
        )
        few = numbered[numbered["configuration"] < _MAX_CONFIGURATIONS]
        kinds = few.groupby(["workload", "batch"], sort=False).ngroup()
        few = few[kinds < max(1, _MAX_CELLS // few["configuration"].nunique())]
        return cls(few.reset_index(drop=True), max(1, len(compared)), lease_order)

    @property
    def cells_per_lease(self) -> int:
        """Largest number of cells of one workload on a lease."""
        return int(self.cells.groupby(["lease", "workload"]).size().max())

    def simulate(self, compositions: int, shared: bool) -> IntervalPrecision:
        """Simulate campaigns and return the precision of their comparisons, computed as in the report.

        Args:
            compositions: number of compositions of each configuration, at least 2.
            deviate_together: true if all cells of a lease deviate together; false if each deviates independently.
        """
        cells, each = self.cells, len(self.cells)
        campaigns = min(_MAX_CAMPAIGNS, _SIMULATED_CELLS // each, _SIMULATED_RUNS // (each * compositions))
        campaigns = max(_MIN_CAMPAIGNS, campaigns)
        random = np.random.default_rng(1)
        # Each simulated campaign has workloads and leases of its own, so that nothing is pooled over campaigns.
        simulated, cell, block = np.indices((campaigns, each, compositions)).reshape(3, -1)
        planned = {name: cells[name].to_numpy()[cell] for name in cells}
        lease = (simulated * (int(cells["lease"].max()) + 1) + planned["lease"]) * compositions + block
        deviation = (
            random.standard_normal(int(lease.max()) + 1)[lease] if shared else random.standard_normal(lease.size)
        )
        table = pd.DataFrame({
            "cell_id": simulated * each + cell,
            "workload": simulated * (int(cells["workload"].max()) + 1) + planned["workload"],
            "batch": planned["batch"],
            "system": planned["system"],
            "configuration": planned["configuration"],
            "campaign": simulated,
            "lease_id": lease,
            "repetition": np.array([run_number(n + 1, 1) for n in range(compositions)])[block],
            "started": block.astype("float64"),
            "status": "ok",
            "value": np.exp(_UNIT * deviation),
        })  # fmt: skip
        table = table.assign(
            configuration=table["configuration"].astype("str"), lease_id=table["lease_id"].astype("str")
        )
        by = design(table, {"lease_order": self.lease_order})
        first = cells[cells["configuration"] == 0].reset_index(names="against")
        pairs = cells[cells["configuration"] > 0].reset_index(names="cell")
        pairs = pairs.merge(first[["workload", "batch", "against"]], on=["workload", "batch"])
        offset = (np.arange(campaigns) * each)[:, None]
        of, to = (pd.Series((offset + pairs[name].to_numpy()).ravel()) for name in ("cell", "against"))
        found = ratios(of, to, by).of
        error = np.sqrt(found.variance)
        tested = scipy.special.stdtrit(found.freedom, 1.0 - SIGNIFICANCE_LEVEL / self.tests / 2.0)
        detectable = np.quantile(tested * error - np.log(found.ratio), POWER)
        return IntervalPrecision(
            float(np.median(student_quantile(found.freedom) * error)) / _UNIT, float(detectable) / _UNIT
        )


class SimulatedPrecision:
    """Precision of a plan's comparisons as a function of the number of compositions.

    A few numbers of compositions are simulated once each; values between them are interpolated.
    """

    def __init__(self, planned: PlannedComparisons) -> None:
        self._several = planned.cells_per_lease > 1
        self._simulate = cache(planned.simulate)

    def at(self, compositions: int, shared: float) -> IntervalPrecision:
        """Return the precision that a number of compositions achieves.

        Args:
            compositions: number of compositions of each configuration, at least 2.
            shared_fraction: fraction of the variance that the cells of a lease share.
        """
        below = max(k for k in _SIMULATED_COMPOSITIONS if k <= compositions)
        above = min((k for k in _SIMULATED_COMPOSITIONS if k >= compositions), default=below)
        # Apart from the factor of 1 / sqrt(k), precision changes slowly with the number of compositions.
        part = (1 / below - 1 / compositions) / (1 / below - 1 / above) if above > below else 0.0
        ends = [(k, weight) for k, weight in ((below, 1 - part), (above, part)) if weight > 0]

        def interpolate(name: str) -> float:
            return float(sum(w * np.sqrt(k / compositions) * self._between(name, k, shared) for k, w in ends))

        return IntervalPrecision(interpolate("half_width"), interpolate("detectable"))

    def _between(self, name: str, compositions: int, shared: float) -> float:
        """Interpolate a value between cells that deviate independently and cells that deviate together.

        The weight is the square of the shared fraction, since the degrees of freedom fall by the square.
        """
        alone = float(getattr(self._simulate(compositions, False), name))
        if not self._several or shared == 0:
            return alone
        together = float(getattr(self._simulate(compositions, True), name))
        return alone + shared**2 * (together - alone)
