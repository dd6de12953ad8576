"""What every kind of workload promises, run for real with the local launcher."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from campaign.documents.cell import Cell
from campaign.documents.record import Failure
from campaign.launch import open_launcher
from campaign.launch.protocol import Launcher, Limits
from campaign.processes.marked import marked
from campaign.workloads import WORKLOADS, open_workload
from campaign.workloads.logs import Log
from campaign.workloads.protocol import Outcome
from campaign.workloads.workload_file import WorkloadFile
from tests.campaign_files import one_cell, one_run
from tests.unit.launch.compositions import composition, system

PROGRAM = """\
import time
for _ in range({measured_steps}):
    started = time.perf_counter()
    time.sleep(0.01)
    print('step:', time.perf_counter() - started)
"""
STEPS = {"metric": "step_time_s", "regex": r"step: (\S+)", "take": "all"}
PYTHON = [sys.executable, "-S", "-c"]

# A workload of each kind that runs well, and one that fails: its changes, its cell's and the status.
WELL: Mapping[str, Mapping[str, Any]] = {
    "synthetic": {"sample_ms": 1.0, "noise_pct": 2.0},
    "command": {"command": [*PYTHON, PROGRAM], "parsers": [STEPS]},
    "train": {"model": "bert-nano", "options": {"seq_len": 8}},
}
BADLY: list[tuple[str, Mapping[str, Any], str]] = [
    ("synthetic", {"failures": [{"when": "batch > 0", "status": "oom_device"}]}, "oom_device"),
    ("synthetic", {"failures": [{"when": "batch > 0", "status": "time_limit"}]}, "time_limit"),
    ("command", {"command": [*PYTHON, "import sys; sys.exit('broken')"]}, "crashed"),
    ("command", {"command": [*PYTHON, "print('nothing of use')"]}, "incomplete"),
    ("command", {"command": [*PYTHON, "import time; time.sleep(60)"]}, "time_limit"),
    ("train", {"options": {"seq_len": 8, "learning_rate": 1e30}}, "nan"),
]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = open_launcher("local", system(), composition((8, 0)))
    yield launcher
    launcher.close()


@pytest.fixture
def measure(launcher: Launcher, tmp_path: Path) -> Iterator[Callable[..., Outcome]]:
    mark = f"test-{uuid.uuid4().hex}"

    def run(kind: str, changes: Mapping[str, Any], cell: Cell, time_limit_s: float = 120.0) -> Outcome:
        if kind == "train" and importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed")
        document = {"name": "w", "kind": kind, "precisions": ["fp32"], **WELL[kind], **changes}
        workload = open_workload(TypeAdapter(WorkloadFile).validate_python(document))
        assert workload.objection(cell, "cpu") is None
        run = one_run(tmp_path / "run", cell)
        log = tmp_path / "log"
        ended = launcher.run(workload.step(run), mark, log, run.directory, Limits(time_limit_s))
        return workload.read(run, ended, Log(log))

    yield run
    if not (tmp_path / "log").exists():
        return
    assert list(marked(mark)) == []


def test_every_kind_of_the_table_is_tested() -> None:
    assert set(WELL) == set(WORKLOADS) == {kind for kind, _, _ in BADLY}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_run_gives_the_rate_that_its_window_says(kind: str, measure: Callable[..., Outcome]) -> None:
    cell = one_cell(devices=2, batch=2)
    cell = replace(cell, settings=replace(cell.settings, measured_steps=4))
    found = measure(kind, {}, cell)
    assert (found.status, found.failure) == ("ok", None)
    assert found.throughput_per_s == pytest.approx(cell.batch_global * 4 / max(found.window_s), rel=0.01)
    assert all(len(steps) == 4 for steps in found.step_times_s)
    assert len(found.step_times_s) == len(found.window_s) in (1, cell.configuration.ranks)
    for steps, window_s in zip(found.step_times_s, found.window_s, strict=True):
        assert sum(steps) == pytest.approx(window_s, rel=0.2, abs=0.05)
        assert min(steps) > 0


@pytest.mark.parametrize(("kind", "changes", "status"), BADLY, ids=[f"{kind}-{status}" for kind, _, status in BADLY])
def test_a_failure_of_the_subject_is_an_outcome(
    kind: str, changes: Mapping[str, Any], status: str, measure: Callable[..., Outcome]
) -> None:
    found = measure(kind, changes, one_cell(devices=1, batch=2), time_limit_s=1.0 if status == "time_limit" else 60.0)
    assert found.status == status
    assert isinstance(found.failure, Failure)
    assert found.failure.reason
    assert found.throughput_per_s is None or status == "nan"
