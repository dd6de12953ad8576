"""Where the spread of throughput comes from: run to run, lease to lease, host to host, as standard deviations in percent.

Model: the logarithm of a run's throughput is that of its cell, plus one deviation for the set of hosts that it ran on, one for the
lease (one composition of them), and one for the run. Cells are fixed, the deviations are random; all comparisons are inside of
cells, so that no effect of hardware or workload poses as spread. What a campaign's design cannot tell apart is not estimated: the
component says why.

Sources
-------
Estimate: mean half squared differences of pairs of runs of one cell, by what the two share (the method of moments; Searle, Casella
& McCulloch, "Variance Components", 1992, chapter 5, for unbalanced data): linear in the number of pairs, so 10,000 cells are one
call. Where there are few runs (`REML_RUNS`), restricted maximum likelihood (statsmodels `MixedLM`) instead.
Interval: chi-square on the mean square of the levels' means, as Williams (1962), "A confidence interval for variance components",
Biometrika 49; approximate where levels are unequal. With few levels it is wide: two hosts say next to nothing of all hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from campaign.statistics.intervals import CONFIDENCE, Floats

RUN, LEASE, HOST, TOGETHER = "run to run", "lease to lease", "host to host", "lease and host together"

# MixedLM takes a second for so many runs, and loading it as long again.
REML_RUNS = 150
MOMENTS = "pairs of runs of a cell (moments)"
REML = "restricted maximum likelihood"

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the spread. sd_pct: standard deviation in percent of throughput; low_pct, high_pct: 95 % interval.

    freedom: independent differences that it rests on. nan, and `why` says why, where it cannot be told.
    """

    name: str
    sd_pct: float
    low_pct: float
    high_pct: float
    freedom: int
    why: str = ""

    @property
    def known(self) -> bool:
        return not self.why

    @property
    def variance(self) -> float:
        """Of the logarithm; 0 where it cannot be told."""
        return (self.sd_pct / 100.0) ** 2 if self.known else 0.0


@dataclass(frozen=True, slots=True)
class Components:
    """All parts. `together` is known only where lease and host cannot be told apart."""

    run: Component
    lease: Component
    host: Component
    together: Component
    method: str
    runs: int
    cells: int
    leases: int
    placements: int
    """Different sets of hosts."""

    def all(self) -> tuple[Component, ...]:
        return self.run, self.lease, self.host, self.together


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs with their levels as numbers, sorted by cell."""

    y: Floats
    cell: Codes
    lease: Codes
    place: Codes

    @property
    def spot(self) -> Codes:
        """Cell and set of hosts as one number."""
        return self.cell * (int(self.place.max(initial=0)) + 1) + self.place


def codes(labels: npt.ArrayLike) -> Codes:
    """Labels as numbers from 0, in their sorted order."""
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


def components(
    throughput: npt.ArrayLike, cell: npt.ArrayLike, lease: npt.ArrayLike, hosts: npt.ArrayLike
) -> Components:
    """The components of valid runs. cell, lease, hosts: a label for each run; hosts names the whole set of them.

    Raises ValueError for a throughput that is not positive.
    """
    rate = np.asarray(throughput, dtype=np.float64)
    if not (rate > 0).all():
        raise ValueError("a throughput is not positive; leave runs without a valid one out")
    order = np.argsort(codes(cell), kind="stable")
    runs = _Runs(np.log(rate)[order], codes(cell)[order], codes(lease)[order], codes(hosts)[order])
    squares, pairs = _mean_squares(runs)
    variances = _moments(squares, pairs)
    method = MOMENTS
    if runs.y.size <= REML_RUNS and variances.keys() > {RUN} and (better := _reml(runs, tuple(variances))):
        variances, method = better, REML
    cells, leases, places = (np.unique(each).size for each in (runs.cell, runs.lease, runs.place))
    known = {name: _component(name, variances, runs) for name in variances}
    reasons = _reasons(pairs, variances)
    run, of_lease, host, together = (
        known.get(name) or _unknown(name, reasons[name]) for name in (RUN, LEASE, HOST, TOGETHER)
    )
    return Components(run, of_lease, host, together, method, runs.y.size, cells, leases, places)


def _unknown(name: str, why: str) -> Component:
    return Component(name, np.nan, np.nan, np.nan, 0, why)


def _mean_squares(runs: _Runs) -> tuple[dict[str, float], dict[str, int]]:
    """Mean half squared difference of the pairs that share lease, hosts only, or neither; and how many pairs."""
    sums, counts = dict.fromkeys((RUN, LEASE, HOST), 0.0), dict.fromkeys((RUN, LEASE, HOST), 0)
    largest = int(np.bincount(runs.cell).max(initial=0))
    for apart in range(1, largest):
        same = runs.cell[:-apart] == runs.cell[apart:]
        square = 0.5 * (runs.y[:-apart] - runs.y[apart:])[same] ** 2
        lease = (runs.lease[:-apart] == runs.lease[apart:])[same]
        place = (runs.place[:-apart] == runs.place[apart:])[same]
        for name, of in ((RUN, lease & place), (LEASE, ~lease & place), (HOST, ~lease & ~place)):
            sums[name] += float(square[of].sum())
            counts[name] += int(of.sum())
    return {name: total / counts[name] for name, total in sums.items() if counts[name]}, counts


def _moments(squares: dict[str, float], pairs: dict[str, int]) -> dict[str, float]:
    """Variances by component, of those that the pairs tell apart; what comes out negative is none."""
    if not pairs[RUN]:
        return {}
    found = {RUN: squares[RUN]}
    if pairs[LEASE]:
        found[LEASE] = max(0.0, squares[LEASE] - squares[RUN])
        if pairs[HOST]:
            found[HOST] = max(0.0, squares[HOST] - max(squares[LEASE], squares[RUN]))
    elif pairs[HOST]:
        found[TOGETHER] = max(0.0, squares[HOST] - squares[RUN])
    return found


def _reasons(pairs: dict[str, int], known: dict[str, float]) -> dict[str, str]:
    if not pairs[RUN]:
        no = "no cell was run twice on one lease, so the spread of leases cannot be separated from that of runs"
        return dict.fromkeys((RUN, LEASE, HOST, TOGETHER), no)
    both = "every lease of a cell was on other hosts, so the spread of leases cannot be separated from that of hosts"
    one = (
        "every cell was measured on one lease only, so this spread cannot be separated from the throughput of the cell"
    )
    confounded = both if TOGETHER in known else one
    return {
        RUN: "",
        LEASE: confounded,
        HOST: "every cell was measured on one set of hosts" if pairs[LEASE] else confounded,
        TOGETHER: "they are told apart" if HOST in known else confounded,
    }


def links(levels: Codes, groups: Codes) -> int:
    """Independent differences between levels that meet in groups: levels less the parts that they fall into."""
    pairs = np.unique(np.stack([groups, levels]), axis=1)
    group, where = np.unique(pairs[0], return_inverse=True)
    several = np.bincount(where, minlength=group.size)[where] > 1
    if not several.any():
        return 0
    left, right = codes(pairs[1][several]), codes(pairs[0][several])
    count = int(left.max()) + 1
    size = count + int(right.max()) + 1
    graph = scipy.sparse.coo_matrix((np.ones(left.size), (left, count + right)), shape=(size, size))
    return count - int(scipy.sparse.csgraph.connected_components(graph, directed=False, return_labels=False))


def _share(levels: Codes, within: Codes) -> float:
    """Mean over levels of 1 / how many of `within` are in each."""
    pairs = np.unique(np.stack([levels, within]), axis=1)
    return float(np.mean(1.0 / np.bincount(codes(pairs[0]))))


def _component(name: str, variances: dict[str, float], runs: _Runs) -> Component:
    """A component with the interval that its independent differences allow."""
    each = np.arange(runs.y.size)
    of_runs = runs.y.size - np.unique(np.stack([runs.cell, runs.lease]), axis=1).shape[1]
    of_leases = links(runs.lease, runs.spot)
    freedom = {RUN: of_runs, LEASE: of_leases}.get(name) or links(runs.place, runs.cell)
    levels = runs.lease if name == LEASE else runs.place
    # What is under the component: its variance, the share of it that a level's mean still has, and its own freedom.
    under = [] if name == RUN else [(variances[RUN], _share(levels, each), of_runs)]
    if name == HOST and LEASE in variances:
        under.append((variances[LEASE], _share(levels, runs.lease), of_leases))
    below = sum(variance * share for variance, share, _ in under)
    # Pairs see more of what is under a component than levels' means do: where there is nothing, that must not look like something.
    noise = np.sqrt(sum(4.0 * variance**2 / count for variance, _, count in under))
    tail = 0.5 * (1.0 - CONFIDENCE)
    square = freedom * (variances[name] + below)
    low, high = (square / scipy.special.chdtri(freedom, at) - below for at in (tail, 1.0 - tail))
    low = min(low, variances[name] - scipy.special.ndtri(1.0 - tail) * noise) if under else low
    middle, least, most = (100.0 * float(np.sqrt(max(0.0, value))) for value in (variances[name], low, high))
    return Component(name, middle, least, most, freedom)


def _reml(runs: _Runs, names: tuple[str, ...]) -> dict[str, float] | None:
    """The same variances by restricted maximum likelihood; None where that does not converge."""
    import warnings

    # Loads slowly, and only small campaigns need it.
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    levels = {LEASE: runs.lease, HOST: runs.place, TOGETHER: runs.lease}
    random = [name for name in names if name != RUN]
    scale = float(runs.y.std()) or 1.0
    matrices = [[np.eye(int(levels[name].max()) + 1)[levels[name]]] for name in random]
    columns = [[[str(n) for n in range(each[0].shape[1])]] for each in matrices]
    cells = np.eye(int(runs.cell.max()) + 1)[codes(runs.cell)]
    groups = np.zeros(runs.y.size)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # A component of zero is at the border of what is possible, which is no reason to warn.
            warnings.simplefilter("ignore")
            model = MixedLM(runs.y / scale, cells, groups, exog_vc=VCSpec(random, columns, matrices))
            fit = model.fit(reml=True, method=["powell", "lbfgs"])
    except (np.linalg.LinAlgError, ValueError):
        return None
    found = {RUN: float(fit.scale), **{name: float(value) for name, value in zip(random, fit.vcomp, strict=True)}}
    if not fit.converged or not all(np.isfinite(value) and value >= 0 for value in found.values()):
        return None
    return {name: value * scale**2 for name, value in found.items()}
