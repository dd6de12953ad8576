"""One sample in numbers, as tests ask for it: what `summaries` says of many, of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from campaign.analysis.statistics.ratios import LogRatios, compute_unpaired_ratios
from campaign.analysis.statistics.summary import SampleSummaries, summarize_samples


def summarize(values: npt.ArrayLike) -> SimpleNamespace:
    """The fields of `Summaries` as scalars; outliers: places of the values that lie far from the others."""
    sample = np.asarray(values, dtype=np.float64)
    found = summarize_samples(sample, np.zeros(sample.size, dtype=np.int64), 1)
    one = {field.name: getattr(found, field.name)[0] for field in fields(SampleSummaries) if field.name != "outlier"}
    return SimpleNamespace(**one, outliers=tuple(np.flatnonzero(found.outlier).tolist()))


def ratio(a: Sequence[float], b: Sequence[float]) -> LogRatios:
    """Of the means of two samples."""
    (one, sd_a), (other, sd_b) = (
        (np.mean(x) if x else np.nan, np.std(x, ddof=1) if len(x) > 1 else np.nan) for x in (a, b)
    )
    return compute_unpaired_ratios(one, sd_a, len(a), other, sd_b, len(b))
