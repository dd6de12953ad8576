"""Numbers in words: significant digits, true minus signs, and no interval that does not exist."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from campaign.common import intervals, wording
from campaign.spec.record import Status


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1234.6, "1,235"),
        (999.7, "1,000"),
        (43.51, "43.5"),
        (0.01234, "0.0123"),
        (9.996, "10.0"),
        (0.0, "0.00"),
        (-2.5, "−2.50"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_number(value: float | None, said: str) -> None:
    assert wording.number(value) == said


def test_rates_show_the_digit_in_which_careful_runs_differ() -> None:
    assert wording.between(108.81, 109.27, wording.rate) == "108.8 to 109.3"
    assert wording.rate(5365.4) == "5,365"


def test_percent_has_no_negative_zero() -> None:
    assert wording.percent(-0.01) == "0.0\u202f%"
    assert wording.percent(-8.14) == "−8.1\u202f%"


@pytest.mark.parametrize(
    ("value", "said"), [(0.42, "0.42"), (95.0, "95"), (110.0, "110"), (720.0, "12"), (12240.0, "3.4")]
)
def test_seconds(value: float, said: str) -> None:
    assert wording.seconds(value).split("\u202f")[0] == said


def test_with_interval_says_when_there_is_none() -> None:
    assert wording.with_interval(2.0, 1.5, 2.5, wording.times) == "2.00× [1.50× to 2.50×]"
    assert wording.with_interval(2.0, 1.5, 2.5, wording.times, "bert") == "2.00× [1.50× to 2.50×] (bert)"
    assert wording.with_interval(2.0, math.nan, math.nan, wording.times, "bert") == "2.00× (one run, no interval; bert)"


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("hosts", 1, "1 host"),
        ("ranks", 4, "4 devices"),
        ("batch", 8, "batch 8"),
        ("option_lr", 0.5, "lr 0.5"),
        ("precision", "fp32", "fp32"),
    ],
)
def test_axis(column: str, value: object, said: str) -> None:
    assert wording.axis(column, value) == said


def test_shape_names_part_of_a_host_and_several_hosts() -> None:
    row = {"hosts": 2, "devices_used": 2, "devices_per_host": 4, "attach": "hybrid", "local_devices_per_host": 1}
    assert wording.shape(row) == "2 hosts × 2 of 4 devices"
    assert wording.shape({**row, "hosts": 1, "devices_used": 4}) == "4 devices"
    assert wording.attached(row) == "hybrid (1 of 4 local)"
    assert wording.attached({**row, "attach": "hybrid-p2p"}) == "hybrid, peer-to-peer (1 of 4 local)"
    assert wording.attached({**row, "attach": "fabric-p2p"}) == "fabric, peer-to-peer"


def test_runs_behind_and_protocol() -> None:
    assert wording.runs_behind([3, 5, 0]) == "n = 3 to 5 runs"
    assert wording.runs_behind([1]) == "n = 1 run"
    assert wording.protocol({"warm_up_steps": 5, "seed": 1}) == "warm up steps 5, seed 1"
    blocks = {"compositions": 1, "lease_order": "blocks", "order": "blocks", "repetitions": 3}
    assert (
        wording.protocol(blocks)
        == "1 composition, leases in randomised blocks, runs in randomised blocks, 3 repetitions"
    )
    assert wording.protocol({}) == "not recorded"


def test_a_count_has_no_decimals() -> None:
    assert wording.count(8.0) == "8"
    assert wording.count(12_800) == "12,800"


def test_where_no_row_has_an_interval_a_caption_says_so() -> None:
    assert wording.interval_of(wording.by_runs([3, 1, 0])) == "mean with 95 % interval"
    assert wording.interval_of(wording.by_runs([1, 0])) == "one run each, so no interval"
    assert wording.interval_of([intervals.BETWEEN], "95 % interval") == "95 % interval"
    assert wording.interval_of([intervals.NOT_POSITIVE]) == "no interval"


def test_every_status_has_words_of_its_own() -> None:
    said = [wording.statuses(status) for status in get_args(Status)]
    assert len(set(said)) == len(said)
    assert not set(said) & set(get_args(Status))
    assert wording.statuses("oom_device x4, nan") == "out of memory, 4 runs; loss not a number, 1 run"
    assert wording.statuses("implied x4") == "implied, not run"
    assert wording.statuses("not told") == "not told"


def test_an_alternative_is_the_first_two_findings() -> None:
    assert wording.alternative(("One.", "Two.", "Three.")) == "One. Two."
    assert wording.alternative(()) == ""


def test_how_intervals_were_made_is_said_once_and_without_those_that_were_not() -> None:
    methods = [intervals.BETWEEN, intervals.ONE_RUN, intervals.BCA, intervals.BETWEEN]
    assert wording.made_by(methods) == " (t over compositions; BCa bootstrap)"
    assert wording.made_by([intervals.NO_RUN, ""]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "under 1 s"),
        (0.4, "under 1 s"),
        (0.6, "1 s"),
        (89.4, "89 s"),
        (90, "1 min 30 s"),
        (3600, "60 min 0 s"),
        (5400, "1 h 30 min"),
        (86400, "24 h 0 min"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text
