from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from campaign.files import attempt, held, is_held

HOLD = """\
import pathlib, sys
from campaign.files import held
with held(pathlib.Path(sys.argv[1])):
    print('held', flush=True)
    sys.stdin.read()
"""


def _holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_is_held_only_while_somebody_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    assert not is_held(path)
    with held(path):
        assert is_held(path)
    assert path.exists()
    assert not is_held(path)


def test_death_of_the_holder_frees_it_and_waiting_names_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder = _holder(path)
    told: list[str] = []

    def on_wait(who: str) -> None:
        told.append(who)
        _end(holder)

    try:
        with held(path, on_wait, poll_s=0.01):
            assert is_held(path)
    finally:
        _end(holder)
    assert len(told) == 1
    assert told[0].startswith(f"process {holder.pid} on ")


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with held(path):
        child = subprocess.Popen(
            [sys.executable, "-c", "print('runs', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
            text=True,
        )
        # The kernel lets the parent go on a moment before it closes the child's descriptors.
        assert child.stdout is not None
        assert child.stdout.readline() == "runs\n"
    try:
        assert child.poll() is None
        assert not is_held(path)
    finally:
        _end(child)


def test_an_exception_inside_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError, match="inside"), held(path):
        raise RuntimeError("inside")
    assert not is_held(path)


def test_an_attempt_gives_the_lock_or_says_that_somebody_has_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    with attempt(path) as mine:
        assert mine
        assert is_held(path)
        with attempt(path) as second:
            assert not second
        # Losing the second attempt must not have freed the first.
        assert is_held(path)
    assert not is_held(path)
    with attempt(path) as again:
        assert again


def test_an_attempt_does_not_wait_for_another_process_and_gets_the_lock_of_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder = _holder(path)
    try:
        with attempt(path) as mine:
            assert not mine
    finally:
        _end(holder)
    with attempt(path) as mine:
        assert mine


def test_an_exception_inside_an_attempt_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError, match="inside"), attempt(path):
        raise RuntimeError("inside")
    assert not is_held(path)
