"""Records of exactly the leases of a plan, as if they had been measured, with speeds that are written down here."""

from __future__ import annotations

import math

from campaign.documents.cell import Cell
from campaign.documents.record import Record, RecordedCell, Store
from campaign.documents.run_numbers import composition_of, runs_of
from campaign.paths import Results
from campaign.plan.dag import Dag
from campaign.plan.matrix import specification
from tests.campaign_records import lease_document, write

_STEP_S = 0.1


def measure(dag: Dag) -> list[tuple[str, int]]:
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
            rate = rate_per_s(cell, run)
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


def counted(results: Results) -> dict[str, int]:
    """How many runs of each cell have a record."""
    found: dict[str, int] = {}
    for cell, _ in Store(results.directory).index():
        found[cell] = found.get(cell, 0) + 1
    return found
