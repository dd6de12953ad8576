"""Judgement of published claims: agreement with the measured values, and a score over many claims.

Measured values: a bound, a direction or a setting agrees if the whole measured interval lies inside the accepted range of the
claim, and differs if the interval is entirely outside. A printed number agrees if the measured interval overlaps the range that
rounds to it; an interval that also includes `no effect` is undecided. A value without an interval is undecided, and so is a
value whose interval holds run-to-run variation of one composition only.

Of several values all have to agree, and one that differs is enough to differ. An order is judged by its pairs, which all have to
be in order.
Distances are those of throughput: a loss of 2.5 % is 6 % off if 8.1 % was published.
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

# Value of each quantity that means no effect.
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
    """Return the verdict on a claim, and the number of measured values that agree."""
    if (trend := found.trend) is not None:
        if trend.in_order == trend.pairs and all(value.tested for value in found.values):
            return "agrees", len(found.values)
        return "differs" if trend.opposite else "undecided", 0
    verdicts = [_of_value(claim, here, value) for value in found.values]
    return together(verdicts), verdicts.count("agrees")


def others(claim: Claim, here: Here, found: ClaimValues) -> tuple[str, ...]:
    """Return the conditions in which the campaign differs from the document."""
    absolute = claim.kind == "measured" and here.compute not in ("outcome", "largest_batch")
    unknown = ("the document does not name the device",) if absolute and "device" not in here.under else ()
    return (*unknown, *found.missed)


def accepted(claim: Claim, here: Here) -> tuple[float | None, float | None]:
    """Return the closed interval of values that agree with a claim, in the unit of the computed quantity.

    An open end is None.
    """
    return here.expect or ((here.limit, None) if here.limit is not None else claim.accept)


def off_pct(claim: Claim, here: Here, found: ClaimValues) -> float | None:
    """Return the largest distance of the values from the accepted range, in percent of the throughput at the nearer end.

    The distance is 0 inside the range. Return None if a distance is meaningless: for an order, a description, or an end of 0.
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
    """Return whether a value's whole interval is outside the accepted range, or a pair is in the opposite order."""
    if found.trend is not None:
        return found.trend.opposite > 0
    low, high = printed_rates(claim, here)
    numbers = [value for value in found.values if not isinstance(value.value, str) and not math.isnan(value.low)]
    ends = [sorted((_rate(here, value.low), _rate(here, value.high))) for value in numbers]
    return any(most < low or least > high for least, most in ends)


def _is_printed(claim: Claim, here: Here) -> bool:
    """Return whether the document prints a number that is neither a limit nor a count."""
    is_read = here.expect is not None or here.limit is not None or here.compute == "largest_batch"
    return claim.kind in ("measured", "ratio") and isinstance(claim.value, float | tuple) and not is_read


def _rate(here: Here, value: float) -> float:
    """Convert a value of a claim's quantity to throughput relative to the reference."""
    if here.compute in ("throughput_drop_pct", "throughput_gain_pct", "time_increase_pct"):
        share = value / 100 if here.compute != "throughput_drop_pct" else -value / 100
        return 1 / (1 + share) if here.compute == "time_increase_pct" else 1 + share
    return 1 / value if here.compute == "time_ratio" else value


def printed_rates(claim: Claim, here: Here) -> tuple[float, float]:
    """Return the lowest and highest relative throughput that agrees with a claim.

    A printed number is widened by `REPEATABILITY_PCT`.
    """
    low, high = accepted(claim, here)
    ends = [None if end is None else _rate(here, end) for end in (low, high)]
    least, most = reversed(ends) if here.compute in ("time_ratio", "time_increase_pct", "throughput_drop_pct") else ends
    near = 1 + (REPEATED_PCT / 100 if _is_printed(claim, here) and claim.basis == "rounding" else 0.0)
    return -math.inf if least is None else least / near, math.inf if most is None else most * near


def together(verdicts: Collection[ClaimVerdict]) -> ClaimVerdict:
    """Combine the verdicts on several values of a claim.

    One that differs is enough to differ; all have to agree.
    """
    if "differs" in verdicts:
        return "differs"
    return "agrees" if set(verdicts) == {"agrees"} else "undecided"


def _of_value(claim: Claim, here: Here, value: Value) -> ClaimVerdict:
    """Return the verdict on one measured value of a claim."""
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
    # A printed number is no limit, and no quantity that is bounded on one side only.
    limit = claim.kind in ("bound", "direction", "setting") or here.expect is not None or here.limit is not None
    none = _NONE.get(here.compute, math.nan)
    no_effect = value.low <= none <= value.high and not low <= none <= high
    return "undecided" if limit or here.compute == "largest_batch" or no_effect else "agrees"


NEAR_PCT = 10.0
Near = Literal["inside", "near", "off"]


@dataclass(frozen=True)
class Score:
    """Score of a set of claims.

    Args:
        claims: number of claims.
        reached: number of claims that the campaigns have a value for.
        inside: number of reached claims whose values are inside the accepted range.
        near: number of reached claims whose values are within 10 % of the accepted range.
        confident: number of reached directions that are reversed with the whole interval.
    """

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
    """Return the score of claims.

    A claim that several campaigns reach counts once, with the first of them.

    Args:
        claims: records of claims as `claims.evaluate_claims` returns them.
    """
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
    """Classify how near the measured values of a claim are to its accepted range.

    `inside`: the claim agrees and each value is inside the range. `near`: each value is within 10 % of the range.
    `distance_pct`: otherwise.
    Return None if the claim is not reached or is not about a training step.
    """
    if claim["verdict"] not in ("agrees", "differs", "undecided") or not claim.get("scored"):
        return None
    off = claim["off_pct"]
    if claim["verdict"] == "agrees" and not off:
        return "inside"
    return "near" if off is not None and off <= NEAR_PCT else "off"


def off(claim: Mapping[str, Any]) -> str:
    """Format the distance of a claim, such as '12 % off', or return '' if it is zero or meaningless."""
    distance = claim.get("off_pct")
    return f"{wording.format_percent(distance, 1)} off" if distance else ""
