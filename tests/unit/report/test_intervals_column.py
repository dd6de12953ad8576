"""Intervals in a table: where they stand on the scale that they share."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.report.intervals_column import WIDTH, Interval, build_intervals_column, choose_ticks

NAN = math.nan


def x(path: str) -> list[float]:
    """The places of a path along the scale."""
    return [float(each) for each in re.findall(r"[MH](-?[\d.]+)", path)]


def test_a_value_stands_between_its_ends_and_on_the_scale_of_the_ticks() -> None:
    drawn = build_intervals_column([Interval(-5.0, -8.0, -2.0, "worse"), Interval(4.0, 1.0, 7.0, "better")])
    first, second = drawn["rows"]
    place = {text: at for at, text in drawn["ticks"]}
    assert {"−10", "0", "10"} <= place.keys()
    assert x(first["line"])[0] < x(first["point"])[0] < x(first["line"])[1] < place["0"]
    assert x(first["point"])[0] == pytest.approx((place["−10"] + place["0"]) / 2, abs=0.1)
    assert x(drawn["zero"])[0] == place["0"] < x(second["line"])[0]
    assert (first["kind"], second["kind"]) == ("worse", "better")


def test_what_is_not_known_is_not_drawn_and_what_has_no_end_goes_to_the_edge() -> None:
    drawn = build_intervals_column([Interval(3.0, NAN, NAN), Interval(1.0, -1.0, math.inf), Interval(NAN, 1.0, 2.0)])
    alone, endless, line_only = drawn["rows"]
    assert (bool(alone["point"]), alone["line"]) == (True, "")
    assert x(endless["line"])[1] == max(at for at, _ in drawn["ticks"])
    assert (line_only["point"], bool(line_only["line"])) == ("", True)
    assert build_intervals_column([])["rows"] == []


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 3), min_size=1, max_size=5))
def test_all_of_it_is_in_the_picture(numbers: list[tuple[float, float, float]]) -> None:
    drawn = build_intervals_column([Interval(value, low, high) for value, low, high in numbers])
    for row in drawn["rows"]:
        assert all(0 < at < WIDTH for at in (*x(row["point"]), *x(row["line"])))
    assert len({text for _, text in drawn["ticks"]}) == len(drawn["ticks"]) <= 6


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_hold_what_they_are_for(low: float, more: float) -> None:
    found = choose_ticks(low, low + more)
    assert 3 <= len(found) <= 6
    assert found[0] <= low + 1e-6 * abs(low)
    assert found[-1] >= (low + more) * (1 - 1e-6 * (low + more > 0)) - 1e-9
