"""A small campaign with its system and workload, written to a directory and changed key by key."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.cell import Cell, Configuration, Settings
from campaign.spec.hardware import ComposedHost, Composition
from campaign.workloads.protocol import Run

CAMPAIGN: Mapping[str, Any] = {
    "name": "small",
    "system": "bench",
    "configurations": [{"devices_per_host": [1, 2], "attach": ["local", "fabric"]}],
    "axes": {"workload": ["steps"], "batch": [1, 2], "precision": ["fp32", "bf16"]},
    # One composition: tests of several ask for them.
    "protocol": {"repetitions": 2, "compositions": 1, "warmup_steps": 1, "measured_steps": 3},
}
SYSTEM: Mapping[str, Any] = {
    "name": "bench",
    "fabric": {"kind": "simulated"},
    "hosts": [{"name": "host[1-2]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 2}]}],
    "pool": [{"model": "cpu-rank", "count": 4, "drawer": "falcon1/drawer1"}],
    "devices": {"cpu-rank": {"runs_on": "cpu"}},
}
WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "steps": {"kind": "synthetic", "precisions": ["fp32", "bf16"], "real_time": False, "options": {"size": 8}},
    "program": {
        "kind": "command",
        "precisions": ["fp32", "bf16"],
        "command": ["echo", "rate: {batch}"],
        "options": {"size": 8},
        "parsers": [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}],
    },
    "nano": {"kind": "train", "model": "bert-nano", "precisions": ["fp32", "bf16"], "options": {"seq_len": 16}},
}


def write_files(directory: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Write campaign.yaml, systems/ and workloads/; gives the campaign's path.

    changes: "campaign.axes.batch", "system.fabric.kind" or "workloads.steps.model" -> a value, or None to remove the key.
    """
    documents: dict[str, Any] = {
        "campaign": copy.deepcopy(dict(CAMPAIGN)),
        "system": copy.deepcopy(dict(SYSTEM)),
        "workloads": {name: {"name": name, **copy.deepcopy(dict(w))} for name, w in WORKLOADS.items()},
    }
    for path, value in copy.deepcopy(dict(changes or {})).items():
        *parents, last = path.split(".")
        owner = documents
        for part in parents:
            owner = owner[int(part)] if isinstance(owner, list) else owner.setdefault(part, {})
        if value is None:
            del owner[last]
        elif isinstance(owner, list):
            owner[int(last)] = value
        else:
            owner[last] = value
    files = {"campaign.yaml": documents["campaign"], "systems/bench.yaml": documents["system"]}
    files |= {f"workloads/{name}.yaml": document for name, document in documents["workloads"].items()}
    for name, document in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(yaml.safe_dump(document, sort_keys=False))
    return directory / "campaign.yaml"


def load(directory: Path, changes: Mapping[str, Any] | None = None) -> Campaign:
    """`write_site_files` and read it back."""
    return load_campaign(write_files(directory, changes))


def ids(directory: Path, changes: Mapping[str, Any] | None = None) -> set[str]:
    """Cell ids of the campaign with these changes."""
    return {cell.id for cell in expand_matrix(load(directory, changes)).cells}


def one_cell(hosts: int = 1, devices: int = 2, workload: str = "steps", **values: Any) -> Cell:
    """A cell without a campaign around it."""
    configuration = Configuration("c", hosts, devices, devices, devices, "cpu-rank", "local", "local")
    settings = Settings(warmup_steps=1, measured_steps=3, repetitions=1)
    given = {"id": "0" * 20, "batch": 4, "precision": "fp32", "settings": settings, **values}
    return Cell(configuration=configuration, workload=workload, **given)


def one_run(directory: Path, cell: Cell) -> Run:
    """A run of a cell on hosts of this machine, in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    return Run(cell, 1, _composition(cell), directory, "cpu")


def _composition(cell: Cell) -> Composition:
    names = [f"host{number}" for number in range(1, cell.configuration.hosts + 1)]
    return Composition(tuple(ComposedHost(name, 4, 8.0, ()) for name in names))
