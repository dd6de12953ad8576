"""What measured steps tell of the parameters. Pure.

The most probable parameters are found by damped least squares (Marquardt 1963, SIAM J. Appl. Math. 11(2)); all perturbed
parameters, and then all dampings, are draws of one simulation. Draws around them, as wide as the curvature there says, then become
draws of the posterior in a few steps of tempering (Del Moral, Doucet & Jasra 2006, JRSS B 68(3)): weighted, resampled, and moved
along the differences of others (ter Braak 2006, Statistics and Computing 16(3)). Importance weights alone leave a handful of a
thousand draws: on one side of many parameters, compute hides what communication costs, and on the other it does not.

What the model itself is off by, beside the spread of the steps, is estimated with them, from the residuals. Parameters that no step
depends on keep their prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from campaign.model.description import StepCase
from campaign.model.parameters import Draws, Floats, Prior, at, standard
from campaign.model.simulation import simulate

_STEP = 0.02
"""Of a parameter, for its derivative, in standard deviations of the prior."""
_DAMPINGS = 10.0 ** np.arange(-3, 6)
_MOST_ROUNDS = 25
_ENOUGH = 1e-3
_MATTERS = 1e-9
_WIDER = 1.5
"""Factor of the first draws' deviation."""
_KEPT = 0.5
"""Effective share of the draws in each step of tempering."""
_MOVES = 5
_LEAST_MISFIT, _FIRST_MISFIT = 0.002, 0.05


@dataclass(frozen=True)
class ObservedStep:
    """A measured cell. step_s: seconds of a step, mean of its runs; sd: standard deviation of the logarithm of that mean."""

    case: StepCase
    step_s: float
    sd: float


@dataclass(frozen=True)
class Posterior:
    """Draws of the parameters after measured steps, with weights that add up to 1.

    effective: how many of the draws differ; a few hundred are needed for intervals. misfit: sd of the logarithm that the model
    itself is off by, beside the steps' own; it belongs to predictions of other cells. fitted_s: of each observed step at the most
    probable parameters. mode: those, as standard normal variables in the order of the prior.
    """

    prior: Prior
    draws: Draws
    weights: Floats
    effective: float
    misfit: float
    fitted_s: Floats
    mode: Floats

    def interval(self, values: Floats, share: float = 0.8) -> tuple[float, float, float]:
        """(median, low, high) of one value a draw, weighted; low and high hold the share of the weight."""
        order = np.argsort(values)
        reached = np.cumsum(self.weights[order]) - self.weights[order] / 2
        median, low, high = np.interp([0.5, 0.5 - share / 2, 0.5 + share / 2], reached, values[order])
        return float(median), float(low), float(high)


def fit(
    observed: Sequence[ObservedStep], prior: Prior, count: int = 1000, seed: int = 0, start: Floats | None = None
) -> Posterior:
    """Draws from the posterior of all parameters of the prior. start: where to begin, such as the `mode` of a fit to nearly the
    same steps."""
    problem = _Problem(observed, prior)
    z = np.zeros(problem.free.size) if start is None else start[problem.free]
    misfit = _FIRST_MISFIT
    for _ in range(3):
        z, jacobian, residual = problem.mode(z, misfit)
        weight = 1 / (problem.sd**2 + misfit**2)
        covariance = np.asarray(np.linalg.inv(np.eye(len(z)) + (jacobian.T * weight) @ jacobian), dtype=np.float64)
        used = float(np.einsum("ij,jk,ik,i->", jacobian, covariance, jacobian, weight))
        freedom = max(len(residual) - used, 1.0)
        beyond = float(residual @ residual) / freedom - float((problem.sd**2).sum()) / max(1, len(residual))
        misfit = max(_LEAST_MISFIT, math.sqrt(max(0.0, beyond)))
    drawn, moved = problem.posterior(z, covariance, misfit, count, np.random.default_rng(seed))
    return Posterior(
        prior,
        problem.draws(drawn, standard(prior, count, seed)),
        np.full(count, 1 / count),
        moved,
        misfit,
        problem.step_s(z[None, :])[:, 0],
        problem.whole(z[None, :])[0],
    )


class _Problem:
    """Observed steps as functions of those parameters that are not known exactly, and that a step depends on."""

    def __init__(self, observed: Sequence[ObservedStep], prior: Prior) -> None:
        self.prior = prior
        self.cases = [each.case for each in observed]
        self.log_step = np.log([each.step_s for each in observed])
        self.sd = np.array([each.sd for each in observed])
        self.free = np.array([place for place, each in enumerate(prior.values()) if not each.exact], dtype=np.int64)
        self.free = self.free[self._matters()]

    def _matters(self) -> npt.NDArray[np.bool_]:
        """Whether a step changes with each of the free parameters, somewhere."""
        found = np.zeros(len(self.free), dtype=bool)
        for z in np.random.default_rng(0).standard_normal((3, len(self.free))):
            steps = self.step_s(np.vstack([z, z + np.eye(len(z))]))
            found |= (np.abs(steps[:, 1:] / steps[:, :1] - 1) > _MATTERS).any(axis=0)
        return found

    def whole(self, z: Floats, others: Floats | None = None) -> Floats:
        """[draw][parameter] with `z` [draw][free parameter] and what is given of the others, else their medians."""
        found = np.zeros((len(z), len(self.prior))) if others is None else others.copy()
        found[:, self.free] = z
        return found

    def draws(self, z: Floats, others: Floats | None = None) -> Draws:
        return at(self.prior, self.whole(z, others))

    def step_s(self, z: Floats) -> Floats:
        """[step][draw]"""
        draws = self.draws(z)
        return np.array([simulate(case, draws).step_s for case in self.cases]).reshape(len(self.cases), len(z))

    def log_posterior(self, z: Floats, misfit: float) -> Floats:
        residual = self.log_step[:, None] - np.log(self.step_s(z))
        variance = (self.sd**2 + misfit**2)[:, None]
        return np.asarray(-0.5 * ((residual**2 / variance).sum(axis=0) + (z**2).sum(axis=1)))

    def mode(self, z: Floats, misfit: float) -> tuple[Floats, Floats, Floats]:
        """The most probable parameters, the derivative of log(step) there [step][parameter], and what is left of log(step)."""
        weight = 1 / (self.sd**2 + misfit**2)
        best = float(self.log_posterior(z[None, :], misfit)[0])
        for _ in range(_MOST_ROUNDS):
            around = np.log(self.step_s(np.vstack([z, z + _STEP * np.eye(len(z))])))
            jacobian, residual = (around[:, 1:] - around[:, :1]) / _STEP, self.log_step - around[:, 0]
            slope = (jacobian.T * weight) @ residual - z
            curvature = np.eye(len(z)) + (jacobian.T * weight) @ jacobian
            scale = np.diag(np.diag(curvature))
            tried = np.array([z + np.linalg.solve(curvature + damping * scale, slope) for damping in _DAMPINGS])
            reached = self.log_posterior(tried, misfit)
            place = int(np.argmax(reached))
            if not reached[place] > best + _ENOUGH:
                break
            best, z = float(reached[place]), tried[place]
        return z, jacobian, residual

    def posterior(
        self, mode: Floats, covariance: Floats, misfit: float, count: int, rng: np.random.Generator
    ) -> tuple[Floats, float]:
        """Draws [draw][free parameter], and how many of them differ."""
        root = np.linalg.cholesky(covariance) * _WIDER
        normal = rng.standard_normal((count, len(mode)))
        z = mode + normal @ root.T
        target, start = self.log_posterior(z, misfit), -0.5 * (normal**2).sum(axis=1)
        inverse = np.linalg.inv(root)
        reached = 0.0
        while reached < 1:
            gain = target - start
            more = _tempered(gain, 1 - reached)
            weights = np.exp(more * (gain - gain.max()))
            chosen = rng.choice(count, count, p=weights / weights.sum())
            z, target, start, reached = z[chosen], target[chosen], start[chosen], reached + more
            for move in range(_MOVES):
                one, other = rng.permutation(count), rng.permutation(count)
                moved = rng.random(z.shape) < (1.0, 0.5, 0.2)[move % 3]
                length = 2.38 / np.sqrt(2 * np.maximum(moved.sum(axis=1, keepdims=True), 1))
                tried = z + moved * (length * (z[one] - z[other]) + 1e-4 * rng.standard_normal(z.shape))
                new_target = self.log_posterior(tried, misfit)
                new_start = -0.5 * (((tried - mode) @ inverse.T) ** 2).sum(axis=1)
                gained = reached * (new_target - target) + (1 - reached) * (new_start - start)
                taken = np.log(rng.random(count)) < gained
                z[taken], target[taken], start[taken] = tried[taken], new_target[taken], new_start[taken]
        return z, float(len(np.unique(z, axis=0)))


def _tempered(gain: Floats, most: float) -> float:
    """The largest exponent of these logarithmic weights that leaves enough of the draws effective."""

    def effective(exponent: float) -> float:
        weights = np.exp(exponent * (gain - gain.max()))
        return float(weights.sum() ** 2 / (weights @ weights)) / len(gain)

    if effective(most) >= _KEPT:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= _KEPT else (low, middle)
    return max(low, 1e-6)
