"""Idle time: from the end of one run to the start of the next on the same lease, while hosts and devices are held.

It is what the apparatus costs between runs: writing a record, starting a step, and, where a driver was started again in the
middle of a lease, the time until then.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from campaign.tables.frames import NUMBER, TEXT, frame

# When a lease was busy with a run: its id, start and end (Unix seconds).
Busy = tuple[str, float, float]

_BUSY = {"lease_id": TEXT, "started": NUMBER, "ended": NUMBER}


def idle_before(runs: pd.DataFrame, others: Iterable[Busy] = ()) -> pd.Series[float]:
    """Seconds that a lease was idle before each run; nan for its first run, and where nothing was started.

    runs: with the columns lease_id, started and ended; others: further runs on the same leases, which are no rows of it.
    Clocks that were set back, or that differ between two hosts, make no idle time less than none.
    """
    beside = frame([dict(zip(_BUSY, busy, strict=True)) for busy in others], _BUSY, {})
    times = pd.concat([runs[list(_BUSY)], beside], keys=["asked", "beside"])
    times = times[times["ended"] > times["started"]].sort_values(list(_BUSY), kind="stable")
    so_far = times.groupby("lease_id", sort=False)["ended"].cummax()
    before = so_far.groupby(times["lease_id"], sort=False).shift()
    idle = (times["started"] - before).clip(lower=0.0)
    asked = idle[idle.index.get_level_values(0) == "asked"].droplevel(0)
    return asked.reindex(runs.index).astype("float64")


def idle_times(runs: pd.DataFrame, by: str) -> pd.DataFrame:
    """One row for each value of the column `by` (`lease_id`, `configuration`) with two runs on one lease or more.

    leases, runs; gaps: how often a lease was idle; idle_median_s, idle_longest_s, idle_s (their sum); span_s: from the first
    start to the last end on each lease, without the runs that are not in the table; idle_pct: idle_s as a share of it.
    """
    groups = runs.assign(span_s=runs["wall_s"] + runs["idle_before_s"].fillna(0.0)).groupby(by, sort=False)
    idle = groups["idle_before_s"].agg(["count", "median", "max", "sum"])
    idle.columns = pd.Index(["gaps", "idle_median_s", "idle_longest_s", "idle_s"])
    table = idle.assign(leases=groups["lease_id"].nunique(), runs=groups.size(), span_s=groups["span_s"].sum())
    table = table[table["gaps"] > 0].reset_index()
    return table.assign(idle_pct=100 * table["idle_s"] / table["span_s"])
