"""The table of step times: what the measured steps of every run took, on the slowest rank, which sets the pace of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from campaign.tables.columns import STEPS, types
from campaign.tables.io import COUNT, NUMBER, TEXT, typed

if TYPE_CHECKING:
    from campaign.documents.record import Record

COLUMNS = types(STEPS)
MOST_STEPS = 200
"""Of one run. Of more, evenly spaced quantiles stand for all: the distribution is kept, shortest and longest step included."""


def slowest_rank(record: Record) -> tuple[float, ...]:
    """Step times of the rank with the longest window; without windows, of the one with the largest sum."""
    if not record.step_times_s:
        return ()
    windows = record.window_s if len(record.window_s) == len(record.step_times_s) else [*map(sum, record.step_times_s)]
    return record.step_times_s[int(np.argmax(windows))]


def step_times_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row a step of a run that is ok, in ascending order of its time inside of each run."""
    keys: list[tuple[str, int]] = []
    times: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    for record in records:
        steps = np.sort(np.array(slowest_rank(record) if record.status == "ok" else (), dtype=np.float64))
        if steps.size > MOST_STEPS:
            steps = np.quantile(steps, np.linspace(0.0, 1.0, MOST_STEPS))
        keys.append((record.cell_id, record.repetition))
        times.append(steps)
    sizes = [each.size for each in times]
    cells, repetitions = ([key[part] for key in keys] for part in (0, 1))
    columns = {
        "cell_id": typed(np.repeat(np.array(cells, dtype=object), sizes), TEXT),
        "repetition": typed(np.repeat(np.array(repetitions, dtype=np.int64), sizes), COUNT),
        "time_s": typed(np.concatenate(times) if times else [], NUMBER),
    }
    return pd.DataFrame({name: columns[name] for name in COLUMNS})
