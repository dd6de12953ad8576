from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from campaign.common.processes.marked import (
    MARK_VARIABLE,
    find_marked_processes,
    kill_marked_processes,
    measure_memory_mib,
)


@pytest.fixture
def mark() -> str:
    return f"test-{uuid.uuid4().hex}/"


@pytest.fixture
def sleepers(mark: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes with the mark, one of which ignores SIGTERM, and one without."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", code], env={**os.environ, MARK_VARIABLE: value}, stdout=subprocess.PIPE
        )
        for value in (f"{mark}1", f"{mark}2", "another")
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_processes_are_found_by_their_mark(mark: str, sleepers: list[subprocess.Popen[bytes]]) -> None:
    assert set(find_marked_processes(mark)) == {sleepers[0].pid, sleepers[1].pid}
    assert set(find_marked_processes(f"{mark}2")) == {sleepers[1].pid}
    assert list(find_marked_processes("nobody-has-this")) == []


def test_marked_processes_are_ended_and_no_others(mark: str, sleepers: list[subprocess.Popen[bytes]]) -> None:
    assert kill_marked_processes(mark) >= 2
    assert [process.wait(10) for process in sleepers[:2]] == [-9, -9]
    assert sleepers[2].poll() is None
    assert kill_marked_processes(mark) == 0


def test_memory_is_that_of_the_processes_that_live(sleepers: list[subprocess.Popen[bytes]]) -> None:
    both = measure_memory_mib([sleepers[0].pid, sleepers[1].pid])
    assert 0 < measure_memory_mib([sleepers[0].pid]) < both < 200
    sleepers[0].kill()
    sleepers[0].wait()
    assert measure_memory_mib([sleepers[0].pid]) == 0
