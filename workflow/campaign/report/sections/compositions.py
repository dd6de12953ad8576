"""Section of the report on compositions: requested and obtained hardware of leases, and their idle time between runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.tables.cells import count_texts
from campaign.analysis.tables.leases import build_leases_table, summarize_idle_times
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.spec.cell import Configuration, drop_layout

MAX_LEASES_ON_PAGE = 40
_FINAL_STATES = ("RELEASED",)


def build_compositions_section(leases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the section of leases that had faults or differ from the request, with the counts of all leases."""
    times = build_leases_table(leases).to_dict("records")
    rows = [
        {
            "lease": lease["lease_id"],
            "configuration": lease["configuration"],
            "state": lease["state"],
            "composed": wording.format_seconds(time["compose_s"]),
            "requested": _describe_requested(lease.get("requested") or {}),
            "obtained": _describe_obtained(lease.get("obtained") or {}),
            "mismatches": [_format_document(item) for item in lease.get("mismatches") or ()],
            "faults": [_describe_fault(item) for item in lease.get("faults") or ()],
            "retries": time["retries"],
        }
        for lease, time in zip(leases, times, strict=True)
    ]
    eventful = [row for row in rows if row["mismatches"] or row["faults"] or row["state"].upper() not in _FINAL_STATES]
    return {
        "rows": eventful[:MAX_LEASES_ON_PAGE],
        "total": len(rows),
        "left_out": max(0, len(eventful) - MAX_LEASES_ON_PAGE),
        "mismatched": sum(1 for row in rows if row["mismatches"]),
        "faulty": sum(1 for row in rows if row["faults"]),
    }


def describe_idle_time(runs: pd.DataFrame) -> str:
    """Describe the idle time between runs on the same lease; empty if no lease had two runs."""
    leases = summarize_idle_times(runs, "lease_id")
    if leases.empty:
        return ""
    longest = leases.sort_values(["idle_longest_s", "lease_id"], ascending=[False, True], kind="stable").iloc[0]
    (total,) = summarize_idle_times(runs.assign(campaign=""), "campaign").to_dict("records")
    return (
        f"Leases were idle between runs for {wording.format_percent(total['idle_pct'])} of their time "
        f"({wording.format_seconds(total['idle_s'])} of {wording.format_seconds(total['span_s'])}). The longest break was "
        f"{wording.format_seconds(total['idle_longest_s'])}, on lease {longest['lease_id']}."
    )


def _describe_requested(request: Mapping[str, Any]) -> str:
    """Describe the requested configuration, or format it as a plain document if it is invalid."""
    try:
        return Configuration(**drop_layout(request)).describe()
    except (TypeError, ConfigError):
        return _format_document(request)


def _describe_fault(fault: Any) -> str:
    """Describe a fault, such as 'compose: the answer was lost'."""
    if isinstance(fault, Mapping) and {"operation", "message"} <= set(fault):
        return f"{fault['operation']}: {fault['message']}"
    return _format_document(fault)


def _describe_obtained(document: Mapping[str, Any]) -> str:
    """Describe the obtained hosts, such as 'host1: A100 x4 (2 local), storage nvme0'."""
    descriptions = []
    for host in document.get("hosts", ()):
        devices = host.get("devices", ())
        local = sum(1 for device in devices if device.get("local"))
        models = count_texts(str(device.get("model") or device.get("kind")) for device in devices) or "no device"
        disks = ", ".join(_format_document(disk) for disk in host.get("storage", ()))
        descriptions.append(
            f"{host['name']}: {models}" + (f" ({local} local)" if local else "") + (f", {disks}" if disks else "")
        )
    return "; ".join(descriptions) or "nothing"


def _format_document(value: Any) -> str:
    """Format a small document in one line, such as 'hosts 2, device A100'."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {_format_document(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_format_document(item) for item in value)
    return str(value)
