"""Variance components and slow hosts against campaigns whose deviations are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.statistics.slow_hosts import ERROR_FROM_LEASES, ERROR_FROM_OTHER_HOSTS, compare_hosts
from campaign.analysis.statistics.variance_components import HOST, LEASE, RUN, estimate_components

RUN_SD, LEASE_SD, HOST_SD = 0.005, 0.01, 0.02


def simulated(
    random: np.random.Generator,
    cells: int = 4,
    leases: int = 12,
    hosts: int = 6,
    repetitions: int = 3,
    lease_sd: float = LEASE_SD,
    host_sd: float = HOST_SD,
) -> tuple[Any, Any, Any, Any]:
    """Every cell on every lease: throughput, cell, lease and host of each run."""
    cell, lease = (a.ravel() for a in np.meshgrid(np.arange(cells), np.repeat(np.arange(leases), repetitions)))
    host = lease % hosts
    y = (
        random.normal(3, 1, cells)[cell]
        + random.normal(0, lease_sd, leases)[lease]
        + random.normal(0, host_sd, hosts)[host]
    )
    return np.exp(y + random.normal(0, RUN_SD, cell.size)), cell, lease, host


def by_host(host: Any) -> list[tuple[str, ...]]:
    return [(f"host{number}",) for number in host]


@pytest.mark.parametrize(("lease_sd", "host_sd"), [(LEASE_SD, HOST_SD), (0.0, HOST_SD), (LEASE_SD, 0.0)])
def test_intervals_of_components_cover_what_was_planted(lease_sd: float, host_sd: float) -> None:
    draws, random = 120, np.random.default_rng(11)
    found = [estimate_components(*simulated(random, lease_sd=lease_sd, host_sd=host_sd)) for _ in range(draws)]
    for name, truth in ((RUN, RUN_SD), (LEASE, lease_sd), (HOST, host_sd)):
        parts = [next(part for part in (each.run, each.lease, each.host) if part.name == name) for each in found]
        covered = sum(part.low_pct <= 100 * truth <= part.high_pct for part in parts)
        # Approximate intervals: no less than 93 % in truth, and these are draws.
        assert covered >= scipy.stats.binom.ppf(0.001, draws, 0.93), name
        if truth:  # an estimate of nothing is cut at zero, so its mean is above
            assert np.mean([part.variance for part in parts]) == pytest.approx(truth**2, rel=0.15)


def test_what_the_design_cannot_tell_apart_is_said() -> None:
    random = np.random.default_rng(5)
    one_lease = estimate_components(
        np.exp(random.normal(0, 0.01, 20)), np.arange(20) // 5, np.arange(20) // 5, np.arange(20) // 5
    )
    assert one_lease.run.is_known
    assert "on only one lease" in one_lease.lease.why
    assert "on only one lease" in one_lease.host.why
    confounded = estimate_components(*simulated(random, leases=6, hosts=6))
    assert confounded.lease_and_host.is_known
    assert "cannot be separated" in confounded.lease.why
    assert not confounded.host.is_known
    same_hosts = estimate_components(*simulated(random, hosts=1))
    assert same_hosts.lease.is_known
    assert "one set of hosts" in same_hosts.host.why
    alone = estimate_components(*simulated(random, repetitions=1))
    assert not alone.run.is_known
    assert np.isnan(alone.run.sd_pct)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1e6))
def test_components_depend_on_ratios_alone(seed: int, factor: float) -> None:
    """Neither the unit of throughput nor the order of runs, nor how fast a cell is, changes anything."""
    random = np.random.default_rng(seed)
    rate, cell, lease, host = simulated(random, cells=3, leases=4, hosts=2, repetitions=2)
    order = random.permutation(rate.size)
    scaled = rate * np.where(cell == 1, factor, 1.0)
    first, second = (
        estimate_components(rate, cell, lease, host),
        estimate_components(*(a[order] for a in (scaled, cell, lease, host))),
    )
    for one, other in zip((first.run, first.lease, first.host), (second.run, second.lease, second.host), strict=True):
        assert (one.sd_pct, one.high_pct) == pytest.approx((other.sd_pct, other.high_pct), rel=1e-6, abs=1e-6)


def test_a_throughput_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        estimate_components([1.0, 0.0], [1, 1], [1, 1], [1, 1])


def slowed(random: np.random.Generator, part: float, leases: int = 8, **changes: Any) -> tuple[Any, Any, Any, Any]:
    rate, cell, lease, host = simulated(random, leases=leases, hosts=4, repetitions=2, host_sd=0.0, **changes)
    return rate * np.where(host == 2, 1 - part, 1.0), cell, lease, by_host(host)


def test_no_slow_host_is_found_where_none_is_and_the_planted_one_is_found() -> None:
    draws, random = 60, np.random.default_rng(2)
    wrong = found = covered = 0
    for _ in range(draws):
        for part in (0.0, 0.06):
            rate, cell, lease, hosts = slowed(random, part)
            results = {r.host: r for r in compare_hosts(rate, cell, lease, hosts)}
            slow = {name for name, result in results.items() if result.is_slow}
            wrong += bool(slow - {"host2"}) if part else bool(slow)
            found += bool(part) and "host2" in slow
            covered += results["host2"].low_pct <= 100 * part <= results["host2"].high_pct
            assert {result.error_of for result in results.values()} == {ERROR_FROM_LEASES}
    assert wrong <= scipy.stats.binom.ppf(0.999, 2 * draws, 0.06)
    assert found >= 0.95 * draws
    assert covered >= scipy.stats.binom.ppf(0.001, 2 * draws, 0.94)


@pytest.mark.parametrize(("leases", "hosts"), [(12, 4), (6, 6)])
def test_rare_slow_runs_of_short_leases_blame_no_host(leases: int, hosts: int) -> None:
    draws, random, wrong, found = 60, np.random.default_rng(9), 0, 0
    for _ in range(draws):
        rate, cell, lease, host = simulated(random, cells=2, leases=leases, hosts=hosts, repetitions=2, host_sd=0.0)
        rate = rate * np.where(random.random(rate.size) < 0.05, 0.7, 1.0)
        wrong += any(result.is_slow for result in compare_hosts(rate, cell, lease, by_host(host)))
        slow = rate * np.where(host == 2, 0.85, 1.0)
        found += any(
            result.is_slow and result.host == "host2" for result in compare_hosts(slow, cell, lease, by_host(host))
        )
    assert wrong <= scipy.stats.binom.ppf(0.999, draws, 0.05)
    assert found >= 0.3 * draws


def test_without_any_spread_digits_blame_no_host() -> None:
    hosts = [(f"host{number}",) for number in range(6)] * 2
    rates = 100 * np.exp(1e-6 * np.arange(12.0))
    assert not any(result.is_slow for result in compare_hosts(rates, np.zeros(12), np.arange(12), hosts))


def test_without_repeated_leases_a_host_must_stand_out_from_the_others() -> None:
    draws, random = 60, np.random.default_rng(8)
    wrong = found = 0
    for _ in range(draws):
        rate, cell, lease, host = simulated(random, leases=8, hosts=8, repetitions=2, host_sd=0.0)
        wrong += any(result.is_slow for result in compare_hosts(rate, cell, lease, by_host(host)))
        slow = rate * np.where(host == 2, 0.85, 1.0)
        first = compare_hosts(slow, cell, lease, by_host(host))[0]
        assert first.error_of == ERROR_FROM_OTHER_HOSTS
        found += first.host == "host2" and first.is_slow
    assert wrong <= scipy.stats.binom.ppf(0.999, draws, 0.08)
    assert found >= 0.9 * draws


def test_few_hosts_with_one_lease_each_are_not_compared() -> None:
    rate, cell, lease, host = simulated(np.random.default_rng(1), leases=3, hosts=3, lease_sd=0.0, host_sd=0.0)
    results = compare_hosts(rate * np.where(host == 1, 0.9, 1.0), cell, lease, by_host(host))
    assert not any(result.is_slow for result in results)
    assert all("a slow lease cannot be distinguished from a slow host" in result.why for result in results)


def test_one_bad_run_makes_no_slow_host_and_hides_none() -> None:
    random = np.random.default_rng(4)
    rate, cell, lease, hosts = slowed(random, 0.0, lease_sd=0.0, cells=8)
    spoilt = rate.copy()
    spoilt[[names == ("host1",) for names in hosts].index(True)] *= 0.3
    clean = {r.host: r for r in compare_hosts(rate, cell, lease, hosts)}
    found = {r.host: r for r in compare_hosts(spoilt, cell, lease, hosts)}
    assert found["host1"].slowdown_pct == pytest.approx(clean["host1"].slowdown_pct, abs=8.0)
    slow = spoilt * np.where([names == ("host2",) for names in hosts], 0.8, 1.0)
    assert compare_hosts(slow, cell, lease, hosts)[0].host == "host2"


def test_a_host_that_was_only_used_beside_a_slow_one_is_not_blamed() -> None:
    """Pairs of hosts: host1 beside the slow host0 in one half, and without it in the other."""
    random = np.random.default_rng(6)
    pairs = [("host0", "host1"), ("host1", "host2"), ("host2", "host3"), ("host3", "host4")] * 6
    cell = np.repeat(np.arange(3), len(pairs))
    hosts = pairs * 3
    rate = np.exp(random.normal(0, 0.005, len(hosts))) * [0.9 if "host0" in names else 1.0 for names in hosts]
    results = {r.host: r for r in compare_hosts(rate, cell, np.tile(np.arange(len(pairs)), 3), hosts)}
    assert [name for name, result in results.items() if result.is_slow] == ["host0"]
    assert results["host0"].cells == ("0", "1", "2")


def test_hosts_that_only_work_together_are_named_together() -> None:
    random = np.random.default_rng(7)
    hosts = [("a", "b"), ("c", "d")] * 10
    rate = np.exp(random.normal(0, 0.005, 20)) * np.tile([0.9, 1.0], 10)
    results = {r.host: r for r in compare_hosts(rate, np.zeros(20), np.arange(20), hosts)}
    assert results["a"].is_slow
    assert results["a"].together == ("b",)


def test_a_host_without_a_cell_in_common_is_not_compared() -> None:
    rate, cell = np.ones(8) + 0.01 * np.arange(8), np.repeat([0, 1], 4)
    results = compare_hosts(rate, cell, cell, [("a",)] * 4 + [("b",)] * 4)
    assert all("both on this host and on others" in result.why for result in results)
    assert not any(result.is_slow for result in results)
