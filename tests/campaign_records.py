"""Results of a small campaign without measuring: records, leases and what they share, as a driver writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from campaign.config.resolve import Campaign
from campaign.documents.record import Record, RecordedCell, Store
from campaign.plan.matrix import expand, specification


def fill(campaign: Campaign, results: Path, share: float = 1.0) -> Store:
    """Records of the first `share` of all runs, as a driver writes them, with their leases and manifests."""
    store = Store(results)
    environment = store.share({"packages": {"torch": "2.0"}, "host": "h"})
    as_used = store.share(campaign.document())
    cells = expand(campaign).cells
    runs = [(cell, repetition) for cell in cells for repetition in range(1, cell.settings.repetitions + 1)]
    for cell, repetition in runs[: round(share * len(runs))]:
        recorded = RecordedCell.of(cell)
        store.write(
            Record(
                cell_id=cell.id, repetition=repetition, cell=recorded, specification=specification(campaign, cell), status="ok",
                started=1.0, ended=2.0, lease_id=f"{cell.configuration.name}.1", composition="c", environment=environment,
                campaign=as_used, throughput_per_s=10.0 * cell.batch, step_times_s=((0.1,),), window_s=(0.1,),
            )
        )  # fmt: skip
    for number, configuration in enumerate(campaign.configurations):
        write(results / "leases" / f"{configuration.name}.1.json", lease_document(configuration.name, float(number)))
    return store


def lease_document(name: str, requested_s: float) -> dict[str, Any]:
    known = {"lease_id": f"{name}.1", "lease": name, "configuration": name, "state": "RELEASED"}
    return known | {"requested_s": requested_s, "leaked": []}


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
