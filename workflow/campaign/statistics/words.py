"""What all of the package shares: the confidence of every interval and test, and the words for how one was made or why not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
"""What a p-value has to be under, for a difference to be said."""

# Of a mean or a median. What follows the comma is left out where a caption has said 95 % already.
STUDENT = "Student t, 95 %"
MEDIAN_STUDENT = "Student t for the median of normal runs, 95 %"
BCA = "BCa bootstrap, 95 %"

# Of a ratio.
LOG_RATIO = "log ratio of means, Welch t, 95 %"
PAIRED = "log ratio of means, t paired by block, 95 %"

ONE_RUN = "none: one run"
NO_RUN = "none: no run"
NOT_POSITIVE = "none: a mean is not positive"
ITSELF = "none: the reference itself"
NO_REFERENCE = "none: no reference was measured"

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.object_]
