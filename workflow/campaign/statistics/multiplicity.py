"""Many tests at once: p-values such that the chance of a single false effect among all of them stays 5 %.

Source: Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2). It asks
nothing of how the tests hang together, which comparisons with one common reference do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from campaign.statistics.words import Floats


def holm(p: npt.ArrayLike) -> Floats:
    """Adjusted p-values of one family of tests, in the order given and of its shape; nan is no test and stays nan."""
    values = np.asarray(p, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    tested = np.isfinite(values)
    known = values[tested]
    order = np.argsort(known, kind="stable")
    steps = np.arange(known.size, 0, -1) * known[order]
    ordered = np.minimum(np.maximum.accumulate(steps), 1.0) if known.size else steps
    back = np.empty_like(ordered)
    back[order] = ordered
    adjusted[tested] = back
    return adjusted
