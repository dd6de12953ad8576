"""What was measured of cells, and what is expected of the others: an additive model of logarithms, by workload. Pure.

    logarithm of a cell's mean on a lease = cell + lease + drift x composition + remainder
    cell = prior + precision and batch + configuration + configuration x precision + the cell's own deviation

The first line is fitted with free cells (generalised least squares): all that is stated of measured cells rests on it, and on
nothing that is expected. A lease moves all cells of a configuration, so cells that it holds together are told apart better than
others. The variances of leases and of the remainder follow from the squares that are left with and without leases (Henderson,
1953, "Estimation of variance and covariance components", Biometrics 9(2), method 3), and are pooled over the workload. A
configuration that deviates more than the pool has a larger one (Smyth, 2004, as in `campaign.statistics.composition_variance`);
none has a smaller one. What earlier campaigns on the system found counts as freedom of the pool.

The second line tells cells that were not measured. Its variances are averaged over a grid by their likelihood, since a few
configurations tell little of them. The prior is 0, or what another model of the workload predicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from campaign.insight.until.cell_states import CellStates
from campaign.statistics.intervals import Floats, Integers

UNKNOWN_SPREAD = 0.025**2
"""Variance of compositions where nothing tells it. Only choices rest on it: nothing is stated without freedom."""
POOL_WEIGHS = 6.0
"""Degrees of freedom that the pool weighs beside those of a configuration."""
_DEVIATIONS = np.array([0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
_VAGUE = 1e4
_FEW = 6  # degrees of freedom of leases
_FITTED_TO = 8  # configurations that tell the size of deviations; more take longer and tell it no better


class Estimates:
    """What is known of cells; arrays by place in `CellStates.cells`.

    measured: free estimate of its goodness, nan where it was not measured; expected: with what is expected. error, doubt:
    covariances of both. told: on how many configurations its precision and batch were measured. composition: variance of one
    composition; alone: of the mean if leases did not differ; more: factor by which its configuration deviates more than others.
    freedom, within, checked: of the spread of leases of its workload, of the remainder, and of the deviations of cells.
    informed: whether another model expects every cell.
    """

    def __init__(self, states: CellStates, prior: Mapping[str, float] | None = None) -> None:
        """prior: of cells by id, the logarithm that another model expects, up to a constant."""
        prior, count = prior or {}, len(states.cells)
        self.configuration = states.configuration
        self.informed = bool(prior) and all(cell.id in prior for cell in states.cells)
        offset = np.array([prior.get(cell.id, 0.0) for cell in states.cells])
        self.measured, self.expected, self.told, self.composition, self.alone = np.zeros((5, count))
        self.more, self.freedom, self.within, self.checked = np.zeros((4, count))
        self.error, self.doubt = np.zeros((2, count, count))
        names = np.array([cell.workload for cell in states.cells])
        for workload in np.unique(names):
            here = np.flatnonzero(names == workload)
            row, column = (pd.factorize(of[here])[0] for of in (states.configuration, states.column))
            y, there, time = _table(states, here, row, column, offset)
            fit, freedom = _fitted(y, there, time, states.lent.get(workload, (0.0, 0.0)))
            free = np.where(there.any(axis=1), fit.cells, np.nan)
            kind = states.kind[here[np.unique(column, return_index=True)[1]]]
            drift = np.sqrt(fit.remainder * fit.drift) * fit.slope
            like = _Expected(free, fit.remainder * fit.inverse + drift[:, :, None] * drift[:, None, :], kind)
            at = row, column
            self.measured[here], self.expected[here] = free[at] + offset[here], like.cells[at] + offset[here]
            self.told[here] = np.isfinite(free).sum(axis=0)[column]
            self.alone[here], self.more[here] = fit.remainder / np.maximum(there.sum(axis=1)[at], 1), fit.more[row]
            self.composition[here] = (fit.lease + fit.remainder) * fit.more[row]
            (self.freedom[here], self.within[here]), self.checked[here] = freedom, like.freedom
            self.error[np.ix_(here, here)] = np.outer(drift[at], drift[at])
            self.doubt[np.ix_(here, here)] = like.through[at] @ like.means @ like.through[at].T
            for each in range(len(y)):
                mine = row == each
                square, columns = np.ix_(here[mine], here[mine]), np.ix_(column[mine], column[mine])
                self.error[square] += fit.remainder * fit.inverse[each][columns]
                self.doubt[square] += like.variance[each][columns]

    def differences(self, i: Integers, j: Integers) -> tuple[Floats, Floats, Floats]:
        """Measured goodness of cells i less that of cells j of one workload: difference, variance, freedom (0: none is known)."""
        of = self.configuration
        k, m = (np.where(of[i] == of[j], 1.0, self.more[at]) for at in (i, j))
        variance = np.maximum(k * self.error[i, i] + m * self.error[j, j] - 2 * self.error[i, j], 1e-12)
        # On the same leases, cells of a configuration differ by the remainder alone.
        freedom = np.where(variance > 1.001 * (self.alone[i] + self.alone[j]), self.freedom[i], self.within[i])
        return self.measured[i] - self.measured[j], variance, freedom

    def expectations(self, i: Integers, j: Integers) -> tuple[Floats, Floats]:
        """Expected goodness of cells i less that of cells j of one workload: difference, variance."""
        variance = self.doubt[i, i] + self.doubt[j, j] - 2 * self.doubt[i, j]
        return self.expected[i] - self.expected[j], np.maximum(variance, 1e-12)


def _table(
    states: CellStates, here: Integers, row: Integers, column: Integers, offset: Floats
) -> tuple[Floats, Floats, Floats]:
    """By configuration, lease and column: goodness less what is expected, and whether it was measured; by configuration and lease
    its block."""
    kept = np.isin(states.place, here)
    place, lease = states.place[kept], states.lease[kept].copy()
    at = np.searchsorted(here, place)
    of_row, of_column = row[at], column[at]
    for number in np.unique(of_row):  # leases are numbered in their configuration
        lease[of_row == number] = np.unique(lease[of_row == number], return_inverse=True)[1]
    y = np.zeros((int(row.max()) + 1, int(lease.max(initial=0)) + 1, int(column.max()) + 1))
    there, time = np.zeros_like(y), np.zeros(y.shape[:2])
    y[of_row, lease, of_column] = states.good[kept] - offset[place]
    there[of_row, lease, of_column], time[of_row, lease] = 1.0, states.block[kept]
    return y, there, time


def _again(there: Floats) -> Floats:
    """How many leases of each configuration tell how much leases differ: none does whose cells are on no other one."""
    spare = there.sum(axis=(1, 2)) - there.any(axis=1).sum(axis=1)
    return np.asarray(np.minimum(np.maximum(there.any(axis=2).sum(axis=1) - 1, 0), spare), dtype=np.float64)


class _Solved:
    """Free cells of one workload, with given variances of leases and of the remainder; without the latter, leases are free, too.

    y, there, time: see `_table`. cells: by configuration and column. inverse: their variance over the remainder's, without the
    drift: that is `slope` times the drift, whose variance is `drift`, 0 for none. rank: of cells that are told apart. squares: of
    what is left, by the remainder's weights. more: factor by which each configuration deviates more than others.
    """

    def __init__(self, y: Floats, there: Floats, time: Floats, lease: float, remainder: float) -> None:
        self.lease, self.remainder = lease, remainder
        size, t = there.sum(axis=2), time[:, :, None] * there
        part = np.divide(lease, remainder + lease * size, out=np.zeros_like(size), where=size > 0)
        total_y, total_t = y.sum(axis=2), t.sum(axis=2)
        weighed = np.swapaxes(there * part[:, :, None], 1, 2)
        normal = np.eye(y.shape[2]) * there.sum(axis=1)[:, None, :] - weighed @ there
        self.inverse = np.linalg.pinv(normal, rcond=1e-9, hermitian=True)
        self.rank = round(float(np.einsum("rcd,rdc->", self.inverse, normal)))
        right, right_t = (
            each.sum(axis=1) - (weighed @ total[:, :, None])[:, :, 0] for each, total in ((y, total_y), (t, total_t))
        )
        own, self.slope = (np.einsum("rcd,rd->rc", self.inverse, each) for each in (right, right_t))
        left_t = float((t**2).sum() - (part * total_t**2).sum() - (right_t * self.slope).sum())
        left_y = float((t * y).sum() - (part * total_t * total_y).sum() - (right_t * own).sum())
        # Where all were composed in the same blocks, a drift is in no difference, and of few leases it would take freedom.
        again = _again(there)
        few, seen = int(again.sum()) < _FEW, there.any(axis=1)
        drifts = left_t > 1e-6 and not (few and float(np.ptp(self.slope[seen])) < 1e-9)
        self.drift = 1 / left_t if drifts else 0.0
        per_block = left_y * self.drift
        left = float((y**2).sum() - (part * total_y**2).sum() - (right * own).sum()) - left_y * per_block
        self.squares, self.cells = max(0.0, left), own - self.slope * per_block
        off = ((y - self.cells[:, None, :] - per_block * t) * there).sum(axis=2)
        of = size * (remainder + lease * size)
        deviating = np.divide(off**2, of, out=np.zeros_like(of), where=of > 0).sum(axis=1)
        self.more = np.maximum(1.0, (POOL_WEIGHS + deviating) / (POOL_WEIGHS + again))


def _fitted(y: Floats, there: Floats, time: Floats, lent: tuple[float, float]) -> tuple[_Solved, tuple[float, float]]:
    """Free cells with the variances that the squares tell, and the freedom of the variance of leases and of the remainder."""
    fixed, none = _Solved(y, there, time, 1.0, 0.0), _Solved(y, there, time, 0.0, 1.0)
    drifts, again, spare = int(none.drift > 0), int(_again(there).sum()), int(there.sum()) - none.rank
    low, high = max(0, int(there.sum() - there.any(axis=2).sum()) - fixed.rank), max(0, again - drifts)
    both = none.squares / max(spare - drifts, 1)
    remainder = fixed.squares / low if low else both
    # Without leases in the model, they are in what is left; a drift takes one of them.
    lease = (both - remainder) * (spare - drifts) * again / (spare * high) if high else 0.0
    if lease <= 0:
        lease, remainder = 0.0, both
    variance, freedom = lent
    if not high + freedom:
        lease, remainder = UNKNOWN_SPREAD, UNKNOWN_SPREAD / 5
    elif freedom:
        lease = max(0.0, (high * (lease + remainder) + freedom * variance) / (high + freedom) - remainder)
    return _Solved(y, there, time, lease, max(remainder, 1e-10)), (high + freedom, float(low))


class _Expected:
    """Expectations of all cells by configuration and column, with their variance; through: how they move with the means of columns,
    whose variance is `means`; freedom: of the deviations of cells.

    free: as measured, nan where they were not; error: their covariance; kind: of each column.
    """

    def __init__(self, free: Floats, error: Floats, kind: Integers) -> None:
        seen = np.isfinite(free)
        rows, columns = seen.sum(axis=1), seen.sum(axis=0)
        alike, one = (kind[:, None] == kind[None, :]).astype(np.float64), np.eye(kind.size)
        y = np.where(seen, free, 0.0)
        off = np.where(seen, y - y.sum(axis=0) / np.maximum(columns, 1), 0.0)
        of_rows = (off.sum(axis=1) / np.maximum(rows, 1))[rows > 0]
        level = _VAGUE if of_rows.size < 2 else max(0.005**2, float(np.var(of_rows, ddof=1)))
        self.freedom = max(1.0, float(seen.sum() - (columns > 0).sum() - (rows > 0).sum() + 1))

        def fitted(of: Integers | slice, by_kind: float, own: float) -> tuple[Floats, Floats, Floats, Floats, float]:
            """With these deviations (sd): variance of cells, inverse of all, means of columns and their variance, likelihood."""
            cells = level + by_kind**2 * alike + own**2 * one
            both = seen[of][:, :, None] & seen[of][:, None, :]
            whole = np.where(both, cells + error[of], one)
            inverse = np.where(both, np.linalg.inv(whole), 0.0)
            normal = inverse.sum(axis=0) + one / _VAGUE
            mean = np.linalg.solve(normal, np.einsum("rcd,rd->c", inverse, y[of]))
            left = np.where(seen[of], y[of] - mean, 0.0)
            squares = np.einsum("rc,rcd,rd->", left, inverse, left)
            likelihood = -0.5 * float(squares + np.linalg.slogdet(whole)[1].sum() + np.linalg.slogdet(normal)[1])
            return cells, inverse, mean, np.linalg.inv(normal), likelihood

        some = np.argsort(-rows, kind="stable")[:_FITTED_TO]
        sizes = list(itertools.product(_DEVIATIONS, _DEVIATIONS))
        scores = np.array([fitted(some, *each)[-1] for each in sizes])
        sd = np.sqrt(np.average(np.array(sizes) ** 2, axis=0, weights=np.exp(scores - scores.max())))
        full, inverse, mean, self.means, _ = fitted(slice(None), *sd)
        gain = full[None] @ inverse
        self.cells = mean + np.einsum("rcd,rd->rc", gain, np.where(seen, y - mean, 0.0))
        self.variance, self.through = full - gain @ full, one - gain
