"""Judgement of published claims: agreement with the measured values, and a score over many claims.

Measured values: a bound, a direction or a setting agrees if the whole measured interval lies inside the accepted range of
the claim, and differs if the interval is entirely outside of it. A printed number agrees if the measured interval overlaps
the range that rounds to it; an interval that also includes `no effect` is undecided. A value without an interval is
undecided, and so is a value whose interval holds run-to-run variation of one composition only.

A claim with several values agrees if all of them agree, and differs if one of them differs. An order agrees if all of its pairs
are in order. Distances are those of throughput: a loss of 2.5 % is 6 % off if 8.1 % was published.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from campaign.analysis.published.quantities import ClaimValue, ClaimValues
from campaign.common import wording
from campaign.spec.published_file import CampaignMapping, Claim

ClaimVerdict = Literal["agrees", "differs", "undecided"]

# Value of each quantity that means no effect.
_NO_EFFECT_VALUES = {
    "throughput_drop_pct": 0.0,
    "throughput_gain_pct": 0.0,
    "time_increase_pct": 0.0,
    "throughput_ratio": 1.0,
    "time_ratio": 1.0,
    "metric_ratio": 1.0,
    "link_ratio": 1.0,
}


REPEATABILITY_PCT = 0.7
"""Distance from a printed number that counts as none: the smaller of the two variations that a study (FASTER) prints for
repeating a measurement."""


def judge_claim(claim: Claim, mapping: CampaignMapping, claim_values: ClaimValues) -> tuple[ClaimVerdict, int]:
    """Judge a claim: return the verdict, and the number of measured values that agree with it."""
    if (trend := claim_values.trend) is not None:
        if trend.in_order == trend.pairs and all(value.tested for value in claim_values.values):
            return "agrees", len(claim_values.values)
        return "differs" if trend.opposite else "undecided", 0
    verdicts = [_judge_value(claim, mapping, value) for value in claim_values.values]
    return combine_verdicts(verdicts), verdicts.count("agrees")


def list_condition_differences(claim: Claim, mapping: CampaignMapping, claim_values: ClaimValues) -> tuple[str, ...]:
    """List the conditions in which the campaign differs from the published document."""
    is_absolute = claim.kind == "measured" and mapping.compute not in ("outcome", "largest_batch")
    missing_device = ("the document does not name the device",) if is_absolute and "device" not in mapping.under else ()
    return (*missing_device, *claim_values.mismatches)


def compute_accepted_interval(claim: Claim, mapping: CampaignMapping) -> tuple[float | None, float | None]:
    """Return the closed interval of values that agree with a claim, in the unit of the computed quantity.

    An unbounded end is None.
    """
    return mapping.expect or ((mapping.limit, None) if mapping.limit is not None else claim.accept)


def compute_distance_pct(claim: Claim, mapping: CampaignMapping, claim_values: ClaimValues) -> float | None:
    """Compute the largest distance of values from the accepted range, in % of the throughput at the nearer end.

    The distance is 0 inside the range. Return None if a distance is meaningless: for an order, a description, or an end of 0.
    """
    ends = compute_accepted_throughput(claim, mapping)
    distances = [0.0]
    for value in claim_values.values if claim_values.trend is None else ():
        if isinstance(value.value, str):
            return None
        rate = _to_relative_throughput(mapping, value.value)
        end = ends[0] if rate < ends[0] else ends[1] if rate > ends[1] else rate
        if end == 0 or math.isnan(rate / end):
            return None
        distances.append(100 * abs(rate / end - 1))
    return None if claim_values.trend else max(distances)


def differs_confidently(claim: Claim, mapping: CampaignMapping, claim_values: ClaimValues) -> bool:
    """Return whether an entire interval lies outside the accepted range, or a pair has the opposite order."""
    if claim_values.trend is not None:
        return claim_values.trend.opposite > 0
    low, high = compute_accepted_throughput(claim, mapping)
    estimates = [
        value for value in claim_values.values if not isinstance(value.value, str) and not math.isnan(value.low)
    ]
    intervals = [
        sorted((_to_relative_throughput(mapping, value.low), _to_relative_throughput(mapping, value.high)))
        for value in estimates
    ]
    return any(value_high < low or value_low > high for value_low, value_high in intervals)


def _is_printed_number(claim: Claim, mapping: CampaignMapping) -> bool:
    """Return whether the document prints a number that is neither a limit nor a count."""
    has_own_limit = mapping.expect is not None or mapping.limit is not None or mapping.compute == "largest_batch"
    return claim.kind in ("measured", "ratio") and isinstance(claim.value, float | tuple) and not has_own_limit


def _to_relative_throughput(mapping: CampaignMapping, value: float) -> float:
    """Convert a value of a claim's quantity to throughput relative to the reference."""
    if mapping.compute in ("throughput_drop_pct", "throughput_gain_pct", "time_increase_pct"):
        change = value / 100 if mapping.compute != "throughput_drop_pct" else -value / 100
        return 1 / (1 + change) if mapping.compute == "time_increase_pct" else 1 + change
    return 1 / value if mapping.compute == "time_ratio" else value


def compute_accepted_throughput(claim: Claim, mapping: CampaignMapping) -> tuple[float, float]:
    """Compute the lowest and the highest relative throughput that agree with a claim.

    A printed number is widened by `REPEATABILITY_PCT`.
    """
    low, high = compute_accepted_interval(claim, mapping)
    ends = [None if end is None else _to_relative_throughput(mapping, end) for end in (low, high)]
    rate_low, rate_high = (
        reversed(ends) if mapping.compute in ("time_ratio", "time_increase_pct", "throughput_drop_pct") else ends
    )
    tolerance = 1 + (
        REPEATABILITY_PCT / 100 if _is_printed_number(claim, mapping) and claim.basis == "rounding" else 0.0
    )
    return (
        -math.inf if rate_low is None else rate_low / tolerance,
        math.inf if rate_high is None else rate_high * tolerance,
    )


def combine_verdicts(verdicts: Collection[ClaimVerdict]) -> ClaimVerdict:
    """Combine the verdicts on several values of a claim.

    The result is 'differs' if one of them differs, and 'agrees' if all of them agree.
    """
    if "differs" in verdicts:
        return "differs"
    return "agrees" if set(verdicts) == {"agrees"} else "undecided"


def _judge_value(claim: Claim, mapping: CampaignMapping, value: ClaimValue) -> ClaimVerdict:
    """Return the verdict on one measured value of a claim."""
    if isinstance(value.value, str):
        return "agrees" if value.value == claim.value else "differs"
    accepted_low, accepted_high = compute_accepted_interval(claim, mapping)
    low, high = (
        -math.inf if accepted_low is None else accepted_low,
        math.inf if accepted_high is None else accepted_high,
    )
    if value.exact:
        return "agrees" if low <= value.value <= high else "differs"
    if not value.tested or math.isnan(value.low) or math.isnan(value.high):
        return "undecided"
    if value.high < low or value.low > high:
        return "differs"
    if low <= value.low and value.high <= high:
        return "agrees"
    # A printed number is no limit, and no quantity that is bounded on one side only.
    has_limit = (
        claim.kind in ("bound", "direction", "setting") or mapping.expect is not None or mapping.limit is not None
    )
    no_effect_value = _NO_EFFECT_VALUES.get(mapping.compute, math.nan)
    includes_no_effect = value.low <= no_effect_value <= value.high and not low <= no_effect_value <= high
    return "undecided" if has_limit or mapping.compute == "largest_batch" or includes_no_effect else "agrees"


NEAR_PCT = 10.0
Nearness = Literal["inside", "near", "off"]


@dataclass(frozen=True)
class ClaimScore:
    """Counts of how well the measurements reproduce a set of claims.

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
            f"{self.reached} of {wording.pluralize(self.claims, 'claim')} can be checked: {self.inside} inside the stated range, "
            f"{self.near} within {NEAR_PCT:g} % of it, {self.reached - self.inside - self.near} farther off or undecided"
        )
        return (
            words
            if not self.confident
            else f"{words}; {wording.pluralize(self.confident, 'direction')} reversed with confidence"
        )


def score_claims(claims: Iterable[Mapping[str, Any]]) -> ClaimScore:
    """Count how many claims were reached, and how near the measured values are.

    A claim that several campaigns reach is counted once, for the first campaign.

    Args:
        claims: records of claims as `claims.evaluate_claims` returns them.
    """
    claims_by_key: dict[tuple[str, str], Mapping[str, Any]] = {}
    for claim in claims:
        key = claim["document"], claim["id"]
        if key not in claims_by_key or classify_nearness(claims_by_key[key]) is None:
            claims_by_key[key] = claim
    nearness_by_key = {
        key: claim_nearness
        for key, claim in claims_by_key.items()
        if (claim_nearness := classify_nearness(claim)) is not None
    }
    levels = list(nearness_by_key.values())
    reversed_count = sum(claims_by_key[key]["confident"] and claims_by_key[key]["direction"] for key in nearness_by_key)
    return ClaimScore(len(claims_by_key), len(levels), levels.count("inside"), levels.count("near"), reversed_count)


def classify_nearness(claim: Mapping[str, Any]) -> Nearness | None:
    """Classify how near the measured values of a claim are to its accepted range.

    `inside`: the claim agrees and each value is inside the range. `near`: each value is within 10 % of the range.
    `off`: otherwise.

    Return None if the claim is not reached or is not about a training step.
    """
    if claim["verdict"] not in ("agrees", "differs", "undecided") or not claim.get("scored"):
        return None
    distance_pct = claim["off_pct"]
    if claim["verdict"] == "agrees" and not distance_pct:
        return "inside"
    return "near" if distance_pct is not None and distance_pct <= NEAR_PCT else "off"


def format_distance(claim: Mapping[str, Any]) -> str:
    """Format the distance of a claim, such as '12 % off', or return '' if it is zero or meaningless."""
    distance = claim.get("off_pct")
    return f"{wording.format_percent(distance, 1)} off" if distance else ""
