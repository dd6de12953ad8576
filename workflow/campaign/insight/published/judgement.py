"""Whether what was measured here agrees with a published claim.

A bound, a direction or a setting agrees where the whole interval here lies inside what the claim's words allow, and differs where
none of it does. A printed number agrees where the interval here reaches what rounds to it; an interval that holds `no effect` as
well decides nothing. Without an interval nothing is decided. Of several values all have to agree, and one that differs is enough to
differ; their intervals hold together at 95 %.
"""

from __future__ import annotations

import math
from typing import Literal

from campaign.config.published_file import Claim, Here, Interval
from campaign.insight.published.quantities import Found, Trend, Value
from campaign.statistics import SIGNIFICANT

Verdict = Literal["agrees", "differs", "undecided"]

# The value of a quantity that means no effect.
_NONE = {
    "throughput_drop_pct": 0.0,
    "throughput_gain_pct": 0.0,
    "time_increase_pct": 0.0,
    "throughput_ratio": 1.0,
    "time_ratio": 1.0,
    "metric_ratio": 1.0,
    "link_ratio": 1.0,
}


def judge(claim: Claim, here: Here, found: Found) -> tuple[Verdict, int]:
    """The verdict, and how many of the values agree."""
    if found.trend is not None:
        verdict = _of_trend(found.trend)
        return verdict, len(found.values) if verdict == "agrees" else 0
    verdicts = [_of_value(claim, here, value) for value in found.values]
    agreeing = verdicts.count("agrees")
    if "differs" in verdicts:
        return "differs", agreeing
    return ("agrees" if verdicts and agreeing == len(verdicts) else "undecided"), agreeing


def allowed(claim: Claim, here: Here) -> Interval:
    """The closed interval that agrees, in the unit of the computed quantity."""
    if here.expect is not None:
        return here.expect
    return (here.limit, None) if here.limit is not None else claim.accept


def others(claim: Claim, here: Here, found: Found) -> tuple[str, ...]:
    """The conditions in which the campaign differs from the document."""
    absolute = claim.kind == "measured" and here.compute not in ("outcome", "largest_batch")
    unknown = ("the document does not name the device",) if absolute and "device" not in here.under else ()
    return (*unknown, *found.missed)


def _of_trend(trend: Trend) -> Verdict:
    if trend.p_up < SIGNIFICANT:
        return "agrees"
    return "differs" if trend.p_down < SIGNIFICANT else "undecided"


def _of_value(claim: Claim, here: Here, value: Value) -> Verdict:
    if isinstance(value.value, str):
        return "agrees" if value.value == claim.value else "differs"
    low, high = (
        math.inf * sign if bound is None else bound for sign, bound in zip((-1, 1), allowed(claim, here), strict=True)
    )
    if value.exact:
        return "agrees" if low <= value.value <= high else "differs"
    if math.isnan(value.low) or math.isnan(value.high):
        return "undecided"
    if value.high < low or value.low > high:
        return "differs"
    if low <= value.low and value.high <= high:
        return "agrees"
    return "agrees" if _names_a_number(claim, here) and not _holds_none(here, value, low, high) else "undecided"


def _names_a_number(claim: Claim, here: Here) -> bool:
    """Not a limit, and nothing that is known from one side only."""
    limit = claim.kind in ("bound", "direction", "setting") or here.expect is not None or here.limit is not None
    return not limit and here.compute != "largest_batch"


def _holds_none(here: Here, value: Value, low: float, high: float) -> bool:
    none = _NONE.get(here.compute, math.nan)
    return value.low <= none <= value.high and not low <= none <= high
