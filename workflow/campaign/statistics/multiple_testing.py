"""p-values of many tests at once, adjusted so that the chance of a single false effect among all of them stays 5 %."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from campaign.statistics.intervals import Floats


def holm(p: npt.ArrayLike) -> Floats:
    """Adjusted p-values of one family of tests, in the order given and of its shape; nan is no test and stays nan.

    Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2): it assumes
    nothing about the dependence of the tests, which share a reference here.
    """
    from statsmodels.stats.multitest import multipletests  # loads slowly

    adjusted = np.array(p, dtype=np.float64)
    tested = np.isfinite(adjusted)
    if tested.any():
        adjusted[tested] = multipletests(adjusted[tested], method="holm")[1]
    return adjusted
