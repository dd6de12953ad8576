"""p-values of many tests at once, adjusted so that the chance of a single false effect among all of them stays 5 %."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from campaign.statistics.intervals import Floats


def holm(p: npt.ArrayLike) -> Floats:
    """Adjusted p-values of one family of tests, in the order given and of its shape; nan is no test and stays nan.

    Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2): it assumes
    nothing about the dependence of the tests, which share a reference here. Written out: multipletests of statsmodels collects
    garbage in every call, 75 ms each in a process of ours.
    """
    adjusted = np.array(p, dtype=np.float64)
    tested = np.isfinite(adjusted)
    known = adjusted[tested]
    order = np.argsort(known, kind="stable")
    known[order] = np.minimum(np.maximum.accumulate(known[order] * np.arange(known.size, 0, -1)), 1.0)
    adjusted[tested] = known
    return adjusted
