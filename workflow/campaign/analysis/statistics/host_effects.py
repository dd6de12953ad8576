"""Effects of hosts on compositions.

The common effect of a host on all configurations that ran on it is removed, if possible.

Three compositions on one host are three of that host. If sets of hosts were used for several compositions, a comparison of two
cells is made on the same hosts: hosts are columns of a linear model beside the cells, like incomplete blocks (intra-block
analysis; Yates, 1936, "Incomplete randomized blocks", Annals of Eugenics 7). The degrees of freedom are those that remain of the
compositions. Cells of a group differ in their configuration only (`LeaseMeans.kind`).

Two cells on different hosts cannot be separated from their hosts if nothing else ran on both and one of the cells stayed on its
hosts. If every composition had a separate host, the host is part of its composition, and no effect is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from campaign.analysis.statistics.composition_variance import Means, Pooled, without_hosts
from campaign.common.intervals import Floats, Integers, Marks

_ROUNDING = 1e-8
# With fewer, or fewer than half of those of compositions, hosts that changed by chance stay in the spread of compositions; a cell
# that stayed on its hosts is always adjusted.
_LEAST_FREEDOM = 4


@dataclass(frozen=True, slots=True)
class _ComparedCells:
    """Host model of a group of cells that are compared with each other.

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
    affordable: bool


@dataclass(frozen=True, slots=True)
class Pairs:
    """Effects of hosts on comparisons of pairs of cells.

    is_adjusted: whether the effects are removed. log_shift: of the logarithm of the ratio by the removal. variance_factor:
    factor by which the variance
    grows. is_confounded: whether hosts cannot be separated from the configurations.
    """

    adjusted: Marks
    shift: Floats
    more: Floats
    confounded: Marks


@dataclass(frozen=True)
class HostEffects:
    """Effects of hosts in a campaign.

    variances: of locations without these effects, with 0 degrees of freedom if hosts are no level. models: host model of each
    group of
    cells. model_index, cell_index: group of each cell and its index within it, -1 for no group. hosts: names by index of the
    set.
    """

    variances: Pooled
    groups: tuple[_ComparedCells, ...]
    group: Integers
    place: Integers
    means: Means
    hosts: tuple[frozenset[str], ...]

    def pairs(self, i: Integers, j: Integers, within: Marks) -> Pairs:
        """Return the effects of hosts on the comparisons of cells i with cells j.

        Args:
            i: indices of the cells.
            j: indices of their references.
            is_within_leases: whether a pair shares its leases, and so its hosts.
        """
        adjusted, confounded = (np.zeros(i.size, dtype=np.bool_) for _ in range(2))
        shift, more = np.zeros(i.size), np.ones(i.size)
        k = self.means.compositions()
        same = (self.group[i] == self.group[j]) & (self.group[i] >= 0) & ~within
        stayed = self._stayed
        for number, group in enumerate(self.groups):
            at = np.flatnonzero(same & (self.group[i] == number))
            if not at.size:
                continue
            apart = group.share[self.place[i[at]]] - group.share[self.place[j[at]]]
            told = np.abs(apart - apart @ group.estimable).max(axis=1) < _ROUNDING
            needed = (np.abs(apart) > _ROUNDING).any(axis=1)
            enough = group.affordable | stayed[i[at]] | stayed[j[at]]
            adjusted[at] = told & needed & enough & (group.freedom > 0)
            shift[at] = apart @ group.effect
            of_both = 1 / k[i[at]] + 1 / k[j[at]]
            more[at] = (of_both + np.einsum("pc,cd,pd->p", apart, group.inverse, apart)) / of_both
        own = self._own_hosts
        for pair in np.flatnonzero(~within & ~adjusted & (stayed[i] | stayed[j])):
            ours, theirs = own[int(i[pair])], own[int(j[pair])]
            counts = {len(each) for each in (*ours, *theirs)}
            confounded[pair] = (
                bool(ours and theirs) and len(counts) == 1 and not set().union(*ours) & set().union(*theirs)
            )
        return Pairs(adjusted, np.where(adjusted, shift, 0.0), np.where(adjusted, more, 1.0), confounded)

    @cached_property
    def _own_hosts(self) -> dict[int, set[frozenset[str]]]:
        """Sets of hosts by cell."""
        found: dict[int, set[frozenset[str]]] = {cell: set() for cell in range(self.means.cells)}
        for cell, host in zip(self.means.cell, self.means.host, strict=True):
            if host >= 0:
                found[int(cell)].add(self.hosts[host])
        return found

    @cached_property
    def _stayed(self) -> Marks:
        """True if the cell was composed several times, and always on the same hosts."""
        size = self.means.compositions()
        start = np.cumsum(size) - size
        alike = self.means.host == self.means.host[start[self.means.cell]]
        always = np.bincount(self.means.cell, alike & (self.means.host >= 0), self.means.cells) == size
        return np.asarray((size > 1) & always, dtype=np.bool_)


def host_effects(means: Means, hosts: tuple[frozenset[str], ...], in_blocks: Marks) -> HostEffects:
    """Estimate the effects of hosts on cells.

    Args:
        means: means of each cell on each lease.
        hosts: names of hosts by index of the set.
        is_in_blocks: whether each cell was composed once in every block of the campaign.
    """
    residual = means.value - 1.0
    freedom, group, place = np.zeros(means.cells), np.full(means.cells, -1), np.zeros(means.cells, dtype=np.int64)
    found: list[_ComparedCells] = []
    left = residual.copy()
    known = np.bincount(means.cell, means.host < 0, means.cells) == 0
    for kind in np.unique(means.groups.kind[known]) if len(hosts) > 1 else ():
        cells = np.flatnonzero(known & (means.groups.kind == kind))
        rows = np.flatnonzero(np.isin(means.cell, cells))
        place[cells] = np.arange(cells.size)
        at = place[means.cell[rows]]
        columns = _columns(means.host[rows])
        if columns.shape[1] < 2 or columns.shape[1] == rows.size:
            continue
        fit = _fit(residual[rows], at, cells.size, columns)
        if in_blocks[cells].all():
            with_blocks = _fit(residual[rows], at, cells.size, np.hstack([columns, _columns(means.block[rows])]))
            fit = with_blocks if with_blocks[0].freedom >= _LEAST_FREEDOM else fit
        if fit[0].freedom < 1:
            continue
        group[cells], left[rows] = len(found), fit[1]
        again = means.compositions()[cells] - 1.0
        freedom[cells] = fit[0].freedom * again / again.sum()
        found.append(fit[0])
    return HostEffects(without_hosts(means, left, freedom), tuple(found), group, place, means, hosts)


def _columns(labels: Integers) -> Floats:
    """Build one indicator column per distinct label."""
    return np.asarray(np.unique(labels)[None, :] == labels[:, None], dtype=np.float64)


def _fit(residual: Floats, cell: Integers, cells: int, columns: Floats) -> tuple[_ComparedCells, Floats]:
    """Fit a linear model of host effects to the residuals of a group of cells, and return the residuals without them."""
    size = np.bincount(cell, minlength=cells)
    share = np.zeros((cells, columns.shape[1]))
    np.add.at(share, cell, columns)
    share /= size[:, None]
    inside = columns - share[cell]
    normal = inside.T @ inside
    inverse = np.asarray(np.linalg.pinv(normal, rcond=_ROUNDING, hermitian=True), dtype=np.float64)
    estimable = normal @ inverse
    effect = inverse @ (inside.T @ residual)
    freedom = residual.size - cells - round(float(np.trace(estimable)))
    affordable = freedom >= max(_LEAST_FREEDOM, (residual.size - cells) / 2)
    return _ComparedCells(share, inverse, estimable, effect, freedom, affordable), residual - inside @ effect
