from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers.expressions import Parser, needle, parse

LOG = """\
warming up {not json}
\x1b[32mrate: 10.0\x1b[0m samples/s
{"step": 1, "time": {"s": 0.5}, "ok": true}
rate: 30 samples/s
  50%|#####     | loss: 2.5\r100%|##########| loss: 1.5\r
info {"step": 2, "time": {"s": 0.25}}
rate: fast samples/s
rate: 20.0 samples/s
"""


def numbers(log: str = LOG, ranks: int = 1, **parser: Any) -> dict[str, float]:
    found, _, _ = parse([Parser(metric="x", **parser)], Log.of(log), ranks)
    return found


@pytest.mark.parametrize(
    ("take", "expected"), [("last", 20.0), ("first", 10.0), ("min", 10.0), ("max", 30.0), ("mean", 20.0), ("sum", 60.0)]
)
def test_one_of_several_matches_counts(take: Any, expected: float) -> None:
    assert numbers(regex=r"rate: (\S+)", take=take) == {"x": expected}


def test_all_matches_are_a_series_in_order() -> None:
    found, series, absent = parse(
        [Parser(metric="step_time_s", regex=r"rate: (\S+)", take="all", scale=0.1)], Log.of(LOG), 1
    )
    assert (found, absent) == ({}, [])
    assert series["step_time_s"] == pytest.approx([1.0, 3.0, 2.0])


def test_progress_bars_and_colours_do_not_hide_a_number() -> None:
    assert numbers(regex=r"loss: (\S+)$") == {"x": 1.5}
    assert numbers(regex=r"^rate: (\S+)", take="first") == {"x": 10.0}


def test_json_lines_are_read_by_key_with_and_without_a_prefix() -> None:
    assert numbers(json_key="time.s", take="sum") == {"x": 0.75}
    assert numbers(json_key="step") == {"x": 2.0}


@pytest.mark.parametrize("key", ["ok", "time", "absent", "step.deeper", "time.ms"])
def test_what_is_no_number_is_not_found(key: str) -> None:
    found, _, absent = parse([Parser(metric="x", json_key=key)], Log.of(LOG), 1)
    assert (found, absent) == ({}, [f"x ({key})"])


def test_a_number_that_is_not_required_may_be_absent() -> None:
    assert parse([Parser(metric="x", regex="none: (.)", required=False)], Log.of(LOG), 1) == ({}, {}, [])


def test_rates_per_device_are_multiplied_by_the_ranks_and_units_are_scaled() -> None:
    assert numbers(ranks=4, regex=r"rate: (\S+)", scope="per_device", scale=0.5) == {"x": 40.0}
    assert numbers(ranks=4, regex=r"rate: (\S+)", scope="total") == {"x": 20.0}


@pytest.mark.parametrize("take", ["mean", "sum"])
def test_infinities_that_cancel_are_not_a_number(take: Any) -> None:
    assert math.isnan(numbers("v: inf\nv: -inf\n", regex=r"v: (\S+)", take=take)["x"])


def test_numbers_beyond_floats_and_bottomless_json_are_passed_over() -> None:
    log = f'{{"x": 1{"0" * 400}}}\n{{"x": {"[" * 100_000}\n{{"x": 3}}\n'
    assert numbers(log, json_key="x", take="sum") == {"x": 3.0}


@given(st.text(max_size=200), st.sampled_from(["last", "first", "min", "max", "mean", "sum", "all"]))
def test_any_output_is_read(log: str, take: Any) -> None:
    parsers = [Parser(metric="a", regex=r"(\d+)", take=take), Parser(metric="b", json_key="b", take=take)]
    found, series, absent = parse(parsers, Log.of(log), 2)
    assert {*found, *series, *(name.split()[0] for name in absent)} == {"a", "b"}


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        (r"rate: (\S+)", "rate: "),
        (r"^(\d+) img/sec total$", " img/sec total"),
        (r"a+bc?d (\d+)", "d "),
        (r"x{3}loss=(\S+)", "loss="),
        (r"\[rank\] v(\d)", "rank"),
        (r"[rate: ]+(\d+)", ""),
        (r"(?i)rate: (\d+)", ""),
        (r"rate: (\d+)|speed: 1", ""),
        (r"(?:rate: )?(\d+)", ""),
        (r"(\d+)", ""),
    ],
)
def test_what_every_match_holds_is_found_in_a_regular_expression(regex: str, expected: str) -> None:
    assert needle(Parser(metric="x", regex=regex)) == expected


@given(
    st.text('ra: 0.5\nte{}"x,1', max_size=80), st.sampled_from([r"ra?te: (\d)", r"ra*: ?(\S+)", r"t+e(.)", r"(\d)x"])
)
def test_lines_that_are_passed_over_have_no_match(log: str, regex: str) -> None:
    parser = Parser(metric="x", regex=regex, take="all", required=False)
    found = [match[1] for line in log.split("\n") for match in re.finditer(regex, line)]
    values = [float(text) for text in found if re.fullmatch(r"\d*\.?\d+|\d+\.?", text)]
    _, series, _ = parse([parser], Log.of(log), 1)
    assert list(series.get("x", ())) == values


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60))
def test_sums_and_means_lose_nothing_on_the_way(values: list[float]) -> None:
    log = "".join(f"v: {value!r}\n" for value in values)
    scale = max(map(abs, values)) + 1
    assert numbers(log, regex=r"v: (\S+)", take="sum")["x"] == pytest.approx(math.fsum(values), abs=1e-15 * scale)
    mean = math.fsum(values) / len(values)
    assert numbers(log, regex=r"v: (\S+)", take="mean")["x"] == pytest.approx(mean, abs=1e-15 * scale)
