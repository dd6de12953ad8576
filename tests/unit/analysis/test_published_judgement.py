"""When a number here agrees with a published one, differs from it, or decides nothing."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from campaign.analysis.published.judgement import (
    compute_distance_pct,
    differs_confidently,
    judge_claim,
    list_condition_differences,
)
from campaign.analysis.published.quantities import ClaimValue, ClaimValues, Trend
from campaign.spec.published_file import CampaignMapping, Claim


def claim(kind: str, accept: tuple[float | None, float | None], **here: Any) -> Claim:
    return Claim(
        id="one",
        where="Table 1",
        quantity="q",
        unit="percent",
        conditions={},
        value=8.1,
        accept=accept,
        kind=kind,  # type: ignore[arg-type]
        basis="rounding",
        says="it is so",
        here=CampaignMapping(**{"compute": "throughput_drop_pct", **here}),
    )


def verdict(of: Claim, *values: tuple[float, float, float], exact: bool = False) -> str:
    assert of.here is not None
    return judge_claim(of, of.here, ClaimValues(tuple(ClaimValue(*value, "a cell", exact=exact) for value in values)))[
        0
    ]


PRINTED = claim("ratio", (8.05, 8.15))
BOUND = claim("bound", (None, 5.0))
SMALL = claim("bound", (0.0, 0.7))
BATCH = claim("measured", (10.0, 10.0), compute="largest_batch")


@pytest.mark.parametrize(
    ("of", "value", "expected"),
    [
        # A printed number agrees where the interval reaches it.
        (PRINTED, (7.4, 6.8, 8.1), "agrees"),
        (PRINTED, (7.4, 6.8, 8.0), "differs"),
        (PRINTED, (9.0, 8.2, 9.9), "differs"),
        (PRINTED, (8.1, 8.06, 8.14), "agrees"),
        (PRINTED, (8.1, nan, nan), "undecided"),
        # An interval that holds no effect at all cannot speak for 8.1 %.
        (PRINTED, (7.0, -3.0, 17.0), "undecided"),
        # A bound agrees where the whole interval keeps to it.
        (BOUND, (4.0, 3.0, 5.0), "agrees"),
        (BOUND, (-2.0, -3.0, -1.0), "agrees"),
        (BOUND, (4.9, 4.0, 5.8), "undecided"),
        (BOUND, (7.0, 5.1, 8.9), "differs"),
        (BOUND, (4.0, nan, nan), "undecided"),
        # The largest batch is open until a larger one fails.
        (BATCH, (6.0, 6.0, inf), "undecided"),
        (BATCH, (10.0, 10.0, 10.0), "agrees"),
        (BATCH, (12.0, 12.0, inf), "differs"),
    ],
)
def test_a_value_is_judged_by_its_interval_and_the_kind_of_claim(
    of: Claim, value: tuple[float, float, float], expected: str
) -> None:
    assert verdict(of, value) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.6, "agrees"), (0.8, "differs")])
def test_descriptions_are_judged_by_their_value(value: float, expected: str) -> None:
    assert verdict(SMALL, (value, value, value), exact=True) == expected


def test_all_values_have_to_agree() -> None:
    good, bad, unclear = (4.0, 3.0, 5.0), (7.0, 6.0, 8.0), (5.0, 4.0, 6.0)
    assert verdict(BOUND, good, good) == "agrees"
    assert verdict(BOUND, good, unclear) == "undecided"
    assert verdict(BOUND, good, unclear, bad) == "differs"


@pytest.mark.parametrize(
    ("trend", "expected"),
    [(Trend(10, 10, 0), "agrees"), (Trend(10, 9, 0), "undecided"), (Trend(10, 9, 1), "differs")],
)
def test_an_order_is_judged_by_its_pairs(trend: Trend, expected: str) -> None:
    rising = claim("direction", (None, None), along="batch")
    assert rising.here is not None
    values = (ClaimValue(1.0, 0.9, 1.1, "a cell"),)
    assert judge_claim(rising, rising.here, ClaimValues(values, (), trend))[0] == expected


def test_an_order_without_intervals_is_undecided() -> None:
    rising = claim("direction", (None, None), along="batch")
    assert rising.here is not None
    values = (ClaimValue(1.0, 0.9, 1.1, "a cell", tested=False),)
    assert judge_claim(rising, rising.here, ClaimValues(values, (), Trend(3, 3, 0)))[0] == "undecided"


RATIO = claim("ratio", (1.785, 1.795), compute="throughput_ratio")
TWICE = claim("ratio", (1.7, 2.05), compute="time_ratio").model_copy(update={"basis": "almost"})
FASTER = claim("bound", (50.0, None), compute="throughput_gain_pct")


@pytest.mark.parametrize(
    ("of", "value", "off"),
    [
        (PRINTED, 8.8, 0.05),
        (PRINTED, 7.0, 0.44),
        (PRINTED, 8.5, 0),  # 0.4 % of throughput from 8.15
        # 69 % off as a loss.
        (PRINTED, 2.5, 5.3),
        (RATIO, 1.786, 0),
        (RATIO, 1.826, 1.0),
        (TWICE, 1.07, 58.9),
        (TWICE, 2.0, 0),
        (BOUND, 4.9, 0),
        (BOUND, 5.1, 0.1),
        (FASTER, 44.0, 4.0),
    ],
)
def test_distances_are_those_of_throughput(of: Claim, value: float, off: float) -> None:
    assert of.here is not None
    found = ClaimValues((ClaimValue(value, value - 1, value + 1, "a cell"),))
    assert compute_distance_pct(of, of.here, found) == pytest.approx(off, abs=0.06)


@pytest.mark.parametrize(
    ("of", "value", "expected"),
    [
        (PRINTED, (8.8, 5.9, 11.6), False),
        (PRINTED, (2.5, 2.0, 3.0), True),
        (TWICE, (1.2, 1.1, 1.8), False),
        (TWICE, (1.2, 1.1, 1.3), True),
        (BOUND, (6.0, 4.0, 8.0), False),
        (BOUND, (6.0, 5.5, 8.0), True),
    ],
)
def test_only_a_whole_interval_outside_is_confident(
    of: Claim, value: tuple[float, float, float], expected: bool
) -> None:
    assert of.here is not None
    assert differs_confidently(of, of.here, ClaimValues((ClaimValue(*value, "a cell"),))) == expected


def test_an_absolute_number_of_an_unnamed_device_is_of_other_conditions() -> None:
    absolute = claim("measured", (5.0, 6.0), compute="link_one_way_gb_per_s", ends=("local", "local"))
    assert absolute.here is not None
    assert list_condition_differences(absolute, absolute.here, ClaimValues(())) == (
        "the document does not name the device",
    )
    named = claim("measured", (5.0, 6.0), compute="link_one_way_gb_per_s", under={"device": ("a100",)})
    assert named.here is not None
    assert list_condition_differences(named, named.here, ClaimValues((), ("device b instead of a100",))) == (
        "device b instead of a100",
    )
