"""Which of several models of the same data: the corrected information criterion, the smaller the better.

Source: Hurvich & Tsai (1989), "Regression and time series model selection in small samples", Biometrika 76(2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from campaign.statistics.words import Floats


def aicc(mean_square: npt.ArrayLike, values: npt.ArrayLike, parameters: npt.ArrayLike) -> Floats:
    """Of normal residuals, element-wise; infinite where there are too few values for so many parameters.

    mean_square: of the residuals, positive; parameters: the variance of the residuals among them, or for no model.
    """
    n, known = np.asarray(values, dtype=np.float64), np.asarray(parameters, dtype=np.float64)
    left = n - known - 1
    correction = 2 * known * (known + 1) / np.where(left > 0, left, 1.0)
    return np.asarray(np.where(left > 0, n * np.log(mean_square) + 2 * known + correction, np.inf), dtype=np.float64)
