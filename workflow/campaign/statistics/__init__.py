"""All aggregation of measurements: summaries of samples, ratios of summaries and of pairs, each with a 95 % interval.

Pure functions on numpy arrays; everything works element-wise, so thousands of cells are one call. A value that
cannot be computed (no run, one run, a mean that is not positive) is nan and its method says why.
"""

from campaign.statistics.intervals import (
    AMONG_CHANGES,
    BCA,
    BETWEEN,
    BLOCKED,
    BORROWED,
    BORROWED_EARLIER,
    CONFIDENCE,
    CONFOUNDED,
    ITSELF,
    MEDIAN_STUDENT,
    NO_REFERENCE,
    NO_RUN,
    NOT_POSITIVE,
    ONE_EACH,
    ONE_RUN,
    PAIRED,
    PAIRED_BY_LEASE,
    RUNS_OF_ONE,
    SIGNIFICANT,
    STUDENT,
    Floats,
    student_quantile,
)
from campaign.statistics.multiple_testing import holm
from campaign.statistics.ratios import LogRatios, is_paired, paired, unpaired
from campaign.statistics.summary import Summaries, interval_methods, student_interval, summaries

__all__ = [
    "AMONG_CHANGES",
    "BCA",
    "BETWEEN",
    "BLOCKED",
    "BORROWED",
    "BORROWED_EARLIER",
    "CONFIDENCE",
    "CONFOUNDED",
    "ITSELF",
    "MEDIAN_STUDENT",
    "NOT_POSITIVE",
    "NO_REFERENCE",
    "NO_RUN",
    "ONE_EACH",
    "ONE_RUN",
    "PAIRED",
    "PAIRED_BY_LEASE",
    "RUNS_OF_ONE",
    "SIGNIFICANT",
    "STUDENT",
    "Floats",
    "LogRatios",
    "Summaries",
    "holm",
    "interval_methods",
    "is_paired",
    "paired",
    "student_interval",
    "student_quantile",
    "summaries",
    "unpaired",
]
