"""How long a warm-up goes on: until its steps show no trend. The standard library alone: a program may load this one file.

The trend of the last steps (five chunks, or half of all so far) is judged by Spearman's rank correlation of a step's time with its
number, so that neither outliers nor the distribution of steps matter, and by its size, the change of the median from the first half
of these steps to the second. Chosen by simulation (tests/unit/workloads/test_steady_warmup.py) against quarters' medians, against
fewer chunks and against a window that does not grow: such a window ends in the middle of a slow warm-up.
"""

import math
from collections.abc import Callable, Sequence
from statistics import median

CHUNKS = 5
"""Chunks that are compared: fewer do not tell a trend from noise."""
FEWEST_STEPS = 4
"""Steps of a chunk, at least."""
TREND_PCT = 1.0
"""Trend of step times that lengthens a warm-up, at least."""
_SIGNIFICANT = 1.64
"""Standard errors of the correlation: a steady run is lengthened by chance in at most one of ten chunks."""
STEADY, GIVEN_UP = 0, -1
"""What `steps_to_go` says beside a number of steps."""
NOT_STEADY = "not steady after the longest warm-up"
"""Flag of a run that reached the most warm-up steps with a trend."""
SHORT_WINDOW = "measured window shorter than asked"
"""Flag of a run whose measured steps took less than `measured_min_s`."""


def chunk_of(warmup_steps: int) -> int:
    """Steps after which the trend is looked at again."""
    return max(warmup_steps, FEWEST_STEPS)


def least_of(warmup_steps: int) -> int:
    """The shortest warm-up of which it can be said whether it has a trend."""
    return CHUNKS * chunk_of(warmup_steps)


def has_trend(times_s: Sequence[float]) -> bool:
    """Whether the later of these steps take longer or shorter than the earlier ones, beyond noise."""
    half = len(times_s) // 2
    before, after = median(times_s[:half]), median(times_s[-half:])
    if abs(after - before) <= TREND_PCT / 100 * before:
        return False
    return abs(_rank_correlation(times_s)) * math.sqrt(len(times_s) - 1) > _SIGNIFICANT


def _rank_correlation(values: Sequence[float]) -> float:
    """Spearman's, with the place of a value; equal values share their mean rank."""
    places = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or values[places[end]] != values[places[start]]:
            for place in places[start:end]:
                ranks[place] = (start + end - 1) / 2
            start = end
    middle = (len(values) - 1) / 2
    both = sum((rank - middle) * (place - middle) for place, rank in enumerate(ranks))
    spread = sum((rank - middle) ** 2 for rank in ranks) * sum((place - middle) ** 2 for place in range(len(values)))
    return both / math.sqrt(spread) if spread else 0.0


def steps_to_go(times_s: Sequence[float], warmup_steps: int, most: int) -> int:
    """Warm-up steps to make before looking again, `STEADY`, or `GIVEN_UP` where the most were made. times_s: of those made."""
    made, least = len(times_s), least_of(warmup_steps)
    if made >= least and not has_trend(times_s[-max(least, made // 2) :]):
        return STEADY
    return min(chunk_of(warmup_steps), most - made) if made < most else GIVEN_UP


def lengthened(
    times_s: list[float],
    take: Callable[[int], Sequence[float]],
    warmup_steps: int,
    most: int,
    agreed: Callable[[int], int] = lambda decision: decision,
) -> bool:
    """Go on warming up; gives whether it ended steady. times_s: of the steps made so far, gets those of the others.

    take: makes so many steps and gives their times. agreed: the decision that all ranks follow, given one's own; every rank calls
    it equally often, as each follows the same decisions.
    """
    while (decision := agreed(steps_to_go(times_s, warmup_steps, most))) > 0:
        times_s += take(decision)
    return decision == STEADY
