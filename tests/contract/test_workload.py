"""What every kind of workload promises, run for real with the local launcher.

The suite takes the kinds from `WORKLOADS` and runs the `example` of each. A kind whose example gives no step times, or that can
fail in ways of its own, has an entry in TIMED or FAILING.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.common.processes.marked import find_marked_processes
from campaign.plan.campaign.load import validate
from campaign.run.launched_run import RunLaunch, repeat_until_undisturbed
from campaign.run.launchers import open_launcher
from campaign.spec.cell import Cell
from campaign.spec.record import Failure
from campaign.spec.yaml_file import YamlFile
from campaign.workloads import WORKLOADS, load_workload_class
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, StepEnd, Workload
from tests.campaign_files import one_cell, one_run
from tests.unit.run.launch.compositions import composition, system

PROGRAM = """\
import time
for _ in range({measured_steps}):
    started = time.perf_counter()
    time.sleep(0.01)
    print('step:', time.perf_counter() - started)
"""
STEPS = {"metric": "step_time_s", "regex": r"step: (\S+)", "take": "all"}
PYTHON = [sys.executable, "-S", "-c"]

# Keys of a workload whose steps are timed, in place of the kind's example; and workloads that fail, with the status of their runs.
TIMED: Mapping[str, Mapping[str, Any]] = {
    "synthetic": {"sample_ms": 1.0, "noise_pct": 2.0},
    "command": {"command": [*PYTHON, PROGRAM], "parsers": [STEPS]},
    "train": {"model": "bert-nano", "options": {"seq_len": 8}},
    "service": {"server": {"command": ["sleep", "60"]}, "client": {"command": ["echo"], "parser": "vllm"}},
}
FAILING: list[tuple[str, Mapping[str, Any], str]] = [
    ("synthetic", {"failures": [{"when": "batch > 0", "status": "oom_device"}]}, "oom_device"),
    ("synthetic", {"failures": [{"when": "batch > 0", "status": "time_limit"}]}, "time_limit"),
    ("command", {"command": [*PYTHON, "import sys; sys.exit('broken')"]}, "crashed"),
    ("command", {"command": [*PYTHON, "print('nothing of use')"]}, "incomplete"),
    ("command", {"command": [*PYTHON, "import time; time.sleep(60)"]}, "time_limit"),
    ("train", {"options": {"seq_len": 8, "learning_rate": 1e30}}, "nan"),
    ("service", {}, "time_limit"),
]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = open_launcher("local", system(), composition((8, 0)))
    yield launcher
    launcher.close()


@pytest.fixture
def measure(launcher: Launcher, tmp_path: Path) -> Callable[..., Outcome]:
    return partial(measured, launcher, directory=tmp_path)


def measured(
    launcher: Launcher, workload: Workload, cell: Cell, directory: Path, time_limit_s: float = 120.0
) -> Outcome:
    """The outcome of one run, after which none of its processes is left."""
    if missing := workload.missing_requirements():
        pytest.skip(missing)
    assert workload.unsupported_reason(cell, "cpu") is None
    mark = f"test-{uuid.uuid4().hex}"
    run, log = one_run(directory / "run", cell), directory / "log"

    def launch() -> RunLaunch:
        log.unlink(missing_ok=True)
        ended = launcher.run(workload.step(run), mark, log, run.directory, StepLimits(time_limit_s))
        return RunLaunch(ended, workload.read(run, ended, Log(log)))

    outcome = repeat_until_undisturbed(cell.workload, launch, 3).outcome
    assert list(find_marked_processes(mark)) == []
    return outcome


def example_of(kind: str) -> Workload:
    return _validated(yaml.safe_load(load_workload_class(kind).example))


def timed(kind: str, **changes: Any) -> Workload:
    if kind not in TIMED:
        return example_of(kind)
    return _validated({"name": "w", "kind": kind, "precisions": ["fp32"], **TIMED[kind], **changes})


def _validated(document: dict[str, Any]) -> Workload:
    validated = validate(YamlFile(Path("workload.yaml"), document, {}), Workload)
    assert isinstance(validated, Workload)
    return validated


@pytest.mark.parametrize("kind", WORKLOADS)
def test_the_class_documents_itself(kind: str) -> None:
    described = load_workload_class(kind)
    for attribute in ("__doc__", "introduction", "example"):
        assert getattr(described, attribute), (
            f"give {described.__name__} a value for {attribute}; the reference shows it"
        )
    assert example_of(kind).kind == kind, f"the example of {described.__name__} has to be of kind {kind}"


@pytest.mark.parametrize("kind", WORKLOADS)
def test_its_file_survives_being_written_and_read(kind: str) -> None:
    workload = example_of(kind)
    document = json.loads(workload.model_dump_json())
    assert _validated(document) == workload


ENDS = {
    "time limit": (StepEnd((None,), 0.0, 1.0, timed_out=True), "time_limit"),
    "memory limit": (StepEnd((None,), 0.0, 1.0, memory_limit_hit=True), "oom_host"),
    "exit code": (StepEnd((1,), 0.0, 1.0), "crashed"),
}


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize(("ended", "status"), ENDS.values(), ids=ENDS)
def test_a_run_that_was_ended_or_crashed_says_so(kind: str, ended: StepEnd, status: str, tmp_path: Path) -> None:
    found = example_of(kind).read(one_run(tmp_path / "run", one_cell(devices=1)), ended, Log.from_text(""))
    assert found.status == status, f"{kind}: read() has to return ended.failure(log) where that is not None"
    assert found.failure is not None


@pytest.mark.parametrize("kind", WORKLOADS)
def test_its_example_runs(kind: str, measure: Callable[..., Outcome]) -> None:
    cell = one_cell(devices=1, batch=2)
    found = measure(example_of(kind), cell)
    assert (found.status, found.failure) == ("ok", None)
    assert (found.throughput_per_s or 0) > 0
    if load_workload_class(kind).serves_requests:
        check_requests(found)


def check_requests(found: Outcome) -> None:
    """Assert that the window of the client is known: `steady` holds its begin and end."""
    assert found.steady is not None
    assert found.window_s == pytest.approx((found.steady[1] - found.steady[0],))


@pytest.mark.parametrize("kind", [kind for kind in WORKLOADS if not load_workload_class(kind).serves_requests])
def test_a_run_gives_the_rate_that_its_window_says(kind: str, measure: Callable[..., Outcome]) -> None:
    cell = one_cell(devices=2, batch=2)
    cell = replace(cell, settings=replace(cell.settings, measured_steps=4))
    check_rate(measure(timed(kind), cell), cell)


def check_rate(found: Outcome, cell: Cell) -> None:
    """Rate, window and step times agree."""
    assert (found.status, found.failure) == ("ok", None)
    assert found.step_times_s, (
        f"the example gives no step times; add keys of a workload that does to TIMED in {__file__}"
    )
    steps_measured = cell.settings.measured_steps
    assert found.throughput_per_s == pytest.approx(cell.batch_global * steps_measured / max(found.window_s), rel=0.01)
    assert all(len(steps) == steps_measured for steps in found.step_times_s)
    assert len(found.step_times_s) == len(found.window_s) in (1, cell.configuration.ranks)
    for steps, window_s in zip(found.step_times_s, found.window_s, strict=True):
        assert sum(steps) == pytest.approx(window_s, rel=0.2, abs=0.05)
        assert min(steps) > 0


@pytest.mark.parametrize(
    ("kind", "changes", "status"), FAILING, ids=[f"{kind}-{status}" for kind, _, status in FAILING]
)
def test_a_failure_of_the_subject_is_an_outcome(
    kind: str, changes: Mapping[str, Any], status: str, measure: Callable[..., Outcome]
) -> None:
    found = measure(
        timed(kind, **changes), one_cell(devices=1, batch=2), time_limit_s=1.0 if status == "time_limit" else 60.0
    )
    assert found.status == status
    assert isinstance(found.failure, Failure)
    assert found.failure.reason
    assert found.throughput_per_s is None or status == "nan"
