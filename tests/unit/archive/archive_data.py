"""A small campaign's results with everything that an archive may hold, made without measuring.

Numbers follow from the axes and a seed. One cell runs out of memory, a larger batch of it is implied, one run crashes, one
repetition has not been measured; one lease failed. Hosts, devices and times are made up.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import Specifications, build_specification, expand_matrix
from campaign.spec.cell import Cell, Configuration
from campaign.spec.record import Failure, Record, RecordedCell, RecordStore
from tests import campaign_files

ARCHIVES = Path(__file__).parents[2] / "data" / "archives"
CHANGES: Mapping[str, Any] = {
    "campaign.title": "A small campaign",
    "campaign.axes.batch": [1, 2, 4, 8],
    "campaign.axes.precision": ["fp32"],
}
START_S = 1_700_000_000.0


def campaign_in(directory: Path, changes: Mapping[str, Any] | None = None) -> Campaign:
    return campaign_files.load(directory, {**CHANGES, **(changes or {})})


def contents(path: Path) -> dict[str, bytes]:
    """The members of an archive."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def fill(campaign: Campaign, results: Path, seed: int = 7) -> Path:
    """Write the results of a campaign; gives their directory."""
    store, random = RecordStore(results), np.random.default_rng(seed)
    shared = {
        "composition": store.share_document({"hosts": [{"name": "host1", "devices": [], "storage": []}]}),
        "environment": store.share_document(
            {"schema_version": "environment/1", "host": "host1", "packages": {"torch": "2.13.0"}}
        ),
        "campaign": store.share_document(campaign.to_document()),
    }
    for position, cell in enumerate(expand_matrix(campaign).cells):
        for repetition in range(1, cell.settings.repetitions + 1):
            if (position, repetition) != (3, 2):
                store.write(_record(campaign, cell, repetition, position, shared, random))
    for number, configuration in enumerate(campaign.configurations):
        _lease(results, configuration, START_S + 100.0 * number, failed=number == 3)
    _links(store, results)
    _json(
        results / "manifests" / campaign.configurations[0].name / "0a1b.json",
        {
            "schema_version": "manifest/1",
            "lease": campaign.configurations[0].name,
            "reason": "the fabric did not answer",
        },
    )
    _json(
        results / "slurm" / "excluded" / "host2.json",
        {"host": "host2", "why": "Slurm says DOWN", "lease": "small", "time_s": START_S},
    )
    (results / "slurm" / "commands.jsonl").write_text("of no use to a report")
    _telemetry(results, expand_matrix(campaign).cells[0], random)
    _limit(campaign, results)
    _json(results / "superseded" / "20231114T2213" / "records" / "00" / f"{'0' * 20}.1.json", {"set": "aside"})
    return results


def _record(
    campaign: Campaign,
    cell: Cell,
    repetition: int,
    position: int,
    shared: Mapping[str, str],
    random: np.random.Generator,
) -> Record:
    at = cell.configuration
    rate = (
        100.0
        * at.ranks**0.9
        * cell.batch**0.2
        * (0.93 if at.attach == "fabric" else 1.0)
        * (1 + 0.01 * random.standard_normal())
    )
    document: dict[str, Any] = {
        "cell_id": cell.id,
        "repetition": repetition,
        "cell": RecordedCell.from_cell(cell),
        "specification": build_specification(campaign, cell),
        "status": "ok",
        "started": START_S + 10 * position + repetition,
        "ended": START_S + 10 * position + repetition + 0.9,
        "lease_id": lease_id(at),
        "hosts": ("host1",),
        **shared,
        "throughput_per_s": round(rate, 3),
        "step_times_s": tuple((round(cell.batch_global / rate, 6),) * 3 for _ in range(at.ranks)),
        "window_s": tuple(round(3 * cell.batch_global / rate, 6) for _ in range(at.ranks)),
        "metrics": {"loss_last": 2.5, "parameters": 1000.0},
        "phases_s": {"warmup": 0.5},
        "log": f"logs/{at.name}/{cell.id}.{repetition}.log",
    }
    if (position, repetition) == (0, 1):
        document["telemetry"] = f"telemetry/{cell.id[:2]}/{cell.id}.1.parquet"
    nothing = {"throughput_per_s": None, "step_times_s": (), "window_s": (), "metrics": {}}
    if at.name == "1x2-fabric" and cell.batch == 4:
        document |= {
            **nothing,
            "status": "oom_device",
            "failure": Failure(reason="out of memory", evidence="tried to allocate"),
        }
    elif at.name == "1x2-fabric" and cell.batch == 8:
        smaller = next(c for c in expand_matrix(campaign).cells if c.configuration == at and c.batch == 4)
        document |= {
            **nothing,
            "status": "implied",
            "failure": Failure(reason="batch 4 already ran out of device memory"),
            "implied_by": f"{smaller.id}.1",
        }
    elif position == 1 and repetition == 1:
        document |= {
            **nothing,
            "status": "crashed",
            "failure": Failure(reason="ended with 1", evidence="Segmentation fault", rank=0),
        }
    return Record.model_validate(document)


def lease_id(of: Configuration) -> str:
    return f"small.{of.name}.0a1b2c.1"


def _lease(results: Path, of: Configuration, start_s: float, *, failed: bool) -> None:
    reached = (
        dict.fromkeys(("fabric_done_s", "host_visible_s", "ready_s", "release_started_s"))
        if failed
        else {
            "fabric_done_s": start_s + 2,
            "host_visible_s": start_s + 3,
            "ready_s": start_s + 3.5,
            "release_started_s": start_s + 60,
        }
    )
    _json(
        results / "leases" / f"{lease_id(of)}.json",
        {
            "lease_id": lease_id(of),
            "lease": of.name,
            "configuration": of.name,
            "state": "RELEASED",
            "requested_s": start_s,
            **reached,
            "released_s": start_s + 61,
            "operations": 2,
            "retries": 0,
            "requested": of.shape(),
            "obtained": {"hosts": []},
            "mismatches": [],
            "leaked": [],
            "faults": [{"time_s": start_s, "operation": "compose", "error": "Busy", "message": "no answer"}]
            if failed
            else [],
        },
    )


def _links(store: RecordStore, results: Path) -> None:
    from tests.unit.observe.links.links_data import links_document

    document = links_document((1, 1), sizes=(8, 2**20))
    lease = "small.1x1-local.0a1b2c.1"
    _json(
        results / "links" / f"{lease}.before.json",
        {
            "schema_version": "links-of-use/1",
            "lease_id": lease,
            "lease": "1x1-local",
            "when": "before",
            "document": store.share_document(document),
        },
    )


def _telemetry(results: Path, cell: Cell, random: np.random.Generator) -> None:
    import pyarrow
    import pyarrow.parquet

    times = [START_S + 1 + 0.1 * n for n in range(10)]
    table = {
        "time": times,
        "host": ["host1"] * 10,
        "part": ["host"] * 10,
        "quantity": ["memory_used_mib"] * 10,
        "value": list(random.uniform(500, 600, 10)),
    }
    path = results / "telemetry" / cell.id[:2] / f"{cell.id}.1.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(table), path)


def _limit(campaign: Campaign, results: Path) -> None:
    for cell in expand_matrix(campaign).cells:
        if cell.configuration.name == "1x2-fabric" and cell.batch == 4:
            key = Specifications(campaign).hash_memory_use(cell)
            path = results / "limits" / key[:2] / f"{key}.4.out.{cell.id}.1.json"
            _json(path, {"cell": cell.label(), "status": "oom_device"})


def _json(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
