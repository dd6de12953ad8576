"""Units of the numbers in a figure's CSV file. Pure.

Inside of the program a cell's throughput is `mean`, `sd` ..; in a file that stands alone every number has its unit in its name or
in a column beside it, but for counts, ratios and the like, which have none.
"""

from __future__ import annotations

import pandas as pd

# Told by a column `unit`, where a figure has one; otherwise throughputs.
_VALUES = ("mean", "sd", "ci_low", "ci_high")
# Throughputs everywhere: samples per second over all ranks.
_RATES = ("median", "median_low", "median_high", "min", "max", "against_mean", "against_sd")
_SHARES = ("dip", "drop", "efficiency", "overhead", "slope")
_NAMES = {
    **{f"{name}_{end}": f"{name}_{end}_pct" for name in _SHARES for end in ("low", "high")},
    **{name: f"{name}_per_s" for name in _RATES},
    # Percent of overhead for each unit that the column `per` names.
    "slope": "slope_pct",
    "intercept": "intercept_pct",
    "size_kind": "size_unit",
}


def with_units(rows: pd.DataFrame) -> pd.DataFrame:
    """The same numbers with their units in the names of columns, or in a column `unit`, `size_unit` or `cost_unit`."""
    rates = () if "unit" in rows else _VALUES
    return rows.rename(columns={**_NAMES, **{name: f"{name}_per_s" for name in rates}})
