"""Slow hosts: which hosts' runs are slower than other hosts' runs of the same cells.

For each host, the logarithm of throughput of the runs that touched it is compared with that of the other runs of the same cells:
one weighted difference over all cells, by weights that make the most of unequal numbers of runs. Its error holds the spread of
runs, and that of leases where the design tells it (`variance_components`): then hosts are compared as they are, and any
difference between them counts. Where lease and host cannot be told apart, a host has to stand out from how the others differ among
each other (`AMONG_HOSTS`), for which it takes `HOSTS_NEEDED` hosts; with fewer, a slow lease looks like a slow host (`RUNS_ALONE`),
and who reads the result must be told.

Robust: a run further than `FAR` robust standard deviations from the median of its cell on its lease counts as that far (Huber,
1964, "Robust estimation of a location parameter"), and once a host is named, its runs no longer take part in judging others:
neither does it hide a second slow host, nor is one that was only used together with it blamed. p-values are one-sided, and
adjusted for all hosts (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from campaign.statistics.intervals import SIGNIFICANT, Floats, student_quantile
from campaign.statistics.multiple_testing import holm
from campaign.statistics.variance_components import Codes, codes

FAR = 3.0
HOSTS_NEEDED = 4
WITH_LEASES = "the spread of runs and leases"
AMONG_HOSTS = "the spread of runs, and of the other hosts with their leases among each other"
RUNS_ALONE = "the spread of runs alone"
_MEDIAN_OF_DIFFERENCES = 0.9538726  # median of |a - b| for two standard normal numbers


@dataclass(frozen=True, slots=True)
class HostResult:
    """A host against the others, over the cells that ran on it and elsewhere.

    slowdown_pct: how much less throughput it gives, with its 95 % interval; nan, and `why` says why, where it was not compared.
    cells: labels of the cells compared. leases: how many of its leases they were on. together: hosts that took part in exactly the
    runs that it took part in, so that nothing tells which of them it is.
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
        return bool(self.p_holm < SIGNIFICANT)


@dataclass(frozen=True, slots=True)
class _Difference:
    """Of one host: the logarithm of its runs over others', its standard error, and the runs that it rests on."""

    value: float
    error: float
    freedom: float
    runs: Codes

    @property
    def p(self) -> float:
        if self.error == 0.0:
            return float(self.value >= 0.0)
        return float(stdtr(self.freedom, self.value / self.error))


def compare_hosts(
    throughput: npt.ArrayLike,
    cell: npt.ArrayLike,
    lease: npt.ArrayLike,
    hosts: Sequence[Sequence[str]],
    lease_variance: float | None = None,
    lease_freedom: int = 0,
) -> tuple[HostResult, ...]:
    """Every host against the others, those that are slow first, then by name.

    throughput: of valid runs, positive. hosts: of each run. lease_variance: of the logarithm, from so many independent
    differences; None where it cannot be told.
    """
    judged = _Judged(throughput, cell, lease, hosts, lease_variance or 0.0, lease_freedom)
    named: list[str] = []
    results: dict[str, HostResult] = {}
    while True:
        open_ = [host for host in judged.hosts if host not in named]
        found = {host: judged.difference(host, named) for host in open_}
        if lease_variance is None:
            compared = sum(each is not None for each in found.values())
            if compared >= HOSTS_NEEDED:
                judged.error_of = AMONG_HOSTS
                found = _among_each_other(found)
            elif judged.error_of == AMONG_HOSTS:
                break
            else:
                judged.error_of = RUNS_ALONE
        adjusted = holm([np.nan if each is None else each.p for each in found.values()])
        for (host, each), p_holm in zip(found.items(), adjusted, strict=True):
            # Without those named there may be nothing left to compare with; what was said before was no blame, and stands.
            if each is not None or host not in results or results[host].slow:
                results[host] = judged.result(host, each, float(p_holm), named)
        slow = [host for host in open_ if results[host].slow]
        if not slow:
            break
        worst = min(slow, key=lambda host: (results[host].p_holm, -results[host].slowdown_pct, host))
        # What only the same runs speak for is named with it: no run tells them apart.
        named += [worst, *(host for host in results[worst].together if host in open_)]
    return tuple(results[host] for host in [*named, *sorted(set(judged.hosts) - set(named))])


class _Judged:
    """All runs, ready to be compared."""

    def __init__(
        self,
        throughput: npt.ArrayLike,
        cell: npt.ArrayLike,
        lease: npt.ArrayLike,
        hosts: Sequence[Sequence[str]],
        lease_variance: float,
        lease_freedom: int,
    ) -> None:
        self.labels = np.unique(np.asarray(cell))
        self.cell, self.lease = codes(cell), codes(lease)
        self.hosts = sorted({name for names in hosts for name in names})
        self.names = hosts
        self.on = {host: np.zeros(len(hosts), dtype=np.bool_) for host in self.hosts}
        for run, names in enumerate(hosts):
            for name in names:
                self.on[name][run] = True
        self.y, self.variance, self.freedom = _winsorised(
            np.log(np.asarray(throughput, dtype=np.float64)), self._spots()
        )
        self.lease_variance, self.lease_freedom = lease_variance, lease_freedom
        self.error_of = WITH_LEASES

    def _spots(self) -> Codes:
        return codes(self.cell * (int(self.lease.max(initial=0)) + 1) + self.lease)

    def difference(self, host: str, without: Sequence[str]) -> _Difference | None:
        """None where no cell was run both on the host and elsewhere, or where no cell was run twice on a lease."""
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
        if not weight.sum() or self.freedom < 1:
            return None
        weight /= weight.sum()
        share = np.where(with_, (weight / np.maximum(here, 1))[cell], -(weight / np.maximum(there, 1))[cell])
        of_runs = self.variance * float((share**2).sum())
        of_leases = self.lease_variance * float((np.bincount(codes(self.lease[runs]), weights=share) ** 2).sum())
        total = of_runs + of_leases
        parts = of_runs**2 / self.freedom + (of_leases**2 / self.lease_freedom if of_leases else 0.0)
        freedom = total**2 / parts if parts else float(self.freedom)
        return _Difference(float(share @ self.y[runs]), float(np.sqrt(total)), freedom, runs[share != 0.0])

    def result(self, host: str, found: _Difference | None, p_holm: float, without: Sequence[str]) -> HostResult:
        nan = float("nan")
        if found is None:
            if self.freedom < 1:
                why = "no cell was run twice on one lease, so that the spread of runs is not known"
            elif without:
                why = f"no cell was run both on it and elsewhere, without {', '.join(without)}"
            else:
                why = "no cell was run both on it and elsewhere"
            return HostResult(host, nan, nan, nan, nan, nan, (), int(self.on[host].sum()), 0, (), why)
        half = float(student_quantile(found.freedom)) * found.error
        slower, least, most = (100.0 * (1.0 - float(np.exp(found.value + side))) for side in (0.0, half, -half))
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


def _among_each_other(found: dict[str, _Difference | None]) -> dict[str, _Difference | None]:
    """Differences whose errors hold how the other hosts differ among each other."""
    known = {host: each for host, each in found.items() if each is not None}
    result = dict(found)
    for host, each in known.items():
        others = [other for name, other in known.items() if name != host]
        spread = float(np.var([other.value for other in others], ddof=1)) - float(np.mean([o.error**2 for o in others]))
        own, between = each.error**2, max(0.0, spread)
        parts = own**2 / each.freedom + between**2 / (len(others) - 1)
        freedom = (own + between) ** 2 / parts if parts else each.freedom
        result[host] = _Difference(each.value, float(np.sqrt(own + between)), freedom, each.runs)
    return result


def _winsorised(y: Floats, spot: Codes) -> tuple[Floats, float, int]:
    """Values with those that are far from their group's median brought near, their variance inside of groups, its freedom."""
    order = np.lexsort((y, spot))
    size = np.bincount(spot, minlength=1)
    start = np.cumsum(size) - size
    ranked = y[order]
    low, high = start + np.maximum(size - 1, 0) // 2, start + size // 2
    median = (0.5 * (ranked[np.minimum(low, y.size - 1)] + ranked[np.minimum(high, y.size - 1)]))[spot]
    apart = [np.abs(np.diff(y[np.argsort(spot, kind="stable")]))[np.diff(np.sort(spot)) == 0]]
    scale = float(np.median(apart[0])) / _MEDIAN_OF_DIFFERENCES if apart[0].size else 0.0
    # Of two runs neither is the one that is far.
    near = np.where(size[spot] >= 3, np.clip(y, median - FAR * scale, median + FAR * scale), y)
    mean = np.bincount(spot, weights=near) / size
    freedom = int(y.size - size.size)
    return near, float(((near - mean[spot]) ** 2).sum() / freedom) if freedom else float("nan"), freedom
