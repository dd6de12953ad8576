"""Whether what is here agrees with a published claim, and how many claims a campaign comes near to.

Measured: a bound, a direction or a setting agrees where the whole interval here lies inside what the claim's words allow, and
differs where none of it does. A printed number agrees where the interval here reaches what rounds to it; an interval that holds `no
effect` as well decides nothing. Without an interval nothing is decided, nor with one that holds run-to-run variation of one
composition only.

Of several values all have to agree, and one that differs is enough to differ. An order is judged by its pairs, which all have to be
in order.
Distances are those of throughput: a loss of 2.5 % is 6 % off where 8.1 % was published.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from campaign.analysis.published.quantities import ClaimValues, Value
from campaign.common import wording
from campaign.spec.published_file import Claim, Here

ClaimVerdict = Literal["agrees", "differs", "undecided"]

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


REPEATED_PCT = 0.7
"""Distance from a printed number that counts as none: the smaller of the two variations that a study (FASTER) prints for
repeating a measurement."""


def judge(claim: Claim, here: Here, found: ClaimValues) -> tuple[ClaimVerdict, int]:
    """The verdict, and how many of the values agree."""
    if (trend := found.trend) is not None:
        if trend.in_order == trend.pairs and all(value.tested for value in found.values):
            return "agrees", len(found.values)
        return "differs" if trend.opposite else "undecided", 0
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
    """How far the value that is furthest off is from what agrees, in percent of the throughput at the nearer end; 0 inside.

    None where that means nothing: for an order, a description, or an end of 0.
    """
    ends = printed_rates(claim, here)
    distances = [0.0]
    for each in found.values if found.trend is None else ():
        if isinstance(each.value, str):
            return None
        rate = _rate(here, each.value)
        end = ends[0] if rate < ends[0] else ends[1] if rate > ends[1] else rate
        if end == 0 or math.isnan(rate / end):
            return None
        distances.append(100 * abs(rate / end - 1))
    return None if found.trend else max(distances)


def confident(claim: Claim, here: Here, found: ClaimValues) -> bool:
    """Whether a value is outside of what agrees with its whole interval, or a pair in the opposite order."""
    if found.trend is not None:
        return found.trend.opposite > 0
    low, high = printed_rates(claim, here)
    numbers = [value for value in found.values if not isinstance(value.value, str) and not math.isnan(value.low)]
    ends = [sorted((_rate(here, value.low), _rate(here, value.high))) for value in numbers]
    return any(most < low or least > high for least, most in ends)


def _is_printed(claim: Claim, here: Here) -> bool:
    """Whether the document prints a number, neither a limit nor a count."""
    is_read = here.expect is not None or here.limit is not None or here.compute == "largest_batch"
    return claim.kind in ("measured", "ratio") and isinstance(claim.value, float | tuple) and not is_read


def _rate(here: Here, value: float) -> float:
    """The throughput that a value stands for, relative to what it is held against."""
    if here.compute in ("throughput_drop_pct", "throughput_gain_pct", "time_increase_pct"):
        share = value / 100 if here.compute != "throughput_drop_pct" else -value / 100
        return 1 / (1 + share) if here.compute == "time_increase_pct" else 1 + share
    return 1 / value if here.compute == "time_ratio" else value


def printed_rates(claim: Claim, here: Here) -> tuple[float, float]:
    """Least and most throughput that agrees, relative to what it is held against, with what a printed number is met within."""
    low, high = accepted(claim, here)
    ends = [None if end is None else _rate(here, end) for end in (low, high)]
    least, most = reversed(ends) if here.compute in ("time_ratio", "time_increase_pct", "throughput_drop_pct") else ends
    near = 1 + (REPEATED_PCT / 100 if _is_printed(claim, here) and claim.basis == "rounding" else 0.0)
    return -math.inf if least is None else least / near, math.inf if most is None else most * near


def together(verdicts: Collection[ClaimVerdict]) -> ClaimVerdict:
    """One that differs is enough to differ; all have to agree."""
    if "differs" in verdicts:
        return "differs"
    return "agrees" if set(verdicts) == {"agrees"} else "undecided"


def _of_value(claim: Claim, here: Here, value: Value) -> ClaimVerdict:
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
    """claims: how many there are; reached: those that the campaigns say something of. inside, near: of these, within what the words
    allow, or within 10 % of it. confident: of these, directions that are reversed with the whole interval."""

    claims: int
    reached: int
    inside: int
    near: int
    confident: int

    def __str__(self) -> str:
        words = (
            f"{self.reached} of {wording.pluralize(self.claims, 'claim')} can be reached: {self.inside} inside the stated range, "
            f"{self.near} within {NEAR_PCT:g} % of it, {self.reached - self.inside - self.near} further off or undecided"
        )
        return (
            words
            if not self.confident
            else f"{words}; {wording.pluralize(self.confident, 'direction')} reversed with confidence"
        )


def score(claims: Iterable[Mapping[str, Any]]) -> Score:
    """The score of claims as `claims.held_against` gives them. What several campaigns reach counts once, by the first of them."""
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for claim in claims:
        key = claim["document"], claim["id"]
        if key not in known or nearness(known[key]) is None:
            known[key] = claim
    reached = {key: near for key, claim in known.items() if (near := nearness(claim)) is not None}
    found = list(reached.values())
    reversed_ = sum(known[key]["confident"] and known[key]["direction"] for key in reached)
    return Score(len(known), len(found), found.count("inside"), found.count("near"), reversed_)


def nearness(claim: Mapping[str, Any]) -> Near | None:
    """Where what is here lies; None: the claim is not reached, or says nothing of a training step.

    inside: it agrees, and each value lies inside what the claim accepts. near: each lies within 10 % of that.
    """
    if claim["verdict"] not in ("agrees", "differs", "undecided") or not claim.get("scored"):
        return None
    off = claim["off_pct"]
    if claim["verdict"] == "agrees" and not off:
        return "inside"
    return "near" if off is not None and off <= NEAR_PCT else "off"


def off(claim: Mapping[str, Any]) -> str:
    """'12 % off', '' inside the range or where a distance means nothing."""
    distance = claim.get("off_pct")
    return f"{wording.format_percent(distance, 1)} off" if distance else ""
