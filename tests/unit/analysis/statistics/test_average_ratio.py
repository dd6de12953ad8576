"""The mean of several cells holds for as many campaigns as it claims."""

from __future__ import annotations

import pytest

from tests.planted_campaigns import Truth
from tests.statements_under_truth import averages


@pytest.mark.parametrize(
    ("truth", "within"),
    [
        (Truth(configurations=7), False),
        (Truth(configurations=2, cells=20), False),
        (Truth(configurations=7, drift=0.05), False),
        (Truth(configurations=10, cells=2, lease=0.03), True),
        (Truth(configurations=1, cells=8, compositions=1, lease=0.03), True),
    ],
)
def test_the_interval_of_a_mean_covers_whether_cells_share_leases_or_not(truth: Truth, within: bool) -> None:
    said = averages(truth, 60, within=within)
    assert 90 <= said.cover <= 99


def test_the_interval_of_a_mean_is_no_wider_for_drift_that_blocks_remove() -> None:
    still, drifting = (averages(Truth(configurations=7, drift=drift), 30).half for drift in (0.0, 0.05))
    assert drifting < 1.3 * still
