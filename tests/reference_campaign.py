"""The published studies as campaigns: what each prints, made into runs from which every stated ratio must come out again.

`tables(name)` are those of config/campaigns/<name>-study.yaml with throughputs that are relative only: the documents print no
absolute ones. What a document leaves open is filled with plain values (`_RATE_LIKE`). Noise: 0.01 % (normal, seeded), so that an
interval is narrower than the digits that are printed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from campaign.analysis.published.claims import add_evaluated_claims
from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.observe.links.document import LinksDocument, Matrices, MeasuredDevice, list_link_kinds
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.matrix import expand_matrix
from campaign.plan.plan import format_lease_name
from campaign.spec.cell import Cell
from campaign.spec.record import Record, RecordedCell

CAMPAIGNS = Path(__file__).resolve().parents[1] / "config" / "campaigns"
SETS = {"falcon": "falcon-study", "faster": "faster-study", "bitfusion": "remote-study"}
PARAMETERS = {
    "mobilenetv2": 3504872,
    "resnet50": 25557032,
    "yolov5l": 46563709,
    "bert-base": 108893186,
    "bert-large": 334094338,
}

# faster, Fig. 5: four devices; eight devices lose more.
_SPREAD = {(2, 4): 0.919, (4, 4): 0.867, (2, 8): 0.90, (4, 8): 0.84}
# faster, Fig. 8: FP16 over TF32 of BERT-Large by devices and batch.
_FP16 = {(1, 4): 2.27, (1, 8): 2.09, (1, 16): 1.9, (12, 4): 1.75, (12, 8): 1.78, (12, 16): 1.79}
# falcon, Fig. 11: times of training behind the fabric over local ones; the order and the bounds are printed, most numbers are not.
_FABRIC = {"mobilenetv2": 1.02, "resnet50": 1.04, "yolov5l": 1.06, "bert-base": 1.4, "bert-large": 1.9}
_HYBRID = {"mobilenetv2": 1.01, "resnet50": 1.03, "yolov5l": 1.05, "bert-base": 1.3, "bert-large": 1.6}
# falcon, Fig. 12: GB/s in and out of all fabric devices.
_PCIE = {"mobilenetv2": 4.0, "resnet50": 11.31, "yolov5l": 20.0, "bert-base": 40.0, "bert-large": 76.43}
_RATE = 100.0
_NOISE = 1e-4


def campaign(name: str) -> Campaign:
    return load_campaign(CAMPAIGNS / f"{SETS[name]}.yaml")


def rate(name: str, cell: Cell) -> float | None:
    """Throughput of a cell without noise; None where the document says that it runs out of memory."""
    return {"falcon": _falcon, "faster": _faster, "bitfusion": _bitfusion}[name](cell)


def _falcon(cell: Cell) -> float:
    at, parallel = cell.configuration, cell.options.get("parallel", "ddp")
    time = {"local": 1.0, "hybrid": _HYBRID[cell.workload], "fabric": _FABRIC[cell.workload]}[at.attach]
    time *= {"local": 1.0, "nvme": 0.9, "fabric-nvme": 0.92}[at.storage]
    time *= 1.0 if cell.precision == "fp16-o2" else {"local": 1.6, "hybrid": 1.65, "fabric": 1.75}[at.attach]
    return _RATE * at.ranks / time / {"ddp": 1.0, "dp": 1.9, "fsdp": 1.1}[str(parallel)]


def _faster(cell: Cell) -> float | None:
    at, n = cell.configuration, cell.configuration.ranks
    if cell.workload == "bert-large" and cell.batch == 32 and cell.precision == "tf32":
        return None
    found = _RATE * n * (0.985 + 0.0005 * cell.batch) ** np.log2(n)
    if at.device == "a100-40gb":
        found *= _SPREAD.get((at.hosts, n), 1.0)
        found *= 0.85 if n == 14 and cell.workload == "bert-large" else 1.0
        found *= 1 + 0.002 * (at.devices_per_host != at.devices_used) * at.devices_per_host / 16
    if cell.precision != "tf32" and cell.workload == "bert-large":
        return float(found * _FP16.get((n, cell.batch), 1.7))
    return float(found * (1.0 if cell.precision == "tf32" else 1.5))


def _bitfusion(cell: Cell) -> float:
    gain = {"N4": 1.0, "L4": 1.03, "L2R2": 1.02, "R4": 1.01, "part": 0.06}
    return _RATE * cell.batch**0.2 * gain[cell.configuration.name]


def _record(name: str, cell: Cell, repetition: int, draw: float) -> Record:
    at, true = cell.configuration, rate(name, cell)
    measured = None if true is None else true * (1 + _NOISE * draw)
    document = {
        "cell_id": cell.id,
        "repetition": repetition,
        "cell": RecordedCell.from_cell(cell),
        "specification": {},
        "status": "oom_device" if measured is None else "ok",
        "failure": {"reason": "out of memory"} if measured is None else None,
        "started": 1_700_000_000.0 + 100 * repetition,
        "ended": 1_700_000_050.0 + 100 * repetition,
        "lease_id": f"lease-{at.name}.c{repetition % 3}",
        "hosts": tuple(f"host{n}" for n in range(at.hosts)),
        "composition": "c" * 20,
        "environment": "e" * 20,
        "campaign": "a" * 20,
        "throughput_per_s": measured,
        "metrics": {} if measured is None else _metrics(cell, draw),
        "log": "",
    }
    return Record.model_validate(document)


def _metrics(cell: Cell, draw: float) -> dict[str, float]:
    at, noise = cell.configuration, 1 + _NOISE * draw
    attached = {"local": 0.0, "hybrid": 1.0, "fabric": 2.0}[at.attach]
    share = {"local": 0.0, "hybrid": 0.5, "fabric": 1.0}[at.attach] * noise / at.ranks / 2
    traffic = _PCIE[cell.workload] * share
    language = cell.workload.startswith("bert")
    return {
        "parameters": PARAMETERS[cell.workload],
        "device_utilisation_mean_pct": (88.0 + attached) * noise,
        "device_memory_access_mean_pct": (40.0 - 5 * attached) * noise,
        "cpu_utilisation_mean_pct": (10.0 if language else 30.0) * noise,
        "pcie_rx_mean_gb_per_s": traffic,
        "pcie_tx_mean_gb_per_s": traffic,
    }


def links() -> list[dict[str, Any]]:
    """falcon, Table IV, as measured on a hybrid composition of two local and two fabric devices."""
    ends = ["local", "local", "fabric", "fabric"]
    bandwidth = {"local local": 72.37, "fabric local": 19.64, "fabric fabric": 24.47}
    latency = {"local local": 1.85, "fabric local": 2.66, "fabric fabric": 2.08}

    def matrix(values: dict[str, float]) -> list[list[float | None]]:
        return [[None if a == b else values[" ".join(sorted((ends[a], ends[b])))] for b in range(4)] for a in range(4)]

    devices = [
        {"name": f"host1:{n}", "host": "host1", "index": n, "attach": end, "fabric_id": "", "model": "v100-16gb"}
        for n, end in enumerate(ends)
    ]
    matrices = {
        "bidirectional_gb_per_s": matrix(bandwidth),
        "unidirectional_gb_per_s": matrix({name: value / 2 for name, value in bandwidth.items()}),
        "latency_us": matrix(latency),
        "p2p": [[True] * 4] * 4,
    }
    document = LinksDocument(
        runs_on="cuda",
        devices=tuple(map(MeasuredDevice.model_validate, devices)),
        kinds=tuple(map(tuple, list_link_kinds(devices))),
        settings={"sizes_bytes": [8, 2**28], "repeats": 5, "warmup": 2, "budget_s": 30.0},
        matrix_size_bytes=2**28,
        matrices=Matrices.model_validate(matrices),
    ).model_dump(mode="json")
    said = {"lease_id": "lease-hybridGPUs", "lease": "hybridGPUs", "when": "before", "configuration": "hybridGPUs"}
    return [{**said, "document": document}]


@cache
def tables(name: str, seed: int = 11, repetitions: int = 5) -> Tables:
    """The tables of a study, with the published claims held against them in the context."""
    of, random = campaign(name), np.random.default_rng(seed)
    cells = expand_matrix(of).cells
    records = [_record(name, c, n, random.standard_normal()) for c in cells for n in range(1, repetitions + 1)]
    runs = build_runs_table(records)
    planned = [CellPlan(c, repetitions, format_lease_name(of.protocol, c)) for c in cells]
    context = {
        "campaign": {
            "name": of.name,
            "title": of.file.title,
            "question": of.file.question,
            "system": of.system.name,
            "baseline": of.file.baseline,
            "protocol": {
                "warmup_steps": 10,
                "measured_steps": 100,
                "repetitions": repetitions,
                "order": "blocks",
                "seed": 1,
            },
        },
        "campaign_yaml": "",
        "system": {"name": of.system.name, "description": of.system.description, "fabric": "static"},
        "references": of.to_document()["references"],
    }
    found = Tables(runs, build_cells_table(planned, runs), [], links() if name == "falcon" else [], context)
    return replace(found, context=add_evaluated_claims(found))
