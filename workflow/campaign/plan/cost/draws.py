"""Times as draws: arrays whose first element is what is expected, and whose others are equally likely times. Pure.

Sums of times are sums of such arrays: errors from the same source add up, and others even out. Of what is assumed only the first
element is a number, of what is unknown none is; and so it is of any sum with it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from campaign.plan.cost.estimates import Estimate

Floats = NDArray[np.float64]

DRAWS = 399
_OUTSIDE = 10  # of 400 intervals between draws on each side of a 95 % interval
_ROWS = 2048
_MOST_SKEW = math.e  # mean over median: that of a variance of 2


def random_of(source: str) -> np.random.Generator:
    """Random numbers of a source, the same in each forecast."""
    return np.random.default_rng(zlib.crc32(source.encode()))


@cache
def _rows() -> Floats:
    """Standard normal draws in equal steps of probability, each row in an order of its own; the first is 0, no error."""
    equal = [NormalDist().inv_cdf((rank + 0.5) / DRAWS) for rank in range(DRAWS)]
    return np.insert(np.random.default_rng(0).permuted(np.tile(equal, (_ROWS, 1)), axis=1), 0, 0.0, axis=1)


def normals(sources: Sequence[str]) -> Floats:
    """Standard normal errors, a row for each source; one in 2,048 pairs of sources has the same."""
    return _rows()[[zlib.crc32(source.encode()) % _ROWS for source in sources]]


@cache
def student(source: str, freedom: float) -> Floats:
    """Factors that make all normal errors from one source those of Student's t."""
    random = random_of(source)
    squares = np.sort(random.chisquare(freedom, 25 * DRAWS))[12::25]  # in equal steps of probability as well
    return np.insert(np.sqrt(freedom / random.permutation(squares)), 0, 1.0)


def seconds_of(log_s: Floats, variance: Floats | float) -> Floats:
    """Draws of seconds by those of ln(seconds). What is expected is their mean, which sums need: that with this variance.

    What is hardly known is not inflated: a variance above 1 counts as 1. Draws that are far more skew keep their upper end.
    """
    seconds: Floats = np.exp(log_s)
    skew = seconds[..., 1:].mean(axis=-1) / seconds[..., 0]
    inflated = np.exp(np.minimum(1.0, variance) / 2)
    seconds[..., 1:] *= (inflated / np.minimum(skew, _MOST_SKEW))[..., None]
    seconds[..., 0] *= inflated
    return seconds


def assumed(seconds: float) -> Floats:
    """A time without an interval; unknown, if it is not a number."""
    return np.array([seconds, *[np.nan] * DRAWS])


def estimates(times: Floats) -> list[Estimate]:
    """What is expected of each row, with its 95 % interval."""
    ordered = np.sort(times[:, 1:], axis=1)  # what is not a number comes last
    ends = np.where(np.isnan(ordered[:, -1:]), np.nan, ordered[:, [_OUTSIDE - 1, -_OUTSIDE]])
    rows = np.maximum(0.0, np.column_stack([times[:, 0], ends])).tolist()
    return [Estimate(*(None if number != number else number for number in row)) for row in rows]
