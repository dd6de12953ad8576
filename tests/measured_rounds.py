"""Rounds of a question without hardware: who chooses them, and records of the leases that they choose."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from campaign.documents.cell import Cell
from campaign.documents.record import Record, RecordedCell, Store
from campaign.documents.rounds import ChosenLease
from campaign.documents.run_numbers import composition_of, runs_of
from campaign.insight.question_rounds import next_rounds
from campaign.insight.until import Decision, Question
from campaign.insight.until.cell_states import PricedMatrix
from campaign.plan.cost.assumption import parse_assumption
from campaign.plan.dag import Dag, read_plan
from campaign.plan.matrix import specification
from campaign.plan.request import PlanRequest
from campaign.tables.io import Tables
from tests.campaign_files import write_files
from tests.campaign_records import lease_document, write

BEST = "the best configuration is known within 5 %"
CHANGES = {
    "campaign.axes.precision": "fp32",
    "campaign.protocol.compositions": 3,
    "campaign.protocol.repetitions": 6,
    "campaign.protocol.seed": 77,
}
ASSUMED = parse_assumption("10 s a run, 5 s to compose")


def two_configurations(question: Question, matrix: PricedMatrix, tables: Tables | None, prior: object) -> Decision:
    """Batch 2 on the first two configurations, a composition a round, and after two of them the answer."""
    names = sorted({lease.configuration.name for lease in matrix.leases})[:2]
    known = 0 if tables is None else len(tables.runs)
    composition = 1 if tables is None else 2 + int(tables.runs["repetition"].max()) // 1000
    stop = composition > 2
    chosen = [
        ChosenLease(
            lease=lease.name,
            configuration=lease.configuration.name,
            composition=lease.composition,
            cells=tuple(cell.id for cell in cells),
        )
        for lease in matrix.leases
        if lease.configuration.name in names and lease.composition == composition
        for cells in [[cell for cell in lease.cells if cell.batch == 2]]
    ]
    return Decision(
        stop=stop, decided=stop, statement=f"{names[0]} is the best, by {known} runs." if stop else "",
        answers=("Either may be.",), rests_on=("Two compositions of each.",) if stop else (), next=() if stop else tuple(chosen),
        reasons=() if stop else (f"composition {composition} of the two candidates",), device_hours=known / 100,
        whole_device_hours=matrix.device_hours,
    )  # fmt: skip


def asked(directory: Path, changes: dict[str, Any] | None = None, **keys: Any) -> PlanRequest:
    path = write_files(directory, {**CHANGES, **(changes or {})})
    return PlanRequest(path, directory / "results", assumed=ASSUMED, **{"until": BEST, **keys})


def open_rounds(request: PlanRequest) -> Dag:
    """The plan of the leases of all rounds, the next one too."""
    return Dag(request, read_plan(request, rounds=next_rounds(request) if request.until else None))


_STEP_S = 0.1


def measure(dag: Dag, speed: float = 1.0) -> list[tuple[str, int]]:
    """Write a record of every run of the plan that has none; gives these runs."""
    store, made = Store(dag.results.directory), []
    shared = {
        "campaign": store.share(dag.campaign.document()),
        "environment": store.share({"packages": {}, "host": "h"}),
        "composition": store.share({"hosts": []}),
    }
    for lease, cell in dag.plan.cells:
        use = f"{lease.name}.1"
        write(dag.results.leases / f"{use}.json", lease_document(lease.name, float(lease.composition)))
        for run in runs_of(cell.settings):
            if store.has(cell.id, run, implied=True):
                continue
            rate = speed * rate_per_s(cell, run)
            store.write(
                Record(
                    cell_id=cell.id, repetition=run, cell=RecordedCell.of(cell),
                    specification=specification(dag.campaign, cell), status="ok", started=1.0, ended=2.0, lease_id=use,
                    throughput_per_s=rate, step_times_s=((_STEP_S,),), window_s=(_STEP_S,), **shared,
                )
            )  # fmt: skip
            made.append((cell.id, run))
    return made


def rate_per_s(cell: Cell, run: int) -> float:
    """In proportion to ranks, a quarter less behind the fabric, and within half a percent from composition to composition."""
    fabric = 0.75 if cell.configuration.attach == "fabric" else 1.0
    return (
        10.0 * cell.batch * cell.configuration.ranks * fabric * (1 + 0.005 * math.sin(7.0 * composition_of(run) + run))
    )
