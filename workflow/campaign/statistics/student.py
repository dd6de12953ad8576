"""Student's t at the confidence of every interval (Student, 1908, "The probable error of a mean", Biometrika 6(1))."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from campaign.statistics.words import CONFIDENCE, Floats


def student_quantile(freedom: npt.ArrayLike, confidence: float = CONFIDENCE) -> Floats:
    """How many standard errors an interval reaches to each side, element-wise; nan where the degrees of freedom are."""
    return np.asarray(stdtrit(freedom, 0.5 + confidence / 2.0), dtype=np.float64)
