"""A synthetic study of sizes, software options and counters whose effects are known, for tests of the figures of metrics.

Truth: five models on one host of eight devices. Time for equal work grows by `FABRIC_SLOPE` percentage points for 100 million
parameters over the fabric (half of it on hybrid devices); storage over the fabric costs 1 %. fp32 halves the rate. Of bert-large,
dp gives 0.55, fsdp 0.9 of ddp. Devices take 250 W (210 W over the fabric), PCIe carries 12 GB/s one way for 100 million parameters
(a tenth of it between local devices), as much back. Every
configuration is composed twice. Noise of the rate is 0.3 % (normal, seeded), so energy has it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import yaml

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.leases import build_leases_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.report.figure import FigureData
from campaign.spec.cell import Cell
from campaign.spec.record import Record
from tests.unit.report import report_data as synthetic

FABRIC_SLOPE = 20.0
# Name -> parameters, training GFLOP a sample, samples per second of a device in fp16, batch.
MODELS: Mapping[str, tuple[float, float, float, int]] = {
    "mobilenetv2": (3_504_872, 1.81, 900.0, 8),
    "resnet50": (25_557_032, 24.5, 380.0, 16),
    "yolov5l": (46_563_709, 327.0, 25.0, 11),
    "bert-base": (108_893_186, 212.0, 90.0, 12),
    "bert-large": (334_094_338, 739.0, 30.0, 6),
}
WAYS = {"ddp": 1.0, "dp": 0.55, "fsdp": 0.9}
BASELINE = "local-8"


def plan(repetitions: int = 4, models: Iterable[str] = MODELS) -> list[CellPlan]:
    """Every model in fp16 with ddp everywhere; bert-large in fp32 and with the other ways to share work, local and fabric."""
    local, hybrid, fabric = (synthetic.configuration(each=8, attach=attach) for attach in ("local", "hybrid", "fabric"))
    disk = synthetic.configuration(each=8, attach="local", storage="fabric-nvme")
    cells = []
    for model in models:
        batch = MODELS[model][3]
        cells += [synthetic.cell(at, model, batch, "fp16", parallel="ddp") for at in (local, hybrid, fabric, disk)]
        if model == "bert-large":
            more = [(way, digits) for way in WAYS for digits in ("fp32", "fp16") if (way, digits) != ("ddp", "fp16")]
            cells += [
                synthetic.cell(at, model, batch, digits, parallel=way) for at in (local, fabric) for way, digits in more
            ]
    return [CellPlan(each, repetitions, f"lease-{each.configuration.name}") for each in cells]


def overhead_pct(of: Cell) -> float:
    """The planted increase of time over local devices and storage."""
    share = {"local": 0.0, "hybrid": 0.5, "fabric": 1.0}[of.configuration.attach]
    return share * FABRIC_SLOPE * MODELS[of.workload][0] / 1e8 + (of.configuration.storage != "local")


def true_rate(of: Cell) -> float:
    """Samples per second over all devices, without noise."""
    slower = 1 + overhead_pct(of) / 100
    digits = 0.5 if of.precision == "fp32" else 1.0
    return of.configuration.ranks * MODELS[of.workload][2] * digits * WAYS[str(of.options["parallel"])] / slower


def counters(of: Cell, rate: float) -> dict[str, float]:
    """Metrics of a run, as samplers and workloads give them."""
    parameters, gflop, _, _ = MODELS[of.workload]
    over_fabric = {"local": 0.1, "hybrid": 0.55, "fabric": 1.0}[of.configuration.attach]
    ranks, power_w = of.configuration.ranks, 250.0 - 40.0 * (of.configuration.attach == "fabric")
    pcie = 12.0 * parameters / 1e8 * over_fabric
    return {
        "parameters": parameters,
        "flops_per_step": of.batch_global * gflop * 1e9,
        "allreduce_bytes_per_step": 4 * parameters,
        "flops_per_allreduce_byte": of.batch * gflop * 1e9 / (4 * parameters),
        "device_utilisation_mean_pct": 90.0 + 5 * over_fabric,
        "device_memory_access_mean_pct": 50.0 - 10 * over_fabric,
        "device_memory_peak_mib": 8192.0 + 512.0 * of.batch,
        "device_power_mean_w": power_w,
        "energy_j": 20.0 * ranks * power_w,
        "energy_per_sample_j": ranks * power_w / rate,
        "host_energy_j": 20.0 * 300.0,
        "cpu_utilisation_mean_pct": 40.0 if gflop < 400 else 15.0,
        "host_memory_used_peak_mib": 65536.0,
        "pcie_rx_mean_gb_per_s": pcie,
        "pcie_tx_mean_gb_per_s": pcie,
        "nvlink_rx_mean_gb_per_s": 20.0 * (1 - over_fabric),
        "disk_read_mean_gb_per_s": 0.02,
    }


def records(planned: list[CellPlan], seed: int = 5) -> list[Record]:
    """All runs of a plan."""
    random = np.random.default_rng(seed)
    found = []
    for entry in planned:
        for repetition in range(1, entry.repetitions + 1):
            rate = true_rate(entry.cell) * (1 + 0.003 * random.standard_normal())
            metrics = counters(entry.cell, rate)
            again = ".c2" if repetition > entry.repetitions / 2 else ""
            lease = f"lease-{entry.cell.configuration.name}{again}"
            found.append(synthetic.record(entry.cell, repetition, rate, metrics=metrics, lease_id=lease))
    return found


def series(cells: Iterable[Cell], devices: int = 4, points: int = 120) -> pd.DataFrame:
    """A table as `campaign.analysis.tables.time_series` makes it: runs of 60 s that warm up for 15 s, then work in steps."""
    time_s = np.linspace(0.0, 60.0, points)
    busy = np.where(time_s < 15, 5.0, 92.0 + 4 * np.sin(time_s))
    tables = []
    for position, cell in enumerate(cells):
        ends = {"cell_id": cell.id, "repetition": 1, "host": "host0", "time_s": time_s}
        for device in range(devices):
            part = f"gpu:{device}"
            tables.append({**ends, "part": part, "quantity": "utilisation_pct", "value": np.maximum(0, busy - device)})
            tables.append({**ends, "part": part, "quantity": "power_w", "value": 60 + busy * (2 - 0.1 * position)})
        tables.append({**ends, "part": "host", "quantity": "cpu_utilisation_pct", "value": 60 - busy / 2 + position})
        tables.append({**ends, "part": "host", "quantity": "host_memory_mib", "value": 2e4 + 100 * time_s})
    return pd.concat([pd.DataFrame(each) for each in tables], ignore_index=True)


def context() -> dict[str, Any]:
    """A page's context that knows its workloads and two hosts, of which one has another driver."""
    files = {name: {"name": name, "kind": "train", "model": name, "options": {}} for name in MODELS}
    gpu = "{}, GPU-{}, A100, 40960 MiB, {}, 4, 16"
    hosts = {
        host: {
            "schema_version": "environment/1",
            "host": host,
            "system": "Linux 5.15",
            "python": "3.11.4",
            "cpu": "a processor",
            "cpus_usable": 64,
            "memory_gib": 251.5,
            "packages": {"torch": "2.13.0", "numpy": "2.1.0"},
            "gpus": [gpu.format(n, n, driver) for n in range(4)],
            "devices": [
                {"uuid": f"GPU-{n}", "power_limit_w": 250.0, "persistence": True, "ecc": n > 0} for n in range(4)
            ],
            "variables": {"NCCL_DEBUG": "WARN"},
        }
        for host, driver in (("host1", "535.54"), ("host2", "550.90"))
    }
    image = {"schema_version": "software/1", "kind": "apptainer", "image": "/opt/pytorch.sif", "sha256": "ab" * 32}
    said = synthetic.context_document()
    environments = {"e" * 20: hosts["host1"], "f" * 20: hosts["host2"], "a" * 20: image}
    return {**said, "campaign_yaml": yaml.safe_dump({"workloads": files}), "environments": environments}


def study(repetitions: int = 4, models: Iterable[str] = MODELS) -> FigureData:
    """Everything together."""
    planned = plan(repetitions, models)
    runs = build_runs_table(records(planned))
    cells = [
        entry.cell for entry in planned if entry.cell.options["parallel"] == "ddp" and entry.cell.precision == "fp16"
    ]
    return FigureData(
        runs=runs,
        cells=build_cells_table(planned, runs),
        leases=build_leases_table([]),
        baseline=BASELINE,
        protocol=synthetic.context_document()["campaign"]["protocol"],
        telemetry=series(cells),
        context=context(),
    )
