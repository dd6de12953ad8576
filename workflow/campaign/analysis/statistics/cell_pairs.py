"""Pairs of cells for comparisons, with the leases, blocks, hosts and runs that both cells of a pair share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.analysis.statistics.composition_variance import PooledVariance
from campaign.analysis.statistics.experiment_design import STEP_COLUMN_LABELS, Design
from campaign.analysis.statistics.host_effects import PairHostEffects as HostPairs
from campaign.analysis.statistics.ratios import (
    LogRatios,
    compute_paired_ratios,
    compute_welch_freedom,
    has_enough_pairs,
)
from campaign.common.intervals import Floats, Integers, Marks


@dataclass(frozen=True, slots=True)
class RunPairs:
    """Pairs of runs of the same block, for comparisons within one composition.

    count: number of run pairs; estimate: ratio over the run pairs; is_paired: whether the comparison is paired.
    """

    count: Integers
    estimate: LogRatios
    is_paired: Marks


@dataclass(frozen=True)
class CellPairs:
    """Pairs of a cell and its reference in one design. Every array has one element per pair.

    cell, reference: indices in the design; 0 if a pair cannot be compared.
    has_cell, has_reference: whether the design has valid runs of the cell or of its reference.
    is_reference_itself: whether the cell is its own reference.
    """

    design: Design
    cell: Integers
    reference: Integers
    has_cell: Marks
    has_reference: Marks
    is_reference_itself: Marks

    @cached_property
    def is_comparable(self) -> Marks:
        """True if the pair has two different cells, and both have valid runs."""
        return self.has_cell & self.has_reference & ~self.is_reference_itself

    @cached_property
    def cell_compositions(self) -> Integers:
        """Number of compositions of the cell."""
        return self.design.compositions[self.cell]

    @cached_property
    def reference_compositions(self) -> Integers:
        """Number of compositions of the reference."""
        return self.design.compositions[self.reference]

    @cached_property
    def shared_leases(self) -> Integers:
        """Number of leases on which both cells were measured."""
        means = self.design.means
        leases = int(means.lease.max(initial=-1)) + 1
        measured_keys = means.cell * leases + means.lease
        comparable = np.flatnonzero(self.is_comparable)
        first_mean = np.cumsum(self.design.compositions) - self.design.compositions
        size = self.cell_compositions[comparable]
        pair = np.repeat(comparable, size)
        offset = np.arange(pair.size) - np.repeat(np.cumsum(size) - size, size)
        mean = np.repeat(first_mean[self.cell[comparable]], size) + offset
        is_shared = np.isin(self.reference[pair] * leases + means.lease[mean], measured_keys)
        return np.bincount(pair[is_shared], minlength=self.cell.size).astype(np.int64)

    @cached_property
    def is_within_leases(self) -> Marks:
        """True if both cells were measured on the same leases."""
        same_count = (self.shared_leases == self.cell_compositions) & (
            self.shared_leases == self.reference_compositions
        )
        return np.asarray(self.is_comparable & same_count, dtype=np.bool_)

    @cached_property
    def is_within_several_leases(self) -> Marks:
        """True if both cells were measured on the same leases, two or more."""
        return np.asarray(self.is_within_leases & (self.shared_leases >= 2), dtype=np.bool_)

    @cached_property
    def is_within_composition(self) -> Marks:
        """True if both cells were measured on the same single lease."""
        return np.asarray(self.is_within_leases & (self.shared_leases == 1), dtype=np.bool_)

    @cached_property
    def is_across_systems(self) -> Marks:
        """True if the two cells are on different systems."""
        return ~self.design.means.groups.is_same_system(self.cell, self.reference)

    @cached_property
    def is_in_blocks(self) -> Marks:
        """True if both cells were composed once in each of the same blocks of the campaign.

        Cells of two systems are never in the same blocks, because each system drifts on its own.
        """
        in_blocks = self.design.variances.is_in_blocks
        same_count = self.cell_compositions == self.reference_compositions
        on_one_system = in_blocks[self.cell] & in_blocks[self.reference] & ~self.is_across_systems
        return np.asarray(on_one_system & same_count, dtype=np.bool_)

    @cached_property
    def hosts(self) -> HostPairs:
        """Effects of hosts on the comparison.

        Hosts are part of the difference between two systems, so they confound no comparison across systems.
        """
        skip = self.is_within_leases | ~self.is_comparable
        effects = self.design.host_effects.estimate_pair_effects(self.cell, self.reference, skip)
        return replace(effects, is_confounded=effects.is_confounded & ~self.is_across_systems)

    @cached_property
    def is_measured_in_order(self) -> Marks:
        """True if the order of measurement was not random, so that drift can look like a difference."""
        is_between_in_order = not self.design.has_random_leases and not self.design.is_adjusted
        return self.is_comparable & np.where(
            self.is_within_leases, not self.design.has_random_runs, is_between_in_order
        )

    @cached_property
    def is_spread_borrowed(self) -> Marks:
        """True if either cell borrows its spread of compositions from other cells."""
        is_borrowed = self.design.variances.is_borrowed
        return is_borrowed[self.cell] | is_borrowed[self.reference]

    @cached_property
    def lending_campaigns(self) -> npt.NDArray[np.object_]:
        """Earlier campaigns from which the cell, or else the reference, borrows its spread; empty if none."""
        lent_by = self.design.variances.lending_campaigns
        return np.where(lent_by[self.cell] != "", lent_by[self.cell], lent_by[self.reference])

    @cached_property
    def run_pairs(self) -> RunPairs:
        """Pairs of runs of one block within one composition."""
        design = self.design
        places = np.flatnonzero(self.is_within_composition) if design.has_random_runs else np.empty(0, dtype=np.int64)
        if not places.size:
            return self._build_empty_run_pairs()
        cell, reference = self.cell[places], self.reference[places]
        costs = _pair_runs(design.valid_runs, cell, reference)
        ratios = compute_paired_ratios(costs["reference_cost"], costs["cost"], costs["place"], places.size)
        count = np.bincount(costs["place"], minlength=places.size)
        weight = np.maximum(design.weights[cell], design.weights[reference])
        has_pairs = has_enough_pairs(count, design.runs[cell], design.runs[reference])
        estimate = LogRatios(
            self._expand_to_all_pairs(places, ratios.ratio),
            self._expand_to_all_pairs(places, ratios.variance * weight),
            self._expand_to_all_pairs(places, ratios.freedom),
        )
        return RunPairs(
            self._expand_to_all_pairs(places, count, 0), estimate, self._expand_to_all_pairs(places, has_pairs, False)
        )

    def _build_empty_run_pairs(self) -> RunPairs:
        """Build placeholder run pairs for a design without any."""
        nan = np.full(self.cell.size, np.nan)
        return RunPairs(
            np.zeros(nan.size, dtype=np.int64), LogRatios(nan, nan, nan), np.zeros(nan.size, dtype=np.bool_)
        )

    def _expand_to_all_pairs(
        self, places: Integers, values: npt.NDArray[Any], default: float = np.nan
    ) -> npt.NDArray[Any]:
        """Build an array over all pairs, with the values at the given indices and the default elsewhere."""
        all_values = np.full(self.cell.size, default, dtype=values.dtype)
        all_values[places] = values
        return all_values

    def add_variances(self, pool: PooledVariance) -> tuple[Floats, Floats]:
        """Add the variances of both cells of each pair, and return the sum with its degrees of freedom.

        Two variances of one pool have at most the degrees of freedom of the pool. One variance that both cells share has at
        most those of each cell.
        """
        groups, i, j = self.design.means.groups, self.cell, self.reference
        variance, freedom = pool.variance * self.design.weights, pool.freedom
        smaller, larger = np.minimum(freedom[i], freedom[j]), np.maximum(freedom[i], freedom[j])
        combined_freedom = compute_welch_freedom((variance[i], freedom[i]), (variance[j], freedom[j]))
        limited_freedom = np.minimum(combined_freedom, np.maximum(pool.pool_freedom[i], larger))
        combined_freedom = np.where(groups.stratum[i] == groups.stratum[j], limited_freedom, combined_freedom)
        return variance[i] + variance[j], np.where(
            groups.configuration[i] == groups.configuration[j], smaller, combined_freedom
        )

    def describe_step_differences(self) -> npt.NDArray[np.object_]:
        """Describe differing step counts, such as '5 to 8 warm-up steps against 5'; empty if they are equal."""
        descriptions = np.full(self.cell.size, "", dtype=object)
        steps = self.design.steps
        for name in dict.fromkeys(steps.columns.get_level_values(0)) if len(steps.columns) else ():
            bounds = steps[name].to_numpy()
            differs = (bounds[self.cell] != bounds[self.reference]).any(axis=1)
            for pair in np.flatnonzero(self.is_comparable & differs):
                cell, reference = (_format_bounds(bounds[cells[pair]]) for cells in (self.cell, self.reference))
                separator = ", " if descriptions[pair] else ""
                descriptions[pair] += f"{separator}{cell} {STEP_COLUMN_LABELS[name]} against {reference}"
        return descriptions


def _pair_runs(runs: pd.DataFrame, cell: Integers, reference: Integers) -> pd.DataFrame:
    """Return one row per pair of runs of the same lease and repetition: index of the pair of cells, and both costs."""
    pairs = pd.DataFrame({"cell": cell, "reference": reference, "place": np.arange(cell.size)})
    reference_runs = runs.rename(columns={"cell": "reference", "cost": "reference_cost"})
    return pairs.merge(runs, on="cell").merge(reference_runs, on=["reference", "lease", "repetition"])


def _format_bounds(bounds: npt.NDArray[Any]) -> str:
    """Format the smallest and largest number of steps as '5 to 8', or as '5' if both are equal."""
    return " to ".join(dict.fromkeys(f"{int(steps):,}" for steps in bounds))
