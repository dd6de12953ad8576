"""Drift is no difference between configurations where leases of 1, 2 and 4 hosts run side by side in the order of the plan.

`python -m tests.benchmarks.truth` has full sizes.
"""

from __future__ import annotations

import pytest

from tests import statements_under_truth as said
from tests.planted_campaigns import Truth, other

BESIDE = Truth(6, compositions=3, drift=0.05, side_by_side=4)


@pytest.mark.parametrize("drifts", ["campaign", "down", "up and down"])
def test_in_the_order_of_the_plan_drift_is_no_difference(drifts: str) -> None:
    found = said.measured(other(BESIDE, drifts=drifts), campaigns=150)
    assert found.cover >= 92.5
    assert found.wrong <= 8
    assert found.half < 5


def test_where_small_leases_pass_large_ones_it_is() -> None:
    """Why Snakemake's scheduler is not left alone: large leases all come last, and pose as slower ones."""
    found = said.measured(other(BESIDE, passing=True), campaigns=150)
    assert found.cover < 75
    assert found.wrong > 25
    # Without drift, nothing is lost.
    assert said.measured(other(BESIDE, passing=True, drift=0.0), campaigns=150).wrong <= 8
