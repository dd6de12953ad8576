"""Results of a small campaign without measuring: records, leases and what they share, as a driver writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from campaign.plan.campaign.resolve import Campaign
from campaign.plan.dag import Dag
from campaign.plan.matrix import build_specification, expand_matrix
from campaign.run.measure_lease import MANIFEST_SCHEMA
from campaign.spec.record import Record, RecordedCell, RecordStore, read_record
from campaign.spec.run_numbers import get_composition_number, list_run_numbers


def fill(campaign: Campaign, results: Path, share: float = 1.0) -> RecordStore:
    """Records of the first `share` of all runs, as a driver writes them, with their leases and manifests."""
    store = RecordStore(results)
    environment = store.share_document({"packages": {"torch": "2.0"}, "host": "h"})
    as_used = store.share_document(campaign.to_document())
    cells = expand_matrix(campaign).cells
    runs = [(cell, run) for cell in cells for run in list_run_numbers(cell.settings)]
    for cell, repetition in runs[: round(share * len(runs))]:
        recorded, lease = (
            RecordedCell.from_cell(cell),
            _lease(cell.configuration.name, get_composition_number(repetition)),
        )
        store.write(
            Record(
                cell_id=cell.id,
                repetition=repetition,
                cell=recorded,
                specification=build_specification(campaign, cell),
                status="ok",
                started=1.0,
                ended=2.0,
                lease_id=f"{lease}.1",
                composition="c",
                environment=environment,
                campaign=as_used,
                throughput_per_s=10.0 * cell.batch,
                step_times_s=((0.1,),),
                window_s=(0.1,),
            )
        )
    for number, configuration in enumerate(campaign.configurations):
        for composition in sorted(
            {get_composition_number(run) for cell, run in runs if cell.configuration == configuration}
        ):
            name = _lease(configuration.name, composition)
            requested_s = float(number + (composition - 1) * len(campaign.configurations))
            write(results / "leases" / f"{name}.1.json", lease_document(name, requested_s))
    return store


def write_manifests(dag: Dag) -> None:
    """Manifests of a plan whose leases have measured all of their runs."""
    for lease in dag.plan.leases:
        manifest = {
            "schema_version": MANIFEST_SCHEMA,
            "lease": lease.name,
            "configuration": lease.configuration.name,
            "run_set": lease.digest,
            "runs": lease.runs,
            "missing": [],
            "reason": "",
            "problems": [],
            "uses": [],
        }
        write(Path(dag.manifest_path(lease)), manifest)


def change(path: Path) -> None:
    """Have a record say that its run started later, as another measurement of the run would."""
    record = read_record(path)
    path.unlink()
    RecordStore(path.parent.parent.parent).write(record.model_copy(update={"started": record.started + 1.0}))


def _lease(configuration: str, composition: int) -> str:
    return f"{configuration}.c{composition}"


def lease_document(name: str, requested_s: float) -> dict[str, Any]:
    configuration = name.rpartition(".c")[0]
    known = {"lease_id": f"{name}.1", "lease": name, "configuration": configuration, "state": "RELEASED"}
    return known | {"requested_s": requested_s, "leaked": []}


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
