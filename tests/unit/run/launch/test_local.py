from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from campaign.common.errors import LaunchError
from campaign.common.processes.marked import find_marked_processes
from campaign.run import local_launcher as local
from campaign.run.local_launcher import LocalLauncher
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd
from tests.unit.run.launch.compositions import composition, system

SHOW = "import json, os; print(json.dumps(dict(os.environ), sort_keys=True), flush=True)"
SLEEP = "import time; time.sleep(60)"


class Bench:
    """A launcher with a log, a directory and a mark of its own."""

    def __init__(self, directory: Path) -> None:
        self.launcher: LocalLauncher = LocalLauncher(system(), composition((8, 0)))
        self.mark = f"test-{uuid.uuid4().hex}"
        self.log = directory / "logs" / "run.log"
        self.directory = directory

    def run(
        self,
        code: str | tuple[str, ...],
        hosts: Mapping[str, int] | None = None,
        per_rank: bool = True,
        limits: StepLimits = StepLimits(30.0),  # noqa: B008
        environment: Mapping[str, str] | None = None,
    ) -> StepEnd:
        argv = (sys.executable, "-S", "-c", code) if isinstance(code, str) else code
        step = Step(argv, environment or {}, hosts or {"host1": 1}, per_rank)
        return self.launcher.run(step, self.mark, self.log, self.directory, limits)

    def environments(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.launcher.close()
    assert list(find_marked_processes(bench.mark)) == []


def test_every_rank_knows_its_place(bench: Bench) -> None:
    ended = bench.run(SHOW, {"host1": 2, "host2": 1}, environment={"EXTRA": "1"})
    assert ended.codes == (0, 0, 0)
    ranks = sorted(bench.environments(), key=lambda environment: int(environment["RANK"]))
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2"]
    assert [rank["CAMPAIGN_HOST"] for rank in ranks] == ["host1", "host1", "host2"]
    assert [rank["CAMPAIGN_HOST_RANK"] for rank in ranks] == ["0", "1", "0"]
    assert len({rank["LOCAL_RANK"] for rank in ranks}) == 3
    for name, value in (("WORLD_SIZE", "3"), ("EXTRA", "1"), ("OMP_NUM_THREADS", "1"), ("CAMPAIGN_RUN", bench.mark)):
        assert {rank[name] for rank in ranks} == {value}
    assert len({(rank["MASTER_ADDR"], rank["MASTER_PORT"]) for rank in ranks}) == 1


def test_a_program_that_is_started_once_knows_its_ranks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert bench.run(SHOW, {"host1": 2, "host2": 2}, per_rank=False).codes == (0,)
    (environment,) = bench.environments()
    assert (environment["CAMPAIGN_RANKS"], environment["CAMPAIGN_HOSTS"]) == ("4", "host1,host2")
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert not {"RANK", "OMP_NUM_THREADS", "SUBMITIT_EXECUTOR"} & environment.keys()


def test_output_and_errors_go_to_the_log_and_the_work_to_its_directory(bench: Bench) -> None:
    bench.run(
        "import os, sys; print(os.getcwd(), flush=True); print('bad', file=sys.stderr); print(sys.stdin.read() == '')"
    )
    assert bench.log.read_text().splitlines() == [str(bench.directory), "bad", "True"]


def test_times_are_those_of_the_step(bench: Bench) -> None:
    before = time.time()
    ended = bench.run("import time; time.sleep(0.2)")
    assert before <= ended.started <= ended.ended <= time.time()
    assert ended.ended - ended.started >= 0.2


def test_the_memory_limit_ends_the_step(bench: Bench) -> None:
    ended = bench.run(f"x = bytearray(150_000_000); {SLEEP}", limits=StepLimits(30.0, memory_limit_mib=100))
    assert (ended.memory_limit_hit, ended.timed_out, ended.codes) == (True, False, (-9,))


def test_a_step_below_its_memory_limit_is_left_alone(bench: Bench) -> None:
    ended = bench.run("import time; time.sleep(0.3)", {"host1": 2}, limits=StepLimits(30.0, memory_limit_mib=500))
    assert (ended.memory_limit_hit, ended.codes) == (False, (0, 0))


def test_one_failing_rank_ends_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PEER_TIMEOUT_S", 0.2)
    code = f"import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else {SLEEP.removeprefix('import time; ')}"
    ended = bench.run(code, {"host1": 3})
    assert ended.codes == (-9, 3, -9)
    assert not ended.timed_out


def test_a_rank_that_hangs_in_its_exit_is_ended_and_its_result_stands(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_EXIT_TIMEOUT_S", 0.2)
    code = f"""
import os, sys, time
open(os.environ['CAMPAIGN_OUT'] + '/rank' + os.environ['RANK'] + '.json', 'w').close()
if os.environ['RANK'] == '1': {SLEEP.removeprefix("import time; ")}
"""
    places = [local.ProcessPlacement({"RANK": str(rank), "CAMPAIGN_OUT": str(bench.directory)}) for rank in range(2)]
    step = Step((sys.executable, "-S", "-c", code), {"CAMPAIGN_OUT": str(bench.directory)}, {"host1": 2}, preload="x")
    bench.log.parent.mkdir()
    ended = local._run_processes(step, bench.mark, places, bench.log, bench.directory, StepLimits(30.0), None)
    assert (ended.codes, ended.exit_hang, ended.timed_out) == ((0, 0), (1,), False)


def test_what_a_program_leaves_in_the_background_is_ended_too(bench: Bench) -> None:
    ended = bench.run(("sh", "-c", "sleep 60 & echo started"))
    assert ended.codes == (0,)
    assert bench.log.read_text() == "started\n"
    assert list(find_marked_processes(bench.mark)) == []


def test_a_preload_that_cannot_be_loaded_is_the_apparatus_failure(bench: Bench) -> None:
    step = Step(("true",), {}, {"host1": 1}, preload="campaign.no_such_room")
    with pytest.raises(LaunchError, match="process that forks the ranks"):
        bench.launcher.run(step, bench.mark, bench.log, bench.directory, StepLimits(5.0))


def test_an_interruption_leaves_nothing_running(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interruption(BaseException):
        pass

    def interrupted(*_: object) -> None:
        raise Interruption

    monkeypatch.setattr(local, "_wait_for_processes", interrupted)
    with pytest.raises(Interruption):
        bench.run(SLEEP, {"host1": 2})
    assert list(find_marked_processes(bench.mark)) == []


def test_a_daemon_that_cleans_its_environment_is_ended_with_its_run(bench: Bench) -> None:
    pid_file = bench.directory / "pid"
    daemon = f"env -i setsid sh -c 'sleep 60 & echo $$ $! >{pid_file}; wait' >/dev/null 2>&1 &"
    daemon += f" while ! test -s {pid_file}; do sleep 0.01; done"
    assert bench.run(("sh", "-c", daemon)).codes == (0,)
    for pid in pid_file.read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def after(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


@pytest.mark.parametrize("deep", [False, True])
def test_a_rank_that_is_stopped_for_a_while_is_noticed(bench: Bench, deep: bool) -> None:
    """A rank itself, and a process that it has started."""
    pid_file = bench.directory / "pid"
    program = f"echo $$ >{pid_file}; exec sleep 60"
    argv = ("sh", "-c", f"sh -c '{program}'; true") if deep else ("sh", "-c", program)

    def stop() -> None:
        os.kill(int(pid_file.read_text()), signal.SIGSTOP)
        if not deep:
            time.sleep(0.1)
            os.kill(int(pid_file.read_text()), signal.SIGCONT)

    timer = after(0.7, stop)
    ended = bench.run(argv)
    timer.join()
    assert "stopped" in ended.disturbance
    assert not ended.timed_out
    assert ended.ended - ended.started < 10


def test_a_driver_that_is_suspended_with_its_run_notices_it(bench: Bench) -> None:
    timer = after(0.2, lambda: os.kill(os.getpid(), signal.SIGCONT))
    ended = bench.run("import time; time.sleep(0.6)")
    timer.join()
    assert "suspended" in ended.disturbance


def test_a_debugger_is_noticed(bench: Bench) -> None:
    traced = "import ctypes, time; ctypes.CDLL(None).ptrace(0, 0, 0, 0); time.sleep(60)"  # by its parent
    assert "debugger" in bench.run(traced).disturbance


@pytest.mark.parametrize("by_s", [-7200.0, 7200.0])
def test_a_clock_that_is_set_ends_no_run_and_gives_no_duration(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    now = time.time
    timer = after(0.2, lambda: monkeypatch.setattr(time, "time", lambda: now() + by_s))
    ended = bench.run("import time; time.sleep(0.5)")
    timer.join()
    assert not ended.timed_out
    assert 0.5 <= ended.ended - ended.started < 5
    assert f"the clock was set by {by_s:+.1f} s" in ended.disturbance


def test_an_undisturbed_run_says_nothing(bench: Bench) -> None:
    """Neither its own debugger nor SIGKILL by somebody is a disturbance of its times."""
    assert bench.run("import os; os.kill(os.getpid(), 9)").disturbance == ""
    tracer = """
import ctypes, os
if os.fork():
    os.wait()
else:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), 19)
"""
    assert bench.run(tracer).disturbance == ""
