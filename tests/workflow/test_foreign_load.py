"""The load of the hosts is in every record: what the run used itself, and what other programs used meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
import pytest

from campaign.spec.host_load import FOREIGN_LOAD_FLAG
from tests.workflow.checkout_twin import Project

OWN_S = 2.0
BURN = f"import time; [None for _ in iter(lambda: time.process_time() > {OWN_S}, True)]"


@contextmanager
def busy_program() -> Iterator[None]:
    """A program that does not belong to the campaign and is busy all the time."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("telemetry_s", [None, 0.2])
def test_a_busy_program_beside_a_run_is_in_its_record_and_table(project: Project, telemetry_s: float | None) -> None:
    project.workload("logged", body=f'"{sys.executable}" -c "{BURN}"; echo rate: 7')
    project.campaign(telemetry_s=telemetry_s)
    with busy_program():
        project.measure()
    (record,) = project.records()
    (load,) = record.loads
    # What the run used is known, whatever else this machine does meanwhile.
    assert load.own_s == pytest.approx(OWN_S, rel=0.25)
    assert load.own_pct / load.foreign_pct == pytest.approx(load.own_s / load.foreign_s)
    assert load.foreign_pct > 20
    assert FOREIGN_LOAD_FLAG in record.flags
    project.run("--until", "tables")
    (row,) = pd.read_parquet(project.results().tables / "runs.parquet").to_dict("records")
    assert (row["own_load_s"], row["foreign_load_pct"]) == (load.own_s, load.foreign_pct)
