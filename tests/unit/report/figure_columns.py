"""Which numbers of a figure's CSV file say no unit, for tests of every figure."""

from __future__ import annotations

import re

import pandas as pd

from campaign.report.figure_units import with_units

_UNITS = "per_s|s|ms|us|j|w|pct|mib|gb_per_s|bytes|layers|gflop_per_sample|mb_per_step|per_allreduce_mb|per_step|per_allreduce_byte"
_TOLD = re.compile(rf"(^|_)({_UNITS})(_low|_high)?$")
# Counts, places, ratios, probabilities, scores: numbers of no unit.
_NONE = re.compile(
    r"n_\w+|p|\w+_p|(\w+_)?p_holm|(ratio|ideal)(_low|_high)?|aicc_\w+|option_\w+|(\w+_)?(hosts|devices|ranks|place)|against_n|"
    r"batch|batch_global|devices_per_host|local_devices_per_host|devices_used|correlation|freedom|front|largest_ran|smallest_out|"
    r"leases|operations|retries|parameters|parts|repetition|sizes|workloads|runs|runs_expected|uses"
)
# Numbers whose unit stands in a column beside them.
_BESIDE = {"unit": r"mean|sd|ci_low|ci_high|least|most", "cost_unit": r"cost(_low|_high)?", "size_unit": "size"}


def untold(rows: pd.DataFrame) -> list[str]:
    """Names of numeric columns, as they are written, without a unit."""
    written = with_units(rows)
    beside = [pattern for column, pattern in _BESIDE.items() if column in written]
    return [
        name
        for name in map(str, written.columns)
        if pd.api.types.is_numeric_dtype(written[name]) and not pd.api.types.is_bool_dtype(written[name])
        if not (_TOLD.search(name) or _NONE.fullmatch(name) or any(re.fullmatch(each, name) for each in beside))
    ]
