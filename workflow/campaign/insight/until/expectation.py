"""What is expected of cells, measured or not, from cells like them: a Gaussian process over the axes, with its error checked. Pure.

The prior of a cell's goodness is a sum of effects: of its workload and precision, of ranks, hosts and batch (lines and smooth
departures from them), of batch and configuration together, of the configuration and of the cell alone. How large the last four are
is fitted (marginal likelihood). Configurations of like shape are alike, and so are workloads in part. What a prediction says of a
configuration that it was not shown is checked by leaving out each, and each cell; where errors are larger than they should be, all
are widened by as much (Rasmussen & Williams 2006, "Gaussian processes for machine learning", 2.2, 5.4.1 and 5.4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from campaign.insight.until.cell_states import CellStates, Floats, Ints, similar

FEWEST_CONFIGURATIONS = 5
"""With fewer that were measured, nothing is left out by what is expected of it."""

_REACH = 2.0  # doublings over which configurations, and batches, stay alike
_OTHER_KIND = 0.6  # how alike are configurations that differ in the device, the attachment or the storage
_OTHER_PRECISION, _OTHER_WORKLOAD = 0.8, 0.3
_START = np.log([0.15, 0.05, 0.02, 0.02])
_PRIOR_SD = 1.0
_FITTED_TO = 160  # cells; more tell the size of effects no better


@dataclass(frozen=True)
class Expectation:
    """mean, covariance: of the goodness of all cells, given what was measured.

    widened: of each cell, by which factor variances have to be larger, after the errors of what was left out: of a cell where
    another one of its configuration was measured, else of a configuration. freedom: of each cell, cells or configurations that this
    was checked on. configurations: that were measured; error_pct: median error of one left out.
    """

    mean: Floats
    covariance: Floats
    widened: Floats
    freedom: Floats
    configurations: int
    left_out: float
    error_pct: float
    surprise: Floats

    def difference(self, a: Ints, b: Ints) -> tuple[Floats, Floats, Floats]:
        """(goodness of a less that of b, variance, freedom)."""
        cover = self.covariance
        variance = np.maximum(cover[a, a] + cover[b, b] - 2 * cover[a, b], 1e-12)
        widest = np.maximum(self.widened[a], self.widened[b])
        return self.mean[a] - self.mean[b], variance * widest, np.minimum(self.freedom[a], self.freedom[b])

    @property
    def trusted(self) -> bool:
        """Whether a cell may be left out by what is expected of it."""
        return self.configurations >= FEWEST_CONFIGURATIONS


def expect(states: CellStates) -> Expectation:
    """The expectation from what was measured of the cells; with nothing measured, the prior."""
    parts = _parts(similar(states.cells))
    known = np.flatnonzero(states.measured > 0)
    mean = _slope(states)
    if not known.size:
        one = np.ones(len(states.cells))
        return Expectation(mean, _prior(parts, _START), one, one, 0, np.nan, np.nan, one * 0)
    level = float(np.mean(states.good[known] - mean[known]))
    y, noise = states.good[known] - mean[known] - level, np.maximum(states.variance[known], 1e-8)
    theta = _fitted(parts, known, y, noise)
    prior = _prior(parts, theta)
    inverse = np.linalg.inv(prior[np.ix_(known, known)] + np.diag(noise))
    cross = prior[:, known]
    of_cell, of_configuration, left_out, error, count = _checked(states.configuration[known], inverse, y)
    surprise = np.zeros(len(states.cells))
    surprise[known] = inverse @ y / np.sqrt(np.diag(inverse) * of_cell)
    seen = np.isin(states.configuration, states.configuration[known])
    return Expectation(
        mean + level + cross @ (inverse @ y),
        prior - cross @ inverse @ cross.T,
        np.where(seen, of_cell, of_configuration),
        np.where(seen, max(known.size - len(_START), count), count).astype(np.float64),
        count,
        left_out,
        error,
        surprise,
    )


def _slope(states: CellStates) -> Floats:
    """What one would say of throughput beforehand: more devices and larger batches give more."""
    ranks = np.array([float(cell.configuration.ranks) for cell in states.cells])
    batch = np.array([float(cell.batch) for cell in states.cells])
    return np.asarray(0.8 * np.log(ranks) + 0.3 * np.log(batch), dtype=np.float64)


def _parts(axes: Mapping[str, npt.NDArray[Any]]) -> tuple[Floats, Sequence[Floats]]:
    """The part of the prior's covariance that is fixed, and those that have a size."""

    def same(name: str) -> Floats:
        return np.asarray(axes[name][:, None] == axes[name][None, :], dtype=np.float64)

    def line(name: str) -> Floats:
        return np.outer(axes[name], axes[name])

    def near(name: str, reach: float = _REACH) -> Floats:
        apart = (axes[name][:, None] - axes[name][None, :]) / reach
        return np.asarray(np.exp(-0.5 * apart**2), dtype=np.float64)

    kind, workload = same("kind"), same("workload")
    alike = kind + (1 - kind) * (_OTHER_PRECISION * workload + _OTHER_WORKLOAD * (1 - workload))
    shape = near("ranks") * near("hosts") * near("fabric", 1.0)
    for name in ("device", "attach", "storage"):
        shape = shape * (_OTHER_KIND + (1 - _OTHER_KIND) * same(name))
    batch = near("batch")
    fixed = 9.0 * kind + kind * same("device") + alike * 0.09 * (line("ranks") + line("batch") + line("hosts") + 1.0)
    cell = np.eye(len(kind))
    return fixed, (alike * (shape + batch), alike * shape * batch, alike * same("configuration"), cell)


def _prior(parts: tuple[Floats, Sequence[Floats]], theta: Floats) -> Floats:
    fixed, sized = parts
    total = fixed.copy()
    for part, size in zip(sized, np.exp(2 * theta), strict=True):
        total += size * part
    return total


def _fitted(parts: tuple[Floats, Sequence[Floats]], known: Any, y: Floats, noise: Floats) -> Floats:
    """Sizes of effects, as logarithms, that make what was measured most likely."""
    some = np.arange(known.size) if known.size <= _FITTED_TO else np.linspace(0, known.size - 1, _FITTED_TO).astype(int)
    at = np.ix_(known[some], known[some])
    fixed, sized = parts[0][at] + np.diag(noise[some]), [part[at] for part in parts[1]]
    target = y[some]

    def worse(theta: Floats) -> tuple[float, Floats]:
        size = np.exp(2 * theta)
        whole = fixed + sum(part * each for part, each in zip(sized, size, strict=True))
        try:
            inverse = np.linalg.inv(whole)
            log_determinant = np.linalg.slogdet(whole)[1]
        except np.linalg.LinAlgError:
            return 1e12, np.zeros_like(theta)
        solved = inverse @ target
        change = inverse - np.outer(solved, solved)
        slope = np.array([each * float(np.sum(change * part)) for part, each in zip(sized, size, strict=True)])
        away = (theta - _START) / _PRIOR_SD
        return float(0.5 * (target @ solved + log_determinant) + 0.5 * away @ away), slope + away / _PRIOR_SD

    found = scipy.optimize.minimize(
        worse, _START, jac=True, method="L-BFGS-B", bounds=[(np.log(1e-3), np.log(2.0))] * 4, options={"maxiter": 30}
    )
    return np.asarray(found.x, dtype=np.float64)


def _checked(configuration: Ints, inverse: Floats, y: Floats) -> tuple[float, float, float, float, int]:
    """(how many times larger variances are than expected of cells, and of configurations, left out; root mean square error of
    the latter, and the median in percent; configurations)."""
    solved = inverse @ y
    own = float(np.mean(solved**2 / np.diag(inverse)))
    squares, errors, means = [], [], []
    for number in np.unique(configuration):
        here = np.flatnonzero(configuration == number)
        if here.size == y.size:
            continue
        covariance = np.linalg.inv(inverse[np.ix_(here, here)])
        off = covariance @ solved[here]
        squares.append(float(np.mean(off**2 / np.diag(covariance))))
        errors.append(float(np.median(np.abs(off))))
        means.append(float(np.mean(off**2)))
    if not squares:
        return max(1.0, own), max(1.0, own), float("nan"), float("nan"), 1
    return (
        max(1.0, own),
        max(1.0, own, float(np.mean(squares))),
        float(np.sqrt(np.mean(means))),
        100 * float(np.expm1(np.median(errors))),
        len(squares),
    )
