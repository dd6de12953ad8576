"""A finished campaign with planted numbers: records, leases and manifests of three compositions, as if it had been measured.

Speeds and deviations are written down here, so that everything that is said of the campaign can be worked out by hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from campaign.plan.dag import Dag, open_dag
from campaign.plan.matrix import build_specification
from campaign.plan.request import PlanRequest
from campaign.spec.cell import Cell
from campaign.spec.record import Record, RecordedCell, RecordStore
from campaign.spec.run_numbers import list_run_numbers
from tests import campaign_files
from tests.campaign_records import write_manifests

CHANGES = {
    "campaign.configurations": [
        {"devices_per_host": [1, 2], "attach": "local"},
        {"devices_per_host": 2, "attach": "fabric"},
        {"hosts": 2, "devices_per_host": 1, "attach": "local"},
        {"devices_per_host": 2, "devices_used": 1, "attach": "local"},
    ],
    "campaign.axes": {"workload": ["steps"], "batch": [4, 8], "precision": ["fp32", "bf16"]},
    "campaign.protocol": {"repetitions": 6, "compositions": 3, "warmup_steps": 1, "measured_steps": 20},
}
# Samples per second of one device at batch 4 in fp32; what else changes it, as factors.
_RATE = 120.0
_CONFIGURATION = {"1x1-local": 1.0, "1x2-local": 1.9, "1x2-fabric": 1.7, "2x1-local": 1.5, "1x1of2-local": 0.96}
_BATCH = {4: 1.0, 8: 1.25}
_PRECISION = {"fp32": 1.0, "bf16": 1.6}
# Batch 8 on two devices: what more it loses.
_LARGE_ON_TWO = 0.97
_STEPS = 20
# Largest deviations of leases and of runs.
_OF_LEASES, _OF_RUNS = 0.01, 0.004


def write(directory: Path, again: int = 0, slower: Mapping[str, float] | None = None) -> Path:
    """Files and results of the campaign; gives the directory of its results.

    again: which time it is measured, each with deviations of its own; slower: by how much, as a part, configurations are slower.
    """
    path = campaign_files.write_files(directory, CHANGES)
    dag = open_dag(PlanRequest(path, directory / "results"))
    store = RecordStore(dag.results.directory)
    shared = {
        "campaign": store.share_document(dag.campaign.to_document()),
        "environment": store.share_document(
            {"schema_version": "environment/1", "host": "host1", "packages": {"torch": "2.0"}}
        ),
        "composition": store.share_document({"schema_version": "composition/1", "hosts": []}),
    }
    # What a lease and its runs deviate by does not depend on the order of leases.
    names = sorted(lease.name for lease in dag.plan.leases)
    for place, lease in enumerate(dag.plan.leases):
        name = names.index(lease.name) + 1
        number = 300 * name
        began = 1e9 + 1000.0 * place + 1e6 * again
        cells = [cell for of, cell in dag.plan.cells if of.name == lease.name]
        _write_lease(dag, lease.name, lease.configuration.name, began, place)
        for cell in cells:
            for run in list_run_numbers(cell.settings):
                number += 1
                deviation = _OF_LEASES * _wave(name + 101 * again) + _OF_RUNS * _wave(7 * number + 10_007 * again)
                speed = math.exp(deviation) * (1 - (slower or {}).get(cell.configuration.name, 0.0))
                store.write(_record(dag, cell, run, lease.name, began + 2 * (number % 300), speed, shared))
    write_manifests(dag)
    return dag.results.directory


def _wave(number: int) -> float:
    """Between -1 and 1, without a pattern and without outliers."""
    return math.sin(12.9898 * number) * 43758.5453 % 2 - 1


def _record(dag: Dag, cell: Cell, run: int, lease: str, started: float, noise: float, shared: dict[str, str]) -> Record:
    rate = _RATE * _CONFIGURATION[cell.configuration.name] * _BATCH[cell.batch] * _PRECISION[cell.precision] * noise
    if cell.batch == 8 and cell.configuration.ranks == 2:
        rate *= _LARGE_ON_TWO
    step_s = cell.batch_global / rate
    return Record(
        cell_id=cell.id,
        repetition=run,
        cell=RecordedCell.from_cell(cell),
        specification=build_specification(dag.campaign, cell),
        status="ok",
        started=started,
        ended=started + 1.5,
        lease_id=f"{dag.campaign.name}.{lease}.1",
        hosts=tuple(f"host{n}" for n in range(1, cell.configuration.hosts + 1)),
        throughput_per_s=rate,
        metrics={"parameters": 25e6, "cpu_utilisation_mean_pct": 40.0 + run % 7},
        step_times_s=(tuple(step_s * (1 + 0.02 * _wave(run + 31 * step)) for step in range(_STEPS)),),
        window_s=(step_s * _STEPS,),
        **shared,
    )


def _write_lease(dag: Dag, lease: str, configuration: str, began: float, place: int) -> None:
    """Composing takes longer from one configuration to the next, and a bit longer every time."""
    parts = [2.0 + 0.1 * place, 0.5 + (configuration == "1x2-fabric"), 0.25]
    ends = [began + sum(parts[: n + 1]) for n in range(3)]
    document = {
        "lease_id": f"{dag.campaign.name}.{lease}.1",
        "lease": lease,
        "configuration": configuration,
        "state": "RELEASED",
        "requested_s": began,
        "fabric_done_s": ends[0],
        "host_visible_s": ends[1],
        "ready_s": ends[2],
        "release_started_s": began + 900.0,
        "released_s": began + 901.0,
        "leaked": [],
    }
    path = dag.results.leases / f"{document['lease_id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
