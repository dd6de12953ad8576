from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.common import files
from campaign.common.errors import ConfigError, RecordError
from campaign.common.processes.command import CompletedCommand
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.poll import QueuePoll, QueueSnapshot

UNREACHABLE = CompletedCommand(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
DISABLED = CompletedCommand(1, "", "Slurm accounting storage is disabled\n")
DATABASE_DOWN = CompletedCommand(1, "", "sacct: error: Problem talking to the database: Connection refused\n")


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Controller(SlurmCommands):
    """A Slurm of two dictionaries: the queue, and the accounting (None: off)."""

    queue: dict[str, str] = field(default_factory=dict)
    accounting: dict[str, str] | None = field(default_factory=dict)
    wrong: dict[str, CompletedCommand] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    log: Path | None = None

    def __call__(self, *argv: str, timeout_s: float = 60.0) -> CompletedCommand:
        self.calls.append(argv)
        if argv[0] in self.wrong:
            return self.wrong[argv[0]]
        if argv[0] == "squeue":
            rows = [f"{name}|{state}|None|host1|n|c" for name, state in self.queue.items()]
            return CompletedCommand(0, "".join(f"{row}\n" for row in rows), "")
        if self.accounting is None:
            return DISABLED
        asked = next(word for word in argv if word.startswith("--jobs=")).removeprefix("--jobs=").split(",")
        told = [f"{name}|{state}|0:0|host1|None|n" for name, state in self.accounting.items() if name in asked]
        return CompletedCommand(0, "".join(f"{row}\n" for row in told), "")

    @property
    def asked(self) -> list[str]:
        return [argv[0] for argv in self.calls]


@dataclass
class Site:
    """One directory and one Slurm, and as many processes as are asked for, each with its own memory of what it saw."""

    directory: Path
    slurm: Controller = field(default_factory=Controller)
    clock: Clock = field(default_factory=Clock)

    def process(self, interval_s: float = 30.0) -> QueuePoll:
        return QueuePoll(self.directory, self.slurm, interval_s, self.clock)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "slurm")


@pytest.fixture
def poll(site: Site) -> QueuePoll:
    return site.process()


def test_the_first_asks_and_the_others_read(site: Site) -> None:
    site.slurm.queue = {"1": "RUNNING", "2": "PENDING"}
    processes = [site.process() for _ in range(5)]
    snapshots = [poll.take_snapshot() for poll in processes]
    assert site.slurm.asked == ["squeue"]
    assert all(snapshot == snapshots[0] for snapshot in snapshots)
    assert {name: job.state for name, job in snapshots[0].jobs.items()} == site.slurm.queue
    assert (snapshots[0].asked_s, snapshots[0].reachable) == (site.clock.now, True)


def test_it_asks_for_ones_own_jobs_of_all_states(site: Site) -> None:
    site.process().take_snapshot()
    assert site.slurm.calls[0][:4] == ("squeue", "--me", "--states=all", "--noheader")


def test_one_look_an_interval(site: Site) -> None:
    processes = [site.process() for _ in range(3)]
    for _ in range(100):
        for poll in processes:
            poll.take_snapshot()
        site.wait(1.0)
    assert len(site.slurm.calls) == 4


def test_fresh_asks_but_not_twice_in_a_moment(site: Site, poll: QueuePoll) -> None:
    poll.take_snapshot()
    site.wait(2.0)
    site.slurm.queue = {"7": "RUNNING"}
    assert "7" in poll.take_snapshot(fresh=True).jobs
    assert "7" in site.process().take_snapshot(fresh=True).jobs
    assert len(site.slurm.calls) == 2


def test_a_job_that_left_the_queue_is_looked_for_in_the_accounting_once(site: Site, poll: QueuePoll) -> None:
    site.slurm.queue = {"1": "RUNNING", "2": "RUNNING", "9": "RUNNING"}
    for job_id in ("1", "2", "3"):
        poll.watch_job(job_id)
        poll.watch_job(job_id)
    site.slurm.accounting = {"1": "TIMEOUT", "2": "CANCELLED by 0", "3": "COMPLETED", "7": "FAILED"}
    poll.take_snapshot()
    site.wait(31)
    site.slurm.queue = {}
    jobs = poll.take_snapshot().jobs
    assert {name: (job.state, job.queued) for name, job in jobs.items()} == {
        "1": ("TIMEOUT", False),
        "2": ("CANCELLED", False),
        "3": ("COMPLETED", False),
    }
    assert site.slurm.calls[-1][1] == "--jobs=1,2"
    site.wait(31)
    assert poll.take_snapshot().jobs == jobs
    assert site.slurm.asked.count("sacct") == 2


def test_an_end_that_the_queue_told_needs_no_accounting(site: Site, poll: QueuePoll) -> None:
    poll.watch_job("1")
    site.slurm.queue = {"1": "FAILED", "2": "FAILED"}
    poll.take_snapshot()
    site.wait(31)
    site.slurm.queue = {}
    assert set(site.process().take_snapshot().jobs) == {"1"}
    assert "sacct" not in site.slurm.asked


def test_a_requeued_job_is_what_the_queue_says_now(site: Site, poll: QueuePoll) -> None:
    poll.watch_job("1")
    site.slurm.queue = {"1": "NODE_FAIL"}
    poll.take_snapshot()
    site.wait(31)
    site.slurm.queue = {"1": "PENDING"}
    assert poll.take_snapshot().jobs["1"].state == "PENDING"


def test_a_forgotten_job_is_not_asked_for(site: Site, poll: QueuePoll) -> None:
    poll.watch_job("1")
    poll.watch_job("2")
    poll.unwatch_job("1")
    poll.unwatch_job("1")
    poll.unwatch_job("never watched")
    assert poll.list_watched() == {"2"}
    poll.take_snapshot()
    assert site.slurm.calls[-1][1] == "--jobs=2"


def test_late_accounting_is_asked_again(site: Site, poll: QueuePoll) -> None:
    poll.watch_job("1")
    site.slurm.accounting = {"1": "RUNNING"}
    assert poll.take_snapshot().jobs["1"].is_active
    site.wait(31)
    site.slurm.accounting = {"1": "COMPLETED"}
    assert not poll.take_snapshot().jobs["1"].is_active


def test_accounting_that_is_off_is_remembered_by_all(site: Site) -> None:
    site.slurm.accounting = None
    poll = site.process()
    poll.watch_job("1")
    assert poll.take_snapshot().accounting is False
    site.wait(31)
    assert site.process().take_snapshot().accounting is False
    assert site.slurm.asked == ["squeue", "sacct", "squeue"]


def test_a_database_that_is_down_for_a_while_is_asked_again(site: Site, poll: QueuePoll) -> None:
    poll.watch_job("1")
    site.slurm.wrong = {"sacct": DATABASE_DOWN}
    snapshot = poll.take_snapshot()
    assert (snapshot.reachable, snapshot.accounting) == (True, None)
    assert "Problem talking to the database" in snapshot.problem
    site.wait(31)
    site.slurm.wrong, site.slurm.accounting = {}, {"1": "COMPLETED"}
    snapshot = poll.take_snapshot()
    assert (snapshot.accounting, snapshot.problem, snapshot.jobs["1"].state) == (True, "", "COMPLETED")


def test_a_site_without_sacct_is_one_without_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "squeue").write_text("#!/bin/sh\n")
    (programs / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    poll = QueuePoll(tmp_path / "slurm", SlurmCommands(), 30.0)
    poll.watch_job("1")
    assert poll.take_snapshot().accounting is False


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Slurm is not installed on this machine"):
        QueuePoll(tmp_path / "slurm", SlurmCommands(), 30.0).take_snapshot()


def test_a_controller_that_does_not_answer_leaves_what_was_known(site: Site, poll: QueuePoll) -> None:
    site.slurm.queue = {"1": "RUNNING"}
    before = poll.take_snapshot()
    site.wait(31)
    site.slurm.wrong = {"squeue": UNREACHABLE}
    during = poll.take_snapshot()
    assert (during.reachable, during.jobs, during.asked_s) == (False, before.jobs, site.clock.now)
    assert "Unable to contact slurm controller" in during.problem
    for _ in range(29):
        site.wait(1)
        site.process().take_snapshot()
    assert len(site.slurm.calls) == 2
    site.wait(2)
    site.slurm.wrong = {}
    assert poll.take_snapshot().reachable


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"token": "x"}', b'{"token": 1, "jobs": [{"id": 3}]}', b"\xff"]
)
def test_a_torn_file_is_replaced(site: Site, content: bytes) -> None:
    site.process().take_snapshot()
    (site.directory / "poll.json").write_bytes(content)
    site.slurm.queue = {"1": "RUNNING"}
    assert "1" in site.process().take_snapshot().jobs
    assert "1" in json.loads((site.directory / "poll.json").read_text())["jobs"]["1"]["job_id"]


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_costs_one_look(site: Site, jump_s: float) -> None:
    processes = [site.process() for _ in range(3)]
    for poll in processes:
        poll.take_snapshot()
    site.clock.now += jump_s
    for _ in range(61):
        for poll in processes:
            poll.take_snapshot()
        site.wait(1.0)
    assert len(site.slurm.calls) == 4


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.3, 1.0, 7.0, 29.0, 31.0])), max_size=60))
def test_never_more_than_one_look_an_interval_and_none_older(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, float]]
) -> None:
    site = Site(tmp_path_factory.mktemp("slurm"))
    processes = [site.process() for _ in range(4)]
    for poll in processes:
        poll.take_snapshot()
    looks_s = [site.clock.now]
    for who, pause_s in steps:
        site.wait(pause_s)
        before = len(site.slurm.calls)
        assert site.clock.now - processes[who].take_snapshot().asked_s < 30.0
        looks_s += [site.clock.now] * (len(site.slurm.calls) - before)
    assert all(later - sooner >= 30.0 for sooner, later in pairwise(looks_s))


def test_a_directory_that_cannot_be_used_leaves_what_was_known(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.slurm.queue = {"1": "RUNNING"}
    poll = site.process()
    poll.take_snapshot()
    site.wait(31)

    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(files, "try_lock", refuse)
        snapshot = poll.take_snapshot()
    assert (snapshot.reachable, set(snapshot.jobs)) == (False, {"1"})
    assert "poll.lock: Read-only file system" in snapshot.problem
    assert poll.take_snapshot().reachable


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_a_directory_that_may_not_be_written_to_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As after `chattr +i`, which would else be waited for as if Slurm did not answer."""
    poll = site.process(interval_s=5.0)
    poll.take_snapshot()

    def refuse(path: Path, *_: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(files, "try_lock", refuse)
    for _ in range(6):
        site.wait(11.0)
        assert not poll.take_snapshot().reachable
    site.wait(11.0)
    with pytest.raises(RecordError, match=r"poll\.lock: could not be written"):
        poll.take_snapshot()
    monkeypatch.undo()
    assert poll.take_snapshot().reachable


def test_a_look_that_cannot_be_shared_is_kept_for_its_interval(
    site: Site, poll: QueuePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll.take_snapshot()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(files, "write_json", refuse)
        site.wait(31)
        site.slurm.queue = {"1": "RUNNING"}
        for _ in range(10):
            assert "1" in poll.take_snapshot().jobs
    assert site.slurm.asked == ["squeue", "squeue"]
    site.wait(31)
    poll.take_snapshot()
    assert "1" in site.process().take_snapshot().jobs
    assert len(site.slurm.calls) == 3
    assert [path.name for path in site.directory.glob(".poll*")] == []


def test_who_finds_somebody_looking_does_not_wait(site: Site) -> None:
    site.slurm.queue = {"1": "RUNNING"}
    old = site.process().take_snapshot()
    site.wait(31)
    with files.hold_lock(site.directory / "poll.lock"):
        assert site.process().take_snapshot() == old
    assert len(site.slurm.calls) == 1


def test_those_who_know_nothing_yet_wait_for_one_first_look(site: Site) -> None:
    seen: list[QueueSnapshot] = []
    waiting = [threading.Thread(target=lambda: seen.append(site.process().take_snapshot())) for _ in range(3)]
    with files.hold_lock(site.directory / "poll.lock"):
        for thread in waiting:
            thread.start()
        time.sleep(0.3)
        assert seen == []
    for thread in waiting:
        thread.join(10)
    assert [snapshot.reachable for snapshot in seen] == [True] * 3
    assert len(site.slurm.calls) == 1


_WAITING = """
import sys, time
from pathlib import Path
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.poll import QueuePoll
directory = Path(sys.argv[1])
poll = QueuePoll(directory, SlurmCommands(directory / "commands.jsonl"), float(sys.argv[2]))
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    jobs = poll.take_snapshot().jobs
    time.sleep(0.02)
print(sorted(jobs))
"""


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue in the PATH, to be written by the test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return programs / "squeue"


def _write(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_processes_share_one_look(tmp_path: Path, squeue: Path) -> None:
    _write(squeue, "echo '1|RUNNING|None|host1|n|c'")
    directory = tmp_path / "slurm"
    argv = [sys.executable, "-c", _WAITING, str(directory), "1000", "1"]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=30)[0] for process in running] == ["['1']\n"] * 4
    assert len((directory / "commands.jsonl").read_text().splitlines()) == 1


def test_after_kill_9_of_who_looks_the_next_one_looks(tmp_path: Path, squeue: Path) -> None:
    directory = tmp_path / "slurm"
    _write(squeue, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    looking = subprocess.Popen([sys.executable, "-c", _WAITING, str(directory), "1000", "60"])
    try:
        until_s = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert time.monotonic() < until_s
            time.sleep(0.05)
        assert files.is_locked(directory / "poll.lock")
    finally:
        looking.kill()
        looking.wait()
    try:
        _write(squeue, "echo '1|RUNNING|None|host1|n|c'")
        assert "1" in QueuePoll(directory, SlurmCommands(), 1000.0).take_snapshot().jobs
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
