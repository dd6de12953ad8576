"""What goes before and after the step that measures, on a launcher that does what it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.run.launched_run import LaunchedRun
from campaign.workloads.command import CommandWorkload
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.protocol import Step, StepEnd
from tests.campaign_files import one_cell, one_run


class HereLauncher:
    """Starts steps here; those that say `stop` run until their limit, and those that say `lost` are lost with their host."""

    def __init__(self) -> None:
        self.marks: list[str] = []

    @property
    def links(self) -> Mapping[str, Any] | None:
        return None

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: StepLimits) -> StepEnd:
        self.marks.append(marker.partition(".")[2])
        if "lost" in step.argv:
            raise LaunchError("the host was lost")
        if "stop" in step.argv:
            return StepEnd((-9,), 0.0, limits.time_limit_s, timed_out=True)
        with log.open("ab") as output:
            code = subprocess.run(step.argv, cwd=directory, stdout=output, stderr=output, check=False).returncode
        return StepEnd((code,), 1.0, 2.0)

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        raise NotImplementedError

    def close(self) -> None: ...


def launched(tmp_path: Path, **keys: Any) -> tuple[StepEnd, str, HereLauncher]:
    document = {"name": "p", "kind": "command", "precisions": ["fp32"], "command": ["cat", "input"], **keys}
    workload = CommandWorkload.model_validate(document)
    run = replace(one_run(tmp_path / "run", one_cell()), workload_dir=str(tmp_path))
    (tmp_path / "beside").write_text("rate: 5\n")
    launcher: Launcher = (here := HereLauncher())
    log = tmp_path / "cell.1.log"
    try:
        ended = LaunchedRun(launcher, workload, run, "mark", log, StepLimits(7.0)).execute(workload.step(run))
    except LaunchError as error:
        return StepEnd((None,), 0.0, 0.0, flags=(str(error),)), "", here
    return ended, log.read_text() if log.exists() else "", here


PREPARE = [["cp", "{workload_dir}/beside", "input"]]


def test_what_prepares_and_cleans_up_runs_in_the_runs_directory_and_is_not_measured(tmp_path: Path) -> None:
    out = ["sh", "-c", "cat input; echo more > {workload_dir}/left"]
    ended, log, launcher = launched(tmp_path, prepare=PREPARE, cleanup=[out])
    assert (ended.codes, ended.started, ended.ended, ended.flags) == ((0,), 1.0, 2.0, ())
    assert log == "rate: 5\n"  # and nothing that cleaning up printed
    assert launcher.marks == ["prepare0", "", "cleanup0"]
    assert (tmp_path / "left").exists()
    assert (tmp_path / "cell.1.cleanup.log").read_text() == "rate: 5\n"
    assert not (tmp_path / "cell.1.prepare.log").exists()  # as nothing was printed


@pytest.mark.parametrize("prepare", [["sh", "-c", "echo no space >&2; exit 3"], ["stop"]])
def test_a_run_that_could_not_be_prepared_is_no_run(tmp_path: Path, prepare: list[str]) -> None:
    ended, _, launcher = launched(tmp_path, prepare=[prepare, ["true"]], cleanup=[["touch", "{workload_dir}/left"]])
    assert "has no record" in ended.flags[0]
    assert ("ended with exit code 3 (no space)" if prepare[0] == "sh" else "was stopped after 7 s") in ended.flags[0]
    assert launcher.marks == ["prepare0", "cleanup0"]
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize("command", [["false"], ["stop"], ["lost"]])
def test_what_cleans_up_runs_however_the_run_ended(tmp_path: Path, command: list[str]) -> None:
    ended, _, launcher = launched(tmp_path, command=command, cleanup=[["touch", "{workload_dir}/left"]])
    assert launcher.marks == ["", "cleanup0"]
    assert (tmp_path / "left").exists()
    assert ended.codes[0] != 0


@pytest.mark.parametrize("cleanup", [["sh", "-c", "exit 4"], ["lost"], ["stop"]])
def test_a_failure_to_clean_up_flags_the_run_and_the_next_is_tried(tmp_path: Path, cleanup: list[str]) -> None:
    ended, log, launcher = launched(tmp_path, prepare=PREPARE, cleanup=[cleanup, ["true"]])
    assert (ended.codes, log) == ((0,), "rate: 5\n")
    assert len(ended.flags) == 1
    assert ended.flags[0].startswith("cleanup: ")
    assert launcher.marks == ["prepare0", "", "cleanup0", "cleanup1"]


@pytest.mark.parametrize(
    ("names", "log", "flags"),
    [
        ("numbers-1.json", "started\n\n{1}\n", ()),
        ("", "started\n", ("the program wrote no file 'numbers-*.json'",)),
        ("numbers-1.json numbers-2.json", "started\n\n{2}\n", ("2 files 'numbers-*.json': the last by name counts",)),
    ],
)
def test_numbers_in_a_file_come_into_the_log(tmp_path: Path, names: str, log: str, flags: tuple[str, ...]) -> None:
    text = "echo started; for name in " + names + "; do n=${{name#numbers-}}; printf '{{'${{n%.json}}'}}' > $name; done"
    ended, found, _ = launched(tmp_path, command=["sh", "-c", text], result="numbers-*.json")
    assert (found, ended.flags) == (log, flags)
