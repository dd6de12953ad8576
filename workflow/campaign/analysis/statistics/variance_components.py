"""Variance components of the primary metric: run to run, lease to lease, host to host, as standard deviations in percent.

Model: the logarithm of a run's throughput is that of its cell, plus one deviation for the set of hosts that it ran on, one for
the
lease (one composition of them), and one for the run. Cells are fixed, the deviations are random. All comparisons are within
cells, so that no effect of hardware or workload appears as spread. Components that the design of a campaign cannot separate are
not estimated; the component holds the reason.

Sources
-------
Estimate: mean half squared differences of pairs of runs of one cell, by what the two share (the method of moments; Searle,
Casella
& McCulloch, "Variance Components", 1992, chapter 5, for unbalanced data). It is linear in the number of pairs, so 10,000 cells
are
one call. Restricted maximum likelihood is hardly better: simulated with up to 150 runs, its errors are at most 4 % smaller
for leases and hosts, and 12 to 27 % for runs, whose interval covers 93 to 96 of 100 here and 97 to 99 there (nominal: 95).
Interval: chi-square on the mean square of the levels' means, as in Williams (1962), "A confidence interval for variance
components", Biometrika 49; approximate if levels are unequal. With few levels it is wide, because two hosts show little about
all
hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.analysis.statistics.slow_hosts import Codes, HostResult, codes, compare_hosts, links
from campaign.common.intervals import CONFIDENCE_LEVEL, Floats

RUN, LEASE, HOST, TOGETHER = "run to run", "lease to lease", "host to host", "lease and host together"
METHOD = "pairs of runs of a cell (moments)"
COULD, MAY, NOT, UNKNOWN = "could", "may", "could not", "not known"


@dataclass(frozen=True, slots=True)
class Component:
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
    def known(self) -> bool:
        """True if the component is known."""
        return not self.why

    @property
    def variance(self) -> float:
        """Variance of the logarithm; 0 if unknown."""
        return (self.sd_pct / 100.0) ** 2 if self.known else 0.0


@dataclass(frozen=True, slots=True)
class Components:
    """All components of a workload. `lease_and_host` is known only if lease and host cannot be separated."""

    run: Component
    lease: Component
    host: Component
    together: Component
    runs: int
    cells: int


@dataclass(frozen=True)
class SpreadSources:
    """Sources of spread. by_workload holds components in the order of names; hosts has slow ones first."""

    by_workload: dict[str, Components]
    hosts: tuple[HostResult, ...]

    @property
    def slow(self) -> tuple[HostResult, ...]:
        """Hosts that are slower than the others."""
        return tuple(host for host in self.hosts if host.slow)

    def between_hosts(self, workload: str) -> Component | None:
        """Return the component by which equal cells differ between hosts; None if unknown.

        It is the component of hosts, or that of leases and hosts together.
        """
        parts = self.by_workload.get(workload)
        if parts is None:
            return None
        return next((each for each in (parts.host, parts.together) if each.known), None)

    def explains(self, workload: str, ratio: float) -> str:
        """Return whether different hosts can explain a ratio of two means of otherwise equal cells.

        The result is EXPLAINED, POSSIBLY_EXPLAINED if the component's interval is too wide to decide, NOT_EXPLAINED, or
        EXPLANATION_UNKNOWN, which is the result for nan as well.

        Args:
            workload: name of the workload.
            ratio: ratio of the two means.
        """
        part = self.between_hosts(workload)
        if part is None or not ratio > 0:
            return UNKNOWN
        # Both means are on separate hosts and deviate, and 95 % of such differences are smaller.
        size = abs(float(np.log(ratio))) / float(scipy.special.ndtri(0.5 + CONFIDENCE_LEVEL / 2.0) * np.sqrt(2.0))
        return COULD if 100.0 * size <= part.sd_pct else MAY if 100.0 * size <= part.high_pct else NOT


def valid_runs(runs: pd.DataFrame, higher: bool = True) -> pd.DataFrame:
    """Select the runs that can be compared: ok, with a lease and a positive metric; adds `rate`, larger if better.

    Args:
        runs: runs table.
        higher_is_better: whether higher values of the metric are better.
    """
    value = runs["value"] if "value" in runs else runs["throughput_per_s"]
    positive = (runs["status"] == "ok") & (value > 0) & (runs["lease_id"] != "")
    kept = value[positive].astype("float64")
    return runs[positive].assign(rate=kept if higher else 1.0 / kept)


def spread_sources(runs: pd.DataFrame, higher: bool = True) -> SpreadSources:
    """Estimate the variance components of each workload, and compare all hosts with each other over all workloads.

    Args:
        runs: runs table.
        higher_is_better: whether higher values of the metric are better.
    """
    rows = valid_runs(runs, higher)
    rate, workload = rows["rate"].to_numpy(dtype=np.float64), rows["workload"].to_numpy(dtype=str)
    # Sorting texts takes ten times as long as sorting their integers.
    (cell, names), (lease, _), (place, _) = (
        pd.factorize(rows[name], sort=True) for name in ("cell_id", "lease_id", "host_names")
    )
    parts = {}
    for name in np.unique(workload):
        of = workload == name
        parts[str(name)] = components(rate[of], cell[of], lease[of], place[of])
    named = (rows["host_names"] != "").to_numpy(dtype=np.bool_)
    hosts = [tuple(each.split(", ")) for each in rows["host_names"] if each]
    if len({name for each in hosts for name in each}) < 2:
        return SpreadSources(parts, ())
    compared = compare_hosts(rate[named], cell[named], lease[named], hosts)
    return SpreadSources(
        parts, tuple(replace(each, cells=tuple(str(names[int(at)]) for at in each.cells)) for each in compared)
    )


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs sorted by cell, with levels encoded as integers. y: logarithm of throughput; place: set of hosts."""

    y: Floats
    cell: Codes
    lease: Codes
    place: Codes

    @property
    def spot(self) -> Codes:
        """Cell and set of hosts as one integer."""
        return self.cell * (int(self.place.max(initial=0)) + 1) + self.place


def components(
    throughput: npt.ArrayLike, cell: npt.ArrayLike, lease: npt.ArrayLike, hosts: npt.ArrayLike
) -> Components:
    """Estimate the variance components of valid runs. Raises ValueError for a throughput that is not positive.

    Args:
        throughput: throughput of each run.
        cell: cell label of each run.
        lease: lease label of each run.
        hosts: label of each run's whole set of hosts.
    """
    rate = np.asarray(throughput, dtype=np.float64)
    if not (rate > 0).all():
        raise ValueError("a throughput is not positive; leave runs without a valid one out")
    order = np.argsort(codes(cell), kind="stable")
    runs = _Runs(np.log(rate)[order], codes(cell)[order], codes(lease)[order], codes(hosts)[order])
    squares, pairs = _mean_squares(runs)
    variances = _moments(squares, pairs)
    reasons = _reasons(pairs, variances)
    run, of_lease, host, together = (
        _component(name, variances, runs)
        if name in variances
        else Component(name, np.nan, np.nan, np.nan, 0, reasons[name])
        for name in (RUN, LEASE, HOST, TOGETHER)
    )
    return Components(run, of_lease, host, together, runs.y.size, np.unique(runs.cell).size)


def _mean_squares(runs: _Runs) -> tuple[dict[str, float], dict[str, int]]:
    """Return the mean half squared difference, and the number, of pairs of runs that share lease, hosts only, or neither."""
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
    """Estimate the variances of the components that the pairs can separate; negative estimates become 0."""
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
    """Return for each component the reason that it cannot be estimated."""
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


def _share(levels: Codes, within: Codes) -> float:
    """Return the mean over levels of one over the number of units within each level."""
    pairs = np.unique(np.stack([levels, within]), axis=1)
    return float(np.mean(1.0 / np.bincount(codes(pairs[0]))))


def _component(name: str, variances: dict[str, float], runs: _Runs) -> Component:
    """Build a component with the interval that its independent differences allow."""
    each = np.arange(runs.y.size)
    of_runs = runs.y.size - np.unique(np.stack([runs.cell, runs.lease]), axis=1).shape[1]
    of_leases = links(runs.lease, runs.spot)
    freedom = {RUN: of_runs, LEASE: of_leases}.get(name) or links(runs.place, runs.cell)
    levels = runs.lease if name == LEASE else runs.place
    # Lower components: variance, the share of it in the mean of a level, and degrees of freedom.
    under = [] if name == RUN else [(variances[RUN], _share(levels, each), of_runs)]
    if name == HOST and LEASE in variances:
        under.append((variances[LEASE], _share(levels, runs.lease), of_leases))
    below = sum(variance * share for variance, share, _ in under)
    # Pairs contain more of the lower components than means of levels do, which must not appear as a component.
    noise = np.sqrt(sum(4.0 * variance**2 / count for variance, _, count in under))
    tail = 0.5 * (1.0 - CONFIDENCE_LEVEL)
    square = freedom * (variances[name] + below)
    low, high = (square / scipy.special.chdtri(freedom, at) - below for at in (tail, 1.0 - tail))
    low = min(low, variances[name] - scipy.special.ndtri(1.0 - tail) * noise) if under else low
    middle, least, most = (100.0 * float(np.sqrt(max(0.0, value))) for value in (variances[name], low, high))
    return Component(name, middle, least, most, freedom)
