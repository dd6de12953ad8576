"""What every launcher of the table promises. One that needs a scheduler is tested where there is one (tests/cluster)."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.processes.marked import find_marked_processes
from campaign.run.launchers import LAUNCHERS, open_launcher
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.protocol import Step
from tests.unit.run.launch.compositions import composition, system

HERE = [name for name in LAUNCHERS if name == "local"]
LIMITS = StepLimits(30.0)


@pytest.fixture(params=HERE)
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    launcher = open_launcher(request.param, system(), composition((8, 0)))
    yield launcher
    launcher.close()


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"test-{uuid.uuid4().hex}"
    yield mark
    assert list(find_marked_processes(mark)) == []


def step(code: str, ranks: int = 2, per_rank: bool = True) -> Step:
    return Step((sys.executable, "-S", "-c", code), {"GIVEN": "1"}, {"host1": ranks}, per_rank)


def test_ranks_see_each_other_and_their_output_is_in_the_log(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    # One write a rank: unbuffered, `print` writes the end of the line apart, and lines of ranks run into each other.
    code = "import os; os.write(1, '{RANK}/{WORLD_SIZE}/{GIVEN}\\n'.format(**os.environ).encode())"
    ended = launcher.run(step(code, 3), mark, tmp_path / "deep" / "log", tmp_path, LIMITS)
    assert ended.codes == (0, 0, 0)
    assert sorted((tmp_path / "deep" / "log").read_text().split()) == ["0/3/1", "1/3/1", "2/3/1"]


def test_exit_codes_and_signals_are_by_rank(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    code = "import os, signal, sys; os.kill(os.getpid(), signal.SIGSEGV) if os.environ['RANK'] == '0' else sys.exit(7)"
    ended = launcher.run(step(code), mark, tmp_path / "log", tmp_path, LIMITS)
    assert ended.codes == (-signal.SIGSEGV, 7)
    assert not ended.timed_out


def test_a_step_ends_at_its_time_limit_with_all_it_started(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
time.sleep(60)
"""
    ended = launcher.run(step(code), mark, tmp_path / "log", tmp_path, StepLimits(0.5))
    assert ended.timed_out
    assert ended.codes == (-signal.SIGKILL,) * 2
    assert list(find_marked_processes(mark)) == []


def test_one_launcher_starts_many_steps(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    for _ in range(3):
        assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)
    launcher.close()
    assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)


LINGERS = (
    "import os, signal, sys, time; print(sys.argv[1], os.environ.get('SUBMITIT_X'), flush=True); time.sleep(60)",
    "-{host}-",
)


def pids(argument: str) -> list[int]:
    """Processes that have it among their arguments."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if argument in (process.info["cmdline"] or ()) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def test_a_process_stands_beside_the_runs_until_its_end(
    launcher: Launcher, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_X", "of the driver")
    with launcher.sidecar((sys.executable, "-S", "-c", *LINGERS, mark), tmp_path) as hosts:
        assert hosts == ("host1",)
        for _ in range(2):
            assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)
        assert len(pids(mark)) == 1
        until((tmp_path / "host1.log"), "-host1- None\n")
    assert pids(mark) == []


def test_what_stands_beside_is_killed_where_it_does_not_end(
    launcher: Launcher, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("campaign.common.processes.child.END_TIMEOUT_S", 0.1)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    with launcher.sidecar((sys.executable, "-S", "-c", stubborn, mark), tmp_path):
        until((tmp_path / "host1.log"), "x\n")
    assert pids(mark) == []


def test_what_cannot_stand_beside_disturbs_nothing(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    with launcher.sidecar(("no-such-program",), tmp_path) as hosts:
        assert hosts == ()
        assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)
    with launcher.sidecar((sys.executable, "-S", "-c", ""), tmp_path):  # ends by itself
        assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)


def test_hosts_that_are_only_names_share_one_process(mark: str, tmp_path: Path) -> None:
    launcher = open_launcher("local", system(), composition((1, 0), (1, 0)))
    with launcher.sidecar((sys.executable, "-S", "-c", *LINGERS, mark), tmp_path) as hosts:
        assert hosts == ("host1",)
        assert len(pids(mark)) == 1
    launcher.close()


def until(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while path.read_text() != text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "argv", [("no-such-program",), ("/etc/passwd",), ("echo", "a\0b"), ("echo", "x" * 10_000_000), (os.sep,)]
)
def test_what_cannot_be_started_is_a_launch_error(
    launcher: Launcher, mark: str, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    with pytest.raises(LaunchError, match=f"{argv[0]}: could not be started"):
        launcher.run(Step(argv, {}, {"host1": 2}), mark, tmp_path / "log", tmp_path, LIMITS)


def test_a_launcher_that_is_not_in_the_table_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="launcher: 'k8s' does not exist; there are: local"):
        open_launcher("k8s", system(), composition((1, 0)))
