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
    assert wording.format_number(value) == said


def test_rates_show_the_digit_in_which_careful_runs_differ() -> None:
    assert wording.format_range(108.81, 109.27, wording.format_rate) == "108.8 to 109.3"
    assert wording.format_rate(5365.4) == "5,365"


def test_percent_has_no_negative_zero() -> None:
    assert wording.format_percent(-0.01) == "0.0\u202f%"
    assert wording.format_percent(-8.14) == "−8.1\u202f%"


@pytest.mark.parametrize(
    ("value", "said"), [(0.42, "0.42"), (95.0, "95"), (110.0, "110"), (720.0, "12"), (12240.0, "3.4")]
)
def test_seconds(value: float, said: str) -> None:
    assert wording.format_seconds(value).split("\u202f")[0] == said


def test_with_interval_says_when_there_is_none() -> None:
    assert wording.format_with_interval(2.0, 1.5, 2.5, wording.format_ratio) == "2.00× [1.50× to 2.50×]"
    assert wording.format_with_interval(2.0, 1.5, 2.5, wording.format_ratio, "bert") == "2.00× [1.50× to 2.50×] (bert)"
    assert (
        wording.format_with_interval(2.0, math.nan, math.nan, wording.format_ratio, "bert")
        == "2.00× (one run, no interval; bert)"
    )


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
    assert wording.format_axis_value(column, value) == said


def test_shape_names_part_of_a_host_and_several_hosts() -> None:
    row = {"hosts": 2, "devices_used": 2, "devices_per_host": 4, "attach": "hybrid", "local_devices_per_host": 1}
    assert wording.format_device_counts(row) == "2 hosts × 2 of 4 devices"
    assert wording.format_device_counts({**row, "hosts": 1, "devices_used": 4}) == "4 devices"
    assert wording.describe_attachment(row) == "hybrid (1 of 4 local)"
    assert wording.describe_attachment({**row, "attach": "hybrid-p2p"}) == "hybrid, peer-to-peer (1 of 4 local)"
    assert wording.describe_attachment({**row, "attach": "fabric-p2p"}) == "fabric, peer-to-peer"


def test_runs_behind_and_protocol() -> None:
    assert wording.format_run_counts([3, 5, 0]) == "n = 3 to 5 runs"
    assert wording.format_run_counts([1]) == "n = 1 run"
    assert wording.describe_protocol({"warm_up_steps": 5, "seed": 1}) == "warm up steps 5, seed 1"
    blocks = {"compositions": 1, "lease_order": "blocks", "order": "blocks", "repetitions": 3}
    assert (
        wording.describe_protocol(blocks)
        == "1 composition, leases in randomised blocks, runs in randomised blocks, 3 repetitions"
    )
    assert wording.describe_protocol({}) == "not recorded"


def test_a_count_has_no_decimals() -> None:
    assert wording.format_count(8.0) == "8"
    assert wording.format_count(12_800) == "12,800"


def test_where_no_row_has_an_interval_a_caption_says_so() -> None:
    assert wording.describe_intervals(wording.list_interval_methods([3, 1, 0])) == "mean with 95 % interval"
    assert wording.describe_intervals(wording.list_interval_methods([1, 0])) == "one run each, so no interval"
    assert wording.describe_intervals([intervals.T_OVER_COMPOSITIONS], "95 % interval") == "95 % interval"
    assert wording.describe_intervals([intervals.NO_INTERVAL_NOT_POSITIVE]) == "no interval"


def test_every_status_has_words_of_its_own() -> None:
    said = [wording.format_status_counts(status) for status in get_args(Status)]
    assert len(set(said)) == len(said)
    assert not set(said) & set(get_args(Status))
    assert wording.format_status_counts("oom_device x4, nan") == "out of memory, 4 runs; loss not a number, 1 run"
    assert wording.format_status_counts("implied x4") == "implied, not run"
    assert wording.format_status_counts("not told") == "not told"


def test_an_alternative_is_the_first_two_findings() -> None:
    assert wording.write_alt_text(("One.", "Two.", "Three.")) == "One. Two."
    assert wording.write_alt_text(()) == ""


def test_how_intervals_were_made_is_said_once_and_without_those_that_were_not() -> None:
    methods = [
        intervals.T_OVER_COMPOSITIONS,
        intervals.NO_INTERVAL_ONE_RUN,
        intervals.BCA_BOOTSTRAP,
        intervals.T_OVER_COMPOSITIONS,
    ]
    assert wording.format_interval_methods(methods) == " (t over compositions; BCa bootstrap)"
    assert wording.format_interval_methods([intervals.NO_INTERVAL_NO_RUN, ""]) == ""


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
    assert wording.format_duration(seconds) == text
