"""Times of what never ran are those of the nearest that did, and what nobody knows of the difference widens their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.plan.cost.draws import Floats, assumed, estimates, normals, student
from campaign.plan.cost.measured_times import Features, MeasuredTimes, Observed


def measured(times: Mapping[str, tuple[Features, float]], runs: int = 3) -> MeasuredTimes:
    observed = {name: Observed(features, math.log(seconds), 0.0, runs) for name, (features, seconds) in times.items()}
    return MeasuredTimes("bert", observed)


def logs(times: MeasuredTimes, features: Features, name: str = "new", runs: float = math.inf) -> Floats:
    times.learn({name: features})
    found: Floats = np.log(times.draws([name], ["lease"], np.array([[runs]]))[0])
    return found


def spread(drawn: Floats) -> float:
    return float(drawn[1:].std())


def test_what_ran_takes_what_it_took() -> None:
    times = measured({"a": ({"batch": 2.0}, 10.0), "b": ({"batch": 3.0}, 500.0)}, runs=10_000)
    found = logs(times, {"batch": 3.0}, "b")
    assert math.exp(found[0]) == pytest.approx(500.0, rel=0.01)
    assert spread(found) < 0.01


def test_nearest_are_those_that_differ_in_what_matters_least() -> None:
    times = measured(
        {
            "same precision": ({"batch": 3.0, "precision": "fp16"}, 10.0),
            "same batch": ({"batch": 2.0, "precision": "fp32"}, 40.0),
        }
    )
    # Twice the batch usually takes 1.4 times as long; a mean is a little more than a median.
    found = logs(times, {"batch": 2.0, "precision": "fp16"})
    assert math.exp(found[0]) == pytest.approx(10.0 / 1.42, rel=0.1)


def test_between_two_it_is_surer_than_beyond_them() -> None:
    times = measured({"a": ({"batch": 2.0}, 10.0), "b": ({"batch": 4.0}, 20.0)})
    inside, beyond = (logs(times, {"batch": batch}, str(batch)) for batch in (3.0, 5.0))
    assert math.exp(inside[0]) == pytest.approx(math.sqrt(10 * 20), rel=0.05)
    assert spread(inside) < spread(beyond)


def test_of_a_surprise_all_intervals_know() -> None:
    usual = {str(batch): ({"batch": float(batch)}, 10.0 * 1.42**batch) for batch in range(8)}
    strange = usual | {"3": ({"batch": 3.0}, 1.0), "6": ({"batch": 6.0}, 1e4)}
    assert spread(logs(measured(strange), {"batch": 7.5})) > 2 * spread(logs(measured(usual), {"batch": 7.5}))


def test_what_only_failed_tells_nothing_of_others() -> None:
    failed = Observed({"batch": 2.0}, 0.0, 0.1, 3, typical=False)
    both = MeasuredTimes("bert", {"a": failed, "b": Observed({"batch": 9.0}, 5.0, 0.1, 3)})
    assert logs(both, {"batch": 2.0}, "a")[0] == pytest.approx(0.0, abs=0.05)
    assert logs(both, {"batch": 9.0})[0] == pytest.approx(5.0, abs=0.05)


def test_a_feature_that_no_cell_had_makes_it_less_sure() -> None:
    times = measured({"a": ({"batch": 2.0}, 10.0)})
    known, new = logs(times, {"batch": 2.0}), logs(times, {"batch": 2.0, "option size": 3.0}, "newer")
    assert new[0] == known[0]
    assert spread(new) > spread(known)


def test_of_what_is_hardly_known_the_interval_stays_around_what_is_expected() -> None:
    found = logs(measured({"a": ({"batch": 2.0}, 10.0)}), {"batch": 2.0, "option size": 20.0})
    assert found[0] - 1.1 < np.median(found[1:]) < found[0]
    assert np.sort(found)[-20] > found[0] + 5


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(["fp16", "fp32"]), st.floats(0.1, 1e4)), min_size=1, max_size=12
    ),
    st.integers(-2, 12),
    st.floats(0.01, 100.0),
)
def test_in_another_unit_of_time_it_is_the_same(rows: list[tuple[int, str, float]], batch: int, unit: float) -> None:
    def of(scale: float) -> Floats:
        rows_ = {str(n): ({"batch": float(b), "precision": p}, scale * s) for n, (b, p, s) in enumerate(rows)}
        return logs(measured(rows_), {"batch": float(batch), "precision": "fp16"})

    assert of(unit) - of(1.0) == pytest.approx(math.log(unit), abs=1e-6)


def test_cells_with_one_source_are_off_together() -> None:
    times = measured({"a": ({"batch": 2.0}, 10.0)})
    further, furthest = (logs(times, {"batch": batch}, str(batch))[1:] for batch in (5.0, 9.0))
    smaller = logs(times, {"batch": -4.0}, "smaller")[1:]
    assert np.corrcoef(further, furthest)[0, 1] > 0.8
    assert np.corrcoef(further, smaller)[0, 1] < -0.5


def test_many_runs_of_one_cell_are_less_noisy_than_one_but_no_surer_of_the_cell() -> None:
    times = MeasuredTimes("bert", {"a": Observed({}, 0.0, 0.2, 1000)})
    one, many = (logs(times, {}, "new", runs) for runs in (1.0, 10_000.0))
    assert spread(one) ** 2 == pytest.approx(spread(many) ** 2 + 0.04, rel=0.3)


def width(errors: Floats) -> float:
    (found,) = estimates(np.exp(errors))
    assert found.low_s is not None
    assert found.high_s is not None
    assert found.expected_s == 1.0
    return math.log(found.high_s / found.low_s) / 2


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.7764), (10, 2.2281), (1e6, 1.96)])
def test_errors_are_those_of_students_t(freedom: float, quantile: float) -> None:
    found = [width(0.1 * student(str(n), freedom) * normals([f"error {n}"])) for n in range(50)]
    assert np.mean(found) == pytest.approx(0.1 * quantile, rel=0.03)


def test_what_is_assumed_has_no_interval_and_what_is_unknown_no_sum() -> None:
    known = np.ones(400)
    (told, unknown) = estimates(np.stack([known + assumed(2.0), known + assumed(math.nan)]))
    assert (told.expected_s, told.low_s, told.high_s) == (3.0, None, None)
    assert (unknown.expected_s, unknown.low_s, unknown.high_s) == (None, None, None)
