"""What hosts do to compositions: what a host does to all configurations that ran on it is taken out, where that is possible.

Three compositions on one host are three of that host. Where sets of hosts were used for several compositions, a comparison of two
cells is made on the same hosts: hosts are columns of a linear model beside the cells, as incomplete blocks are (intra-block
analysis; Yates, 1936, "Incomplete randomized blocks", Annals of Eugenics 7). The freedom is what compositions have left. Cells of a
group differ by nothing but their configuration (`Means.kind`).

Two cells on different hosts cannot be told from their hosts where nothing else ran on both and one of them stayed on its hosts.
Where every composition had a host of its own, a host is part of its composition, and there is nothing to take out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from campaign.analysis.statistics.composition_variance import Means, Pooled, without_hosts
from campaign.common.intervals import Floats, Integers, Marks

_ROUNDING = 1e-8
# With less, or less than half of what compositions had, hosts that changed by chance stay in the spread of compositions; a cell
# that stayed on its hosts has no such choice.
_LEAST_FREEDOM = 4


@dataclass(frozen=True, slots=True)
class _ComparedCells:
    """Cells that are compared with each other.

    share: [cell, column] which part of a cell's compositions was on each set of hosts; inverse: of the normal equations of
    columns; estimable: projection on what they tell; effect: of the logarithm of cost; affordable: whether they leave enough."""

    share: Floats
    inverse: Floats
    estimable: Floats
    effect: Floats
    freedom: int
    affordable: bool


@dataclass(frozen=True, slots=True)
class Pairs:
    """What hosts do to comparisons of pairs of cells. adjusted: whether they are taken out; shift: of the logarithm of the ratio by
    that; more: by how much the variance grows; confounded: whether hosts cannot be told from the configurations."""

    adjusted: Marks
    shift: Floats
    more: Floats
    confounded: Marks


@dataclass(frozen=True)
class HostEffects:
    """What hosts do to a campaign. variances: of locations without it, freedom 0 where hosts are no level. hosts: names by number
    of the set."""

    variances: Pooled
    groups: tuple[_ComparedCells, ...]
    group: Integers
    place: Integers
    means: Means
    hosts: tuple[frozenset[str], ...]

    def pairs(self, i: Integers, j: Integers, within: Marks) -> Pairs:
        """What hosts do to these pairs. within: pairs that share their leases, and so their hosts."""
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
        found: dict[int, set[frozenset[str]]] = {cell: set() for cell in range(self.means.cells)}
        for cell, host in zip(self.means.cell, self.means.host, strict=True):
            if host >= 0:
                found[int(cell)].add(self.hosts[host])
        return found

    @cached_property
    def _stayed(self) -> Marks:
        """Cells that were composed several times, and always on the same hosts."""
        size = self.means.compositions()
        start = np.cumsum(size) - size
        alike = self.means.host == self.means.host[start[self.means.cell]]
        always = np.bincount(self.means.cell, alike & (self.means.host >= 0), self.means.cells) == size
        return np.asarray((size > 1) & always, dtype=np.bool_)


def host_effects(means: Means, hosts: tuple[frozenset[str], ...], in_blocks: Marks) -> HostEffects:
    """The effects of hosts on cells. in_blocks: cells that were composed once in every block of the campaign."""
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
    return np.asarray(np.unique(labels)[None, :] == labels[:, None], dtype=np.float64)


def _fit(residual: Floats, cell: Integers, cells: int, columns: Floats) -> tuple[_ComparedCells, Floats]:
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
