"""How many claims a campaign comes near to: inside the stated range, within 10 % of it, or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from campaign import wording
from campaign.insight.published import INPUT, NOT_HERE

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
    """Of claims as `claims.held_against` gives them."""
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
