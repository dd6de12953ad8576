"""Times of what never ran are those of the nearest that did, and what nobody knows of the difference widens their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.plan.cost.measured_times import Features, LogTime, MeasuredTimes, Observed
from campaign.plan.cost.sums import Sum, expected


def measured(times: Mapping[str, tuple[Features, float]], runs: int = 3) -> MeasuredTimes:
    observed = {name: Observed(features, math.log(seconds), 0.0, runs) for name, (features, seconds) in times.items()}
    return MeasuredTimes(observed, run_sd=0.05, own_sd=0.25)


def spread(time: LogTime) -> float:
    return time.own + sum(sd**2 for sd in time.shared.values())


def test_what_ran_takes_what_it_took() -> None:
    times = measured({"a": ({"batch": 2.0}, 10.0), "b": ({"batch": 3.0}, 500.0)})
    (found,) = times.of({"b": {"batch": 3.0}}).values()
    assert math.exp(found.median) == pytest.approx(500.0)
    assert found.shared == {}


def test_nearest_are_those_that_differ_in_what_matters_least() -> None:
    times = measured(
        {
            "same precision": ({"batch": 3.0, "precision": "fp16"}, 10.0),
            "same batch": ({"batch": 2.0, "precision": "fp32"}, 40.0),
        }
    )
    (found,) = times.of({"new": {"batch": 2.0, "precision": "fp16"}}).values()
    # Twice the batch usually takes 1.4 times as long.
    assert math.exp(found.median) == pytest.approx(10.0 / 1.42, rel=0.01)
    assert set(found.shared) == {"batch", "same precision"}


def test_between_two_it_is_surer_than_beyond_them() -> None:
    times = measured({"a": ({"batch": 2.0}, 10.0), "b": ({"batch": 4.0}, 20.0)})
    inside, beyond = (times.of({"new": {"batch": batch}})["new"] for batch in (3.0, 5.0))
    assert math.exp(inside.median) == pytest.approx(math.sqrt(10 * 20))
    assert spread(inside) < spread(beyond)
    assert "batch" not in inside.shared


def test_of_a_surprise_all_intervals_know() -> None:
    usual = {str(batch): ({"batch": float(batch)}, 10.0 * 1.42**batch) for batch in range(8)}
    strange = usual | {"3": ({"batch": 3.0}, 1.0), "6": ({"batch": 6.0}, 1e4)}
    wanted = {"new": {"batch": 7.5}}
    assert spread(measured(strange).of(wanted)["new"]) > 4 * spread(measured(usual).of(wanted)["new"])


def test_what_only_failed_tells_nothing_of_others() -> None:
    failed = Observed({"batch": 2.0}, 0.0, 0.1, 3, typical=False)
    assert not MeasuredTimes({"a": failed}, 0.05, 0.25)
    both = MeasuredTimes({"a": failed, "b": Observed({"batch": 9.0}, 5.0, 0.1, 3)}, 0.05, 0.25)
    found = both.of({"a": {"batch": 2.0}, "new": {"batch": 9.0}})
    assert (found["a"].median, found["new"].median) == (0.0, 5.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(["fp16", "fp32"]), st.floats(0.1, 1e4)), min_size=1, max_size=12
    ),
    st.integers(-2, 12),
    st.floats(0.01, 100.0),
)
def test_in_another_unit_of_time_it_is_the_same(rows: list[tuple[int, str, float]], batch: int, unit: float) -> None:
    def of(scale: float) -> LogTime:
        rows_ = {str(n): ({"batch": float(b), "precision": p}, scale * s) for n, (b, p, s) in enumerate(rows)}
        return measured(rows_).of({"new": {"batch": float(batch), "precision": "fp16"}})["new"]

    one, other = of(1.0), of(unit)
    assert other.median - one.median == pytest.approx(math.log(unit), abs=1e-6)
    assert spread(other) == pytest.approx(spread(one), rel=1e-6)


def test_errors_from_one_source_add_up_and_others_even_out() -> None:
    def took(name: str, sd: float) -> Sum:
        total = Sum()
        total.add(LogTime(math.log(10.0), {"batch": sd}, 0.0, 0.0, math.inf), "bert", name)
        return total

    def half(*sums: Sum) -> float:
        whole = Sum()
        for each in sums:
            whole.include(each)
        estimate = whole.estimate()
        assert estimate.high_s is not None
        return math.log(estimate.high_s / (10.0 * len(sums)))

    alone = half(took("a", 0.1))
    assert alone == pytest.approx(0.196, rel=0.02)
    assert half(took("a", 0.1), took("b", 0.1)) == pytest.approx(alone)
    # Half as long a batch is off by as much the other way.
    assert half(took("a", 0.1), took("b", -0.1)) == pytest.approx(0, abs=1e-6)


def test_many_runs_of_one_cell_are_less_noisy_than_one_but_no_surer_of_the_cell() -> None:
    time = LogTime(0.0, {}, 0.04, 0.04, math.inf)
    one, many = Sum(), Sum()
    one.add(time, "bert", "cell")
    many.add(time, "bert", "cell", 10_000)
    widths = [math.log(each.estimate().high_s / each.expected_s) for each in (one, many)]  # type: ignore[operator]
    assert widths[1] == pytest.approx(widths[0] / math.sqrt(2), rel=0.02)


def test_few_values_make_wide_intervals() -> None:
    widths = []
    for freedom in (4.0, math.inf):
        total = Sum()
        total.add(LogTime(0.0, {"batch": 0.3}, 0.0, 0.0, freedom), "bert", "cell")
        estimate = total.estimate()
        widths.append(math.log(estimate.high_s or 0.0))
    assert widths[0] == pytest.approx(widths[1] * 2.776 / 1.96, rel=0.01)


def test_a_run_is_not_expected_to_exceed_its_limit() -> None:
    assert expected(LogTime(3.0, {}, 0.0, 0.0, 4.0), 5.0) == 5.0
