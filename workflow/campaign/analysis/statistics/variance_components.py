"""Variance components of the primary metric: run to run, lease to lease, host to host, as standard deviations in percent.

Model: the logarithm of a run's throughput is that of its cell, plus one deviation for the set of hosts that it ran on, one
for the lease (one composition of them), and one for the run. Cells are fixed, the deviations are random. All comparisons are
within cells, so that no effect of hardware or workload appears as spread. Components that the design of a campaign cannot
separate are not estimated; the component holds the reason.

Sources
-------
Estimate: mean half squared differences of pairs of runs of one cell, by what the two share (the method of moments;
Searle, Casella & McCulloch, "Variance Components", 1992, chapter 5, for unbalanced data). It is linear in the number of
pairs, so 10,000 cells are one call. Restricted maximum likelihood is hardly better: simulated with up to 150 runs, its
errors are at most 4 % smaller for leases and hosts, and 12 to 27 % for runs, whose interval covers 93 to 96 of 100 here
and 97 to 99 there (nominal: 95). Interval: chi-square on the mean square of the levels' means, as in Williams (1962),
"A confidence interval for variance components", Biometrika 49; approximate if levels are unequal. With few levels it is
wide, because two hosts show little about all hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.analysis.statistics.slow_hosts import (
    Codes,
    HostResult,
    compare_hosts,
    count_independent_differences,
    encode_labels,
)
from campaign.common.intervals import CONFIDENCE_LEVEL, Floats

RUN, LEASE, HOST, LEASE_AND_HOST = "run to run", "lease to lease", "host to host", "lease and host together"
METHOD = "pairs of runs of a cell (moments)"
EXPLAINED, POSSIBLY_EXPLAINED, NOT_EXPLAINED, EXPLANATION_UNKNOWN = "could", "may", "could not", "not known"


@dataclass(frozen=True, slots=True)
class VarianceComponent:
    """One component of the spread. sd_pct: standard deviation in percent of throughput; low_pct, high_pct: 95 % interval.

    freedom: number of independent differences. The numbers are nan if the component is unknown, and `why` holds the reason.
    """

    name: str
    sd_pct: float
    low_pct: float
    high_pct: float
    freedom: int
    why: str = ""

    @property
    def is_known(self) -> bool:
        """True if the component could be estimated."""
        return not self.why

    @property
    def variance(self) -> float:
        """Variance of the logarithm; 0 if unknown."""
        return (self.sd_pct / 100.0) ** 2 if self.is_known else 0.0


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """All components of a workload. `lease_and_host` is known only if lease and host cannot be separated."""

    run: VarianceComponent
    lease: VarianceComponent
    host: VarianceComponent
    lease_and_host: VarianceComponent
    runs: int
    cells: int


@dataclass(frozen=True)
class SpreadSources:
    """Sources of spread. by_workload holds components in the order of names; hosts has slow ones first."""

    by_workload: dict[str, VarianceComponents]
    hosts: tuple[HostResult, ...]

    @property
    def slow_hosts(self) -> tuple[HostResult, ...]:
        """Hosts that are slower than the others."""
        return tuple(host for host in self.hosts if host.is_slow)

    def find_host_component(self, workload: str) -> VarianceComponent | None:
        """Find the component by which equal cells differ between hosts, or None if it is unknown.

        It is the component of hosts, or that of leases and hosts together.
        """
        parts = self.by_workload.get(workload)
        if parts is None:
            return None
        return next((component for component in (parts.host, parts.lease_and_host) if component.is_known), None)

    def explain_ratio_by_hosts(self, workload: str, ratio: float) -> str:
        """Return whether different hosts can explain a ratio of two means of otherwise equal cells.

        The result is EXPLAINED, POSSIBLY_EXPLAINED if the component's interval is too wide to decide, NOT_EXPLAINED, or
        EXPLANATION_UNKNOWN, which is the result for nan as well.

        Args:
            workload: name of the workload.
            ratio: ratio of the two means.
        """
        component = self.find_host_component(workload)
        if component is None or not ratio > 0:
            return EXPLANATION_UNKNOWN
        # Both means are on separate hosts and deviate, and 95 % of such differences are smaller.
        required_sd_pct = abs(float(np.log(ratio))) / float(
            scipy.special.ndtri(0.5 + CONFIDENCE_LEVEL / 2.0) * np.sqrt(2.0)
        )
        return (
            EXPLAINED
            if 100.0 * required_sd_pct <= component.sd_pct
            else POSSIBLY_EXPLAINED
            if 100.0 * required_sd_pct <= component.high_pct
            else NOT_EXPLAINED
        )


def select_comparable_runs(runs: pd.DataFrame, higher_is_better: bool = True) -> pd.DataFrame:
    """Select the runs that can be compared: ok, with a lease and a positive metric; adds `rate`, larger if better.

    Args:
        runs: runs table.
        higher_is_better: whether higher values of the metric are better.
    """
    value = runs["value"] if "value" in runs else runs["throughput_per_s"]
    positive = (runs["status"] == "ok") & (value > 0) & (runs["lease_id"] != "")
    valid_values = value[positive].astype("float64")
    return runs[positive].assign(rate=valid_values if higher_is_better else 1.0 / valid_values)


def analyze_spread_sources(runs: pd.DataFrame, higher_is_better: bool = True) -> SpreadSources:
    """Estimate the variance components of each workload, and compare all hosts with each other over all workloads.

    Args:
        runs: runs table.
        higher_is_better: whether higher values of the metric are better.
    """
    rows = select_comparable_runs(runs, higher_is_better)
    rate, workload = rows["rate"].to_numpy(dtype=np.float64), rows["workload"].to_numpy(dtype=str)
    # Sorting texts takes ten times as long as sorting their integers.
    (cell, names), (lease, _), (place, place_names) = (
        pd.factorize(rows[name], sort=True) for name in ("cell_id", "lease_id", "host_names")
    )
    parts = {}
    for name in np.unique(workload):
        is_of_workload = workload == name
        parts[str(name)] = estimate_components(
            rate[is_of_workload], cell[is_of_workload], lease[is_of_workload], place[is_of_workload]
        )
    has_hosts = (rows["host_names"] != "").to_numpy(dtype=np.bool_)
    host_sets = [tuple(str(item).split(", ")) for item in place_names]
    hosts = [host_sets[index] for index in place[has_hosts]]
    if len({name for item in hosts for name in item}) < 2:
        return SpreadSources(parts, ())
    results = compare_hosts(rate[has_hosts], cell[has_hosts], lease[has_hosts], hosts)
    return SpreadSources(
        parts,
        tuple(replace(item, cells=tuple(str(names[int(cell_index)]) for cell_index in item.cells)) for item in results),
    )


@dataclass(frozen=True, slots=True)
class _CodedRuns:
    """Runs sorted by cell, with levels encoded as integers. y: logarithm of throughput; place: set of hosts."""

    y: Floats
    cell: Codes
    lease: Codes
    host_set: Codes

    @property
    def cell_on_hosts(self) -> Codes:
        """Cell and set of hosts as one integer."""
        return self.cell * (int(self.host_set.max(initial=0)) + 1) + self.host_set


def estimate_components(
    throughput: npt.ArrayLike, cell: npt.ArrayLike, lease: npt.ArrayLike, hosts: npt.ArrayLike
) -> VarianceComponents:
    """Estimate the variance components of valid runs. Raises ValueError for a throughput that is not positive.

    Args:
        throughput: throughput of each run.
        cell: cell label of each run.
        lease: lease label of each run.
        hosts: label of each run's whole set of hosts.
    """
    rate = np.asarray(throughput, dtype=np.float64)
    if not (rate > 0).all():
        raise ValueError("Throughputs must be positive; exclude runs without a valid throughput")
    order = np.argsort(encode_labels(cell), kind="stable")
    runs = _CodedRuns(
        np.log(rate)[order], encode_labels(cell)[order], encode_labels(lease)[order], encode_labels(hosts)[order]
    )
    squares, pairs = _compute_mean_squares(runs)
    variances = _estimate_variances(squares, pairs)
    reasons = _explain_unknown_components(pairs, variances)
    run, of_lease, host, lease_and_host = (
        _build_component(name, variances, runs)
        if name in variances
        else VarianceComponent(name, np.nan, np.nan, np.nan, 0, reasons[name])
        for name in (RUN, LEASE, HOST, LEASE_AND_HOST)
    )
    return VarianceComponents(run, of_lease, host, lease_and_host, runs.y.size, np.unique(runs.cell).size)


def _compute_mean_squares(runs: _CodedRuns) -> tuple[dict[str, float], dict[str, int]]:
    """Compute mean half squared differences and counts of run pairs that share lease, only hosts, or neither."""
    sums, counts = dict.fromkeys((RUN, LEASE, HOST), 0.0), dict.fromkeys((RUN, LEASE, HOST), 0)
    largest = int(np.bincount(runs.cell).max(initial=0))
    for lag in range(1, largest):
        is_same_cell = runs.cell[:-lag] == runs.cell[lag:]
        square = 0.5 * (runs.y[:-lag] - runs.y[lag:])[is_same_cell] ** 2
        is_same_lease = (runs.lease[:-lag] == runs.lease[lag:])[is_same_cell]
        is_same_host_set = (runs.host_set[:-lag] == runs.host_set[lag:])[is_same_cell]
        for name, is_selected in (
            (RUN, is_same_lease & is_same_host_set),
            (LEASE, ~is_same_lease & is_same_host_set),
            (HOST, ~is_same_lease & ~is_same_host_set),
        ):
            sums[name] += float(square[is_selected].sum())
            counts[name] += int(is_selected.sum())
    return {name: total / counts[name] for name, total in sums.items() if counts[name]}, counts


def _estimate_variances(squares: dict[str, float], pairs: dict[str, int]) -> dict[str, float]:
    """Estimate the variances of the components that the pairs can separate; negative estimates become 0."""
    if not pairs[RUN]:
        return {}
    variances = {RUN: squares[RUN]}
    if pairs[LEASE]:
        variances[LEASE] = max(0.0, squares[LEASE] - squares[RUN])
        if pairs[HOST]:
            variances[HOST] = max(0.0, squares[HOST] - max(squares[LEASE], squares[RUN]))
    elif pairs[HOST]:
        variances[LEASE_AND_HOST] = max(0.0, squares[HOST] - squares[RUN])
    return variances


def _explain_unknown_components(pairs: dict[str, int], variances: dict[str, float]) -> dict[str, str]:
    """Return the reason why each unknown component cannot be estimated."""
    if not pairs[RUN]:
        no_repeats = "no cell was run twice on one lease, so the spread of leases cannot be separated from that of runs"
        return dict.fromkeys((RUN, LEASE, HOST, LEASE_AND_HOST), no_repeats)
    no_repeated_hosts = (
        "every lease of a cell was on different hosts, so the spread of leases cannot be separated from that of hosts"
    )
    single_lease = (
        "every cell was measured on only one lease, so this spread cannot be separated from the throughput of the cell"
    )
    confounded = no_repeated_hosts if LEASE_AND_HOST in variances else single_lease
    return {
        RUN: "",
        LEASE: confounded,
        HOST: "every cell was measured on one set of hosts" if pairs[LEASE] else confounded,
        LEASE_AND_HOST: "both components are estimated separately" if HOST in variances else confounded,
    }


def _compute_mean_share(levels: Codes, units: Codes) -> float:
    """Average 1 / n over levels, where n is the number of units within a level."""
    pairs = np.unique(np.stack([levels, units]), axis=1)
    return float(np.mean(1.0 / np.bincount(encode_labels(pairs[0]))))


def _build_component(name: str, variances: dict[str, float], runs: _CodedRuns) -> VarianceComponent:
    """Build a component with the interval that its independent differences allow."""
    run_index = np.arange(runs.y.size)
    run_freedom = runs.y.size - np.unique(np.stack([runs.cell, runs.lease]), axis=1).shape[1]
    lease_freedom = count_independent_differences(runs.lease, runs.cell_on_hosts)
    freedom = {RUN: run_freedom, LEASE: lease_freedom}.get(name) or count_independent_differences(
        runs.host_set, runs.cell
    )
    levels = runs.lease if name == LEASE else runs.host_set
    # Lower components: variance, the share of it in the mean of a level, and degrees of freedom.
    lower_components = [] if name == RUN else [(variances[RUN], _compute_mean_share(levels, run_index), run_freedom)]
    if name == HOST and LEASE in variances:
        lower_components.append((variances[LEASE], _compute_mean_share(levels, runs.lease), lease_freedom))
    lower_variance = sum(variance * share for variance, share, _ in lower_components)
    # Pairs contain more of the lower components than means of levels do, which must not appear as a component.
    noise = np.sqrt(sum(4.0 * variance**2 / count for variance, _, count in lower_components))
    tail = 0.5 * (1.0 - CONFIDENCE_LEVEL)
    square = freedom * (variances[name] + lower_variance)
    low, high = (
        square / scipy.special.chdtri(freedom, probability) - lower_variance for probability in (tail, 1.0 - tail)
    )
    low = min(low, variances[name] - scipy.special.ndtri(1.0 - tail) * noise) if lower_components else low
    sd_pct, low_pct, high_pct = (100.0 * float(np.sqrt(max(0.0, value))) for value in (variances[name], low, high))
    return VarianceComponent(name, sd_pct, low_pct, high_pct, freedom)
