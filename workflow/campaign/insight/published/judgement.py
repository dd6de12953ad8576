"""Whether what was measured here agrees with a published claim, and how many claims a campaign comes near to.

A bound, a direction or a setting agrees where the whole interval here lies inside what the claim's words allow, and differs where
none of it does. A printed number agrees where the interval here reaches what rounds to it; an interval that holds `no effect` as
well decides nothing. Without an interval nothing is decided, nor with one that holds run-to-run variation of one composition only.
Of several values all have to agree, and one that differs is enough to
differ; their intervals hold together at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from campaign import wording
from campaign.config.published_file import Claim, Here
from campaign.insight.published import INPUT, NOT_HERE
from campaign.insight.published.quantities import ClaimValues, Value
from campaign.statistics.intervals import SIGNIFICANT

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


def judge(claim: Claim, here: Here, found: ClaimValues) -> tuple[Verdict, int]:
    """The verdict, and how many of the values agree."""
    if found.trend is not None:
        if found.trend.p_up < SIGNIFICANT:
            return "agrees", len(found.values)
        return "differs" if found.trend.p_down < SIGNIFICANT else "undecided", 0
    verdicts = [_of_value(claim, here, value) for value in found.values]
    return together(verdicts), verdicts.count("agrees")


def others(claim: Claim, here: Here, found: ClaimValues) -> tuple[str, ...]:
    """The conditions in which the campaign differs from the document."""
    absolute = claim.kind == "measured" and here.compute not in ("outcome", "largest_batch")
    unknown = ("the document does not name the device",) if absolute and "device" not in here.under else ()
    return (*unknown, *found.missed)


def accepted(claim: Claim, here: Here) -> tuple[float | None, float | None]:
    """The closed interval that agrees, in the unit of the computed quantity; None for an open end."""
    return here.expect or ((here.limit, None) if here.limit is not None else claim.accept)


def off_pct(claim: Claim, here: Here, found: ClaimValues) -> float | None:
    """How far the value that is furthest off is from what agrees, in percent of the nearer end; 0 inside.

    None where that means nothing: for a trend, a description, or an end of 0.
    """
    least, most = accepted(claim, here)
    if not (least or most):
        return None
    distances: list[float] = []
    for each in found.values if found.trend is None else ():
        if isinstance(each.value, str):
            return None
        end = (
            least
            if least is not None and each.value < least
            else most
            if most is not None and each.value > most
            else None
        )
        if end == 0:
            return None
        distances.append(0.0 if end is None else 100 * abs(each.value - end) / abs(end))
    return max(distances, default=None)


def together(verdicts: Collection[Verdict]) -> Verdict:
    """One that differs is enough to differ; all have to agree."""
    if "differs" in verdicts:
        return "differs"
    return "agrees" if set(verdicts) == {"agrees"} else "undecided"


def _of_value(claim: Claim, here: Here, value: Value) -> Verdict:
    if isinstance(value.value, str):
        return "agrees" if value.value == claim.value else "differs"
    least, most = accepted(claim, here)
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if value.exact:
        return "agrees" if low <= value.value <= high else "differs"
    if not value.tested or math.isnan(value.low) or math.isnan(value.high):
        return "undecided"
    if value.high < low or value.low > high:
        return "differs"
    if low <= value.low and value.high <= high:
        return "agrees"
    # A printed number is no limit, and nothing that is known from one side only.
    limit = claim.kind in ("bound", "direction", "setting") or here.expect is not None or here.limit is not None
    none = _NONE.get(here.compute, math.nan)
    no_effect = value.low <= none <= value.high and not low <= none <= high
    return "undecided" if limit or here.compute == "largest_batch" or no_effect else "agrees"


NEAR_PCT = 10.0
Near = Literal["inside", "near", "off"]


@dataclass(frozen=True)
class Score:
    """Claims: all but the inputs, those that the campaigns can reach, and how many of these are inside their range or near it."""

    claims: int
    reached: int
    inside: int
    near: int

    def __str__(self) -> str:
        return (
            f"{self.reached} of {wording.plural(self.claims, 'claim')} can be reached: {self.inside} inside the stated range, "
            f"{self.near} within {NEAR_PCT:g} % of it, {self.reached - self.inside - self.near} further off or undecided"
        )


def score(claims: Iterable[Mapping[str, Any]]) -> Score:
    """The score of claims as `claims.held_against` gives them."""
    known = [claim for claim in claims if claim["verdict"] != INPUT]
    found = [near for claim in known if (near := nearness(claim)) is not None]
    return Score(len(known), len(found), found.count("inside"), found.count("near"))


def nearness(claim: Mapping[str, Any]) -> Near | None:
    """Where what is here lies; None: the claim is not reached, or says nothing of speed.

    inside: it agrees, and each value lies inside what the claim accepts. near: each lies within 10 % of that. What the document
    states about how it was made decides; where it leaves that open, all ways have to be inside, or near. Other ways reach nothing.
    """
    cases = [case for case in claim.get("cases", ()) if case["stated"]]
    if claim["verdict"] in (NOT_HERE, INPUT) or not claim.get("scored") or not cases:
        return None
    if claim["verdict"] == "agrees" and not any(case["off_pct"] for case in cases):
        return "inside"
    distances = [0.0 if case["off_pct"] is None and case["verdict"] == "agrees" else case["off_pct"] for case in cases]
    return "near" if all(each is not None and each <= NEAR_PCT for each in distances) else "off"


def off(case: Mapping[str, Any]) -> str:
    """'12 % off', '' inside the range or where a distance means nothing."""
    distance = case["off_pct"]
    return f"{wording.percent(distance, 1)} off" if distance else ""
