"""Tables of leases: durations of composing and of each operation, and idle time between runs.

Idle time is from the end of one run to the start of the next on the same lease, while hosts and devices are held: for writing a
record, starting a step, and, if a driver was restarted in the middle of a lease, the time until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.tables.columns import LEASES, OPERATIONS, list_column_types
from campaign.analysis.tables.io import NUMBER, TEXT, build_frame
from campaign.common.intervals import compute_proportion_bounds


def build_leases_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the leases table: one row per lease, with the duration of each phase in seconds; nan if unknown.

    Rows are in the given order.

    fabric_s: from the request to the fabric's last answer. visible_s: until the hosts see the devices, nan if this was not
    checked.
    readying_s: until a run can start. compose_s: sum of the three. held_s: from ready to the start of the release.
    release_s: the release itself.
    """
    return build_frame([_build_lease_row(lease) for lease in leases], list_column_types(LEASES), {})


def _build_lease_row(lease: Mapping[str, Any]) -> dict[str, Any]:
    """Build the row of one lease."""

    def compute_duration(start: str, end: str) -> float | None:
        first, last = lease.get(start), lease.get(end)
        return None if first is None or last is None else float(last) - float(first)

    release_key = "release_started_s" if lease.get("release_started_s") is not None else "released_s"
    return {
        "lease_id": lease["lease_id"],
        "configuration": lease["configuration"],
        "state": lease["state"],
        "fabric_s": compute_duration("requested_s", "fabric_done_s"),
        "visible_s": compute_duration("fabric_done_s", "host_visible_s"),
        "readying_s": compute_duration("host_visible_s" if lease.get("host_visible_s") else "fabric_done_s", "ready_s"),
        "compose_s": compute_duration("requested_s", "ready_s"),
        "held_s": compute_duration("ready_s", release_key),
        "release_s": compute_duration("release_started_s", "released_s"),
        **{name: _count_items(lease.get(name)) for name in ("operations", "retries", "mismatches", "faults")},
        "compose_failures": sum(_is_compose_failure(fault) for fault in lease.get("faults") or ()),
    }


def _is_compose_failure(fault: Any) -> bool:
    return isinstance(fault, Mapping) and fault.get("operation") == "compose"


def build_operations_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the operations table: one row per timed fabric operation, and one `rest` row per composition.

    Operations are timed by `Journal.note_times`. The `rest` row has the remaining time of the composition.
    """
    rows = []
    for lease in leases:
        for entry in lease.get("timed") or ():
            use = {"lease_id": lease["lease_id"], "configuration": lease["configuration"], "part": entry["of"]}
            operations = [
                dict(zip(("operation", "device", "box", "answer", "seconds"), row, strict=True))
                for row in entry["rows"]
            ]
            if entry["of"] == "composing":
                rest_s = max(0.0, entry["seconds"] - sum(operation["seconds"] for operation in operations))
                operations.append({"operation": "rest", "device": "", "box": "", "answer": "", "seconds": rest_s})
            rows += [{**use, **operation} for operation in operations]
    return build_frame(rows, list_column_types(OPERATIONS), {})


def summarize_composition_times(leases: pd.DataFrame) -> pd.DataFrame:
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


def summarize_fabric_failures(leases: pd.DataFrame, operations: pd.DataFrame) -> pd.DataFrame:
    """Summarize failed attachments, and repeated operations, per thousand operations, with 95 % bounds (Clopper-Pearson).

    The columns are event, operations, failures, per_thousand, per_thousand_low and per_thousand_high. A failed attempt to compose
    counts as one failed attachment. Events without operations are left out.

    Args:
        leases: leases table.
        operations: operations table, whose rows `attach` are the attachments that succeeded.
    """
    failures = int(leases["compose_failures"].sum())
    attached = int((operations["operation"] == "attach").sum()) if len(operations) else 0
    rows = [
        ("attachment failed", attached + failures, failures),
        ("operation repeated", int(leases["operations"].sum()), int(leases["retries"].sum())),
    ]
    table = pd.DataFrame([row for row in rows if row[1]], columns=["event", "operations", "failures"])
    low, high = compute_proportion_bounds(table["failures"], table["operations"])
    rate = table["failures"] / table["operations"]
    return table.assign(per_thousand=1000 * rate, per_thousand_low=1000 * low, per_thousand_high=1000 * high)


_OPERATION_ORDER = ("attach", "detach", "inventory", "read_back", "visible", "request", "rest")


def summarize_operation_times(
    operations: pd.DataFrame, recorded_times: Sequence[Mapping[str, Any]] = ()
) -> pd.DataFrame:
    """Summarize the times of each operation per kind of device: number, median, 5 % and 95 % quantile, maximum.

    Args:
        operations: operations table.
        recorded_times: quantiles of recordings (`operation`, `low_s`, `median_s`, `high_s`), which are shown next to
            operations on devices; nan if there is no recording.
    """
    groups = operations.groupby(["operation", "device"], sort=False)["seconds"]
    table = groups.agg(
        operations="size",
        low_s=lambda x: x.quantile(0.05),
        median_s="median",
        high_s=lambda x: x.quantile(0.95),
        longest_s="max",
    ).reset_index()
    times_by_operation = {str(entry["operation"]): entry for entry in recorded_times}
    for name in ("low_s", "median_s", "high_s"):
        table[f"recorded_{name}"] = pd.Series(
            [
                float(times_by_operation[operation][name]) if operation in times_by_operation else float("nan")
                for operation in table["operation"]
            ],
            index=table.index,
            dtype="float64",
        )
    places = {name: place for place, name in enumerate(_OPERATION_ORDER)}
    key = {"operation": lambda column: column.map(places).fillna(len(places)), "device": lambda column: column}
    return table.sort_values(
        list(key), key=lambda column: key[str(column.name)](column), kind="stable", ignore_index=True
    )


def _count_items(value: Any) -> int:
    """Return a count as it is, or the length of a list."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int | float) else len(value)


# Use of a lease by a run: lease id, start and end (Unix seconds).
BusySpan = tuple[str, float, float]

_BUSY_COLUMNS = {"lease_id": TEXT, "started": NUMBER, "ended": NUMBER}


def compute_idle_before(runs: pd.DataFrame, other_uses: Iterable[BusySpan] = ()) -> pd.Series[float]:
    """Compute how many seconds a lease was idle before each run; nan for first runs and if nothing was started.

    Clocks that were set back, or that differ between two hosts, do not lead to negative idle times.

    Args:
        runs: table with the columns lease_id, started and ended.
        other_uses: further runs on the same leases, which are not in the table.
    """
    other_times = build_frame([dict(zip(_BUSY_COLUMNS, busy, strict=True)) for busy in other_uses], _BUSY_COLUMNS, {})
    times = pd.concat([runs[list(_BUSY_COLUMNS)], other_times], keys=["asked", "beside"])
    times = times[times["ended"] > times["started"]].sort_values(list(_BUSY_COLUMNS), kind="stable")
    latest_end = times.groupby("lease_id", sort=False)["ended"].cummax()
    previous_end = latest_end.groupby(times["lease_id"], sort=False).shift()
    idle = (times["started"] - previous_end).clip(lower=0.0)
    idle_of_runs = idle[idle.index.get_level_values(0) == "asked"].droplevel(0)
    return idle_of_runs.reindex(runs.index).astype("float64")


def summarize_idle_times(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Summarize idle times for each value of a column, if one of its leases has at least two runs.

    leases, runs: numbers. gaps: number of idle periods. idle_median_s, idle_longest_s, idle_s (sum): their durations.
    span_s: time from the first start to the last end on each lease, without runs that are not in the table. idle_pct:
    share of idle_s in span_s.

    Args:
        runs: runs table.
        column: column to group by (`lease_id`, `configuration`).
    """
    groups = runs.assign(span_s=runs["wall_s"] + runs["idle_before_s"].fillna(0.0)).groupby(column, sort=False)
    idle = groups["idle_before_s"].agg(["count", "median", "max", "sum"])
    idle.columns = pd.Index(["gaps", "idle_median_s", "idle_longest_s", "idle_s"])
    table = idle.assign(leases=groups["lease_id"].nunique(), runs=groups.size(), span_s=groups["span_s"].sum())
    table = table[table["gaps"] > 0].reset_index()
    return table.assign(idle_pct=100 * table["idle_s"] / table["span_s"])
