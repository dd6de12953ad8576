"""Slow hosts: hosts whose runs are slower than the runs of the same cells on other hosts.

For each host, the logarithm of throughput of the runs that touched it is compared with that of the other runs of the same cells:
one weighted difference over all cells, with weights for unequal numbers of runs. Its error is that of leases: the spread of the
means of leases on the same hosts, with the degrees of freedom of leases (`ERROR_FROM_LEASES`). If no hosts were used on two
leases, lease and host cannot be separated. Then a host has to stand out from the spread of the other hosts
(`ERROR_FROM_OTHER_HOSTS`), which needs `MIN_HOSTS` hosts. With fewer hosts nothing is tested, because a slow lease looks like a
slow host.

Robust: a run that is far from the median of its cell on its hosts is clipped (`campaign.analysis.statistics.location`). A
host is only named if it is also slower when every run that is far from the median of its cell is clipped: among a few
leases with two runs each, one rare slow run would otherwise blame its host. The runs of a named host are then excluded from
the comparisons of others. So a slow host does not hide a second one, and a host that was only used together with it is not
named. p-values are one-sided, and adjusted for all hosts (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.analysis.statistics.location import clip_outliers
from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats, adjust_p_values, student_quantile

MIN_HOSTS = 4
OUTLIER_LIMIT_SD = 3.0
_MAD_TO_SD = 1.4826
_MIN_RUNS_FOR_LEASE_MEDIAN = 3
_MIN_LOG_DIFFERENCE = 1e-4
ERROR_FROM_LEASES = "the spread of leases on the same hosts"
ERROR_FROM_OTHER_HOSTS = "the spread among the other hosts, including their leases"

Codes = npt.NDArray[np.int64]


def encode_labels(labels: npt.ArrayLike) -> Codes:
    """Encode labels as integers from 0, in their sorted order."""
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


def count_independent_differences(levels: Codes, groups: Codes) -> int:
    """Count the independent differences between levels that meet in groups.

    The result is the number of levels minus the number of connected components that they form.

    Args:
        levels: level of each run, such as its lease.
        groups: group of each run, such as its cell.
    """
    pairs = np.unique(np.stack([groups, levels]), axis=1)
    group, index = np.unique(pairs[0], return_inverse=True)
    has_several = np.bincount(index, minlength=group.size)[index] > 1
    if not has_several.any():
        return 0
    level_nodes, group_nodes = encode_labels(pairs[1][has_several]), encode_labels(pairs[0][has_several])
    count = int(level_nodes.max()) + 1
    size = count + int(group_nodes.max()) + 1
    graph = scipy.sparse.coo_matrix((np.ones(level_nodes.size), (level_nodes, count + group_nodes)), shape=(size, size))
    return count - int(scipy.sparse.csgraph.connected_components(graph, directed=False, return_labels=False))


@dataclass(frozen=True, slots=True)
class HostResult:
    """Result of comparing a host with the others, over the cells that ran on it and elsewhere.

    slowdown_pct: loss of throughput with its 95 % interval; nan if the host was not compared, and `why` holds the reason.
    cells: labels of the compared cells. leases: number of its leases with these cells. together: hosts that took part in
    exactly the same runs, so that they cannot be separated from it. error_of: source of the error.
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
    error_of: str = ERROR_FROM_LEASES

    @property
    def is_slow(self) -> bool:
        """True if the host is significantly slower than the others."""
        return bool(self.p_holm < SIGNIFICANCE_LEVEL)


@dataclass(frozen=True, slots=True)
class _LogDifference:
    """Logarithm of the ratio of a host's runs to those of others, and its standard error."""

    value: float
    error: float

    def compute_p(self, freedom: float) -> float:
        # A difference below a hundredth of a percent is due to printed digits, however little the runs differ.
        """Return the one-sided p-value of a slower host."""
        if abs(self.value) <= _MIN_LOG_DIFFERENCE or self.error == 0.0:
            return float(self.value >= -_MIN_LOG_DIFFERENCE)
        return float(scipy.special.stdtr(freedom, self.value / self.error))


@dataclass(frozen=True, slots=True)
class _HostDifference:
    """Difference of one host from the others, with and without clipping of outliers, and the runs behind it."""

    difference: _LogDifference
    clipped_difference: _LogDifference
    freedom: float
    runs: Codes

    @property
    def p(self) -> float:
        """Larger of the p-values of the two differences."""
        return max(difference.compute_p(self.freedom) for difference in (self.difference, self.clipped_difference))


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
    comparison = _HostComparison(throughput, cell, lease, hosts)
    slow_names: list[str] = []
    results: dict[str, HostResult] = {}
    while True:
        remaining_hosts = [host for host in comparison.hosts if host not in slow_names]
        differences = {host: comparison.compare_host(host, slow_names) for host in remaining_hosts}
        judged_differences = differences
        if comparison.error_of == ERROR_FROM_OTHER_HOSTS:
            if slow_names and sum(difference is not None for difference in judged_differences.values()) < MIN_HOSTS:
                break
            judged_differences = _judge_by_other_hosts(differences)
        adjusted_p = adjust_p_values(
            [np.nan if difference is None else difference.p for difference in judged_differences.values()]
        )
        for (host, difference), p_holm in zip(judged_differences.items(), adjusted_p, strict=True):
            # Without the named hosts there may be no comparison left. An earlier result that did not name the host is kept.
            if difference is not None or host not in results or results[host].is_slow:
                results[host] = comparison.build_result(
                    host, difference, float(p_holm), slow_names, has_too_few_hosts=differences[host] is not None
                )
        slow = [host for host in remaining_hosts if results[host].is_slow]
        if not slow:
            break
        worst = min(slow, key=lambda host: (results[host].p_holm, -results[host].slowdown_pct, host))
        # Hosts with exactly the same runs are named together, because no run separates them.
        slow_names += [worst, *(host for host in results[worst].together if host in remaining_hosts)]
    return tuple(results[host] for host in [*slow_names, *sorted(set(comparison.hosts) - set(slow_names))])


class _HostComparison:
    """Runs of all hosts, prepared for comparisons."""

    def __init__(
        self, throughput: npt.ArrayLike, cell: npt.ArrayLike, lease: npt.ArrayLike, hosts: Sequence[Sequence[str]]
    ) -> None:
        self.labels = np.unique(np.asarray(cell))
        self.cell, self.lease = encode_labels(cell), encode_labels(lease)
        self.names = hosts
        numbers = {names: place for place, names in enumerate(sorted(set(map(tuple, hosts)), key=", ".join))}
        places = np.array([numbers[tuple(names)] for names in hosts], dtype=np.int64)
        self.hosts = sorted({name for names in numbers for name in names})
        self.is_on_host = {
            host: np.array([host in names for names in numbers], dtype=np.bool_)[places] for host in self.hosts
        }
        spot = encode_labels(self.cell * (int(places.max(initial=0)) + 1) + places)
        rate = np.asarray(throughput, dtype=np.float64)
        cost, _ = clip_outliers(1 / rate, spot, np.zeros(int(spot.max(initial=-1)) + 1, dtype=np.int64))
        self.y = -np.log(cost)
        self.variance, self.freedom = _estimate_lease_variance(self.y, spot, self.lease)
        self.error_of = ERROR_FROM_LEASES if self.freedom else ERROR_FROM_OTHER_HOSTS
        self.clipped = _clip_outliers(np.log(rate), self.cell, None if self.freedom else self.lease)
        self.clipped_variance, _ = _estimate_lease_variance(self.clipped, spot, self.lease)

    def compare_host(self, host: str, excluded_hosts: Sequence[str]) -> _HostDifference | None:
        """Compare a host with the others. Return None if no cell ran both on this host and on others.

        The error is nan if no host had two leases.

        Args:
            host: name of the host.
            excluded_hosts: hosts whose runs are left out.
        """
        is_on_host = self.is_on_host[host]
        is_cell_on_host = np.zeros(self.labels.size, dtype=np.bool_)
        is_cell_on_host[self.cell[is_on_host]] = True
        usable = is_cell_on_host[self.cell]
        for name in excluded_hosts:
            usable &= ~self.is_on_host[name]
        # Only these runs: there may be hundreds of hosts, each in a few of very many cells.
        runs = np.flatnonzero(usable)
        cell, is_with_host = encode_labels(self.cell[runs]), is_on_host[runs]
        runs_on_host, runs_elsewhere = (
            np.bincount(cell[selection], minlength=int(cell.max(initial=-1)) + 1)
            for selection in (is_with_host, ~is_with_host)
        )
        weight = np.where(
            (runs_on_host > 0) & (runs_elsewhere > 0),
            runs_on_host * runs_elsewhere / np.maximum(runs_on_host + runs_elsewhere, 1),
            0.0,
        )
        if not weight.sum():
            return None
        weight /= weight.sum()
        share = np.where(
            is_with_host, (weight / np.maximum(runs_on_host, 1))[cell], -(weight / np.maximum(runs_elsewhere, 1))[cell]
        )
        shares = np.bincount(encode_labels(self.lease[runs]), weights=share)
        difference, clipped_difference = (
            _LogDifference(float(share @ y[runs]), float(np.sqrt(variance * (shares**2).sum())))
            for y, variance in ((self.y, self.variance), (self.clipped, self.clipped_variance))
        )
        return _HostDifference(difference, clipped_difference, float(self.freedom), runs[share != 0.0])

    def build_result(
        self,
        host: str,
        difference: _HostDifference | None,
        p_holm: float,
        excluded_hosts: Sequence[str],
        has_too_few_hosts: bool,
    ) -> HostResult:
        """Build the result of comparing a host with the others.

        Args:
            host: name of the host.
            difference: difference of the host, or None if it was not compared.
            p_holm: adjusted p-value.
            excluded_hosts: hosts whose runs were left out.
            has_too_few_hosts: whether a missing difference is due to too few hosts.
        """
        nan = float("nan")
        if difference is None:
            if has_too_few_hosts:
                reason = (
                    f"fewer than {MIN_HOSTS} hosts share a cell and none has two leases, so a slow lease cannot be distinguished "
                    "from a slow host"
                )
            elif excluded_hosts:
                reason = f"no cell was run both on this host and on others, except on {', '.join(excluded_hosts)}"
            else:
                reason = "no cell was run both on this host and on others"
            return HostResult(host, nan, nan, nan, nan, nan, (), int(self.is_on_host[host].sum()), 0, (), reason)
        half_width = float(student_quantile(difference.freedom)) * difference.difference.error
        slowdown_pct, low_pct, high_pct = (
            100.0 * (1.0 - float(np.exp(difference.difference.value + side))) for side in (0.0, half_width, -half_width)
        )
        is_on_host = self.is_on_host[host][difference.runs]
        host_runs = difference.runs[is_on_host]
        other_hosts = (name for name in self.names[host_runs[0]] if name != host)
        inseparable_hosts = [
            name for name in other_hosts if np.array_equal(self.is_on_host[name][difference.runs], is_on_host)
        ]
        cells = tuple(str(name) for name in self.labels[np.unique(self.cell[host_runs])])
        leases = int(np.unique(self.lease[host_runs]).size)
        runs = int(host_runs.size)
        return HostResult(
            host,
            slowdown_pct,
            low_pct,
            high_pct,
            difference.p,
            p_holm,
            cells,
            runs,
            leases,
            tuple(inseparable_hosts),
            error_of=self.error_of,
        )


def _judge_by_other_hosts(differences: dict[str, _HostDifference | None]) -> dict[str, _HostDifference | None]:
    """Replace each difference's error by the spread of the other hosts; all are None if hosts are too few.

    Each host is compared with the mean of all others, which makes differences among them larger by m / (m - 1).
    """
    known_differences = {host: difference for host, difference in differences.items() if difference is not None}
    if len(known_differences) < MIN_HOSTS:
        return dict.fromkeys(differences)
    result = dict(differences)
    for host, difference in known_differences.items():
        other_differences = [other_difference for name, other_difference in known_differences.items() if name != host]
        log_difference = _LogDifference(
            difference.difference.value,
            float(np.std([other_difference.difference.value for other_difference in other_differences], ddof=1)),
        )
        clipped_difference = _LogDifference(
            difference.clipped_difference.value,
            float(
                np.std([other_difference.clipped_difference.value for other_difference in other_differences], ddof=1)
            ),
        )
        result[host] = _HostDifference(
            log_difference, clipped_difference, len(other_differences) - 1.0, difference.runs
        )
    return result


def _clip_outliers(y: Floats, cell: Codes, lease: Codes | None = None) -> Floats:
    """Clip runs that are far from the median of their cell at `OUTLIER_LIMIT_SD` robust standard deviations of all runs.

    Args:
        y: logarithm of throughput of each run.
        cell: cell of each run.
        lease: lease of each run, if each host was used on one lease only. A lease is then the only sample of a host,
            and no outlier; its runs are compared with its own median if there are enough of them.
    """
    residual = y - _compute_group_medians(y, cell)
    middle, uses_lease_median = np.zeros(y.size), np.zeros(y.size, dtype=np.bool_)
    if lease is not None:
        uses_lease_median = np.bincount(lease)[lease] >= _MIN_RUNS_FOR_LEASE_MEDIAN
        middle = np.where(uses_lease_median, _compute_group_medians(residual, lease), 0.0)
    clipped_values = np.empty(y.size)
    for selection, groups in ((uses_lease_median, lease), (~uses_lease_median, cell)):
        remainder = (residual - middle)[selection]
        if groups is not None and remainder.size:
            sample_factor = remainder.size / max(remainder.size - np.unique(groups[selection]).size, 1)
            limit = OUTLIER_LIMIT_SD * max(
                _MAD_TO_SD * float(np.median(np.abs(remainder))) * np.sqrt(sample_factor), _MIN_LOG_DIFFERENCE
            )
            clipped_values[selection] = (y - residual + middle)[selection] + np.clip(remainder, -limit, limit)
    return clipped_values


def _compute_group_medians(values: Floats, group: Codes) -> Floats:
    """Compute for each value the median of its group."""
    return np.asarray(pd.Series(values).groupby(group).transform("median"), dtype=np.float64)


def _estimate_lease_variance(y: Floats, spot: Codes, lease: Codes) -> tuple[float, int]:
    """Estimate the variance of lease means within the same cells and hosts, with its degrees of freedom."""
    _, first, index = np.unique(spot * (int(lease.max(initial=0)) + 1) + lease, return_index=True, return_inverse=True)
    mean = np.bincount(index, y) / np.maximum(np.bincount(index), 1)
    mean_spot, mean_lease = spot[first], lease[first]
    leases = np.bincount(mean_spot)
    residual = mean - (np.bincount(mean_spot, mean) / np.maximum(leases, 1))[mean_spot]
    has_several = leases[mean_spot] > 1
    freedom = count_independent_differences(mean_lease[has_several], mean_spot[has_several]) if has_several.any() else 0
    if not freedom:
        return float("nan"), 0
    spots_per_lease = np.bincount(mean_lease[has_several])
    lease_residual = np.bincount(mean_lease[has_several], residual[has_several]) / np.maximum(spots_per_lease, 1)
    return float((lease_residual**2).sum() / freedom), freedom
