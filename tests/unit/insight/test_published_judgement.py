"""When a number here agrees with a published one, differs from it, or decides nothing."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from campaign.config.published_file import Claim, Here
from campaign.insight.published.judgement import judge, others
from campaign.insight.published.quantities import ClaimValues, Trend, Value


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
        here=Here(**{"compute": "throughput_drop_pct", **here}),
    )


def verdict(of: Claim, *values: tuple[float, float, float], exact: bool = False) -> str:
    assert of.here is not None
    return judge(of, of.here, ClaimValues(tuple(Value(*value, "a cell", exact=exact) for value in values)))[0]


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
    ("p_up", "p_down", "expected"), [(0.01, 0.99, "agrees"), (0.99, 0.01, "differs"), (0.3, 0.7, "undecided")]
)
def test_a_trend_is_judged_by_its_test(p_up: float, p_down: float, expected: str) -> None:
    rising = claim("direction", (None, None), along="batch")
    assert rising.here is not None
    assert judge(rising, rising.here, ClaimValues((), (), Trend(0.5, p_up, p_down)))[0] == expected


def test_an_absolute_number_of_an_unnamed_device_is_of_other_conditions() -> None:
    absolute = claim("measured", (5.0, 6.0), compute="link_one_way_gb_per_s", ends=("local", "local"))
    assert absolute.here is not None
    assert others(absolute, absolute.here, ClaimValues(())) == ("the document does not name the device",)
    named = claim("measured", (5.0, 6.0), compute="link_one_way_gb_per_s", under={"device": ("a100",)})
    assert named.here is not None
    assert others(named, named.here, ClaimValues((), ("device b instead of a100",))) == ("device b instead of a100",)
