"""Linear effects on the logarithm of a time, with a normal prior on each: fit, predictions, and the interval of sums of them. Pure.

    y_c = x_c' beta + u_c + e / sqrt(n_c),   beta ~ N(m, S),   u_c ~ N(0, own^2),   e ~ N(0, run^2)

for the mean logarithm y_c of the n_c runs of cell c. beta has a closed form (Gelman et al., Bayesian Data Analysis, ch. 14);
own^2 is found by expectation and maximisation, run^2 is the pooled variance inside cells. Both start from a prior that is worth
`PRIOR_VALUES` values, and so never become zero by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import stdtrit

from campaign.documents.cell import Configuration

Floats = NDArray[np.float64]

LEVEL = 0.95
"""How often an interval is to hold what it says."""
PRIOR_VALUES = 4.0
_ROUNDS = 12
_MOST_FOR_VARIANCE = 600
_WIDEST = 1.0  # of a variance in ln(s)^2, where a median is turned into a mean: what is hardly known is not inflated
_MOST_VARIANCE = 4.0  # of one time in ln(s)^2: a single one of which nothing is known does not make a sum unknown

Features = Mapping[str, float]

# Mean and standard deviation of an effect on ln(seconds) before anything is known, by the beginning of its name. Numbers enter by
# their log2: twice the batch takes between no longer and twice as long (0.69).
_PRIORS: Mapping[str, tuple[float, float]] = {
    "mean": (math.log(10.0), 3.0),
    "batch": (0.35, 0.35),
    "steps": (0.4, 0.3),
    "flops": (0.5, 0.3),
    "ranks": (0.1, 0.3),
    "hosts": (0.1, 0.3),
    "moved": (0.2, 0.4),
    "gaps": (0.0, 0.4),
    "precision": (0.0, 0.5),
}
_PRIOR = (0.0, 0.5)


class Observed(NamedTuple):
    """What is known of a cell, or of whatever has something of its own: mean and sd of ln(seconds), and of how many runs."""

    features: Features
    mean_log_s: float
    sd_log_s: float
    runs: int


def run_features(
    shape: Mapping[str, Any],
    system: str,
    batch: int,
    precision: str,
    options: Mapping[str, Any],
    steps: int,
    flops: float | None,
) -> dict[str, float]:
    """What the time of a run of one workload on one model of device may depend on. flops: of one sample, where they are known."""
    features = {
        "mean": 1.0,
        f"system={system}": 1.0,
        "ranks": math.log2(_configuration(shape).ranks),
        "hosts": math.log2(shape["hosts"]),
        "batch": math.log2(batch),
        "steps": math.log2(steps),
        "flops": math.log2(flops or 1.0),
        f"precision={precision}": 1.0,
        f"attach={shape['attach']}": 1.0,
        f"storage={shape['storage']}": 1.0,
    }
    for name, value in options.items():
        if isinstance(value, bool | str) or value <= 0:
            features[f"option {name}={value}"] = 1.0
        else:
            features[f"option {name}"] = math.log2(value)
    return {name: value for name, value in features.items() if value}


def lease_features(shape: Mapping[str, Any], system: str, runs: int) -> dict[str, float]:
    """What composing, starting, the time between so many runs, and releasing may depend on."""
    moved = _configuration(shape).fabric_devices
    features = {
        "mean": 1.0,
        f"system={system}": 1.0,
        "hosts": math.log2(shape["hosts"]),
        "ranks": math.log2(_configuration(shape).ranks),
        "moved": math.log2(1 + moved),
        "gaps": math.log2(max(1, runs - 1)),
        "by the fabric": float(moved > 0 or shape["storage"] == "fabric-nvme"),
    }
    return {name: value for name, value in features.items() if value}


def _configuration(shape: Mapping[str, Any]) -> Configuration:
    return Configuration(**{"name": "", **shape})


def _priors(names: Sequence[str]) -> tuple[Floats, Floats]:
    """Means and standard deviations of effects."""
    pairs = [_PRIORS.get(name.partition("=")[0], _PRIOR) for name in names]
    return np.array([mean for mean, _ in pairs]), np.array([sd for _, sd in pairs])


def _design(rows: Sequence[Features], names: dict[str, int]) -> Any:
    """One sparse row for each row of features; effects that are not among the names yet are added."""
    index = [names.setdefault(name, len(names)) for features in rows for name in features]
    starts = np.cumsum([0, *map(len, rows)])
    return sparse.csr_array(
        ([x for features in rows for x in features.values()], index, starts), (len(rows), len(names))
    )


@dataclass(frozen=True)
class Predicted:
    """Times of some rows. expected: seconds; ran: whether the row's cell has runs of its own; design: what each effect moves a row
    by; apart: variance of what rows do not share; run: of one run."""

    expected: Floats
    ran: list[bool]
    design: Any
    apart: Floats
    run: float
    cov: Floats
    freedom: float


@dataclass(frozen=True)
class Effects:
    """A fitted model."""

    names: dict[str, int]
    beta: Floats
    cov: Floats
    own_variance: float
    run_variance: float
    freedom: float

    def predict(self, rows: Sequence[tuple[Features, str]], own: Mapping[str, tuple[float, int]]) -> Predicted:
        """Times of rows of (features, cell). own: mean ln(seconds) and number of runs of cells that ran."""
        names = dict(self.names)
        design = _design([features for features, _ in rows], names)
        # An effect that no run has shown yet has its prior.
        prior, sd = _priors(list(names)[len(self.names) :])
        cov = np.diag(np.concatenate([np.zeros(len(self.names)), sd**2]))
        cov[: len(self.names), : len(self.names)] = self.cov
        eta = design @ np.concatenate([self.beta, prior])
        mean, count = np.array([own.get(cell, (0.0, 0)) for _, cell in rows], dtype=float).reshape(len(rows), 2).T
        kept = count * self.own_variance / (count * self.own_variance + self.run_variance)
        eta += kept * (mean - eta)
        apart = (1 - kept) * self.own_variance
        expected = np.exp(eta + np.minimum(_WIDEST, apart + self.run_variance) / 2)
        moved = sparse.diags_array(1 - kept) @ design
        return Predicted(expected, (count > 0).tolist(), moved, apart, self.run_variance, cov, self.freedom)


def fitted(rows: Sequence[Observed], run_sd: float, own_sd: float) -> Effects | None:
    """Fit the model; None without rows. run_sd, own_sd: what the two spreads are before anything is known."""
    if not rows:
        return None
    names: dict[str, int] = {}
    x = _design([row.features for row in rows], names).toarray()
    y, sd, n = np.array([row[1:] for row in rows], dtype=float).T
    run = (PRIOR_VALUES * run_sd**2 + float((n - 1) @ sd**2)) / (PRIOR_VALUES + float((n - 1).sum()))
    prior, prior_sd = _priors(list(names))

    def solved(some: Any, own: float) -> tuple[Floats, Floats]:
        weighted = x[some] / (own + run / n[some])[:, None]
        cov = np.linalg.inv(weighted.T @ x[some] + np.diag(prior_sd**-2))
        return cov @ (weighted.T @ y[some] + prior / prior_sd**2), cov

    some = np.linspace(0, len(rows) - 1, min(len(rows), _MOST_FOR_VARIANCE)).astype(int)
    own = own_sd**2
    for _ in range(_ROUNDS):
        # The expected square of what cells have of their own, given the effects.
        beta, cov = solved(some, own)
        kept = own / (own + run / n[some])
        explained = (x[some] @ cov * x[some]).sum(axis=1)
        squares = (kept * (y[some] - x[some] @ beta)) ** 2 + kept**2 * explained + (1 - kept) * own
        own = float((PRIOR_VALUES * own_sd**2 + squares.sum()) / (PRIOR_VALUES + len(some)))
    beta, cov = solved(slice(None), own)
    # Effects use up values; at least the prior's are left for the spread.
    used = float((x @ cov * x).sum(axis=1) @ (1 / (own + run / n)))
    return Effects(names, beta, cov, own, run, PRIOR_VALUES + max(0.0, len(rows) - used))


@dataclass(frozen=True)
class Summand:
    """Times that add up: predicted rows, how often each counts, the group that it belongs to, and the most that one may take.

    runs: whether a row that counts n times is n runs with noise of their own; otherwise it is one thing, n times.
    """

    predicted: Predicted
    counts: Sequence[float]
    groups: Sequence[int]
    limits: Sequence[float] | float = math.inf
    runs: bool = False


def summed(part: Summand, weights: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """(expected, variance) in seconds and seconds squared: of each group, then of all groups with each row of weights.

    Rows of a summand are not independent of each other, because they share effects.
    """
    rows, groups = part.predicted, len(weights[0])
    over = sparse.vstack([sparse.eye_array(groups), sparse.csr_array(np.array(weights, dtype=float))]).tocsr()
    each = np.minimum(rows.expected, part.limits)
    seconds = np.array(part.counts, dtype=float) * each
    noise = (seconds * each if part.runs else seconds**2) * math.expm1(min(_MOST_VARIANCE, rows.run))
    own = seconds**2 * np.expm1(np.minimum(_MOST_VARIANCE, rows.apart)) + noise
    of_row = sparse.csr_array((np.ones(len(each)), (part.groups, np.arange(len(each)))), (groups, len(each)))
    shared = over @ (of_row @ sparse.diags_array(seconds) @ rows.design)
    variance = over.multiply(over) @ (of_row @ own) + (shared * (shared @ rows.cov)).sum(axis=1)
    return (over @ (of_row @ seconds)).tolist(), variance.tolist()


def interval_factors(expected: Sequence[float], variance: Sequence[float], spent: Sequence[float]) -> list[float]:
    """By what factors sums depart from what is expected, at the ends of their intervals; spent: sum of variance^2 / freedom of the
    summands (Welch-Satterthwaite)."""
    seconds, squares = np.maximum(expected, 1e-12), np.array(variance)
    freedom = squares**2 / np.maximum(spent, 1e-300)
    # Far from what was measured the relative error is large; as a variance of the logarithm it stays what it is for small ones.
    factors: list[float] = np.exp(student(freedom) * np.sqrt(np.log1p(squares / seconds**2))).tolist()
    return factors


def student(freedom: Any) -> Any:
    """Two-sided quantile of Student's t, for an interval of LEVEL; for at least 4 degrees of freedom."""
    return stdtrit(np.maximum(4.0, freedom), 0.5 + LEVEL / 2)
