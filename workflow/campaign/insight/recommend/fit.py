"""Parameters of the model with intervals, predictions, and how wrong these are about a configuration that was left out. Pure.

Fit: least squares of the logarithms of step times, and, with less weight, of bare all-reduces where a workload timed them
(Marquardt 1963, SIAM J. Appl. Math. 11(2); on the normal equations, which stay small for any number of cells). Every parameter is
held weakly where it started, by what is known of the links or of its size, so that one that the data say nothing about stays there.
Parts of the model that are not in all of them (`model.LIMITS`) are taken while they lower the corrected information criterion
(Hurvich & Tsai 1989, Biometrika 76(2)).
Intervals: from the Jacobian, Student t, 95 %. That of a prediction holds the error of leaving configurations out too, so that a
model that is wrong says so in its intervals.

The normal equations fit 10,000 cells in 5 s, a singular value decomposition took 65 s for the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from campaign.insight.recommend.model import (
    COMMUNICATION,
    LIMITS,
    LINEAR,
    SHARES,
    UNLIKE_RING,
    Floats,
    Ints,
    Rows,
    StepTimeModel,
    Structure,
    kind_of,
)
from campaign.insight.recommend.observations import LinkStart, ObservedWorkload
from campaign.statistics.intervals import student_quantile
from campaign.statistics.scaling_models import aicc

FEWEST_CONFIGURATIONS = 4
ASSUMED_BYTES = 100e6
"""All-reduced in a step, where neither that nor any link is known: bandwidths are then relative to it."""
_ALLREDUCE_WEIGHT = 0.5
_PASSES = 3
_MOST_STEPS = 60
_STEPS_WITHOUT = 12  # from the whole fit to one without a configuration is not far
_FARTHEST = 2.0
_FACTOR = 30.0  # by which a parameter may well be off where nothing is known of it
_TRAFFIC_FACTOR = 3.0  # by which collectives may cost more or less than a ring of as many bytes
_LEAST_SPREAD = 1e-3


@dataclass(frozen=True)
class Fitted:
    """theta, covariance: in the order of `structure.names()`. spread: residual sd of the logarithm of step times; freedom: degrees
    of freedom it has; start: where the parameters were held, and with which sd."""

    observed: ObservedWorkload
    structure: Structure
    theta: Floats
    covariance: Floats
    spread: float
    freedom: float
    start: Floats
    start_sd: Floats
    sources: Mapping[str, str]

    def bounds(self, name: str) -> tuple[float, float, float]:
        """(value, low, high) of a parameter, 95 %; in s, bytes/s, bytes, or none for shares and factors."""
        place = self.structure.names().index(name)
        half = float(student_quantile(self.freedom)) * float(np.sqrt(self.covariance[place, place]))
        value = float(self.theta[place])
        if kind_of(name) in SHARES:
            return value, max(0.0, value - half), min(1.0, value + half)
        if kind_of(name) in LINEAR:
            return value, value - half, value + half
        return tuple(float(np.exp(np.clip(each, -700, 700))) for each in (value, value - half, value + half))  # type: ignore[return-value]


@dataclass(frozen=True)
class Checked:
    """What the model says of each measured cell when its configuration is left out of the fit; nan where nothing else tells.

    predicted_s: by cell; error_pct: of throughput, predicted over measured; rms: of the logarithm. strategy_median_pct,
    strategy_rms: the same by `Structure.strategies`.
    """

    predicted_s: Floats
    error_pct: Floats
    median_pct: float
    worst_pct: float
    rms: float
    by_configuration: Mapping[str, float]
    strategy_median_pct: Floats
    strategy_rms: Floats


@dataclass(frozen=True)
class PredictedSteps:
    """Seconds of a step, and the sd of its logarithm."""

    step_s: Floats
    sd: Floats


@dataclass(frozen=True)
class _Problem:
    """Rows with what was measured of them. Residuals: steps, bare all-reduces, then one a parameter."""

    model: StepTimeModel
    log_step: Floats
    log_allreduce: Floats
    reduced: npt.NDArray[np.bool_]
    start: Floats
    start_sd: Floats
    shares: Ints

    @classmethod
    def of(
        cls, observed: ObservedWorkload, rows: Rows, structure: Structure, start: Floats, start_sd: Floats
    ) -> _Problem:
        timed = observed.cells["allreduce_s"].to_numpy(dtype=np.float64)
        reduced = (timed > 0) & (rows.way >= 0)
        log_step = np.log(observed.cells["step_s"].to_numpy(dtype=np.float64))
        return cls(
            StepTimeModel(structure, rows),
            log_step,
            np.log(np.where(reduced, timed, 1.0)),
            reduced,
            start,
            start_sd,
            structure.shares(),
        )

    def inside(self, theta: Floats) -> Floats:
        """The nearest parameters that make sense: a share is none below 0."""
        theta[self.shares] = np.clip(theta[self.shares], 0.0, 0.95)
        return theta

    def system(self, theta: Floats, spread: float, steps: Any = slice(None)) -> tuple[Floats, Floats]:
        """Residuals and their Jacobian; steps: which rows count."""
        said = self.model.at(theta)
        reduced = np.flatnonzero(self.reduced if isinstance(steps, slice) else self.reduced & steps)
        held = spread / self.start_sd
        residuals = (
            (np.log(said.step_s) - self.log_step)[steps],
            _ALLREDUCE_WEIGHT * (np.log(np.maximum(said.allreduce_s[reduced], 1e-300)) - self.log_allreduce[reduced]),
            held * (theta - self.start),
        )
        jacobian = (said.by_step[steps], _ALLREDUCE_WEIGHT * said.by_allreduce[reduced], np.diag(held))
        return np.concatenate(residuals), np.vstack(jacobian)


def fit(observed: ObservedWorkload, links: Mapping[str, LinkStart]) -> Fitted | None:
    """The model of a workload on a device model; None where fewer than FEWEST_CONFIGURATIONS were measured."""
    if observed.cells["configuration"].nunique() < FEWEST_CONFIGURATIONS:
        return None
    rows = observed.rows()
    structure = _plainest(observed, rows)
    best, criterion = _fit(observed, rows, structure, links)
    possible = _possible(rows, structure)
    while possible:
        tried = [
            _fit(observed, rows, replace(best.structure, limits=best.structure.limits | names), links, best)
            for names in possible
        ]
        place = int(np.argmin([each for _, each in tried]))
        if tried[place][1] >= criterion:
            break
        best, criterion = tried[place]
        possible = [names for names in possible if not names <= best.structure.limits]
    return best


def _possible(rows: Rows, structure: Structure) -> list[frozenset[str]]:
    """Limits that the rows can tell anything about; those of communication that hides one by one, and together."""
    told = {
        **dict.fromkeys(SHARES, bool((rows.way >= 0).any())),
        **dict.fromkeys(UNLIKE_RING, bool(structure.unlike_ring)),
        "host": len(np.unique(rows.on_host)) > 2,
        "attach": 0 < rows.fabric.sum() < len(rows),
    }
    alone = [frozenset({name}) for name in LIMITS if told[name]]
    return [*alone, frozenset(SHARES)] if told["overlap"] else alone


def _plainest(observed: ObservedWorkload, rows: Rows) -> Structure:
    groups = range(len(observed.groups))
    batches = [len(np.unique(rows.batch[rows.group == group])) for group in groups]
    several = rows.way >= 0
    unknown = [g for g in groups if (several & (rows.group == g)).any() and np.isnan(rows.bytes[rows.group == g]).all()]
    return Structure(
        tuple(count > 1 for count in batches),
        observed.ways,
        observed.storages,
        tuple(unknown),
        strategies=observed.strategies,
        strategy=observed.strategy,
        unlike_ring=observed.unlike_ring,
    )


def _fit(
    observed: ObservedWorkload,
    rows: Rows,
    structure: Structure,
    links: Mapping[str, LinkStart],
    near: Fitted | None = None,
) -> tuple[Fitted, float]:
    """The fit of one structure, and its criterion. near: a fit of a structure that has fewer parameters, to begin from."""
    start, start_sd, sources = _start(observed, rows, structure, links)
    problem = _Problem.of(observed, rows, structure, start, start_sd)
    known = dict(zip(near.structure.names(), near.theta, strict=True)) if near else {}
    theta = np.array([known.get(name, value) for name, value in zip(structure.names(), start, strict=True)])
    spread, freedom, squares = near.spread if near else 0.02, 1.0, 0.0
    inverse = np.empty((0, 0))
    for _ in range(_PASSES):
        theta = _solved(problem, theta, spread)
        residuals, jacobian = problem.system(theta, spread)
        inverse = np.linalg.pinv(jacobian.T @ jacobian, hermitian=True).astype(np.float64)
        data = jacobian[: len(residuals) - len(theta)]
        used = float(np.sum((data @ inverse) * data))
        squares = float(residuals[: len(rows)] @ residuals[: len(rows)])
        freedom = max(1.0, len(rows) - min(used, len(rows) - 1.0))
        former, spread = spread, max(float(np.sqrt(squares / freedom)), _LEAST_SPREAD)
        if abs(np.log(spread / former)) < 0.1:
            break
    fitted = Fitted(observed, structure, theta, inverse * spread**2, spread, freedom, start, start_sd, sources)
    noise = max(squares / len(rows), _LEAST_SPREAD**2)
    return fitted, float(aicc(noise, len(rows), int(problem.model.uses().any(axis=0).sum())))


def _solved(
    problem: _Problem, theta: Floats, spread: float, steps: Any = slice(None), most: int = _MOST_STEPS
) -> Floats:
    """Least squares from theta, over the rows `steps`: Levenberg and Marquardt on the normal equations, which are small."""
    residuals, jacobian = problem.system(theta, spread, steps)
    cost, damping = float(residuals @ residuals), 1e-3
    for _ in range(most):
        normal, slope = jacobian.T @ jacobian, jacobian.T @ residuals
        change = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), slope)
        tried = problem.inside(theta - np.clip(change, -_FARTHEST, _FARTHEST))
        then, jacobian_then = problem.system(tried, spread, steps)
        now = float(then @ then)
        if not now < cost:
            damping *= 10
            if damping > 1e6:
                break
            continue
        settled = now > cost * (1 - 1e-8)
        theta, residuals, jacobian, cost, damping = tried, then, jacobian_then, now, damping / 10
        if settled:
            break
    return theta


def _start(
    observed: ObservedWorkload, rows: Rows, structure: Structure, links: Mapping[str, LinkStart]
) -> tuple[Floats, Floats, dict[str, str]]:
    """Where every parameter starts and is held, how firmly, and by whom, for those of links."""
    step = observed.cells["step_s"].to_numpy(dtype=np.float64)
    # Neither bytes nor bandwidths known: only their ratio can be told, so that the bytes are assumed.
    assumed = bool(np.isnan(rows.bytes[rows.way >= 0]).all()) and not any(links[way].known for way in structure.ways)
    value: dict[str, tuple[float, float]] = {}
    sources = {}
    for group in range(len(structure.has_t0)):
        own = rows.group == group
        fewest = own & (rows.ranks == rows.ranks[own].min())
        first, each = _line(rows.batch[fewest], step[fewest])
        value[f"t0[{group}]"], value[f"t1[{group}]"] = (first, _FACTOR), (each, _FACTOR)
        value[f"bytes[{group}]"] = (ASSUMED_BYTES, 1.001 if assumed else _FACTOR)
    for way in structure.ways:
        known = links[way]
        value[f"alpha[{way}]"] = (known.alpha_s, known.factor)
        value[f"bandwidth[{way}]"] = (known.bytes_per_s, known.factor)
        sources[way] = known.source
    small = 0.003 * float(np.median(step / rows.batch))
    value |= {f"storage[{name}]": (small, _FACTOR) for name in structure.storages}
    value |= {"host": (small, _FACTOR), "attach": (small, _FACTOR)}
    held = {"overlap": (0.3, 0.5), "tail": (0.1, 0.3), "traffic": (0.0, np.log(_TRAFFIC_FACTOR))}
    held |= {"messages": (0.0, np.log(_FACTOR)), "growth": (0.0, 1.0)}
    starts = [held.get(kind_of(name)) or tuple(np.log(value[name])) for name in structure.names()]
    return np.array([first for first, _ in starts]), np.array([sd for _, sd in starts]), sources


def _line(batch: Floats, step: Floats) -> tuple[float, float]:
    """Positive t0 and t1 through a few points; with one batch, all of the time is in t1."""
    whole = float(np.median(step / batch))
    if len(np.unique(batch)) < 2:
        return 0.05 * whole, whole
    slope, intercept = np.polyfit(batch, step, 1)
    return max(float(intercept), 0.02 * whole * float(batch.min())), max(float(slope), 0.05 * whole)


def predict(fitted: Fitted, rows: Rows, beyond_fit: npt.ArrayLike = 0.0) -> PredictedSteps:
    """Steps of other rows. beyond_fit: sd of what the model itself is wrong by, of the logarithm (`Checked.rms`), of all rows or
    by strategy."""
    beyond = np.asarray(beyond_fit, dtype=np.float64)
    beyond = beyond[fitted.structure.of_groups()[rows.group]] if beyond.ndim else beyond
    said = StepTimeModel(fitted.structure, rows).at(fitted.theta)
    variance = np.einsum("ij,jk,ik->i", said.by_step, fitted.covariance, said.by_step, optimize=True)
    return PredictedSteps(said.step_s, np.sqrt(np.maximum(variance, 0.0) + np.fmax(beyond, fitted.spread) ** 2))


def check(fitted: Fitted) -> Checked:
    """Leave out every configuration in turn."""
    observed = fitted.observed
    rows = observed.rows()
    problem = _Problem.of(observed, rows, fitted.structure, fitted.start, fitted.start_sd)
    names = observed.cells["configuration"].to_numpy(dtype=str)
    uses = problem.model.uses()
    stated = _stated(fitted)
    logarithm = np.full(len(rows), np.nan)
    for name in dict.fromkeys(names):
        left = names != name
        kept = uses[left].any(axis=0)
        theta = np.where(kept, fitted.theta, fitted.start)
        theta = _solved(problem, theta, fitted.spread, left, _STEPS_WITHOUT)
        tellable = ~(uses[~left] & ~(kept | stated)).any(axis=1)
        said = np.log(problem.model.at(theta).step_s[~left])
        logarithm[~left] = np.where(tellable, said, np.nan)
    error = problem.log_step - logarithm  # of the rate: it is the inverse of the step time
    told = error[np.isfinite(error)]
    pct = 100 * np.expm1(error)
    by = {str(name): _median(np.abs(pct[names == name])) for name in dict.fromkeys(names)}
    # One device communicates with nobody, and tells nothing of a strategy where there are several.
    of = fitted.structure.of_groups()[rows.group]
    several = len(fitted.structure.strategies) > 1
    own = [(of == place) & ((rows.way >= 0) | (not several)) for place in range(len(fitted.structure.strategies))]
    return Checked(
        predicted_s=np.exp(logarithm),
        error_pct=pct,
        median_pct=_median(np.abs(pct)),
        worst_pct=float(np.nanmax(np.abs(pct))) if len(told) else float("nan"),
        rms=_rms(error),
        by_configuration=by,
        strategy_median_pct=np.array([_median(np.abs(pct[each])) for each in own]),
        strategy_rms=np.array([_rms(error[each]) for each in own]),
    )


def _stated(fitted: Fitted) -> npt.NDArray[np.bool_]:
    """Parameters that something is known of without a measured cell: those of links that were measured or stated, and limits,
    which are about zero until a cell shows otherwise."""
    told = []
    for name in fitted.structure.names():
        kind, _, key = name.rstrip("]").partition("[")
        told.append(bool(fitted.sources[key]) if kind in COMMUNICATION else kind in LIMITS)
    return np.array(told)


def _rms(values: Floats) -> float:
    told = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(told**2))) if len(told) else float("nan")


def _median(values: Floats) -> float:
    told = values[np.isfinite(values)]
    return float(np.median(told)) if len(told) else float("nan")
