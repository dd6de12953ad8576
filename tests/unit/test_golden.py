"""Golden files at the borders: what others read of ours changes only on purpose.

Refresh after a wanted change: `python -m tests.unit.test_golden`, then look at the difference.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import write_runs_and_cells
from campaign.analysis.tables.runs import build_runs_table
from campaign.spec.cell import Cell, Configuration
from campaign.spec.record import Failure, Record, RecordedCell

GOLDEN = Path(__file__).parents[1] / "golden"
REFRESH = "if the change is wanted: python -m tests.unit.test_golden"
CONFIGURATION = Configuration("2x2-hybrid", 2, 2, 1, 2, "v100", "hybrid", "nvme")


def record(repetition: int, rate: float | None) -> Record:
    """A record with every field filled; without a rate, a failed one."""
    return Record(
        cell_id="0123456789abcdef0123",
        repetition=repetition,
        cell=RecordedCell(
            configuration=CONFIGURATION.name,
            **CONFIGURATION.shape(),
            workload="bert-large",
            batch=6,
            precision="fp16",
            options={"seq_len": 384},
        ),
        specification={"batch": 6},
        status="ok" if rate else "oom_device",
        failure=None
        if rate
        else Failure(reason="out of memory", evidence="CUDA out of memory. Tried to allocate", rank=3),
        started=1_700_000_000.0 + repetition,
        ended=1_700_000_060.5 + repetition,
        lease_id="study.2x2-hybrid.0a1b2c.1",
        hosts=("host1", "host2"),
        composition="c" * 20,
        environment="e" * 20,
        campaign="a" * 20,
        throughput_per_s=rate,
        step_times_s=((0.5, 0.25), (0.5, 0.5)) if rate else (),
        window_s=(0.75, 1.0) if rate else (),
        metrics={"loss_last": 2.5, "parameters": 334094338.0} if rate else {},
        phases_s={"import": 1.5, "warmup": 3.0} if rate else {},
        flags=("oversubscribed: more ranks than cores",),
        log="logs/2x2-hybrid/x.log",
    )


def made() -> dict[str, str]:
    """Name of each golden file and what it holds today."""
    records = [record(1, 96.0), record(2, 100.0), record(3, None)]
    cell = Cell("0123456789abcdef0123", CONFIGURATION, "bert-large", 6, "fp16", {"seq_len": 384})
    runs = build_runs_table(records)
    with tempfile.TemporaryDirectory() as directory:
        planned = [CellPlan(cell, 4, "2x2-hybrid", {4: "host2 was not visible"})]
        write_runs_and_cells(Path(directory), runs, build_cells_table(planned, runs))
        tables = {name: (Path(directory) / name).read_text() for name in ("runs.csv", "cells.csv")}
    return {"record.json": records[0].model_dump_json(indent=1) + "\n", **tables}


@pytest.mark.parametrize("name", ["record.json", "runs.csv", "cells.csv"])
def test_golden(name: str) -> None:
    assert made()[name] == (GOLDEN / name).read_text(), REFRESH


def test_the_golden_record_is_still_readable() -> None:
    assert Record.model_validate_json((GOLDEN / "record.json").read_text()) == record(1, 96.0)


if __name__ == "__main__":
    for name, content in made().items():
        (GOLDEN / name).write_text(content)
