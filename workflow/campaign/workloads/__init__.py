"""Workloads: what a campaign measures.

A kind is one class in a module of its own (`protocol.Workload` says what it has) and one line here. The reference, the JSON Schema,
the contract suite and the command line find it through this table.
"""

from __future__ import annotations

import pkgutil
from typing import cast

from campaign.errors import ConfigError, nearest
from campaign.workloads.protocol import Workload

WORKLOADS: dict[str, str] = {
    "train": "campaign.workloads.train:TrainWorkload",
    "synthetic": "campaign.workloads.synthetic:SyntheticWorkload",
    "service": "campaign.workloads.service:ServiceWorkload",
    "command": "campaign.workloads.command:CommandWorkload",
}
"""`kind` of a workload file -> its class, which is imported when a file of this kind is read."""


def workload_class(kind: str) -> type[Workload]:
    """The class of a kind; ConfigError for one that is not in the table."""
    if kind not in WORKLOADS:
        raise ConfigError(f"'{kind}' is not a kind of workload; {nearest(kind, WORKLOADS)}")
    return cast(type[Workload], pkgutil.resolve_name(WORKLOADS[kind]))
