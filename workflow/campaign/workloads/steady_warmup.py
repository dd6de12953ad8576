"""Rule for the end of a warm-up, which continues until the step times show no trend.

The module imports only the standard library, so that a program can load this file alone. The trend of the last steps (five
chunks, or half of all steps so far) is tested by Spearman's rank correlation of step time and step number, so neither outliers
nor the distribution of step times matter. The trend must also be large enough, measured as the change of the median between the
two halves of these steps. Simulations (tests/unit/workloads/test_steady_warmup.py) compared the rule with medians of quarters,
with fewer chunks, and with a window of constant size, which ends in the middle of a slow warm-up.
"""

import math
from collections.abc import Callable, Sequence
from statistics import median

MIN_CHUNKS = 5
"""Minimum number of chunks. With fewer, a trend cannot be distinguished from noise."""
MIN_CHUNK_STEPS = 4
"""Minimum number of steps in a chunk."""
MIN_TREND_PCT = 1.0
"""Minimum trend of the step times, in percent, for which a warm-up is extended."""
_SIGNIFICANCE_LIMIT_SD = 1.64
"""Limit of the correlation in standard errors. In a steady run, at most one of ten tests finds a trend by chance."""
STEADY, GIVEN_UP = 0, -1
"""Special results of `decide_next_steps` that are not numbers of steps."""
NOT_STEADY = "not steady after the longest warm-up"
"""Flag of a run that still had a trend at the maximum number of warm-up steps."""
SHORT_WINDOW = "measured window shorter than asked"
"""Flag of a run whose measured steps took less than `measured_min_s`."""


def chunk_steps(warmup_steps: int) -> int:
    """Return the number of steps in a chunk, i.e. between two tests for a trend."""
    return max(warmup_steps, MIN_CHUNK_STEPS)


def min_warmup_steps(warmup_steps: int) -> int:
    """Return the length, in steps, of the shortest warm-up that can be tested for a trend."""
    return MIN_CHUNKS * chunk_steps(warmup_steps)


def has_trend(times_s: Sequence[float]) -> bool:
    """Return whether successive step times (seconds) increase or decrease by more than noise."""
    half_count = len(times_s) // 2
    first_median_s, last_median_s = median(times_s[:half_count]), median(times_s[-half_count:])
    if abs(last_median_s - first_median_s) <= MIN_TREND_PCT / 100 * first_median_s:
        return False
    return abs(_compute_rank_correlation(times_s)) * math.sqrt(len(times_s) - 1) > _SIGNIFICANCE_LIMIT_SD


def _compute_rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation between values and their positions. Equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for place in order[start:end]:
                ranks[place] = (start + end - 1) / 2
            start = end
    middle = (len(values) - 1) / 2
    covariance = sum((rank - middle) * (place - middle) for place, rank in enumerate(ranks))
    spread = sum((rank - middle) ** 2 for rank in ranks) * sum((place - middle) ** 2 for place in range(len(values)))
    return covariance / math.sqrt(spread) if spread else 0.0


def decide_next_steps(times_s: Sequence[float], warmup_steps: int, max_steps: int) -> int:
    """Decide how many more warm-up steps to take before the next test.

    Returns `STEADY` if there is no trend, and `GIVEN_UP` if there is one but the maximum number of steps is reached.

    Args:
        times_s: durations of the steps so far in seconds.
        warmup_steps: configured number of warm-up steps.
        max_steps: maximum number of warm-up steps.
    """
    steps_done, min_steps = len(times_s), min_warmup_steps(warmup_steps)
    if steps_done >= min_steps and not has_trend(times_s[-max(min_steps, steps_done // 2) :]):
        return STEADY
    return min(chunk_steps(warmup_steps), max_steps - steps_done) if steps_done < max_steps else GIVEN_UP


def extend_warmup(
    times_s: list[float],
    take_steps: Callable[[int], Sequence[float]],
    warmup_steps: int,
    max_steps: int,
    agree_on: Callable[[int], int] = lambda decision: decision,
) -> bool:
    """Extend a warm-up until the step times show no trend. Returns whether they became steady.

    Args:
        times_s: durations (seconds) of the steps so far, to which those of further steps are appended.
        take_steps: function that takes the given number of steps and returns their durations in seconds.
        warmup_steps: configured number of warm-up steps.
        max_steps: maximum number of warm-up steps.
        agree_on: function that turns this rank's decision into the one that all ranks follow. All ranks call it equally often.
    """
    while (decision := agree_on(decide_next_steps(times_s, warmup_steps, max_steps))) > 0:
        times_s += take_steps(decision)
    return decision == STEADY
