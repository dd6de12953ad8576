"""Workloads that a campaign measures.

Each kind of workload is one class in its own module (see `protocol.Workload`) and one line in the table below. The reference,
the JSON Schema, the contract tests and the command line find the kinds in this table.
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
"""Import path of the class for each `kind` of workload file. A class is imported when a file of its kind is read."""


_EARLIER_SERVICE = "campaign.workloads.earlier_service:EarlierService"


def load_workload_class(kind: str) -> type[Workload]:
    """Import the class that implements a kind of workload. Raises ConfigError if the kind is unknown."""
    if kind not in WORKLOADS:
        raise ConfigError(f"'{kind}' is not a kind of workload; {suggest_name(kind, WORKLOADS)}")
    return cast(type[Workload], pkgutil.resolve_name(WORKLOADS[kind]))


def load_stored_class(document: Mapping[str, Any]) -> type[Workload]:
    """Import the class that implements the kind of a workload document from stored results.

    Raises ConfigError if the kind is unknown.
    """
    if document["kind"] == "service" and document.get("load") is not None:
        return cast(type[Workload], pkgutil.resolve_name(_EARLIER_SERVICE))
    return load_workload_class(str(document["kind"]))


def remove_obsolete_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a stored workload document without keys of earlier versions that are no longer supported."""
    obsolete_keys = {"objective", *(key for key in ("client", "load", "model") if document.get(key) is None)}
    return {
        key: value for key, value in document.items() if document.get("kind") != "service" or key not in obsolete_keys
    }
