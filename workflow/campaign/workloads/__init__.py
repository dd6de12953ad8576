"""Workloads: whatever is measured. One table says which kinds there are; adding one is a module and a line."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from campaign.workloads.protocol import Workload

WORKLOADS: dict[str, str] = {
    "train": "campaign.workloads.train",
    "synthetic": "campaign.workloads.synthetic",
    "command": "campaign.workloads.command",
}


def open_workload(file: Any) -> Workload:
    """The workload that a validated workload file describes."""
    make = cast(Callable[[Any], Workload], import_module(WORKLOADS[file.kind]).open_workload)
    return make(file)
