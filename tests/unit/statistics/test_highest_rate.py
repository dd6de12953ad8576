"""The highest rate that holds: covers what was planted; censored, unknown and curves that are not monotone are said as such."""

from __future__ import annotations

import numpy as np
import pytest

from campaign.statistics.highest_rate import HighestRate, Objective, crossing, highest_rate, objectives
from campaign.statistics.latency_percentiles import Sample
from tests.planted_services import Service
from tests.services_under_truth import highest_rates_cover

TTFT, TPOT = Objective("ttft_ms", 90.0, 100.0), Objective("tpot_ms", 50.0, 50.0)
RATES = (10.0, 20.0, 30.0, 40.0)


def sample(scale: float, requests: int = 400, seed: int = 1) -> Sample:
    """Three compositions of independent requests whose 90th percentile is `scale`."""
    draw = np.random.default_rng(seed)
    runs = tuple(draw.exponential(scale / np.log(10), requests) for _ in range(3))
    return Sample(runs, np.arange(3))


def found(*scales: float, objective: Objective = TTFT, requests: int = 400) -> HighestRate:
    by_rate = {rate: sample(scale, requests, seed=int(rate)) for rate, scale in zip(RATES, scales, strict=True)}
    return highest_rate({objective: by_rate})


@pytest.mark.parametrize(("percent", "holds"), [(90.0, 37.0), (99.0, 33.0)])
@pytest.mark.parametrize(("compositions", "runs", "requests"), [(1, 2, 4000), (3, 2, 1000), (5, 2, 1000)])
def test_intervals_cover_the_rate_at_which_a_queue_reaches_its_limit(
    percent: float, holds: float, compositions: int, runs: int, requests: int
) -> None:
    of = Service(
        {},
        (15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0),
        compositions,
        runs,
        requests,
        lease_sd=0.02 if compositions > 1 else 0,
    )
    said = highest_rates_cover(of, percent, holds, campaigns=40)
    assert said.cover >= 92
    assert said.half < 30 or percent == 99.0


def test_a_crossing_lies_between_the_rates_around_it() -> None:
    of = found(40, 60, 150, 300)
    assert of.found == "crossed"
    assert 20 < of.value < 30
    assert of.low < of.value < of.high
    straight = [
        crossing(np.array([20.0, 30.0]), np.array([60.0, 150.0]), 100.0, way)
        for way in ("latency", "logarithm", "inverse")
    ]  # type: ignore[arg-type]
    assert straight == sorted(straight)


def test_where_no_rate_fails_or_holds_the_rate_is_censored() -> None:
    none_fails, none_holds = found(20, 25, 30, 35), found(300, 400, 500, 600)
    assert (none_fails.found, none_holds.found) == ("none fails", "none holds")
    assert np.isnan([none_fails.value, none_holds.value]).all()
    assert none_fails.low == 40.0
    assert none_holds.high == 10.0
    near = found(60, 70, 80, 98)
    assert near.found == "none fails"
    assert 20 < near.low < 40


def test_a_rate_that_holds_above_one_that_fails_does_not_count() -> None:
    of = found(40, 200, 300, 40)
    assert of.value < 20
    assert of.again == (40.0,)


def test_too_few_requests_tell_no_percentile() -> None:
    of = found(40, 60, 90, 200, objective=Objective("ttft_ms", 99.0, 500.0), requests=20)
    assert of.found == "not known"
    assert np.isnan([of.value, of.low, of.high]).all()


def test_of_several_objectives_the_first_that_is_crossed_decides() -> None:
    ttft = {rate: sample(scale, seed=int(rate)) for rate, scale in zip(RATES, (40, 60, 90, 150), strict=True)}
    tpot = {rate: sample(scale, seed=int(rate)) for rate, scale in zip(RATES, (90, 140, 300, 600), strict=True)}
    both = highest_rate({TTFT: ttft, TPOT: tpot})
    alone = highest_rate({TPOT: tpot})
    assert both.decides == TPOT
    assert (both.value, both.high) == (alone.value, alone.high)
    assert both.value < highest_rate({TTFT: ttft}).value


def test_a_rate_at_which_requests_fail_does_not_hold() -> None:
    failing = Sample(tuple(np.where(np.arange(400) % 5 == 0, np.inf, 10.0) for _ in range(3)), np.arange(3))
    of = highest_rate({TTFT: {10.0: sample(20), 20.0: failing}})
    assert (of.found, of.value, of.low) == ("crossed", 10.0, 10.0)


def test_objectives_are_read_as_workload_files_have_them() -> None:
    document = {"ttft_ms": {"p99": 500.0}, "tpot_ms": {"p50": 40.0, "p99": 100.0}}
    assert objectives(document) == (
        Objective("ttft_ms", 99.0, 500.0),
        Objective("tpot_ms", 50.0, 40.0),
        Objective("tpot_ms", 99.0, 100.0),
    )
