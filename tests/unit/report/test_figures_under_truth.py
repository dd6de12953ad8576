"""What figures say of whole campaigns of known truth, from records on; `python -m tests.benchmarks.truth` has full sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign.spec.cell import Cell
from tests.figures_under_truth import over
from tests.planted_records import Planted

pytestmark = pytest.mark.slow

WHOLE = Planted(shapes="all", batches=(8, 16), precisions=("fp32", "bf16"), repetitions=6)
FIGURES = ("cells", "overhead", "node_spread", "part_of_host", "scaling", "speedup_by_batch", "precision")


def _five_percent(cell: Cell) -> float:
    return cell.configuration.ranks * (0.95 if cell.configuration.attach == "fabric" else 1.0)


def test_intervals_of_every_figure_hold_the_truth_and_ties_are_ties() -> None:
    found = over(WHOLE, (*FIGURES, "hosts"), campaigns=2)
    for name in FIGURES:
        assert found[name].cover >= 90, name
        assert found[name].wrong == 0, name
    assert found["hosts"].wrong == 0


def test_without_a_second_composition_nothing_between_compositions_is_tested() -> None:
    found = over(
        replace(WHOLE, compositions=1, repetitions=3), ("overhead", "node_spread", "scaling", "precision"), campaigns=1
    )
    assert [found[name].tested for name in ("overhead", "node_spread", "scaling")] == [0, 0, 0]
    # Within a composition there is a test, and the lease cancels.
    assert found["precision"].tested == 100
    assert found["precision"].cover >= 90


def test_drift_in_blocks_is_no_difference() -> None:
    found = over(Planted(shapes="12", drift=5.0, repetitions=3), ("overhead",), campaigns=4)["overhead"]
    assert found.cover >= 90
    assert found.wrong <= 17


def test_a_difference_of_five_percent_is_found() -> None:
    found = over(Planted(speed=_five_percent), ("overhead",), campaigns=12)["overhead"]
    # 82 in the long run: three compositions with a variance of their own find a little less than pooled ones.
    assert found.found >= 70
    assert found.wrong <= 15


def test_two_campaigns_of_one_truth_and_equal_configurations_are_ties() -> None:
    found = over(Planted(lease_sd=2.0), ("compare", "recommend"), campaigns=3)
    assert found["compare"].cover >= 85
    assert [found[name].wrong for name in ("fail-on", "recommend")] <= [13, 13]
