"""The fork server with real ranks: start, end, kill, crash, repetition, and that nobody outlives the launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Spec = Callable[..., dict[str, Any]]
LONG = 10_000_000  # steps


def gone(pid: int, patience_s: float = 10) -> bool:
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z"):
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_the_server_has_one_thread(driver: Any) -> None:
    assert driver.ready["import_s"] > 0
    status = Path(f"/proc/{driver.process.pid}/status").read_text()
    assert "Threads:\t1\n" in status


def test_a_run_ends_with_a_result_of_every_rank(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    outcome = driver.run(tmp_path, nano_spec(), world_size=2)
    assert outcome.codes == [0, 0]
    for rank, result in enumerate(outcome.results):
        assert (result.rank, result.world_size, result.status) == (rank, 2, "ok")
        assert len(result.step_times_s) == 5
        assert sum(result.step_times_s) <= result.window_s
        assert result.parameters == 724_994
        assert result.gradient_bytes == 4 * 724_994
        assert result.samples_per_step == 2
        assert result.precision == "fp32"
        assert set(result.phases_s) == {"import", "group", "model", "input", "wrap", "warmup"}
        assert result.host_memory_peak_bytes > 10 * 2**20
        assert result.device_memory_allocated_peak_bytes is None
        assert "the run had only 2 warm-up steps" in result.flags
    assert "device_memory_allocated_peak_bytes" not in json.loads((tmp_path / "rank0.json").read_text())
    assert json.loads((tmp_path / "rank0.json").read_text())["schema"] == "rank/1"


def test_two_ranks_train_as_one_does_on_the_batch_of_both(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    one = driver.run(tmp_path / "one", nano_spec(batch=4, measured_steps=15)).results
    two = driver.run(tmp_path / "two", nano_spec(batch=2, measured_steps=15), world_size=2).results
    for name in ("loss_first", "loss_last"):
        mean = sum(getattr(result, name) for result in two) / 2
        assert mean == pytest.approx(getattr(one[0], name), rel=1e-4)
    assert two[0].loss_last != two[1].loss_last  # each has its own samples


def test_a_run_repeats_to_the_bit(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    losses = {driver.run(tmp_path / str(turn), nano_spec(), world_size=2).results[0].loss_last for turn in range(3)}
    assert len(losses) == 1


def test_many_runs_in_a_row_and_none_hangs(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    count = int(os.environ.get("CAMPAIGN_MULTI_RANK_RUNS", "8"))
    spec = nano_spec(batch=1, warmup_steps=1, measured_steps=1, options={"seq_len": 4})
    for turn in range(count):
        outcome = driver.run(tmp_path / str(turn), spec, world_size=2, patience_s=10)
        assert outcome.codes == [0, 0], f"run {turn}: {outcome.log}"


def test_the_ranks_have_a_group_of_their_own(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    pids = driver.start(tmp_path, [nano_spec(measured_steps=LONG)] * 2)
    assert {os.getpgid(pid) for pid in pids} == {pids[0]}
    os.killpg(pids[0], signal.SIGKILL)
    assert driver.finish(tmp_path, 2).codes == [-signal.SIGKILL, -signal.SIGKILL]


def test_a_rank_killed_from_outside_ends_the_run(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    pids = driver.start(tmp_path, [nano_spec(measured_steps=LONG)] * 2)
    wait_for_group(tmp_path, pids)
    os.kill(pids[1], signal.SIGKILL)
    codes = driver.finish(tmp_path, 2).codes
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, -signal.SIGKILL)


def wait_for_group(directory: Path, pids: list[int]) -> None:
    """Until both ranks have used processor time, so are past their start."""
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        ticks = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11]) for pid in pids]
        if min(ticks) > 20:
            return
        time.sleep(0.05)
    raise AssertionError(f"the ranks in {directory} did not start")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"ranks": [], "cwd": "/tmp"}, "ranks"),
        ({"ranks": [{"env": {}, "log": "/dev/null"}], "cwd": "/nowhere"}, "/nowhere"),
        (
            {
                "ranks": [
                    {"env": {}, "log": "/dev/null", "namespaces": ["/proc/self/ns/net", "/proc/1/fd/no-longer-there"]}
                ],
                "cwd": "/tmp",
            },
            "no-longer-there",
        ),
        ({"ranks": [{"env": {}, "log": "x"}], "cwd": "/tmp", "module": "campaign.cli.main"}, "observe.links.rank"),
        ([1], "_Order"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_the_server_goes_on(driver: Any, line: object, said: str) -> None:
    driver.order(line)
    assert said in driver.answer()["problem"]
    assert driver.process.poll() is None


def test_the_environment_of_a_rank_is_replaced(driver: Any, tmp_path: Path) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "CAMPAIGN_OUT": str(tmp_path)}
    driver.order({"cwd": str(tmp_path), "ranks": [{"env": environment, "log": str(tmp_path / "log")}]})
    driver.pids = driver.answer()["pids"]
    outcome = driver.finish(tmp_path, 1)
    assert outcome.codes == [2]
    assert "the environment variable CAMPAIGN_SPEC" in outcome.log


def test_no_rank_outlives_a_killed_launcher(tmp_path: Path, nano_spec: Spec) -> None:
    program = (
        "import json, pathlib, sys, time\n"
        "from tests.unit.workloads.trainer.rank_driver import Driver\n"
        "print(json.dumps(Driver().start(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))), flush=True)\n"
        "time.sleep(600)"
    )
    words = [str(tmp_path), json.dumps([nano_spec(measured_steps=LONG)] * 2)]
    launcher = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pids = json.loads(launcher.stdout.readline())
    wait_for_group(tmp_path, pids)
    launcher.kill()
    launcher.communicate()
    assert all(gone(pid) for pid in pids)


def test_without_torch_the_server_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no module of that name here')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "campaign.workloads.trainer.forkserver"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, input="", check=False, timeout=60)
    assert done.returncode == 1
    assert "-m pip install torch==" in json.loads(done.stdout)["problem"]
