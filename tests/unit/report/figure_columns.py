"""Which numbers of a figure's CSV file have no unit, for tests of every figure."""

from __future__ import annotations

import re

import pandas as pd

from campaign.report.figure import Drawing, Figure

_UNITS = "per_s|s|ms|us|j|w|pct|mib|gb_per_s|bytes|layers|gflop_per_sample|mb_per_step|per_allreduce_mb|per_step|per_allreduce_byte"
_WITH_UNIT = re.compile(rf"(^|_)({_UNITS})(_low|_high)?$")
# Counts, ratios, probabilities and scores, by names that mean the same in every figure; what one figure has, its UNITS say.
_NONE = re.compile(
    r"n_\w+|p|\w+_p|(\w+_)?p_holm|(ratio|ideal)(_low|_high)?|aicc_\w+|option_\w+|(\w+_)?(hosts|devices|ranks)|against_n|"
    r"batch|batch_global|devices_per_host|local_devices_per_host|devices_used|leases|operations|retries|repetition|runs|(against_)?compositions|freedom"
)
# Numbers whose unit stands in a column beside them.
_BESIDE = {"unit": r"mean|sd|ci_low|ci_high|least|most", "cost_unit": r"cost(_low|_high)?", "size_unit": "size"}


def without_unit(figure: Figure, drawing: Drawing) -> list[str]:
    """Names of numeric columns, as they are written, without a unit."""
    rows = drawing.data
    written = dict(zip(rows.columns, figure.csv(drawing).partition("\n")[0].split(","), strict=True))
    beside = [pattern for column, pattern in _BESIDE.items() if column in rows]
    return [
        name
        for column, name in written.items()
        if pd.api.types.is_numeric_dtype(rows[column]) and not pd.api.types.is_bool_dtype(rows[column])
        if figure.units.get(column) != ""
        if not (_WITH_UNIT.search(name) or _NONE.fullmatch(name) or any(re.fullmatch(each, name) for each in beside))
    ]
