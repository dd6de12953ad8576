"""Campaigns of which the truth is known: throughputs with planted effects, leases, drift and outliers, as records in tables.

A run's throughput is the true one of its cell times lease, cell on the lease, drift and run, each a deviation of the logarithm.
Tables are made of records as `campaign collect` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from campaign.analysis.tables.collect import build_tables
from campaign.analysis.tables.collected import CampaignResults
from campaign.analysis.tables.io import Tables
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.cell import Cell
from campaign.spec.record import Record, RecordedCell, RecordStore
from campaign.spec.run_numbers import get_composition_number, list_run_numbers
from tests import campaign_files

RATE = 100.0
_HOSTS = 8
Speed = Callable[[Cell], float]

# Configurations by how many there are; those of the first three are compared by one figure.
SHAPES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "3": [{"devices_per_host": 2, "attach": ["local", "hybrid", "fabric"]}],
    "4": [
        {"devices_per_host": 2, "attach": ["local", "hybrid", "fabric"]},
        {"devices_per_host": 2, "attach": "fabric", "storage": "fabric-nvme"},
    ],
    "12": [
        {"hosts": [1, 2], "devices_per_host": 2, "attach": ["local", "hybrid", "fabric"], "storage": ["local", "nvme"]}
    ],
    # Every figure has something to compare: scaling, node spread, part of a host, attachment.
    "all": [
        {"devices_per_host": [1, 2, 4], "attach": ["local", "fabric"]},
        {"hosts": [2, 4], "devices_per_host": 1, "attach": "local"},
        {"hosts": 2, "devices_per_host": 2, "attach": "local"},
        {"devices_per_host": 4, "devices_used": [1, 2], "attach": "local"},
    ],
    "curve": [{"devices_per_host": [1, 2, 4], "attach": "local"}, {"hosts": [2, 4, 8], "devices_per_host": 4}],
    "one": [{"devices_per_host": 2, "attach": "local"}],
}


_SYSTEM: Mapping[str, Any] = {
    "name": "bench",
    "fabric": {"kind": "simulated"},
    "hosts": [
        {
            "name": f"host[1-{_HOSTS}]",
            "cores": 4,
            "devices": [{"model": "cpu-rank", "count": 4}, {"kind": "nvme", "model": "drive", "count": 1}],
        }
    ],
    "pool": [
        {"model": "cpu-rank", "count": 32, "drawer": "falcon1/drawer1"},
        {"kind": "nvme", "model": "drive", "count": 8, "drawer": "falcon1/drawer1"},
    ],
    "devices": {"cpu-rank": {"runs_on": "cpu"}},
}


@dataclass(frozen=True)
class Planted:
    """What a campaign is to be like; sd and drift in percent. speed: of a cell against one device, without noise.

    order: of leases. slow: share of runs that are slower, and by how much. shape: of the deviations of runs. k_of: compositions of
    single configurations, by name. missing: share of compositions without any record. host_sd: of hosts; slow_host: how much slower
    host1 is.
    """

    shapes: str = "4"
    compositions: int = 3
    repetitions: int = 9
    lease_sd: float = 1.0
    run_sd: float = 1.0
    beside_sd: float = 0.0
    drift: float = 0.0
    order: str = "blocks"
    workloads: int = 1
    batches: Sequence[int] = (8,)
    precisions: Sequence[str] = ("fp32",)
    slow: tuple[float, float] = (0.0, 0.0)
    shape: str = "normal"
    unequal: bool = False
    missing: float = 0.0
    hosts: int = _HOSTS
    host_sd: float = 0.0
    slow_host: float = 0.0
    speed: Speed = field(default=lambda cell: float(cell.configuration.ranks))
    overrides: Sequence[Mapping[str, Any]] = ()
    metric: str = ""

    def campaign(self) -> Campaign:
        return _campaign(self)


_campaigns: dict[str, Campaign] = {}
_temporary: list[TemporaryDirectory[str]] = []


def _directory() -> Path:
    """One for the process, removed when it ends."""
    if not _temporary:
        _temporary.append(TemporaryDirectory(prefix="planted-"))
    return Path(_temporary[0].name)


def _campaign(of: Planted) -> Campaign:
    key = repr(
        (of.shapes, of.compositions, of.repetitions, of.order, of.workloads, of.batches, of.precisions, of.overrides)
    )
    if key not in _campaigns:
        names = ["steps", "program"][: of.workloads]
        changes = {
            "campaign.configurations": [dict(shape) for shape in SHAPES[of.shapes]],
            "campaign.axes": {"workload": names, "batch": list(of.batches), "precision": list(of.precisions)},
            "campaign.protocol": {
                "repetitions": of.repetitions,
                "compositions": of.compositions,
                "lease_order": of.order,
                "warmup_steps": 1,
                "measured_steps": 3,
            },
            "campaign.overrides": [dict(each) for each in of.overrides] or None,
            "system": _SYSTEM,
        }
        if changes["campaign.overrides"] is None:
            del changes["campaign.overrides"]
        _campaigns[key] = campaign_files.load(_directory() / f"campaign-{len(_campaigns)}", changes)
    return _campaigns[key]


@cache
def _store() -> tuple[RecordStore, str]:
    store = RecordStore(_directory() / "results")
    return store, store.share_document({"packages": {}, "host": "h"})


@dataclass(frozen=True)
class _Lease:
    """A lease of a campaign: its configuration, composition, cells, and hosts."""

    name: str
    configuration: str
    composition: int
    cells: tuple[Cell, ...]
    hosts: tuple[str, ...]


def tables(of: Planted, seed: int) -> Tables:
    """The tables of one campaign."""
    campaign, random = of.campaign(), np.random.default_rng(seed)
    matrix = expand_matrix(campaign)
    store, environment = _store()
    as_used = store.share_document(campaign.to_document())
    leases = _leases(of, list(matrix.cells), random)
    of_host = dict(zip(_names(of), of.host_sd / 100 * random.standard_normal(of.hosts), strict=True))
    of_host["host1"] += np.log(1 - of.slow_host / 100)
    runs = [(place, lease, each) for place, lease in enumerate(leases) for each in _runs(of, lease, random)]
    records = []
    of_lease = of.lease_sd / 100 * random.standard_normal(len(leases))
    of_cell = of.beside_sd / 100 * random.standard_normal((len(leases), len(matrix.cells)))
    places = {cell.id: place for place, cell in enumerate(matrix.cells)}
    noise = _deviations(of, len(runs), random)
    for number, (place, lease, (cell, repetition)) in enumerate(runs):
        deviation = of_lease[place] + of_cell[place, places[cell.id]] + noise[number]
        deviation -= of.drift / 100 * number / max(len(runs) - 1, 1)
        # A run waits for the slowest of its hosts.
        deviation += min(of_host[name] for name in lease.hosts)
        started = 1e9 + 100.0 * number
        document = {
            "cell_id": cell.id,
            "repetition": repetition,
            "cell": RecordedCell.from_cell(cell),
            "specification": {"warmup_steps": 1},
            "status": "ok",
            "started": started,
            "ended": started + 90.0,
            "lease_id": f"{lease.name}.{seed}.1",
            "hosts": lease.hosts,
            "composition": "c" * 20,
            "environment": environment,
            "campaign": as_used,
            "throughput_per_s": RATE * of.speed(cell) * float(np.exp(deviation)),
        }
        records.append(Record.model_validate(document))
    return build_tables(CampaignResults(campaign, matrix, records, [], {}, store))


def _names(of: Planted) -> list[str]:
    return [f"host{number}" for number in range(1, of.hosts + 1)]


def _leases(of: Planted, cells: Sequence[Cell], random: np.random.Generator) -> list[_Lease]:
    """In the order in which they are composed."""
    keys = {
        (get_composition_number(run), cell.configuration.name): cell
        for cell in cells
        for run in list_run_numbers(cell.settings)
    }
    found = []
    for (composition, name), cell in keys.items():
        if of.missing and random.random() < of.missing:
            continue
        hosts = random.permutation(_names(of))[: cell.configuration.hosts]
        here = [
            each
            for each in cells
            if each.configuration.name == name
            and composition in map(get_composition_number, list_run_numbers(each.settings))
        ]
        found.append(_Lease(f"{name}--c{composition}", name, composition, tuple(here), tuple(sorted(map(str, hosts)))))
    mixed = [found[place] for place in random.permutation(len(found))]
    if of.order == "blocks":
        return sorted(mixed, key=lambda lease: lease.composition)
    names = [lease.configuration for lease in found]
    return sorted(mixed, key=lambda lease: (names.index(lease.configuration), lease.composition))


def _runs(of: Planted, lease: _Lease, random: np.random.Generator) -> list[tuple[Cell, int]]:
    """Runs of a lease in blocks, in random order in each."""
    blocks: dict[int, list[tuple[Cell, int]]] = {}
    for cell in lease.cells:
        runs = [run for run in list_run_numbers(cell.settings) if get_composition_number(run) == lease.composition]
        kept = runs[: random.integers(1, len(runs) + 1)] if of.unequal else runs
        for run in kept:
            blocks.setdefault(run % 1000, []).append((cell, run))
    return [blocks[block][place] for block in sorted(blocks) for place in random.permutation(len(blocks[block]))]


def _deviations(of: Planted, count: int, random: np.random.Generator) -> np.ndarray:
    sd = of.run_sd / 100
    if of.shape == "normal":
        found = sd * random.standard_normal(count)
    elif of.shape == "skew":  # slower runs lie further away; log-normal times
        found = -sd * (np.exp(random.standard_normal(count)) - np.exp(0.5)) / 2.1612
    elif of.shape == "modes":  # a third of the runs is three sd slower
        found = sd * (random.standard_normal(count) / 3 + 2.0 * (1 / 3 - (random.random(count) < 1 / 3)))
    elif of.shape == "heavy":
        found = sd * random.standard_t(3, count) / np.sqrt(3)
    else:
        raise ValueError(of.shape)
    share, slower = of.slow
    return found + np.log(1 - slower / 100) * (random.random(count) < share)
