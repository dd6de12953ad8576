"""Tables of leases: durations of composing and of each operation, and idle time between runs.

Idle time is from the end of one run to the start of the next on the same lease, while hosts and devices are held: for writing a
record, starting a step, and, if a driver was restarted in the middle of a lease, the time until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.tables.columns import LEASES, OPERATIONS, types
from campaign.analysis.tables.io import NUMBER, TEXT, frame


def leases_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the leases table: one row per lease, with the duration of each phase in seconds; nan if unknown.

    Rows are in the given order.

    fabric_s: from the request to the fabric's last answer. visible_s: until the hosts see the devices, nan if this was not
    checked.
    readying_s: until a run can start. compose_s: sum of the three. held_s: from ready to the start of the release. release_s:
    the
    release itself.
    """
    return frame([_lease_row(lease) for lease in leases], types(LEASES), {})


def _lease_row(lease: Mapping[str, Any]) -> dict[str, Any]:
    """Build the row of one lease."""

    def between(start: str, end: str) -> float | None:
        first, last = lease.get(start), lease.get(end)
        return None if first is None or last is None else float(last) - float(first)

    releasing = "release_started_s" if lease.get("release_started_s") is not None else "released_s"
    return {
        "lease_id": lease["lease_id"],
        "configuration": lease["configuration"],
        "state": lease["state"],
        "fabric_s": between("requested_s", "fabric_done_s"),
        "visible_s": between("fabric_done_s", "host_visible_s"),
        "readying_s": between("host_visible_s" if lease.get("host_visible_s") else "fabric_done_s", "ready_s"),
        "compose_s": between("requested_s", "ready_s"),
        "held_s": between("ready_s", releasing),
        "release_s": between("release_started_s", "released_s"),
        **{name: _size(lease.get(name)) for name in ("operations", "retries", "mismatches", "faults")},
    }


def operations_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the operations table: one row per timed fabric operation, and one `rest` row per composition.

    Operations are timed by `Journal.note_times`. The `rest` row has the remaining time of the composition.
    """
    rows = []
    for lease in leases:
        for entry in lease.get("timed") or ():
            use = {"lease_id": lease["lease_id"], "configuration": lease["configuration"], "part": entry["of"]}
            timed = [
                dict(zip(("operation", "device", "box", "answer", "seconds"), row, strict=True))
                for row in entry["rows"]
            ]
            if entry["of"] == "composing":
                rest_s = max(0.0, entry["seconds"] - sum(each["seconds"] for each in timed))
                timed.append({"operation": "rest", "device": "", "box": "", "answer": "", "seconds": rest_s})
            rows += [{**use, **each} for each in timed]
    return frame(rows, types(OPERATIONS), {})


def composition_times(leases: pd.DataFrame) -> pd.DataFrame:
    """Summarize the composition times of ready leases by configuration: mean of each phase, and the range of the total.

    The means of the phases add up to the mean total.
    """
    ready = leases[leases["compose_s"].notna()]
    groups = ready.groupby("configuration", sort=False)
    phases = groups[["fabric_s", "visible_s", "readying_s", "compose_s", "held_s", "release_s"]].mean()
    extremes = groups["compose_s"].agg(["min", "max", "count"])
    table = phases.assign(
        compose_min_s=extremes["min"],
        compose_max_s=extremes["max"],
        leases=extremes["count"].astype("int64"),
        operations=groups["operations"].sum(),
        retries=groups["retries"].sum(),
    )
    return table.reset_index()


_ORDER = ("attach", "detach", "inventory", "read_back", "visible", "request", "rest")


def by_operation(operations: pd.DataFrame, recorded: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """Summarize the times of each operation per kind of device: number, median, 5 % and 95 % quantile, maximum.

    Args:
        operations: operations table.
        recorded_times: quantiles of recordings (`operation`, `low_s`, `median_s`, `high_s`), which are shown beside operations
            on devices;
            nan without one.
    """
    groups = operations.groupby(["operation", "device"], sort=False)["seconds"]
    table = groups.agg(
        operations="size",
        low_s=lambda x: x.quantile(0.05),
        median_s="median",
        high_s=lambda x: x.quantile(0.95),
        longest_s="max",
    ).reset_index()
    there = {str(each["operation"]): each for each in recorded}
    for name in ("low_s", "median_s", "high_s"):
        table[f"recorded_{name}"] = pd.Series(
            [float(there[o][name]) if o in there else float("nan") for o in table["operation"]],
            index=table.index,
            dtype="float64",
        )
    places = {name: place for place, name in enumerate(_ORDER)}
    key = {"operation": lambda of: of.map(places).fillna(len(places)), "device": lambda of: of}
    return table.sort_values(list(key), key=lambda of: key[str(of.name)](of), kind="stable", ignore_index=True)


def _size(value: Any) -> int:
    """Return a count, or the length of a list."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int | float) else len(value)


# Use of a lease by a run: lease id, start and end (Unix seconds).
BusySpan = tuple[str, float, float]

_BUSY = {"lease_id": TEXT, "started": NUMBER, "ended": NUMBER}


def idle_before(runs: pd.DataFrame, others: Iterable[BusySpan] = ()) -> pd.Series[float]:
    """Return the seconds that a lease was idle before each run; nan for its first run, and if nothing was started.

    Clocks that were set back, or that differ between two hosts, do not lead to negative idle times.

    Args:
        runs: table with the columns lease_id, started and ended.
        other_uses: further runs on the same leases, which are not in the table.
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
    """Summarize idle times per value of a column that has a lease with two or more runs.

    leases, runs: numbers. gaps: number of idle periods. idle_median_s, idle_longest_s, idle_s (sum): their durations. span_s:
    time from
    the first start to the last end on each lease, without runs that are not in the table. idle_pct: share of idle_s in span_s.

    Args:
        runs: runs table.
        column: column to group by (`lease_id`, `configuration`).
    """
    groups = runs.assign(span_s=runs["wall_s"] + runs["idle_before_s"].fillna(0.0)).groupby(by, sort=False)
    idle = groups["idle_before_s"].agg(["count", "median", "max", "sum"])
    idle.columns = pd.Index(["gaps", "idle_median_s", "idle_longest_s", "idle_s"])
    table = idle.assign(leases=groups["lease_id"].nunique(), runs=groups.size(), span_s=groups["span_s"].sum())
    table = table[table["gaps"] > 0].reset_index()
    return table.assign(idle_pct=100 * table["idle_s"] / table["span_s"])
