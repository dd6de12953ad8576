"""Slow hosts: hosts whose runs are slower than the runs of the same cells on other hosts.

For each host, the logarithm of throughput of the runs that touched it is compared with that of the other runs of the same cells:
one weighted difference over all cells, with weights for unequal numbers of runs. Its error is that of leases: the spread of the
means of leases on the same hosts, with the degrees of freedom of leases (`ERROR_FROM_LEASES`). If no hosts were used on two
leases, lease and host cannot be separated. Then a host has to stand out from the spread of the other hosts
(`ERROR_FROM_OTHER_HOSTS`), for which it takes `MIN_HOSTS` hosts. With fewer nothing is tested, as a slow lease looks like a slow
host.

Robust: a run that is far from the median of its cell on its hosts is clipped (`campaign.analysis.statistics.location`). A host
is
only named if it is also slower when every run that is far from the median of its cell is clipped: among a few leases with two
runs each, one rare slow run would otherwise blame its host. The runs of a named host no longer take part in judging others. So a
slow host does not hide a second one, and a host that was only used together with it is not blamed. p-values are one-sided, and
adjusted for all hosts (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.analysis.statistics.location import near
from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats, adjust_p_values, student_quantile

HOSTS_NEEDED = 4
FAR = 3.0
_NORMAL = 1.4826
_ENOUGH = 3
_DIGITS = 1e-4
WITH_LEASES = "the spread of leases on the same hosts"
AMONG_HOSTS = "the spread of the other hosts with their leases among each other"

Codes = npt.NDArray[np.int64]


def codes(labels: npt.ArrayLike) -> Codes:
    """Encode labels as integers from 0, in their sorted order."""
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


def links(levels: Codes, groups: Codes) -> int:
    """Count the independent differences between levels that meet in groups.

    The result is the number of levels minus the number of connected components that they form.

    Args:
        levels: level of each run, such as its lease.
        groups: group of each run, such as its cell.
    """
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


@dataclass(frozen=True, slots=True)
class HostResult:
    """Result of comparing a host with the others, over the cells that ran on it and elsewhere.

    slowdown_pct: loss of throughput with its 95 % interval; nan if the host was not compared, and `why` holds the reason. cells:
    labels of the compared cells. leases: number of its leases with these cells. together: hosts that took part in exactly the
    same
    runs, so that they cannot be separated from it. error_of: source of the error.
    """

    host: str
    slowdown_pct: float
    low_pct: float
    high_pct: float
    p: float
    p_holm: float
    cells: tuple[str, ...]
    runs: int
    leases: int
    together: tuple[str, ...] = ()
    why: str = ""
    error_of: str = WITH_LEASES

    @property
    def slow(self) -> bool:
        """True if the host is significantly slower than the others."""
        return bool(self.p_holm < SIGNIFICANCE_LEVEL)


@dataclass(frozen=True, slots=True)
class _Size:
    """Logarithm of the ratio of a host's runs to those of others, and its standard error."""

    value: float
    error: float

    def p(self, freedom: float) -> float:
        # A difference below a hundredth of a percent is due to printed digits, however little the runs differ.
        """Return the one-sided p-value of a slower host."""
        if abs(self.value) <= _DIGITS or self.error == 0.0:
            return float(self.value >= -_DIGITS)
        return float(scipy.special.stdtr(freedom, self.value / self.error))


@dataclass(frozen=True, slots=True)
class _HostDifference:
    """Difference of one host, the same difference with outliers clipped, and the runs behind both."""

    size: _Size
    near: _Size
    freedom: float
    runs: Codes

    @property
    def p(self) -> float:
        """Larger p-value of both differences."""
        return max(each.p(self.freedom) for each in (self.size, self.near))


def compare_hosts(
    throughput: npt.ArrayLike, cell: npt.ArrayLike, lease: npt.ArrayLike, hosts: Sequence[Sequence[str]]
) -> tuple[HostResult, ...]:
    """Compare every host with the others; slow hosts come first, then hosts by name.

    Args:
        throughput: throughput of each valid run, positive.
        cell: cell label of each run.
        lease: lease label of each run.
        hosts: names of the hosts of each run.
    """
    judged = _Judged(throughput, cell, lease, hosts)
    named: list[str] = []
    results: dict[str, HostResult] = {}
    while True:
        open_ = [host for host in judged.hosts if host not in named]
        shared = {host: judged.difference(host, named) for host in open_}
        found = shared
        if judged.error_of == AMONG_HOSTS:
            if named and sum(each is not None for each in found.values()) < HOSTS_NEEDED:
                break
            found = _among_each_other(shared)
        adjusted = adjust_p_values([np.nan if each is None else each.p for each in found.values()])
        for (host, each), p_holm in zip(found.items(), adjusted, strict=True):
            # Without the named hosts there may be no comparison left. An earlier result that did not name the host is kept.
            if each is not None or host not in results or results[host].slow:
                results[host] = judged.result(host, each, float(p_holm), named, few=shared[host] is not None)
        slow = [host for host in open_ if results[host].slow]
        if not slow:
            break
        worst = min(slow, key=lambda host: (results[host].p_holm, -results[host].slowdown_pct, host))
        # Hosts with exactly the same runs are named together, because no run separates them.
        named += [worst, *(host for host in results[worst].together if host in open_)]
    return tuple(results[host] for host in [*named, *sorted(set(judged.hosts) - set(named))])


class _Judged:
    """Runs of all hosts, prepared for comparisons."""

    def __init__(
        self, throughput: npt.ArrayLike, cell: npt.ArrayLike, lease: npt.ArrayLike, hosts: Sequence[Sequence[str]]
    ) -> None:
        self.labels = np.unique(np.asarray(cell))
        self.cell, self.lease = codes(cell), codes(lease)
        self.names = hosts
        numbers = {names: place for place, names in enumerate(sorted(set(map(tuple, hosts)), key=", ".join))}
        places = np.array([numbers[tuple(names)] for names in hosts], dtype=np.int64)
        self.hosts = sorted({name for names in numbers for name in names})
        self.on = {host: np.array([host in names for names in numbers], dtype=np.bool_)[places] for host in self.hosts}
        spot = codes(self.cell * (int(places.max(initial=0)) + 1) + places)
        rate = np.asarray(throughput, dtype=np.float64)
        cost, _ = near(1 / rate, spot, np.zeros(int(spot.max(initial=-1)) + 1, dtype=np.int64))
        self.y = -np.log(cost)
        self.variance, self.freedom = _of_leases(self.y, spot, self.lease)
        self.error_of = WITH_LEASES if self.freedom else AMONG_HOSTS
        self.near = _brought_near(np.log(rate), self.cell, None if self.freedom else self.lease)
        self.near_variance, _ = _of_leases(self.near, spot, self.lease)

    def difference(self, host: str, without: Sequence[str]) -> _HostDifference | None:
        """Return the difference of a host from the others; None if no cell ran both on it and elsewhere.

        The error is nan if no host had two leases.

        Args:
            host: name of the host.
            excluded_hosts: hosts whose runs are left out.
        """
        ran = self.on[host]
        touched = np.zeros(self.labels.size, dtype=np.bool_)
        touched[self.cell[ran]] = True
        usable = touched[self.cell]
        for name in without:
            usable &= ~self.on[name]
        # Only these runs: there may be hundreds of hosts, each in a few of very many cells.
        runs = np.flatnonzero(usable)
        cell, with_ = codes(self.cell[runs]), ran[runs]
        here, there = (np.bincount(cell[of], minlength=int(cell.max(initial=-1)) + 1) for of in (with_, ~with_))
        weight = np.where((here > 0) & (there > 0), here * there / np.maximum(here + there, 1), 0.0)
        if not weight.sum():
            return None
        weight /= weight.sum()
        share = np.where(with_, (weight / np.maximum(here, 1))[cell], -(weight / np.maximum(there, 1))[cell])
        shares = np.bincount(codes(self.lease[runs]), weights=share)
        size, with_near = (
            _Size(float(share @ y[runs]), float(np.sqrt(variance * (shares**2).sum())))
            for y, variance in ((self.y, self.variance), (self.near, self.near_variance))
        )
        return _HostDifference(size, with_near, float(self.freedom), runs[share != 0.0])

    def result(
        self, host: str, found: _HostDifference | None, p_holm: float, without: Sequence[str], few: bool
    ) -> HostResult:
        """Build the result of a host.

        Args:
            host: name of the host.
            difference: difference of the host, None without one.
            p_holm: adjusted p-value.
            excluded_hosts: hosts whose runs were left out.
            has_too_few_hosts: whether a missing difference is due to too few hosts.
        """
        nan = float("nan")
        if found is None:
            if few:
                why = (
                    f"fewer than {HOSTS_NEEDED} hosts with a cell in common, and none with two leases: a slow lease looks like a "
                    "slow host"
                )
            elif without:
                why = f"no cell was run both on it and elsewhere, without {', '.join(without)}"
            else:
                why = "no cell was run both on it and elsewhere"
            return HostResult(host, nan, nan, nan, nan, nan, (), int(self.on[host].sum()), 0, (), why)
        half = float(student_quantile(found.freedom)) * found.size.error
        slower, least, most = (100.0 * (1.0 - float(np.exp(found.size.value + side))) for side in (0.0, half, -half))
        ran = self.on[host][found.runs]
        mine = found.runs[ran]
        beside = (name for name in self.names[mine[0]] if name != host)
        others = [name for name in beside if np.array_equal(self.on[name][found.runs], ran)]
        cells = tuple(str(name) for name in self.labels[np.unique(self.cell[mine])])
        leases = int(np.unique(self.lease[mine]).size)
        runs = int(mine.size)
        return HostResult(
            host, slower, least, most, found.p, p_holm, cells, runs, leases, tuple(others), error_of=self.error_of
        )


def _among_each_other(found: dict[str, _HostDifference | None]) -> dict[str, _HostDifference | None]:
    """Replace the error of each difference by the spread of the other hosts; None for all if there are too few hosts.

    Each host is compared with the mean of all others, which makes differences among them larger by m / (m - 1).
    """
    known = {host: each for host, each in found.items() if each is not None}
    if len(known) < HOSTS_NEEDED:
        return dict.fromkeys(found)
    result = dict(found)
    for host, each in known.items():
        others = [other for name, other in known.items() if name != host]
        size = _Size(each.size.value, float(np.std([other.size.value for other in others], ddof=1)))
        with_near = _Size(each.near.value, float(np.std([other.near.value for other in others], ddof=1)))
        result[host] = _HostDifference(size, with_near, len(others) - 1.0, each.runs)
    return result


def _brought_near(y: Floats, cell: Codes, lease: Codes | None = None) -> Floats:
    """Clip runs that are far from the median of their cell at `OUTLIER_LIMIT_SD` robust standard deviations of all runs.

    Args:
        y: logarithm of throughput of each run.
        cell: cell of each run.
        lease: lease of each run, if each host was used on one lease only. A lease is then the only sample of a host, and no
            outlier;
            its runs are compared with its own median if there are enough of them.
    """
    away = y - _median(y, cell)
    middle, alone = np.zeros(y.size), np.zeros(y.size, dtype=np.bool_)
    if lease is not None:
        alone = np.bincount(lease)[lease] >= _ENOUGH
        middle = np.where(alone, _median(away, lease), 0.0)
    near = np.empty(y.size)
    for of, groups in ((alone, lease), (~alone, cell)):
        rest = (away - middle)[of]
        if groups is not None and rest.size:
            few = rest.size / max(rest.size - np.unique(groups[of]).size, 1)
            limit = FAR * max(_NORMAL * float(np.median(np.abs(rest))) * np.sqrt(few), _DIGITS)
            near[of] = (y - away + middle)[of] + np.clip(rest, -limit, limit)
    return near


def _median(values: Floats, of: Codes) -> Floats:
    """Return the median of each value's group."""
    return np.asarray(pd.Series(values).groupby(of).transform("median"), dtype=np.float64)


def _of_leases(y: Floats, spot: Codes, lease: Codes) -> tuple[float, int]:
    """Estimate the variance of lease means within the same cells and hosts, with its degrees of freedom."""
    _, first, where = np.unique(spot * (int(lease.max(initial=0)) + 1) + lease, return_index=True, return_inverse=True)
    mean = np.bincount(where, y) / np.maximum(np.bincount(where), 1)
    of, at = spot[first], lease[first]
    leases = np.bincount(of)
    residual = mean - (np.bincount(of, mean) / np.maximum(leases, 1))[of]
    several = leases[of] > 1
    freedom = links(at[several], of[several]) if several.any() else 0
    if not freedom:
        return float("nan"), 0
    met = np.bincount(at[several])
    of_lease = np.bincount(at[several], residual[several]) / np.maximum(met, 1)
    return float((of_lease**2).sum() / freedom), freedom
