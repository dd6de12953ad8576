"""All aggregation of measurements: summaries of samples, ratios of summaries and of pairs, each with a 95 % interval.

Pure functions on numpy arrays; everything works element-wise, so thousands of cells are one call. A value that
cannot be computed (no run, one run, a mean that is not positive) is nan and its method says why.
"""

from campaign.statistics.multiplicity import holm
from campaign.statistics.pairs import either, is_paired, paired
from campaign.statistics.ratio import LogRatios, Ratio, drop_pct, ratio_bounds, ratio_with_interval, unpaired
from campaign.statistics.summary import (
    Summaries,
    Summary,
    cv_pct,
    interval_methods,
    student_interval,
    summaries,
    summarize,
)
from campaign.statistics.words import (
    BCA,
    CONFIDENCE,
    ITSELF,
    LOG_RATIO,
    MEDIAN_STUDENT,
    NO_REFERENCE,
    NO_RUN,
    NOT_POSITIVE,
    ONE_RUN,
    PAIRED,
    STUDENT,
    Floats,
)

__all__ = [
    "BCA",
    "CONFIDENCE",
    "ITSELF",
    "LOG_RATIO",
    "MEDIAN_STUDENT",
    "NOT_POSITIVE",
    "NO_REFERENCE",
    "NO_RUN",
    "ONE_RUN",
    "PAIRED",
    "STUDENT",
    "Floats",
    "LogRatios",
    "Ratio",
    "Summaries",
    "Summary",
    "cv_pct",
    "drop_pct",
    "either",
    "holm",
    "interval_methods",
    "is_paired",
    "paired",
    "ratio_bounds",
    "ratio_with_interval",
    "student_interval",
    "summaries",
    "summarize",
    "unpaired",
]
