"""The report's section on compositions: what leases asked for and obtained, and how long they were idle between runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from campaign import wording
from campaign.documents.cell import Configuration
from campaign.tables.cells import tally
from campaign.tables.leases import idle_times, leases_table

LEASES_ON_PAGE = 100


def compositions(leases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Leases with what was asked for and obtained; of very many, first those that something happened to."""
    times = leases_table(leases).to_dict("records")
    rows = [
        {
            "lease": lease["lease_id"],
            "configuration": lease["configuration"],
            "state": lease["state"],
            "composed": wording.seconds(time["compose_s"]),
            "requested": _requested(lease.get("requested") or {}),
            "obtained": _obtained(lease.get("obtained") or {}),
            "mismatches": [_plain(each) for each in lease.get("mismatches") or ()],
            "faults": [_fault(each) for each in lease.get("faults") or ()],
            "retries": time["retries"],
        }
        for lease, time in zip(leases, times, strict=True)
    ]
    eventful = [row for row in rows if row["mismatches"] or row["faults"]]
    kept = rows if len(rows) <= LEASES_ON_PAGE else eventful[:LEASES_ON_PAGE]
    return {
        "rows": kept,
        "total": len(rows),
        "left_out": len(rows) - len(kept),
        "mismatched": sum(1 for row in rows if row["mismatches"]),
        "faulty": sum(1 for row in rows if row["faults"]),
        "phases": _phases(leases_table(leases)),
    }


_PHASES: Mapping[str, str] = {
    "Fabric": "fabric_s",
    "Hosts": "visible_s",
    "Ready": "readying_s",
    "Composed in": "compose_s",
    "Released in": "release_s",
}


def _phases(times: pd.DataFrame) -> dict[str, Any] | None:
    """How long each phase of composing took: median and range by configuration, with operations and retries; None without any."""
    rows = []
    for name, group in times[times["compose_s"].notna()].groupby("configuration", sort=False):
        told = [_median_and_range(group[column].dropna()) for column in _PHASES.values()]
        counts = (f"{int(group[column].sum()):,}" for column in ("operations", "retries"))
        rows.append((str(name), f"{len(group):,}", *told, *counts))
    return {"headings": ("Configuration", "Leases", *_PHASES, "Operations", "Retries"), "rows": rows} if rows else None


def idle(runs: pd.DataFrame, cells: pd.DataFrame) -> dict[str, Any]:
    """Idle time between runs: a sentence for the campaign, a row for each configuration in the order of the plan, and one for
    each lease, the longest idle ones first."""
    configurations = idle_times(runs, "configuration")
    if configurations.empty:
        return {"sentence": "", "configurations": None, "leases": None}
    places = {name: place for place, name in enumerate(cells["configuration"].unique())}
    configurations = configurations.sort_values("configuration", key=lambda names: names.map(places), kind="stable")
    leases = idle_times(runs, "lease_id").sort_values(
        ["idle_longest_s", "lease_id"], ascending=[False, True], kind="stable"
    )
    (total,) = idle_times(runs.assign(campaign=""), "campaign").to_dict("records")
    return {
        "sentence": f"Between runs, leases were idle for {wording.seconds(total['idle_s'])} in all, "
        f"{wording.percent(total['idle_pct'])} of the {wording.seconds(total['span_s'])} from the first start to the last end on "
        f"each; the longest was {wording.seconds(total['idle_longest_s'])}, on lease {leases['lease_id'].iloc[0]}.",
        "configurations": _idle_table(configurations, {"Configuration": "configuration", "Leases": "leases"}),
        "leases": {
            **_idle_table(leases.head(LEASES_ON_PAGE), {"Lease": "lease_id"}),
            "total": len(leases),
            "left_out": max(0, len(leases) - LEASES_ON_PAGE),
        },
    }


def _idle_table(table: pd.DataFrame, first: Mapping[str, str]) -> dict[str, Any]:
    headings = (*first, "Runs", "Median", "Longest", "In all", "Share of the time")
    rows = [
        (
            *(str(row[column]) for column in first.values()),
            f"{row['runs']:,}",
            wording.seconds(row["idle_median_s"]),
            wording.seconds(row["idle_longest_s"]),
            wording.seconds(row["idle_s"]),
            wording.percent(row["idle_pct"]),
        )
        for row in table.to_dict("records")
    ]
    return {"headings": headings, "rows": rows}


def _median_and_range(seconds: pd.Series[float]) -> str:
    if seconds.empty:
        return "–"
    spread = f" ({wording.between(seconds.min(), seconds.max(), wording.seconds)})" if len(seconds) > 1 else ""
    return wording.seconds(seconds.median()) + spread


def _requested(asked: Mapping[str, Any]) -> str:
    """The configuration in words; what is none, as it is."""
    try:
        return Configuration(**asked).words()
    except TypeError:
        return _plain(asked)


def _fault(fault: Any) -> str:
    """A fault in words: 'compose: the answer was lost'."""
    if isinstance(fault, Mapping) and {"operation", "message"} <= set(fault):
        return f"{fault['operation']}: {fault['message']}"
    return _plain(fault)


def _obtained(obtained: Mapping[str, Any]) -> str:
    """What was obtained, in words: 'host1: A100 x4 (2 local), storage nvme0' for each host."""
    said = []
    for host in obtained.get("hosts", ()):
        devices = host.get("devices", ())
        local = sum(1 for device in devices if device.get("local"))
        models = tally(str(device.get("model") or device.get("kind")) for device in devices) or "no device"
        disks = ", ".join(_plain(disk) for disk in host.get("storage", ()))
        said.append(
            f"{host['name']}: {models}" + (f" ({local} local)" if local else "") + (f", {disks}" if disks else "")
        )
    return "; ".join(said) or "nothing"


def _plain(value: Any) -> str:
    """A small document in a line: 'hosts 2, device A100'."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value)
    return str(value)
