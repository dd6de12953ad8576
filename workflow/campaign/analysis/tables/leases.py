"""The table of leases: how long composing and each operation took, what the fabric's ports carried, and idle time between runs.

Idle time is from the end of one run to the start of the next on the same lease, while hosts and devices are held: writing a record,
starting a step, and, where a driver was started again in the middle of a lease, the time until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.tables.columns import LEASES, OPERATIONS, types
from campaign.analysis.tables.io import NUMBER, TEXT, frame


def leases_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a lease in the given order: how long each part of composing it took, in seconds; nan where unknown.

    fabric_s: request to the fabric's last answer; visible_s: until the hosts see the devices, nan where nobody looked;
    readying_s: until a run can start; compose_s: the three together; held_s: ready to the start of the release; release_s: the
    release itself.
    """
    return frame([_lease_row(lease) for lease in leases], types(LEASES), {})


def _lease_row(lease: Mapping[str, Any]) -> dict[str, Any]:
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
    """One row a timed operation of the fabric (`Journal.add_operation_times`), and one for the rest of each composing."""
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
    """Leases that got ready, by configuration: mean of each phase (they add up to the mean total), and the total's range."""
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
    """A row for each operation on each kind of device: how many, median, 5 % (low) and 95 % (high) quantile, and the longest.

    operations: of `operations_table`. recorded: quantiles of recordings (`operation`, `low_s`, `median_s`,
    `high_s`), which stand beside operations on devices; nan without one.
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
    """A count, or the length of what was counted."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int | float) else len(value)


# When a lease was busy with a run: its id, start and end (Unix seconds).
BusySpan = tuple[str, float, float]

_BUSY = {"lease_id": TEXT, "started": NUMBER, "ended": NUMBER}


def idle_before(runs: pd.DataFrame, others: Iterable[BusySpan] = ()) -> pd.Series[float]:
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
