"""Redfish resources as JSON: what all have, and those that depend on nothing but numbers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from campaign.testbed.control_planes.redfish_zones.switching import LogEntry

ROOT = "/redfish/v1"
FABRIC = f"{ROOT}/Fabrics/PCIe"
GT_PER_S, GEN = 16.0, "Gen4"
Json = dict[str, Any]


def link(path: str) -> Json:
    return {"@odata.id": path}


def collection(path: str, kind: str, names: Iterable[str]) -> Json:
    members = [link(f"{path}/{name}") for name in names]
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "Name": f"{kind} Collection",
        "Members": members,
        "Members@odata.count": len(members),
    }


def resource(path: str, kind: str, version: str, **properties: Any) -> Json:
    name = path.rsplit("/", 1)[-1]
    head = {"@odata.id": path, "@odata.type": f"#{kind}.{version}.{kind}", "Id": name, "Name": name}
    return {**head, **properties}


def port(path: str, kind: str, width: int, ends: list[str]) -> Json:
    return resource(
        path,
        "Port",
        "v1_11_0",
        PortProtocol="PCIe",
        PortType=kind,
        LinkStatus="LinkUp" if width else "NoLink",
        CurrentSpeedGbps=width * GT_PER_S,
        MaxSpeedGbps=16 * GT_PER_S,
        Width=16,
        ActiveWidth=width,
        Links={"AssociatedEndpoints": [link(end) for end in ends]},
        Metrics=link(f"{path}/Metrics"),
    )


def metrics(path: str, name: str, errors: tuple[int, int]) -> Json:
    """Counters; traffic is a number that stays the same for the same part."""
    bytes_ = zlib.crc32(name.encode())
    return resource(
        path,
        "PortMetrics",
        "v1_5_0",
        RXBytes=bytes_,
        TXBytes=2 * bytes_,
        PCIeErrors={"CorrectableErrorCount": errors[0], "NonFatalErrorCount": errors[1], "FatalErrorCount": 0},
    )


def entry(path: str, logged: LogEntry) -> Json:
    return resource(
        path,
        "LogEntry",
        "v1_15_0",
        EntryType="Event",
        Created=logged.created,
        Severity=logged.severity,
        Message=logged.message,
        MessageId=f"Fabric.1.0.{logged.message_id}",
        Links={"OriginOfCondition": link(f"{FABRIC}/{logged.origin}")},
    )
