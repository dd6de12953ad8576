"""Whether what was measured here agrees with a published claim.

A bound, a direction or a setting agrees where the whole interval here lies inside what the claim's words allow, and differs where
none of it does. A printed number agrees where the interval here reaches what rounds to it; an interval that holds `no effect` as
well decides nothing. Without an interval nothing is decided, nor with one that holds run-to-run variation of one composition only.
 Of several values all have to agree, and one that differs is enough to
differ; their intervals hold together at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

from campaign.config.published_file import Claim, Here
from campaign.insight.published.quantities import Found, Value
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
        if found.trend.p_up < SIGNIFICANT:
            return "agrees", len(found.values)
        return "differs" if found.trend.p_down < SIGNIFICANT else "undecided", 0
    verdicts = [_of_value(claim, here, value) for value in found.values]
    return together(verdicts), verdicts.count("agrees")


def others(claim: Claim, here: Here, found: Found) -> tuple[str, ...]:
    """The conditions in which the campaign differs from the document."""
    absolute = claim.kind == "measured" and here.compute not in ("outcome", "largest_batch")
    unknown = ("the document does not name the device",) if absolute and "device" not in here.under else ()
    return (*unknown, *found.missed)


def accepted(claim: Claim, here: Here) -> tuple[float | None, float | None]:
    """The closed interval that agrees, in the unit of the computed quantity; None for an open end."""
    return here.expect or ((here.limit, None) if here.limit is not None else claim.accept)


def off_pct(claim: Claim, here: Here, found: Found) -> float | None:
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
