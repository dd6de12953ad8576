"""Workloads: what a campaign measures.

A kind is one class in a module of its own (`protocol.Workload` says what it has) and one line here. The reference, the JSON Schema,
the contract suite and the command line find it through this table.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, cast

from campaign.common.errors import ConfigError, suggest_name
from campaign.workloads.protocol import Workload

WORKLOADS: dict[str, str] = {
    "train": "campaign.workloads.train:TrainWorkload",
    "synthetic": "campaign.workloads.synthetic:SyntheticWorkload",
    "service": "campaign.workloads.service:ServiceWorkload",
    "command": "campaign.workloads.command:CommandWorkload",
}
"""`kind` of a workload file -> its class, which is imported when a file of this kind is read."""


_EARLIER_SERVICE = "campaign.workloads.earlier_service:EarlierService"


def workload_class(kind: str) -> type[Workload]:
    """The class of a kind; ConfigError for one that is not in the table."""
    if kind not in WORKLOADS:
        raise ConfigError(f"'{kind}' is not a kind of workload; {suggest_name(kind, WORKLOADS)}")
    return cast(type[Workload], pkgutil.resolve_name(WORKLOADS[kind]))


def stored_class(document: Mapping[str, Any]) -> type[Workload]:
    """Return the class of a workload that results hold. Raises ConfigError if its kind is not in the table."""
    if document["kind"] == "service" and document.get("load") is not None:
        return cast(type[Workload], pkgutil.resolve_name(_EARLIER_SERVICE))
    return workload_class(str(document["kind"]))


def without_removed_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload that results hold without the keys of earlier versions that are not read any more."""
    unread = {"objective", *(key for key in ("client", "load", "model") if document.get(key) is None)}
    return {key: value for key, value in document.items() if document.get("kind") != "service" or key not in unread}
