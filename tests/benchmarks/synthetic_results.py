"""Results of campaigns that were never measured: valid records, shared documents and manifests."""

from __future__ import annotations

from pathlib import Path
from random import Random

from campaign.plan.campaign.resolve import Campaign
from campaign.plan.dag import open_dag
from campaign.plan.matrix import build_specification
from campaign.plan.request import PlanRequest
from campaign.spec.cell import Cell
from campaign.spec.record import Record, RecordedCell, RecordStore
from campaign.spec.run_numbers import list_run_numbers
from tests.campaign_records import write_manifests

_STARTED_S = 1_700_000_000.0
_STEPS = 20
_TIME = {"fp32": 1.0, "tf32": 0.6, "bf16": 0.42, "fp16": 0.4}


def write_results(campaign_path: Path, results: Path) -> int:
    """Write a record per run and a manifest per lease, and return the number of records."""
    dag = open_dag(PlanRequest(campaign_path, results))
    store = RecordStore(dag.results.directory)
    names = {
        "campaign": store.share_document(dag.campaign.to_document()),
        "environment": store.share_document({"schema_version": "environment/1", "host": "host1", "packages": {}}),
        "composition": store.share_document({"schema_version": "composition/1", "hosts": []}),
    }
    for shard in range(256):
        (store.records / f"{shard:02x}").mkdir(parents=True, exist_ok=True)
    number = 0
    for lease, cell in dag.plan.cells:
        for repetition in list_run_numbers(cell.settings):
            number += 1
            record = _record(dag.campaign, lease.name, cell, repetition, number, names)
            # Not `Store.write`: forcing every file to disk is what `measure` takes its time for, and not what is timed here.
            store.path(*record.key).write_bytes(record.model_dump_json().encode() + b"\n")
    write_manifests(dag)
    return number


def _record(campaign: Campaign, lease: str, cell: Cell, repetition: int, number: int, names: dict[str, str]) -> Record:
    at = cell.configuration
    # Compute by batch and precision, communication by ranks and hosts, one in a hundred of noise.
    compute_s = (2e-3 + 5e-4 * cell.batch) * _TIME[cell.precision]
    communication_s = (8e-3 * (1 if at.hosts == 1 else 3) * (at.ranks - 1) / at.ranks) if at.ranks > 1 else 0.0
    step_s = (compute_s + communication_s) * Random(number).gauss(1.0, 0.01)
    rate = cell.batch_global / step_s
    power_w = 300.0 * compute_s / step_s + 60.0
    return Record(
        cell_id=cell.id,
        repetition=repetition,
        cell=RecordedCell.from_cell(cell),
        specification=build_specification(campaign, cell),
        status="ok",
        started=_STARTED_S + number,
        ended=_STARTED_S + number + 1,
        lease_id=f"{campaign.name}.{lease}.1",
        hosts=tuple(f"host{n}" for n in range(1, cell.configuration.hosts + 1)),
        throughput_per_s=rate,
        metrics={
            "parameters": 25e6,
            "flops_per_step": cell.batch_global * 24e9,
            "allreduce_bytes_per_step": 1e8 if at.ranks > 1 else 0.0,
            "device_utilisation_mean_pct": 100.0 * compute_s / step_s,
            "device_power_mean_w": power_w,
            "energy_per_sample_j": at.ranks * power_w / rate,
            "cpu_utilisation_mean_pct": 12.0 + number % 7,
            "pcie_rx_mean_gb_per_s": 0.1 / step_s,
        },
        step_times_s=((step_s,) * _STEPS,),
        window_s=(step_s * _STEPS,),
        **names,
    )
