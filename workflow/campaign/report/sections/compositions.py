"""The report's section on compositions: what leases asked for and obtained, and how long they were idle between runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.tables.cells import tally
from campaign.analysis.tables.leases import idle_times, leases_table
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.spec.cell import Configuration, drop_layout

LEASES_ON_PAGE = 40
_ENDED = ("RELEASED",)


def compositions(leases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the section of leases that had faults or differ from the request, with the counts of all leases."""
    times = leases_table(leases).to_dict("records")
    rows = [
        {
            "lease": lease["lease_id"],
            "configuration": lease["configuration"],
            "state": lease["state"],
            "composed": wording.format_seconds(time["compose_s"]),
            "requested": _requested(lease.get("requested") or {}),
            "obtained": _obtained(lease.get("obtained") or {}),
            "mismatches": [_plain(each) for each in lease.get("mismatches") or ()],
            "faults": [_fault(each) for each in lease.get("faults") or ()],
            "retries": time["retries"],
        }
        for lease, time in zip(leases, times, strict=True)
    ]
    eventful = [row for row in rows if row["mismatches"] or row["faults"] or row["state"].upper() not in _ENDED]
    return {
        "rows": eventful[:LEASES_ON_PAGE],
        "total": len(rows),
        "left_out": max(0, len(eventful) - LEASES_ON_PAGE),
        "mismatched": sum(1 for row in rows if row["mismatches"]),
        "faulty": sum(1 for row in rows if row["faults"]),
    }


def idle(runs: pd.DataFrame) -> str:
    """Describe the idle time between runs on the same lease; empty if no lease had two runs."""
    leases = idle_times(runs, "lease_id")
    if leases.empty:
        return ""
    longest = leases.sort_values(["idle_longest_s", "lease_id"], ascending=[False, True], kind="stable").iloc[0]
    (total,) = idle_times(runs.assign(campaign=""), "campaign").to_dict("records")
    return (
        f"Between runs, leases were idle for {wording.format_seconds(total['idle_s'])} in all, "
        f"{wording.format_percent(total['idle_pct'])} of the "
        f"{wording.format_seconds(total['span_s'])} from first start to last end; the longest was "
        f"{wording.format_seconds(total['idle_longest_s'])}, on lease {longest['lease_id']}."
    )


def _requested(asked: Mapping[str, Any]) -> str:
    """Describe the requested configuration in words, or as a plain document if it is invalid."""
    try:
        return Configuration(**drop_layout(asked)).words()
    except (TypeError, ConfigError):
        return _plain(asked)


def _fault(fault: Any) -> str:
    """Describe a fault, such as 'compose: the answer was lost'."""
    if isinstance(fault, Mapping) and {"operation", "message"} <= set(fault):
        return f"{fault['operation']}: {fault['message']}"
    return _plain(fault)


def _obtained(obtained: Mapping[str, Any]) -> str:
    """Describe the obtained hosts, such as 'host1: A100 x4 (2 local), storage nvme0'."""
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
    """Format a small document in one line, such as 'hosts 2, device A100'."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value)
    return str(value)
