"""What measured steps tell of the parameters, and of what the model leaves out. Pure.

    logarithm of a step = logarithm of the simulated step (z) + effects (b) + remainder

z are the parameters as standard normal variables. Effects are a linear model of logarithms: of kinds of attachment, of numbers of
devices, of each configuration and so on. The standard deviation of effects of one kind and of the remainder are those that are the
most likely (marginal likelihood; MacKay 1992, Neural Computation 4(3)), so that effects vanish where the simulation describes what
was measured.

The most probable parameters are found by damped least squares (Marquardt 1963, SIAM J. Appl. Math. 11(2)), all perturbed parameters
as draws of one simulation; around them the posterior is normal with the curvature there (Laplace). So a fit without some of the
steps follows from that with all of them (Allen 1974, Technometrics 16(1), PRESS): nothing is fitted again. The simulation itself is
evaluated at the parameters without those steps, not along its tangent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from campaign.model.description import StepCase
from campaign.model.parameters import Draws, Floats, Prior, at
from campaign.model.simulation import steps_s

_STEP = 0.02
"""Of a parameter, for its derivative, in standard deviations of the prior."""
_DAMPINGS = 10.0 ** np.arange(-3, 6)
_MOST_ROUNDS = 25
_ENOUGH = 2e-2
_MATTERS = 1e-6
_TELLS = 1e-3
"""Of a logarithm: a parameter that changes a step by less is not missed."""
_LEARNED = 0.8
"""Standard deviations of the prior."""
_FIRST_REMAINDER = 0.02
_PASSES = 3
STARTS, _TRIED = 3, 256
_REMAINDERS = np.geomspace(0.001, 0.256, 9)
_SDS = (0.0005, 0.002, 0.008, 0.03, 0.12)
"""That effects of one kind may have."""

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepDesign:
    """Steps to be told: a case of each, and its effects. values [step][column]; kind: of each column; unseen [step][kind]: how many
    effects of a step no column stands for."""

    cases: Sequence[StepCase]
    values: Floats
    kind: npt.NDArray[np.int64]
    unseen: Floats

    def __len__(self) -> int:
        return len(self.cases)

    def take(self, chosen: npt.NDArray[np.int64]) -> StepDesign:
        """Some of the steps, by positions."""
        return StepDesign([self.cases[n] for n in chosen], self.values[chosen], self.kind, self.unseen[chosen])


@dataclass(frozen=True)
class Predicted:
    """Logarithms of seconds of steps, and their standard deviations."""

    log_s: Floats
    sd: Floats


@dataclass(frozen=True)
class FittedSteps:
    """free: positions in the prior of the parameters that a step depends on; theta: these, then coefficients of effects; sds: of
    each kind of effect; remainder: standard deviation of the logarithm; left: of each step, at theta."""

    prior: Prior
    free: npt.NDArray[np.int64]
    theta: Floats
    covariance: Floats
    sds: tuple[float, ...]
    remainder: float
    freedom: float
    design: Floats
    left: Floats
    vague: _Flags

    def learned(self, half: float) -> Iterator[tuple[str, float, float, float]]:
        """(name, value, low, high) of parameters that are known better than before; half: of the interval, in standard
        deviations."""
        own = np.sqrt(np.diag(self.covariance)[: len(self.free)])
        parameters = list(self.prior.items())
        for place in np.flatnonzero(own < _LEARNED):
            name, number = parameters[self.free[place]]
            around = self.theta[place] + half * own[place] * np.array([0, -1, 1])
            yield name, *map(float, number.at(around))

    def predict(self, steps: StepDesign) -> Predicted:
        """Of other steps."""
        simulated, jacobian = _simulated(steps.cases, self.prior, self.free, self.theta[: len(self.free)])
        design = np.hstack([jacobian, steps.values])
        log_s = simulated + steps.values @ self.theta[len(self.free) :]
        more = steps.unseen @ np.square(self.sds) + self.remainder**2
        return Predicted(log_s, np.sqrt(((design @ self.covariance) * design).sum(axis=1) + more))

    def left_out(self, steps: StepDesign, groups: Sequence[object], fitted: npt.ArrayLike) -> Predicted:
        """Of each step, from a fit without all steps of its group; nan where no other one tells what it depends on. steps: all;
        fitted: positions of those that it was fitted to."""
        places = np.asarray(fitted)
        names = np.array([str(group) for group in groups])
        theta = np.tile(self.theta, (len(steps), 1))
        sd = np.full(len(steps), self.remainder)
        told = np.ones(len(steps), dtype=bool)
        uses = np.abs(self.design) > _TELLS
        for name in dict.fromkeys(names[places]):
            own, there = names == name, names[places] == name
            rows = self.design[there]
            gain = self.covariance @ rows.T / self.remainder**2
            without = np.linalg.solve(
                np.eye(len(rows)) - rows @ gain, np.column_stack([self.left[there], np.eye(len(rows))])
            )
            theta[own] -= gain @ without[:, 0]
            inside = self.remainder * np.sqrt(np.diag(without[:, 1:]))
            sd[own] = np.median(inside)
            sd[places[there]] = inside
            lost = self.vague & ~uses[~there].any(axis=0)
            told[own] = not (uses[there] & lost).any()
            told[places[there]] = ~(uses[there] & lost).any(axis=1)
        own_z, coefficients = np.split(theta, [len(self.free)], axis=1)
        log_s = _log_steps(steps.cases, self.prior, self.free, own_z[:, None])[:, 0]
        log_s += (steps.values * coefficients).sum(axis=1)
        return Predicted(np.where(told, log_s, np.nan), sd)


def fit(
    steps: StepDesign, log_s: Floats, prior: Prior, guesses: Collection[str] = (), starts: int = STARTS
) -> FittedSteps:
    """log_s: logarithms of the measured seconds. guesses: parameters of which nothing is known but by these steps. starts: where to
    begin beside the medians."""
    free = _matters(steps.cases, prior)
    count, kinds = len(free), steps.unseen.shape[1]
    sds, remainder = (_SDS[len(_SDS) // 2],) * kinds, _FIRST_REMAINDER
    begun = [np.zeros(count), *_starts(steps.cases, log_s, prior, free, starts)]
    for _ in range(_PASSES):
        of_effects = np.array(sds)[steps.kind]
        modes = [_mode(steps, log_s, prior, free, z, of_effects, remainder) for z in begun]
        _, z, jacobian, residual = min(modes, key=lambda mode: mode[0])
        begun = [z]
        design = np.hstack([jacobian, steps.values])
        linear = residual + jacobian @ z
        sds, remainder = _likely(design, linear, steps.kind, sds)
    known = np.concatenate([np.ones(count), np.array(sds)[steps.kind] ** -2.0])
    normal = np.diag(known) + design.T @ design / remainder**2
    covariance = np.asarray(np.linalg.inv(normal), dtype=np.float64)
    theta = covariance @ (design.T @ linear) / remainder**2
    used = float(((design @ covariance) * design).sum()) / remainder**2
    names = list(prior)
    vague = np.array([*(names[place] in guesses for place in free), *(False for _ in steps.kind)])
    left, freedom = np.asarray(linear - design @ theta), max(1.0, len(log_s) - used)
    return FittedSteps(prior, free, theta, covariance, sds, remainder, freedom, design, left, vague)


def _log_steps(cases: Sequence[StepCase], prior: Prior, free: npt.NDArray[np.int64], z: Floats) -> Floats:
    """[step][draw], z: [step][draw][free parameter]."""
    drawn: dict[bytes, Draws] = {}
    draws = []
    for own in z:
        key = own.tobytes()
        if key not in drawn:
            whole = np.zeros((len(own), len(prior)))
            whole[:, free] = own
            drawn[key] = at(prior, whole)
        draws.append(drawn[key])
    return np.log(steps_s(cases, draws))


def _simulated(
    cases: Sequence[StepCase], prior: Prior, free: npt.NDArray[np.int64], z: Floats
) -> tuple[Floats, Floats]:
    """Logarithms of steps at z, and their derivatives [step][free parameter]."""
    around = np.vstack([z, z + _STEP * np.eye(len(z))])
    log_s = _log_steps(cases, prior, free, np.broadcast_to(around, (len(cases), *around.shape)))
    return log_s[:, 0], (log_s[:, 1:] - log_s[:, :1]) / _STEP


def _matters(cases: Sequence[StepCase], prior: Prior) -> npt.NDArray[np.int64]:
    """Positions of the parameters that are not known exactly and change a step, somewhere."""
    free = np.array([place for place, each in enumerate(prior.values()) if not each.exact], dtype=np.int64)
    found = np.zeros(len(free), dtype=bool)
    for z in np.random.default_rng(0).standard_normal((3, len(free))):
        around = np.vstack([z, z + np.eye(len(free))])
        log_s = _log_steps(cases, prior, free, np.broadcast_to(around, (len(cases), *around.shape)))
        found |= (np.abs(log_s[:, 1:] - log_s[:, :1]) > _MATTERS).any(axis=0)
    return free[found]


def _mode(
    steps: StepDesign,
    log_s: Floats,
    prior: Prior,
    free: npt.NDArray[np.int64],
    z: Floats,
    sds: Floats,
    remainder: float,
) -> tuple[float, Floats, Floats, Floats]:
    """A number that is the less the more probable they are, the most probable parameters in reach of z, the derivative of the
    simulated logarithm there [step][parameter], and what it leaves."""
    values = steps.values * sds
    white = np.linalg.inv(np.linalg.cholesky(remainder**2 * np.eye(len(log_s)) + values @ values.T))
    for _ in range(_MOST_ROUNDS):
        simulated, jacobian = _simulated(steps.cases, prior, free, z)
        residual = log_s - simulated
        whitened, seen = white @ jacobian, white @ residual
        slope = whitened.T @ seen - z
        curvature = np.eye(len(z)) + whitened.T @ whitened
        best = float(seen @ seen + z @ z)
        scale = np.diag(np.diag(curvature))
        tried = np.array([z + np.linalg.solve(curvature + damping * scale, slope) for damping in _DAMPINGS])
        of_tried = _log_steps(steps.cases, prior, free, np.broadcast_to(tried, (len(log_s), *tried.shape)))
        reached = ((white @ (log_s[:, None] - of_tried)) ** 2).sum(axis=0) + (tried**2).sum(axis=1)
        place = int(np.argmin(reached))
        if not reached[place] < best - _ENOUGH:
            break
        z = tried[place]
    return best, z, jacobian, residual


def _starts(cases: Sequence[StepCase], log_s: Floats, prior: Prior, free: npt.NDArray[np.int64], count: int) -> Floats:
    """Draws of the prior that agree best with the steps up to a common factor: on one side of many a parameter, what it stands for
    is hidden, and nothing leads back from there."""
    if not count:
        return np.zeros((0, len(free)))
    drawn = np.random.default_rng(1).standard_normal((_TRIED, len(free)))
    left = log_s[:, None] - _log_steps(cases, prior, free, np.broadcast_to(drawn, (len(cases), *drawn.shape)))
    return np.asarray(drawn[np.argsort(left.std(axis=0))[:count]])


def _likely(
    design: Floats, linear: Floats, kind: npt.NDArray[np.int64], sds: tuple[float, ...]
) -> tuple[tuple[float, ...], float]:
    """Standard deviations of each kind of effects, whose columns are the last ones of the design, and of the remainder: the most
    likely ones, one kind after the other."""
    squares, crossed, whole = design.T @ design, design.T @ linear, float(linear @ linear)
    free = np.ones(design.shape[1] - len(kind))

    @cache
    def scores(tried: tuple[float, ...]) -> tuple[float, float]:
        """(score, remainder), the best remainder."""
        known = np.concatenate([free, np.array(tried)[kind]])
        values, vectors = np.linalg.eigh(known[:, None] * squares * known)
        inflated = np.maximum(values, 0.0)[:, None] + _REMAINDERS**2
        along = (vectors.T @ (known * crossed))[:, None]
        size = np.log(inflated / _REMAINDERS**2).sum(axis=0) + 2 * len(linear) * np.log(_REMAINDERS)
        score = -0.5 * (size + (whole - (along**2 / inflated).sum(axis=0)) / _REMAINDERS**2)
        best = int(np.argmax(score))
        return float(score[best]), float(_REMAINDERS[best])

    before = None
    while sds != before:
        before = sds
        for place in range(len(sds)):
            sds = max(((*sds[:place], each, *sds[place + 1 :]) for each in _SDS), key=scores)
    return sds, scores(sds)[1]
