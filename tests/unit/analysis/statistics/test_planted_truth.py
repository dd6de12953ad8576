"""Statements hold what was planted: intervals cover it, ties are not called differences, and true differences are found.

The sizes are those that a minute of continuous integration allows; `python -m tests.benchmarks.truth` has all of them. Limits: 95
of 100 intervals and 5 of 100 figures, with what chance adds in so many campaigns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics import comparisons, verdict
from campaign.common import intervals
from tests import planted_campaigns
from tests import statements_under_truth as said
from tests.planted_campaigns import Truth

pytestmark = pytest.mark.slow

BETWEEN = {
    "two compositions": Truth(compositions=2),
    "three": Truth(runs=5),
    "five": Truth(compositions=5, runs=10),
    "twelve configurations": Truth(configurations=12, runs=5),
    "leases are equal": Truth(lease=0.0),
    "leases differ by more than runs": Truth(lease=0.03, run=0.003),
    "drift": Truth(drift=0.05, runs=5),
    "some composed once": Truth(compositions=(3, 3, 3, 3, 1, 1), configurations=6),
    "unequal": Truth(compositions=(3, 3, 2, 5), runs=6),
    "runs and leases are missing": Truth(missing=0.1, failed=0.1, configurations=6),
    "slow runs": Truth(slow=0.05, runs=9),
    "heavy tails": Truth(noise="heavy", run=0.02),
    "skew": Truth(noise="skew", of_leases="skew"),
    "two modes": Truth(noise="two", run=0.02),
    "several cells on a lease": Truth(cells=4, runs=3),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_intervals_between_compositions_hold_the_truth_and_ties_are_ties(name: str) -> None:
    found = said.measured(BETWEEN[name], campaigns=250)
    assert 91.5 <= found.cover <= 98.5
    assert found.wrong <= 9.5
    assert found.tested >= 95


@pytest.mark.parametrize(("configurations", "cells"), [(4, 1), (12, 1), (4, 4)])
def test_what_a_campaign_calls_detectable_another_one_like_it_finds(configurations: int, cells: int) -> None:
    truth = Truth(configurations, cells=cells, runs=6)
    # A little less where cells share leases, whose spread is known less well than its degrees of freedom say.
    assert 68 <= said.least_detected(truth, campaigns=400).found <= 86


@pytest.mark.parametrize(("workloads", "compositions", "cells"), [(2, 2, 1), (4, 2, 4), (2, 3, 4), (4, 5, 1)])
def test_workloads_that_share_leases_have_a_freedom_each(workloads: int, compositions: int, cells: int) -> None:
    """Judged is the workload whose cover is farthest from 95, of comparisons and of single cells."""
    truth = Truth(workloads=workloads, cells=cells, compositions=compositions, runs=2 * compositions)
    found = said.measured(truth, campaigns=250)
    assert 92.5 <= found.cover <= 98.5
    assert found.wrong <= 9
    assert 92.5 <= said.locations(truth, campaigns=250).cover <= 98.5


@pytest.mark.parametrize(
    ("noisy_at", "configurations", "compositions", "cells"),
    [(0, 4, 2, 1), (0, 8, 3, 4), (-1, 4, 3, 4), (-1, 8, 2, 1)],
    ids=["the baseline of 4", "the baseline of 8", "the last of 4", "the last of 8"],
)
def test_a_configuration_of_noisy_leases_is_called_different_in_few_ties(
    noisy_at: int, configurations: int, compositions: int, cells: int
) -> None:
    truth = Truth(configurations, 1, compositions, 2 * compositions, cells=cells, noisy=3, noisy_at=noisy_at)
    found = said.measured(truth, campaigns=400)
    assert found.wrong <= 9
    assert found.cover >= 88.5
    assert said.locations(truth, campaigns=400).cover >= 93


@pytest.mark.parametrize("compositions", [2, 3])
@pytest.mark.parametrize("configurations", [2, 4])
def test_intervals_of_single_cells_hold_the_truth(configurations: int, compositions: int) -> None:
    truth = Truth(configurations, compositions=compositions, runs=2 * compositions)
    assert 93.5 <= said.locations(truth, campaigns=1500).cover <= 98


@pytest.mark.parametrize("lease", [0.0, 0.02])
@pytest.mark.parametrize(("compositions", "runs"), [(2, 4), (3, 6), (3, 30)])
def test_intervals_of_medians_hold_the_truth_where_leases_differ(lease: float, compositions: int, runs: int) -> None:
    assert said.medians(Truth(compositions=compositions, runs=runs, lease=lease), campaigns=400).cover >= 93


@pytest.mark.parametrize("drifts", ["campaign", "block", "hump"])
@pytest.mark.parametrize("compositions", [2, 4])
def test_random_blocks_let_no_drift_pose_as_a_difference(compositions: int, drifts: str) -> None:
    found = said.measured(Truth(6, compositions, 2 * compositions, drift=0.05, drifts=drifts), campaigns=150)
    assert found.wrong <= 8
    assert found.cover >= 93


@pytest.mark.parametrize("placed", ["random", "one"])
@pytest.mark.parametrize(("hosts", "sd"), [(2, 0.03), (3, 0.0), (4, 0.01), (4, 0.03)])
def test_hosts_that_several_compositions_shared_are_taken_out(placed: str, hosts: int, sd: float) -> None:
    """Also where the first configuration, with which all are compared, stayed on one host."""
    found = said.measured(Truth(hosts=hosts, host=sd, placed=placed), campaigns=250)
    assert found.tested >= 85
    assert 92 <= found.cover <= 98.5
    assert found.wrong <= 9
    # Hosts differ by three times as much as compositions, and intervals are hardly wider.
    assert found.half < 4.2


@pytest.mark.parametrize("hosts", [3, 8])
def test_hosts_do_not_make_intervals_useless(hosts: int) -> None:
    """With many hosts little is left of what compositions tell, and hosts that changed by chance stay in their spread."""
    found = said.measured(Truth(configurations=11, cells=4, runs=3, hosts=hosts, host=0.005), campaigns=40)
    assert found.half < 3.3
    assert found.cover >= 92


def test_what_stayed_on_hosts_of_its_own_is_not_told_from_them() -> None:
    own = Truth(hosts=4, host=0.03, placed="own")
    assert said.measured(own, campaigns=20).tested == 0
    design = comparisons.build_design(planted_campaigns.runs(own, 1, seed=1))
    found = comparisons.compute_ratios(pd.Series([1]), pd.Series([0]), design)
    row = {
        **{name: column[0] for name, column in found.build_basis_columns(pd.RangeIndex(1)).items()},
        "p": float("nan"),
    }
    assert row["method"] == intervals.CONFOUNDED_WITH_HOSTS
    assert "the compared hosts differ" in verdict.explain_missing_test(row)
    # With two of four on each host, those of one host are compared.
    assert said.measured(replace(own, hosts=2), campaigns=60).tested == pytest.approx(100 / 3)


@pytest.mark.parametrize("lease", [0.0, 0.01, 0.03])
def test_an_earlier_campaign_lends_the_spread_of_compositions(lease: float) -> None:
    found = said.lent(Truth(compositions=1, runs=2, lease=lease), Truth(lease=lease), campaigns=250)
    # Where leases are alike, runs that differ by chance may contradict all that is lent.
    assert found.tested >= (95 if lease else 80)
    assert 91.5 <= found.cover <= 98.5
    assert found.wrong <= 9.5
    # With one run of each, nothing tells how much of what is lent is that of runs.
    alone = said.lent(Truth(compositions=1, runs=1, lease=lease), Truth(lease=lease), campaigns=100)
    assert alone.cover >= 92


@pytest.mark.parametrize("compositions", [1, 2, 3])
def test_cells_that_share_leases_are_compared_by_what_leases_leave(compositions: int) -> None:
    found = said.within(Truth(compositions=compositions, runs=6, cells=3, lease=0.03), campaigns=120)
    assert 92 <= found.cover <= 98
    assert found.wrong <= 10
    # Leases differ by three times as much as runs, and cancel.
    assert found.half < 2.0


@pytest.mark.parametrize(
    ("truth", "campaigns", "most"),
    [
        (Truth(configurations=12, noisy=10), 600, 7.5),
        (Truth(configurations=45, slow=0.05), 120, 5.0),
    ],
    ids=["one configuration is ten times as noisy", "44 comparisons, slow runs"],
)
def test_cells_that_scatter_more_than_others_keep_their_own_spread(truth: Truth, campaigns: int, most: float) -> None:
    found = said.measured(truth, campaigns, seed=7)
    assert found.wrong <= most
    assert found.cover >= 93
    # What scatters more hardly widens the intervals of the others.
    assert found.half < 4.3


def test_a_true_difference_is_found() -> None:
    found = said.measured(Truth(runs=5, effect=(1, 1.05, 1, 1.05)), campaigns=250)
    assert found.found >= 72
    assert found.wrong <= 9


def test_one_composition_each_is_no_test() -> None:
    found = said.measured(Truth(compositions=1, runs=5), campaigns=20)
    assert (found.tested, found.wrong) == (0, 0)
    assert 0 < found.half < 3


@pytest.mark.parametrize(
    ("runs", "noise", "slow"),
    [
        (5, "normal", 0.0),
        (5, "skew", 0.05),
        (10, "heavy", 0.05),
        (10, "two", 0.0),
        (20, "normal", 0.05),
        (20, "skew", 0.0),
    ],
)
def test_the_location_of_a_cell_is_covered_with_slow_runs_too(runs: int, noise: str, slow: float) -> None:
    truth = Truth(configurations=10, compositions=1, runs=runs, lease=0.0, noise=noise, slow=slow)
    found = said.locations(truth, campaigns=40)
    assert found.cover >= 91
    assert found.half < 4


def test_two_campaigns_of_one_truth_that_were_composed_once_show_no_change() -> None:
    found = said.compared(Truth(compositions=1, runs=5, lease=0.015, configurations=6), campaigns=6)
    assert found.wrong <= 25
    assert found.half <= 25, "--fail-on"


def test_the_best_configuration_is_named_alone() -> None:
    assert said.recommended(Truth(effect=(1, 1.1, 1.1, 1.1)), campaigns=4).found >= 75
    assert said.recommended(Truth(compositions=1, runs=5), campaigns=2).tested == 0


@pytest.mark.parametrize(
    ("workloads", "compositions", "lease"), [(4, 5, 0.03), (4, 2, 0.02), (2, 3, 0.02), (4, 3, 0.0)]
)
def test_workloads_of_one_lease_are_not_independent_in_a_mix(workloads: int, compositions: int, lease: float) -> None:
    found = said.mixed(
        Truth(workloads=workloads, compositions=compositions, runs=2 * compositions, lease=lease), campaigns=400
    )
    assert 93 <= found.cover <= 98
    assert found.wrong <= 8
    assert 92 <= found.half <= 118


def test_the_slow_down_of_a_mix_counts_the_error_of_the_fastest() -> None:
    truth = Truth(workloads=3, compositions=3, effect=(1, 1.1, 1.2, 1.3), lease=0.02)
    assert said.slow_downs(truth, campaigns=8).cover >= 83


def test_a_lease_is_no_dip_and_a_dip_is_found() -> None:
    assert said.dipped(Truth(lease=0.015), campaigns=4).wrong == 0
    assert said.dipped(Truth(lease=0.005, run=0.005), dip=0.1, campaigns=3).found >= 75
    assert said.dipped(Truth(compositions=1, runs=5), campaigns=1).tested == 0


@pytest.mark.parametrize(("hosts", "leases", "slow_runs"), [(3, 1, 0.0), (4, 1, 0.05), (4, 3, 0.0), (4, 3, 0.05)])
def test_no_innocent_host_is_named(hosts: int, leases: int, slow_runs: float) -> None:
    assert said.hosts_named(hosts, leases, slow_runs=slow_runs, campaigns=60).wrong <= 15


def test_a_slow_host_is_named() -> None:
    assert said.hosts_named(4, 3, slower=0.05, campaigns=30).found >= 80
    assert np.isnan(said.hosts_named(4, 3, campaigns=1).cover)
