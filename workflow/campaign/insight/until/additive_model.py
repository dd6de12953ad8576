"""What was measured of cells, and what is expected of the others: an additive model of logarithms, by workload. Pure.

    logarithm of a cell's mean on a lease = cell + lease + drift x composition + remainder
    cell = prior + precision and batch + configuration + configuration x precision + the cell's own deviation

The first line is fitted with free cells (generalised least squares): all that is stated of measured cells rests on it, and on
nothing that is expected. A lease moves all cells of a configuration, so cells that it holds together are told apart better than
others. The variances of leases and of the remainder are estimated (restricted maximum likelihood; Patterson & Thompson, 1971,
"Recovery of inter-block information when block sizes are unequal", Biometrika 58(3)) and pooled over the workload. A
configuration that deviates more than the pool has a larger one (Smyth, 2004, as in `campaign.statistics.composition_variance`);
none has a smaller one. What earlier campaigns on the system found counts as freedom of the pool.

The second line tells cells that were not measured. Its variances are averaged over a grid by their likelihood, since a few
configurations tell little of them. The prior is 0, or what another model of the workload predicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from campaign.documents.cell import Cell
from campaign.insight.until.cell_states import CellStates, Floats, Ints

UNKNOWN_SPREAD = 0.025**2
"""Variance of compositions where nothing tells it. Only choices rest on it: nothing is stated without freedom."""
POOL_WEIGHS = 6.0
"""Degrees of freedom that the pool weighs beside those of a configuration."""
_RATIOS = np.concatenate([[0.0], np.geomspace(0.1, 400, 10)])  # variance of leases over that of the remainder
_DEVIATIONS = np.array([0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
_VAGUE = 1e4
_FEW = 6  # degrees of freedom of leases
_FITTED_TO = 8  # configurations that tell the size of deviations; more take longer and tell it no better


@dataclass(frozen=True)
class Estimates:
    """What is known of cells; arrays by place in `CellStates.cells`.

    row, column: the configuration of a cell and the rest of it, by number in its workload. measured: free estimate of its goodness,
    nan where it was not measured; expected: with what is expected; told: on how many configurations
    its precision and batch were measured. fits: by workload. informed: whether another model expects every cell.
    """

    fit: Ints
    row: Ints
    column: Ints
    measured: Floats
    expected: Floats
    told: Ints
    fits: Sequence[AdditiveFit]
    informed: bool

    def of(self, place: int) -> AdditiveFit:
        """The model of the workload of a cell."""
        return self.fits[int(self.fit[place])]

    def differences(self, i: Ints, j: Ints) -> tuple[Floats, Floats, Floats]:
        """Measured goodness of cells i less that of cells j of one workload: difference, variance, freedom (0: none is known)."""
        fit, r, c, s, d = self.of(i[0]), self.row[i], self.column[i], self.row[j], self.column[j]
        k, m = (np.where(r == s, 1.0, fit.more[of]) for of in (r, s))

        def both(part: Floats) -> Floats:
            return k * part[r, c, c] + m * part[s, d, d] - np.where(r == s, 2 * part[r, c, d], 0.0)

        drift = fit.remainder * fit.drift * (fit.slope[r, c] - fit.slope[s, d]) ** 2
        total = np.maximum(fit.remainder * both(fit.inverse) + drift, 1e-12)
        leases = np.clip(both(fit.by_lease) * (fit.lease + fit.remainder / fit.beside) + drift, 0.0, total)
        with np.errstate(divide="ignore", invalid="ignore"):  # Satterthwaite
            parts = [
                np.where(of > 1e-12, of**2 / f, 0.0)
                for of, f in zip((leases, total - leases), fit.freedom, strict=True)
            ]
            freedom = np.nan_to_num(total**2 / (parts[0] + parts[1]), nan=0.0)
        # Few leases may seem to differ by little, and the rest then lends freedom that there is not.
        freedom = np.where(r == s, freedom, np.minimum(freedom, fit.freedom[0]))
        return self.measured[i] - self.measured[j], total, freedom

    def doubts(self, places: Ints) -> Floats:
        """How much cells deviate from what is expected of them (sd)."""
        variance = [self.of(at).posterior[self.row[at], self.column[at], self.column[at]] for at in places]
        return np.sqrt(np.array(variance, dtype=np.float64))

    def expectations(self, i: Ints, j: Ints) -> tuple[Floats, Floats]:
        """Expected goodness of cells i less that of cells j of one workload: difference, variance."""
        fit, r, c, s, d = self.of(i[0]), self.row[i], self.column[i], self.row[j], self.column[j]
        own = fit.posterior[r, c, c] + fit.posterior[s, d, d] - np.where(r == s, 2 * fit.posterior[r, c, d], 0.0)
        apart = fit.through[r, c] - fit.through[s, d]
        return self.expected[i] - self.expected[j], np.maximum(own + (apart @ fit.means * apart).sum(axis=1), 1e-12)


@dataclass(frozen=True)
class AdditiveFit:
    """The model of one workload. Arrays by configuration and column.

    lease, remainder: variances; freedom: of both; inverse: variance of free estimates over `remainder`, with what of it is due
    to leases (`by_lease`) and to the drift (`slope`, `drift`: its own variance over the remainder); more: factor of the
    variance of each configuration. posterior: of expectations; through: how they move with the means of columns, whose variance
    is `means`. checked: freedom of the deviations of cells.
    """

    lease: float
    remainder: float
    freedom: tuple[float, float]
    beside: float
    inverse: Floats
    by_lease: Floats
    slope: Floats
    drift: float
    more: Floats
    posterior: Floats
    through: Floats
    means: Floats
    checked: float

    @property
    def composition(self) -> float:
        """Variance of a cell on one composition."""
        return self.lease + self.remainder


def estimate(states: CellStates, prior: Mapping[str, float] | None = None) -> Estimates:
    """The model of every workload. prior: of cells by id, the logarithm that another model expects, up to a constant."""
    count = len(states.cells)
    fit, row, column, told = (np.zeros(count, dtype=np.int64) for _ in range(4))
    measured, expected = np.full(count, np.nan), np.zeros(count)
    offset = np.array([(prior or {}).get(cell.id, 0.0) for cell in states.cells])
    workloads = list(dict.fromkeys(cell.workload for cell in states.cells))
    fits = []
    for number, workload in enumerate(workloads):
        here = np.array([n for n, cell in enumerate(states.cells) if cell.workload == workload], dtype=np.int64)
        fit[here] = number
        row[here] = _numbers([states.cells[n].configuration.name for n in here])
        column[here] = _numbers([(*_kind(states.cells[n]), states.cells[n].batch) for n in here])
        kinds: dict[int, int] = dict(zip(column[here], _numbers([_kind(states.cells[n]) for n in here]), strict=True))
        one, free, all_ = _fitted(states, here, row, column, offset, kinds, workload)
        fits.append(one)
        told[here] = np.isfinite(free).sum(axis=0)[column[here]]
        measured[here], expected[here] = free[row[here], column[here]], all_[row[here], column[here]]
    informed = bool(prior) and all(cell.id in (prior or {}) for cell in states.cells)
    return Estimates(fit, row, column, measured + offset, expected + offset, told, fits, informed)


def _kind(cell: Cell) -> tuple[object, ...]:
    return (cell.precision, *sorted(cell.options.items()))


def _numbers(values: Sequence[object]) -> Ints:
    places: dict[object, int] = {}
    return np.array([places.setdefault(value, len(places)) for value in values], dtype=np.int64)


def _fitted(
    states: CellStates, here: Ints, row: Ints, column: Ints, offset: Floats, kinds: Mapping[int, int], workload: str
) -> tuple[AdditiveFit, Floats, Floats]:
    """The model of one workload, the free estimates (nan where there is none) and the expectations."""
    shape = int(row[here].max()) + 1, int(column[here].max()) + 1
    data = states.means
    kept = np.isin(data.place, here)
    place, of_row, lease = data.place[kept], row[data.place[kept]], data.lease[kept].copy()
    for number in np.unique(of_row):  # leases are numbered in their configuration
        lease[of_row == number] = np.unique(lease[of_row == number], return_inverse=True)[1]
    table = np.full((shape[0], int(lease.max(initial=0)) + 1, shape[1]), np.nan)
    table[of_row, lease, column[place]] = data.good[kept] - offset[place]
    time = np.zeros(table.shape[:2])
    time[of_row, lease] = data.block[kept]
    there = np.isfinite(table)
    y = np.where(there, table, 0.0)
    solved = _solve(y, there, time, _ratio(y, there, time))
    leases = there.any(axis=2).sum(axis=1)
    high = float(max(0, int(np.maximum(leases - 1, 0).sum()) - (solved.drift > 0)))
    low = max(0.0, solved.freedom - high)
    remainder = solved.squares / solved.freedom if solved.freedom > 0 else 0.0
    between = solved.ratio * remainder
    several = there.sum(axis=2)[leases > 1]
    beside = float(several[several > 0].mean()) if several.any() else 1.0
    lent_variance, lent_freedom = states.lent.get(workload, (0.0, 0.0))
    if high + lent_freedom == 0:
        remainder, between = (remainder, UNKNOWN_SPREAD) if remainder > 0 else (UNKNOWN_SPREAD / 5, UNKNOWN_SPREAD)
    elif lent_freedom:
        pool = (high * (between + remainder) + lent_freedom * lent_variance) / (high + lent_freedom)
        between = max(0.0, pool - remainder)
    remainder = max(remainder, 1e-10)
    ratio = between / remainder
    if ratio != solved.ratio:
        solved = _solve(y, there, time, ratio)
    deviating = solved.by_configuration / remainder
    more = np.maximum(1.0, (POOL_WEIGHS + deviating) / (POOL_WEIGHS + np.maximum(leases - 1, 0)))
    free = np.where(there.any(axis=1), solved.cells, np.nan)
    error = remainder * (solved.inverse + solved.drift * solved.slope[:, :, None] * solved.slope[:, None, :])
    posterior, through, means, expected, checked = _expected(free, error, kinds)
    one = AdditiveFit(
        between, remainder, (high + lent_freedom, low), beside, solved.inverse, solved.by_lease, solved.slope, solved.drift,
        more, posterior, through, means, checked,
    )  # fmt: skip
    return one, free, expected


@dataclass(frozen=True)
class _Solved:
    """Free estimates at one ratio of variances, in units of the remainder's."""

    ratio: float
    cells: Floats
    inverse: Floats
    by_lease: Floats
    slope: Floats
    drift: float
    squares: float
    by_configuration: Floats
    freedom: int
    likelihood: float


def _ratio(y: Floats, there: Floats, time: Floats) -> float:
    """The ratio of variances that is the most likely; the largest one where nothing tells it."""
    found = np.round([_solve(y, there, time, ratio).likelihood for ratio in _RATIOS], 6)
    best = int(len(found) - 1 - np.argmax(found[::-1]))
    if not 1 < best < len(found) - 1:
        return float(_RATIOS[best])
    low, at, high = found[best - 1 : best + 2]  # a parabola through the three
    step = np.log(_RATIOS[best + 1] / _RATIOS[best])
    return float(_RATIOS[best] * np.exp(step * np.clip(0.5 * (low - high) / min(low - 2 * at + high, -1e-9), -1, 1)))


def _solve(y: Floats, there: Floats, time: Floats, ratio: float) -> _Solved:
    seen = there.any(axis=1)
    m = there.astype(np.float64)
    size = m.sum(axis=2)
    part = ratio / (1 + ratio * size)
    t = time[:, :, None] * m
    total_y, total_t = y.sum(axis=2), t.sum(axis=2)

    # Cells that were not measured have a row of their own, so that the matrix has an inverse.
    normal = np.eye(m.shape[2]) * (m.sum(axis=1) + ~seen)[:, None, :] - np.einsum("rlc,rl,rld->rcd", m, part, m)
    inverse = np.linalg.inv(normal)
    right = y.sum(axis=1) - np.einsum("rlc,rl->rc", m, part * total_y)
    right_t = t.sum(axis=1) - np.einsum("rlc,rl->rc", m, part * total_t)
    slope = np.einsum("rcd,rd->rc", inverse, right_t)
    own = np.einsum("rcd,rd->rc", inverse, right)
    left_t = float((t**2).sum() - (part * total_t**2).sum() - (right_t * slope).sum())
    left_y = float((t * y).sum() - (part * total_t * total_y).sum() - (right_t * own).sum())
    # Where all were composed in the same blocks, a drift is in no difference, and of few leases it would take freedom.
    few = int(np.maximum(there.any(axis=2).sum(axis=1) - 1, 0).sum()) < _FEW
    drifts = left_t > 1e-6 and not (few and float(np.ptp(slope[seen])) < 1e-9)
    per_block = left_y / left_t if drifts else 0.0
    squares = float((y**2).sum() - (part * total_y**2).sum() - (right * own).sum()) - (left_y * per_block)
    freedom = int(there.sum() - seen.sum() - drifts)
    likelihood = 0.0
    if freedom > 0:
        known = np.linalg.slogdet(normal)[1].sum() + (np.log(left_t) if drifts else 0.0)
        likelihood = -0.5 * (freedom * np.log(max(squares, 1e-12)) + np.log1p(ratio * size).sum() + known)
    cells = own - slope * per_block
    left = (y - cells[:, None, :] - per_block * t) * m
    means = left.sum(axis=2)
    by_configuration = np.where(size > 0, means**2 / np.maximum(size, 1) / (1 + ratio * size), 0.0).sum(axis=1)
    weights = inverse @ np.einsum("rlc,rl->rcl", m, 1 / (1 + ratio * size))
    by_lease = weights @ np.swapaxes(weights, 1, 2)
    return _Solved(
        ratio, cells, inverse, by_lease, slope, 1 / left_t if drifts else 0.0, squares, by_configuration, freedom, likelihood
    )  # fmt: skip


def _expected(free: Floats, error: Floats, kinds: Mapping[int, int]) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Of all cells: posterior variance, how expectations move with the means of columns, the variance of these; expectations;
    freedom."""
    rows, columns = free.shape
    kind = np.array([kinds[n] for n in range(columns)])
    alike = (kind[:, None] == kind[None, :]).astype(np.float64)
    seen = np.isfinite(free)
    y = np.where(seen, free, 0.0)
    off = np.where(seen, y - y.sum(axis=0) / np.maximum(seen.sum(axis=0), 1), 0.0)
    of_rows = (off.sum(axis=1) / np.maximum(seen.sum(axis=1), 1))[seen.any(axis=1)]
    level = _VAGUE if of_rows.size < 2 else max(0.005**2, float(np.var(of_rows, ddof=1)))
    some = np.argsort(-seen.sum(axis=1), kind="stable")[:_FITTED_TO]
    checked = max(1.0, float(seen.sum() - seen.any(axis=0).sum() - seen.any(axis=1).sum() + 1))

    def prior(by_kind: float, own: float) -> Floats:
        return np.asarray(level + by_kind**2 * alike + own**2 * np.eye(columns), dtype=np.float64)

    def marginal(part: Ints, of: Floats) -> tuple[Floats, Floats, Floats]:
        both = seen[part][:, :, None] & seen[part][:, None, :]
        inverse = np.linalg.inv(np.where(both, of + error[part], np.eye(columns)))
        inverse = np.where(both, inverse, 0.0)
        normal = inverse.sum(axis=0) + np.eye(columns) / _VAGUE
        return inverse, normal, np.linalg.solve(normal, np.einsum("rcd,rd->c", inverse, y[part]))

    sizes = list(itertools.product(_DEVIATIONS, _DEVIATIONS))
    scores = []
    for by_kind, own in sizes:
        both = seen[some][:, :, None] & seen[some][:, None, :]
        whole = np.where(both, prior(by_kind, own) + error[some], np.eye(columns))
        inverse, normal, mean = marginal(some, prior(by_kind, own))
        off = np.where(seen[some], y[some] - mean, 0.0)
        squares = float(np.einsum("rc,rcd,rd->", off, inverse, off))
        scores.append(-0.5 * (squares + np.linalg.slogdet(whole)[1].sum() + np.linalg.slogdet(normal)[1]))
    weight = np.exp(np.array(scores) - max(scores))
    by_kind, own = np.sqrt(np.average(np.array(sizes) ** 2, axis=0, weights=weight))
    full = prior(by_kind, own)
    inverse, normal, mean = marginal(np.arange(rows), full)
    gain = full[None] @ inverse
    expected = mean + np.einsum("rcd,rd->rc", gain, np.where(seen, y - mean, 0.0))
    through = np.eye(columns) - gain
    means = np.asarray(np.linalg.inv(normal), dtype=np.float64)
    return full - gain @ full, through, means, np.asarray(expected, dtype=np.float64), checked
