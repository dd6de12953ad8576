from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from campaign.errors import ConfigError, RecordError
from campaign.files import (
    acquire_lock,
    append_json,
    directory_lock,
    is_foreign,
    is_locked,
    lock,
    read_json,
    read_json_lines,
    replacing,
    require_json,
    try_lock,
    write_atomic,
    write_json,
    write_once,
)
from campaign.paths import machine_lock

HOLD = """\
import pathlib, sys
from campaign.files import (
    append_json,
    is_locked,
    lock,
    read_json,
    read_json_lines,
    replacing,
    require_json,
    try_lock,
    write_atomic,
    write_json,
    write_once,
)
with lock(pathlib.Path(sys.argv[1])):
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
    assert not is_locked(path)
    with lock(path):
        assert is_locked(path)
    assert path.exists()
    assert not is_locked(path)


def test_death_of_the_holder_frees_it_and_waiting_names_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder = _holder(path)
    told: list[str] = []

    def on_wait(who: str) -> None:
        told.append(who)
        _end(holder)

    try:
        with lock(path, on_wait):
            assert is_locked(path)
    finally:
        _end(holder)
    assert len(told) == 1
    assert told[0].startswith(f"process {holder.pid} on ")


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with lock(path):
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
        assert not is_locked(path)
    finally:
        _end(child)


def test_an_exception_inside_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError, match="inside"), lock(path):
        raise RuntimeError("inside")
    assert not is_locked(path)


def test_an_attempt_gives_the_lock_or_says_that_somebody_has_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    with try_lock(path) as mine:
        assert mine
        assert is_locked(path)
        with try_lock(path) as second:
            assert not second
        # Losing the second attempt must not have freed the first.
        assert is_locked(path)
    assert not is_locked(path)
    with try_lock(path) as again:
        assert again


def test_an_attempt_does_not_wait_for_another_process_and_gets_the_lock_of_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder = _holder(path)
    try:
        with try_lock(path) as mine:
            assert not mine
    finally:
        _end(holder)
    with try_lock(path) as mine:
        assert mine


def test_an_exception_inside_an_attempt_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError, match="inside"), try_lock(path):
        raise RuntimeError("inside")
    assert not is_locked(path)


def test_writing_replaces_the_whole_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", 0])  # type: ignore[list-item]
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new", durable=True)
    assert read_json(path) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_written_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "x.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_written_once_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_once(path, b"first")
    write_once(path, b"second")
    assert path.read_bytes() == b"first"


@pytest.mark.parametrize("content", [None, "", '{"a": ', "[1]"])
def test_a_missing_or_torn_document_is_empty_or_an_error_with_its_remedy(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    assert read_json(path) == {}
    with pytest.raises(RecordError, match=f"{path}: cannot be read .*; delete it"):
        require_json(path, "delete it")


def test_lines_are_appended_behind_a_torn_one_and_read_from_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.jsonl"
    assert read_json_lines(path) == ([], 0)
    append_json(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": ')
    first, offset = read_json_lines(path)
    assert first == [{"n": 1}]
    append_json(path, {"n": 2}, durable=True)
    assert read_json_lines(path, offset)[0] == [{"n": 2}]
    assert read_json_lines(path) == ([{"n": 1}, {"n": 2}], path.stat().st_size)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Another user's file, which only a link leads to."""
    path = tmp_path / "private"
    path.write_text("precious")
    return path


@pytest.mark.parametrize(
    "open_it", [lambda path: lock(path).__enter__(), lambda path: append_json(path, {}), is_locked]
)
def test_what_is_opened_by_a_known_name_is_never_a_link(
    tmp_path: Path, private: Path, open_it: Callable[[Path], object]
) -> None:
    (tmp_path / "machine.lock").symlink_to(private)
    with pytest.raises(OSError, match="symbolic links"):
        open_it(tmp_path / "machine.lock")
    assert private.read_text() == "precious"


def test_the_lock_of_a_machine_is_in_a_directory_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = machine_lock()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o777)  # as an earlier version may have left it
    assert machine_lock() == path
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["link", "directory", "file", "dangling"])
def test_a_directory_that_somebody_else_took_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken, theirs = tmp_path / f"composable-campaign-{os.geteuid()}", tmp_path / "theirs"
    if what == "directory":
        taken.mkdir()
    elif what == "file":
        taken.touch()
    else:
        taken.symlink_to(theirs)
        if what == "link":
            theirs.mkdir(mode=0o755)
    if what != "file":
        real = Path.lstat
        # Made by another user.
        monkeypatch.setattr(
            Path,
            "lstat",
            lambda path: os.stat_result((*real(path)[:4], 12345, *real(path)[5:])) if path == taken else real(path),
        )
    with pytest.raises(ConfigError, match="set TMPDIR"):
        machine_lock()
    assert not (theirs / "machine.lock").exists()
    assert not is_foreign(tmp_path / "nothing", ())


def test_users_of_one_machine_wait_for_each_other(tmp_path: Path) -> None:
    waits, held = threading.Event(), threading.Event()

    def second() -> None:
        with directory_lock(tmp_path, waits.set):
            held.set()

    with directory_lock(tmp_path, lambda: pytest.fail("nobody else holds it")):
        other = threading.Thread(target=second)
        other.start()
        assert waits.wait(10)
        assert not held.is_set()
    other.join(10)
    assert held.is_set()
    assert list(tmp_path.iterdir()) == []


def test_locks_of_another_user_can_be_looked_at_and_those_of_a_group_be_taken() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "of-root.lock"
        Path(made).chmod(0o755)
        umask = os.umask(0o002)
        try:
            lock = acquire_lock(path)
        finally:
            os.umask(umask)
        assert lock is not None
        assert path.stat().st_mode & 0o777 == 0o664
        seen = []
        for _ in range(2):
            if (child := os.fork()) == 0:
                os.seteuid(65534)
                os._exit(int(is_locked(path)))
            seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if len(seen) == 1:
                os.close(lock)
        assert seen == [1, 0]
