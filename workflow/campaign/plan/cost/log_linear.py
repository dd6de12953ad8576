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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it is loaded only where there is something to learn from
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PRIOR_VALUES = 4.0
_ROUNDS = 12
_MOST_FOR_VARIANCE = 600
_WIDEST = 1.0  # of a variance in ln(s)^2, where a median is turned into a mean: what is hardly known is not inflated

Features = Mapping[str, float]
Row = tuple[Features, str, float, float, int, bool]
"""Features; the cell, or whatever has something of its own; mean and sd of ln(seconds); how many; whether effects learn from it."""

# Mean and standard deviation of an effect on ln(seconds) before anything is known, by the beginning of its name. Numbers enter by
# their log2: twice the batch takes between no longer and twice as long (0.69).
_PRIORS: Mapping[str, tuple[float, float]] = {
    "mean": (math.log(10.0), 3.0),
    "workload": (0.0, 1.5),
    "batch": (0.35, 0.35),
    "steps": (0.4, 0.3),
    "ranks": (0.1, 0.3),
    "hosts": (0.1, 0.3),
    "moved": (0.2, 0.4),
    "precision": (0.0, 0.5),
}
_PRIOR = (0.0, 0.5)
_PRIOR_OF_ONE_WORKLOAD = (0.0, 0.3)


def run_features(
    shape: Mapping[str, Any],
    system: str,
    workload: str,
    batch: int,
    precision: str,
    options: Mapping[str, Any],
    steps: int,
) -> dict[str, float]:
    """What the time of a run may depend on; each effect once for all workloads and once for this one."""
    common = {
        "ranks": math.log2(shape["hosts"] * shape["devices_used"]),
        "hosts": math.log2(shape["hosts"]),
        "batch": math.log2(batch),
        "steps": math.log2(steps),
        f"precision={precision}": 1.0,
        f"attach={shape['attach']}": 1.0,
        f"storage={shape['storage']}": 1.0,
        f"device={shape['device']}": 1.0,
    }
    for name, value in options.items():
        if isinstance(value, bool | str) or value <= 0:
            common[f"option {name}={value}"] = 1.0
        else:
            common[f"option {name}"] = math.log2(value)
    features = {"mean": 1.0, f"system={system}": 1.0, f"workload={workload}": 1.0}
    for name, number in common.items():
        if number:
            features[name] = number
            features[f"{workload}|{name}"] = number
    return features


def lease_features(shape: Mapping[str, Any], system: str) -> dict[str, float]:
    """What composing, starting and releasing may depend on."""
    moved = shape["hosts"] * (shape["devices_per_host"] - shape["local_devices_per_host"])
    features = {
        "mean": 1.0,
        f"system={system}": 1.0,
        "hosts": math.log2(shape["hosts"]),
        "ranks": math.log2(shape["hosts"] * shape["devices_used"]),
        "moved": math.log2(1 + moved),
        "by the fabric": float(moved > 0 or shape["storage"] == "fabric-nvme"),
    }
    return {name: value for name, value in features.items() if value}


def _prior(name: str) -> tuple[float, float]:
    if "|" in name:
        return _PRIOR_OF_ONE_WORKLOAD
    return _PRIORS.get(name.partition("=")[0], _PRIOR)


@dataclass(frozen=True)
class Predicted:
    """Times of some rows. index, factor, start: the rows' features as one flat list; factor is what each effect moves a row by.

    expected: seconds; own: whether the row's cell has runs of its own; apart: variance of what rows do not share; run: of one run.
    """

    expected: Floats
    own: list[bool]
    index: NDArray[np.int64]
    factor: Floats
    start: NDArray[np.int64]
    apart: Floats
    run: float
    cov: Floats
    freedom: float

    def capped(self, limits: Sequence[float]) -> list[float]:
        """Expected seconds, where no run may take longer than its limit."""
        return [min(a, b) for a, b in zip(self.expected.tolist(), limits, strict=True)]


@dataclass(frozen=True)
class Effects:
    """A fitted model."""

    names: dict[str, int]
    beta: Floats
    cov: Floats
    own_variance: float
    run_variance: float
    freedom: float

    def predict(
        self, rows: Sequence[tuple[Features, str]], own: Mapping[str, tuple[float, int]] | None = None
    ) -> Predicted:
        """Times of rows of (features, cell). own: mean ln(seconds) and number of runs of cells that ran."""
        import numpy as np

        new: dict[str, int] = {}
        index: list[int] = []
        value: list[float] = []
        lengths: list[int] = []
        for features, _ in rows:
            for name, number in features.items():
                place = self.names.get(name)
                index.append(len(self.names) + new.setdefault(name, len(new)) if place is None else place)
                value.append(number)
            lengths.append(len(features))
        # An effect that no run has shown yet has its prior.
        priors = [_prior(name) for name in new]
        beta = np.concatenate([self.beta, [mean for mean, _ in priors]])
        cov = np.zeros((len(beta), len(beta)))
        cov[: len(self.beta), : len(self.beta)] = self.cov
        np.fill_diagonal(cov[len(self.beta) :, len(self.beta) :], [sd**2 for _, sd in priors])
        flat, factor = np.array(index, dtype=np.int64), np.array(value)
        start = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if lengths else np.zeros(0, np.int64)
        eta = np.add.reduceat(factor * beta[flat], start) if rows else np.zeros(0)
        ran = [(own or {}).get(cell, (0.0, 0)) for _, cell in rows]
        count = np.array([n for _, n in ran], dtype=float)
        mean = np.array([m for m, _ in ran], dtype=float)
        kept = count * self.own_variance / (count * self.own_variance + self.run_variance)
        eta = eta + kept * (mean - eta)
        apart = (1 - kept) * self.own_variance
        expected = np.exp(eta + np.minimum(_WIDEST, apart + self.run_variance) / 2) if rows else eta
        moved = factor * np.repeat(1 - kept, lengths)
        return Predicted(
            expected, [n > 0 for _, n in ran], flat, moved, start, apart, self.run_variance, cov, self.freedom
        )


def fitted(rows: Sequence[Row], run_sd: float, own_sd: float) -> Effects | None:
    """Fit the model; None where no row can be learned from. run_sd, own_sd: what the two spreads are before anything is known."""
    import numpy as np

    learned = [row for row in rows if row[5]]
    if not learned:
        return None
    names: dict[str, int] = {}
    for features, *_ in learned:
        for name in features:
            names.setdefault(name, len(names))
    x = np.zeros((len(learned), len(names)))
    for number, (features, *_) in enumerate(learned):
        for name, value in features.items():
            x[number, names[name]] = value
    y = np.array([row[2] for row in learned])
    n = np.array([row[4] for row in learned], dtype=float)
    inside = sum((row[4] - 1) * row[3] ** 2 for row in learned)
    run = (PRIOR_VALUES * run_sd**2 + inside) / (PRIOR_VALUES + float((n - 1).sum()))
    priors = [_prior(name) for name in names]
    mean, precision = np.array([m for m, _ in priors]), np.array([sd**-2 for _, sd in priors])
    some = np.linspace(0, len(learned) - 1, min(len(learned), _MOST_FOR_VARIANCE)).astype(int)
    own = own_sd**2
    for _ in range(_ROUNDS):
        own = _own_variance(x[some], y[some], n[some], own, run, own_sd, mean, precision)
    beta, cov = _solved(x, y, 1 / (own + run / n), mean, precision)
    # Effects use up values; at least the prior's are left for the spread.
    used = float((x @ cov * x).sum(axis=1) @ (1 / (own + run / n)))
    return Effects(names, beta, cov, own, run, PRIOR_VALUES + max(0.0, len(learned) - used))


def _solved(x: Floats, y: Floats, weight: Floats, mean: Floats, precision: Floats) -> tuple[Floats, Floats]:
    import numpy as np

    weighted = x * weight[:, None]
    cov = np.linalg.inv(weighted.T @ x + np.diag(precision))
    return np.asarray(cov @ (weighted.T @ y + precision * mean), float), np.asarray(cov, float)


def _own_variance(
    x: Floats, y: Floats, n: Floats, own: float, run: float, own_sd: float, mean: Floats, precision: Floats
) -> float:
    """One step: the expected square of what cells have of their own, given the effects."""
    beta, cov = _solved(x, y, 1 / (own + run / n), mean, precision)
    kept = own / (own + run / n)
    explained = (x @ cov * x).sum(axis=1)
    squares = (kept * (y - x @ beta)) ** 2 + kept**2 * explained + (1 - kept) * own
    return float((PRIOR_VALUES * own_sd**2 + squares.sum()) / (PRIOR_VALUES + len(y)))


@dataclass(frozen=True)
class Part:
    """A summand: predicted rows, how often each counts, the group that it belongs to, and the most that one may take.

    runs: whether a row that counts n times is n runs with noise of their own; otherwise it is one thing, n times.
    """

    predicted: Predicted
    counts: Sequence[float]
    groups: Sequence[int]
    limits: Sequence[float] | None = None
    runs: bool = True


@dataclass(frozen=True)
class Sums:
    """(expected, variance) of each group and of weighted totals, in seconds and seconds squared."""

    groups: list[tuple[float, float]]
    total: tuple[float, float]
    weighted: tuple[float, float]


def summed(parts: Sequence[Part], groups: int, weights: Sequence[float]) -> Sums:
    """Sums over groups, over all, and over all with weights of groups. Parts are independent of each other; rows of one are not."""
    import numpy as np

    expected, variance = np.zeros(groups), np.zeros(groups)
    weight = np.array(weights, dtype=float)
    totals = {"total": np.zeros(2), "weighted": np.zeros(2)}
    for part in parts:
        group = np.array(part.groups, dtype=np.int64)
        count = np.array(part.counts, dtype=float)
        each = part.predicted.expected
        if part.limits is not None:
            each = np.minimum(each, part.limits)
        seconds = count * each
        own = seconds**2 * np.expm1(np.minimum(_WIDEST, part.predicted.apart))
        noise = math.expm1(min(_WIDEST, part.predicted.run))
        own = own + (seconds * each if part.runs else seconds**2) * noise
        here = np.bincount(group, own, groups)
        expected += np.bincount(group, seconds, groups)
        variance += here + _shared(part.predicted, seconds, group, groups)
        for name, factor in (("total", np.ones(groups)), ("weighted", weight)):
            of_row = factor[group] * seconds
            together = _shared(part.predicted, of_row, np.zeros_like(group), 1)[0]
            totals[name] += (of_row.sum(), float((factor**2 * here).sum()) + together)
    pairs = list(zip(expected.tolist(), variance.tolist(), strict=True))
    total, weighted = ((float(t[0]), float(t[1])) for t in totals.values())
    return Sums(pairs, total, weighted)


def _shared(rows: Predicted, seconds: Floats, group: NDArray[np.int64], groups: int) -> Floats:
    """Variance of the sums of groups that comes from effects, which their rows share."""
    import numpy as np

    size = len(rows.cov)
    of_entry = np.repeat(np.arange(len(seconds)), np.diff(np.append(rows.start, len(rows.index))))
    moved, place = rows.factor * seconds[of_entry], group[of_entry]
    variance = np.zeros(groups)
    chunk = 2000  # groups at a time: a dense row each would not fit where every cell has a lease
    order = np.argsort(place, kind="stable") if groups > 1 else np.arange(len(place))
    moved, place, index = moved[order], place[order], rows.index[order]
    bounds = np.searchsorted(place, np.arange(0, groups + chunk, chunk))
    for number, first in enumerate(range(0, groups, chunk)):
        part = slice(bounds[number], bounds[number + 1])
        many = min(chunk, groups - first)
        dense = np.bincount((place[part] - first) * size + index[part], moved[part], many * size).reshape(many, size)
        variance[first : first + many] = np.einsum("ij,jk,ik->i", dense, rows.cov, dense, optimize=True)
    return variance
