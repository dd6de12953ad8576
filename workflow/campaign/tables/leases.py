"""The table of leases: how long composing took, what the fabric's ports carried, and idle time between runs.

Idle time is from the end of one run to the start of the next on the same lease, while hosts and devices are held: writing a record,
starting a step, and, where a driver was started again in the middle of a lease, the time until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.tables.columns import LEASES, OPERATIONS, types
from campaign.tables.io import NUMBER, TEXT, frame


def leases_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a lease in the given order: how long each part of composing it took, in seconds; nan where unknown.

    fabric_s: request to the fabric's last answer; visible_s: until the hosts see the devices, nan where nobody looked;
    readying_s: until a run can start; compose_s: the three together; held_s: ready to the start of the release; release_s: the
    release itself.
    ports_gb_per_s: what the fabric's ports carried on average, all together.
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
        "ports_gb_per_s": all_gb_per_s(lease.get("readings") or ()),
        **{name: _size(lease.get(name)) for name in ("operations", "retries", "mismatches", "faults")},
    }


def operations_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a timed operation of the fabric (`Journal.note_times`), and one for the rest of each composing."""
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


def _size(value: Any) -> int:
    """A count, or the length of what was counted."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int | float) else len(value)


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


CARRIED: Mapping[str, str] = {"rx_bytes": "received", "tx_bytes": "sent"}


def ends(readings: Sequence[Mapping[str, Any]]) -> Iterator[dict[tuple[str, str], float]]:
    """Values by part and quantity, of the first look and of the last."""
    for look in (readings[0], readings[-1]):
        yield {(each["part"], each["quantity"]): each["value"] for each in look["readings"]}


def carried_gb_per_s(readings: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean rate of each port by quantity (`CARRIED`), from the first look to the last, idle time included.

    A counter that went back was set to zero meanwhile, and says nothing; so does one that did not grow.
    """
    held_s = readings[-1]["time_s"] - readings[0]["time_s"] if len(readings) > 1 else 0.0
    if held_s <= 0:
        return {}
    first, last = ends(readings)
    rates: dict[str, dict[str, float]] = {}
    for (part, quantity), before in first.items():
        grown = last.get((part, quantity), before) - before
        if quantity in CARRIED and grown > 0:
            rates.setdefault(part, {})[quantity] = grown / held_s / 1e9
    return rates


def all_gb_per_s(readings: Sequence[Mapping[str, Any]]) -> float | None:
    """All ports and both directions together; None where no port has counted anything."""
    rates = [rate for each in carried_gb_per_s(readings).values() for rate in each.values()]
    return sum(rates) if rates else None
