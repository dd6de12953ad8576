"""Effects of hosts on compositions.

The common effect of a host on all configurations that ran on it is removed, if possible.

Three compositions on one host are replicates of that host only. If sets of hosts were used for several compositions, a
comparison of two cells is made on the same hosts: hosts are columns of a linear model beside the cells, like incomplete
blocks (intra-block analysis; Yates, 1936, "Incomplete randomized blocks", Annals of Eugenics 7). The degrees of freedom are
those that remain of the compositions. Cells of a group differ in their configuration only (`LeaseMeans.kind`).

Two cells on different hosts cannot be separated from their hosts if nothing else ran on both and one of the cells stayed on its
hosts. If every composition had a separate host, the host is part of its composition, and no effect is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from campaign.analysis.statistics.composition_variance import LeaseMeans, PooledVariance, pool_without_host_effects
from campaign.common.intervals import Floats, Integers, Marks

_ROUNDING_TOLERANCE = 1e-8
# With fewer, or fewer than half of those of compositions, hosts that changed by chance stay in the spread of compositions; a cell
# that stayed on its hosts is always adjusted.
_MIN_DOF = 4


@dataclass(frozen=True, slots=True)
class _HostModel:
    """Linear model of host effects for a group of cells that are compared with each other.

    share: [cell, column] share of a cell's compositions on each set of hosts. inverse: of the normal equations of the columns.
    estimable: projection on their estimable space. effect: effect of each column on the logarithm of cost. freedom: degrees of
    freedom.
    has_enough_freedom: whether enough degrees of freedom remain.
    """

    share: Floats
    inverse: Floats
    estimable: Floats
    effect: Floats
    freedom: int
    has_enough_freedom: bool


@dataclass(frozen=True, slots=True)
class PairHostEffects:
    """Effects of hosts on comparisons of pairs of cells.

    is_adjusted: whether the effects are removed. log_shift: of the logarithm of the ratio by the removal.
    variance_factor: factor by which the variance grows. is_confounded: whether hosts cannot be separated from the
    configurations.
    """

    is_adjusted: Marks
    log_shift: Floats
    variance_factor: Floats
    is_confounded: Marks


@dataclass(frozen=True)
class HostEffects:
    """Effects of hosts in a campaign.

    variances: of locations without these effects, with 0 degrees of freedom if hosts are no level. models: host model of each
    group of cells. model_index, cell_index: group of each cell and its index within it, -1 for no group. hosts: names by
    index of the set.
    """

    variances: PooledVariance
    models: tuple[_HostModel, ...]
    model_index: Integers
    cell_index: Integers
    means: LeaseMeans
    hosts: tuple[frozenset[str], ...]

    def estimate_pair_effects(self, i: Integers, j: Integers, is_within_leases: Marks) -> PairHostEffects:
        """Estimate the effects of hosts on comparisons of cells i with cells j.

        Args:
            i: indices of the cells.
            j: indices of their references.
            is_within_leases: whether a pair shares its leases, and so its hosts.
        """
        is_adjusted, is_confounded = (np.zeros(i.size, dtype=np.bool_) for _ in range(2))
        shift, variance_factor = np.zeros(i.size), np.ones(i.size)
        k = self.means.count_compositions()
        is_same_group = (self.model_index[i] == self.model_index[j]) & (self.model_index[i] >= 0) & ~is_within_leases
        is_on_same_hosts = self._is_on_same_hosts
        for number, group in enumerate(self.models):
            pairs = np.flatnonzero(is_same_group & (self.model_index[i] == number))
            if not pairs.size:
                continue
            share_difference = group.share[self.cell_index[i[pairs]]] - group.share[self.cell_index[j[pairs]]]
            is_estimable = (
                np.abs(share_difference - share_difference @ group.estimable).max(axis=1) < _ROUNDING_TOLERANCE
            )
            is_on_other_hosts = (np.abs(share_difference) > _ROUNDING_TOLERANCE).any(axis=1)
            is_affordable = group.has_enough_freedom | is_on_same_hosts[i[pairs]] | is_on_same_hosts[j[pairs]]
            is_adjusted[pairs] = is_estimable & is_on_other_hosts & is_affordable & (group.freedom > 0)
            shift[pairs] = share_difference @ group.effect
            base_variance = 1 / k[i[pairs]] + 1 / k[j[pairs]]
            variance_factor[pairs] = (
                base_variance + np.einsum("pc,cd,pd->p", share_difference, group.inverse, share_difference)
            ) / base_variance
        hosts_by_cell = self._hosts_by_cell
        for pair in np.flatnonzero(~is_within_leases & ~is_adjusted & (is_on_same_hosts[i] | is_on_same_hosts[j])):
            cell_hosts, reference_hosts = hosts_by_cell[int(i[pair])], hosts_by_cell[int(j[pair])]
            counts = {len(hosts) for hosts in (*cell_hosts, *reference_hosts)}
            is_confounded[pair] = (
                bool(cell_hosts and reference_hosts)
                and len(counts) == 1
                and not set().union(*cell_hosts) & set().union(*reference_hosts)
            )
        return PairHostEffects(
            is_adjusted, np.where(is_adjusted, shift, 0.0), np.where(is_adjusted, variance_factor, 1.0), is_confounded
        )

    @cached_property
    def _hosts_by_cell(self) -> dict[int, set[frozenset[str]]]:
        """Sets of hosts on which each cell was composed."""
        hosts: dict[int, set[frozenset[str]]] = {cell: set() for cell in range(self.means.cell_count)}
        for cell, host in zip(self.means.cell, self.means.host, strict=True):
            if host >= 0:
                hosts[int(cell)].add(self.hosts[host])
        return hosts

    @cached_property
    def _is_on_same_hosts(self) -> Marks:
        """Whether each cell was composed several times, always on the same hosts."""
        size = self.means.count_compositions()
        start = np.cumsum(size) - size
        is_first_host = self.means.host == self.means.host[start[self.means.cell]]
        is_always_first_host = (
            np.bincount(self.means.cell, is_first_host & (self.means.host >= 0), self.means.cell_count) == size
        )
        return np.asarray((size > 1) & is_always_first_host, dtype=np.bool_)


def estimate_host_effects(means: LeaseMeans, hosts: tuple[frozenset[str], ...], is_in_blocks: Marks) -> HostEffects:
    """Estimate the effects of hosts on cells.

    Args:
        means: means of each cell on each lease.
        hosts: names of hosts by index of the set.
        is_in_blocks: whether each cell was composed once in every block of the campaign.
    """
    residual = means.value - 1.0
    freedom, group, place = (
        np.zeros(means.cell_count),
        np.full(means.cell_count, -1),
        np.zeros(means.cell_count, dtype=np.int64),
    )
    models: list[_HostModel] = []
    remaining_residual = residual.copy()
    has_known_hosts = np.bincount(means.cell, means.host < 0, means.cell_count) == 0
    for kind in np.unique(means.groups.kind[has_known_hosts]) if len(hosts) > 1 else ():
        is_member = has_known_hosts & (means.groups.kind == kind)
        cells, rows = np.flatnonzero(is_member), np.flatnonzero(is_member[means.cell])
        place[cells] = np.arange(cells.size)
        cell_index = place[means.cell[rows]]
        columns = _build_indicator_columns(means.host[rows])
        if columns.shape[1] < 2 or columns.shape[1] == rows.size:
            continue
        fit = _fit_host_model(residual[rows], cell_index, cells.size, columns)
        if is_in_blocks[cells].all():
            with_blocks = _fit_host_model(
                residual[rows],
                cell_index,
                cells.size,
                np.hstack([columns, _build_indicator_columns(means.block[rows])]),
            )
            fit = with_blocks if with_blocks[0].freedom >= _MIN_DOF else fit
        if fit[0].freedom < 1:
            continue
        group[cells], remaining_residual[rows] = len(models), fit[1]
        repeats = means.count_compositions()[cells] - 1.0
        freedom[cells] = fit[0].freedom * repeats / repeats.sum()
        models.append(fit[0])
    return HostEffects(
        pool_without_host_effects(means, remaining_residual, freedom), tuple(models), group, place, means, hosts
    )


def _build_indicator_columns(labels: Integers) -> Floats:
    """Build one indicator column per distinct label."""
    return np.asarray(np.unique(labels)[None, :] == labels[:, None], dtype=np.float64)


def _fit_host_model(residual: Floats, cell: Integers, cells: int, columns: Floats) -> tuple[_HostModel, Floats]:
    """Fit a linear model of host effects to the residuals of a group of cells, and return the residuals without them."""
    size = np.bincount(cell, minlength=cells)
    share = np.zeros((cells, columns.shape[1]))
    np.add.at(share, cell, columns)
    share /= size[:, None]
    centred_columns = columns - share[cell]
    normal = centred_columns.T @ centred_columns
    inverse = np.asarray(np.linalg.pinv(normal, rcond=_ROUNDING_TOLERANCE, hermitian=True), dtype=np.float64)
    estimable = normal @ inverse
    effect = inverse @ (centred_columns.T @ residual)
    freedom = residual.size - cells - round(float(np.trace(estimable)))
    has_enough_freedom = freedom >= max(_MIN_DOF, (residual.size - cells) / 2)
    return _HostModel(
        share, inverse, estimable, effect, freedom, has_enough_freedom
    ), residual - centred_columns @ effect
