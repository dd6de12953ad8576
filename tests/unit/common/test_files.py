from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from campaign.common import files
from campaign.common.errors import RecordError, convert_os_error
from campaign.common.files import (
    acquire_lock,
    append_json,
    find_file_system,
    hold_lock,
    is_locked,
    read_json,
    read_json_lines,
    replace_atomically,
    require_json,
    share_directories,
    try_lock,
    write_atomic,
    write_json,
    write_once,
)

HOLD = """\
import pathlib, sys
from campaign.common.files import hold_lock
with hold_lock(pathlib.Path(sys.argv[1])):
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
    with hold_lock(path):
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
        with hold_lock(path, on_wait):
            assert is_locked(path)
    finally:
        _end(holder)
    assert len(told) == 1
    assert told[0].startswith(f"process {holder.pid} on ")


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with hold_lock(path):
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
    with pytest.raises(RuntimeError, match="inside"), hold_lock(path):
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
    with pytest.raises(TypeError), replace_atomically(path) as file:
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
    "open_it", [lambda path: hold_lock(path).__enter__(), lambda path: append_json(path, {}), is_locked]
)
def test_what_is_opened_by_a_known_name_is_never_a_link(
    tmp_path: Path, private: Path, open_it: Callable[[Path], object]
) -> None:
    (tmp_path / "machine.lock").symlink_to(private)
    with pytest.raises(OSError, match="symbolic links"):
        open_it(tmp_path / "machine.lock")
    assert private.read_text() == "precious"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can enter, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def as_user(user: int, umask: int, do: Callable[[], object]) -> str:
    """What a process of a user, who is in TEAM, said of its failure; empty where it had none."""
    with tempfile.TemporaryFile("w+") as said:
        if (child := os.fork()) == 0:
            os.setgroups([TEAM])
            os.setegid(user)
            os.seteuid(user)
            os.umask(umask)
            try:
                do()
            except OSError as error:
                said.write(str(convert_os_error(error, "?")))
                said.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        said.seek(0)
        return said.read()


ANNA, BERT, TEAM = 65001, 65002, 65010


def work(root: Path) -> None:
    """What a campaign does with files that several write."""
    with hold_lock(root / "c" / "work" / "x.lock"):
        append_json(root / ".systems" / "bench" / "x.jsonl", {})
        write_json(root / "c" / "x.json", {})
        with (root / "c" / "work" / "x.log").open("a") as file:
            file.write("said")


@pytest.mark.root
@pytest.mark.parametrize("umask", [0o022, 0o077])
@pytest.mark.parametrize("mode", [0o2775, 0o775, 0o777])
def test_several_write_where_the_directory_is_of_several_whatever_their_umask(
    place: Path, mode: int, umask: int
) -> None:
    os.chown(place, ANNA, TEAM)
    place.chmod(mode)
    for user in (ANNA, BERT, ANNA):
        assert as_user(user, umask, lambda: work(place / "results")) == ""
    made = list(place.rglob("*"))
    assert len(made) == 9
    assert {each.stat().st_gid for each in made} == {TEAM}
    assert all(each.stat().st_mode & mode & 0o022 == mode & 0o022 for each in made)


@pytest.mark.root
def test_what_another_program_made_is_shared_with_those_of_the_directory_above(place: Path) -> None:
    os.chown(place, ANNA, TEAM)
    place.chmod(0o775)
    for each in (".snakemake", ".snakemake/log"):
        (place / each).mkdir(mode=0o700)
        os.chown(place / each, ANNA, ANNA)
    assert as_user(ANNA, 0o077, lambda: share_directories(place / ".snakemake")) == ""
    assert as_user(BERT, 0o077, lambda: write_json(place / ".snakemake" / "log" / "x.json", {})) == ""


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_directory_of_one_user_or_of_everybody_leaves_the_umask(place: Path, mode: int) -> None:
    place.chmod(mode)
    os.chown(place, ANNA, ANNA)
    assert as_user(ANNA, 0o077, lambda: work(place / "results")) == ""
    assert {each.stat().st_mode & 0o077 for each in place.rglob("*")} == {0}
    said = as_user(BERT, 0o022, lambda: work(place / "results"))
    assert re.search(
        f"/results/.*: could not be written or read .Permission denied.; fix permissions: .*/results belongs to user {ANNA}, "
        rf"group {ANNA} .drwx------., and you are {BERT}; {ANNA} can share it with: chgrp -R \S+ (\S+) && chmod -R g\+rwX \1, then",
        said,
    ), said


@pytest.mark.root
def test_locks_of_another_user_can_be_looked_at(place: Path) -> None:
    path = place / "of-root.lock"
    lock = acquire_lock(path)
    assert lock is not None

    def look() -> None:
        if is_locked(path):
            raise OSError("held")

    assert "held" in as_user(ANNA, 0o022, look)
    os.close(lock)
    assert as_user(ANNA, 0o022, look) == ""


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "link to a device", "loop", "too long"])
def test_only_regular_files_are_opened_and_to_a_limit(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "document.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            path = Path("/dev/zero")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "too long":
            with path.open("wb") as file:
                file.truncate(10 * files.MAX_DOCUMENT_BYTES)  # a hole

    for read in (files.read_bytes, files.read_text, files.load_json):
        with pytest.raises(OSError, match=r"regular file|at most .* are allowed|symbolic links"):
            read(path)
    assert files.read_json(path) == {}
    if kind != "too long":
        with pytest.raises(OSError, match=r"regular file|symbolic links"):
            files.open_regular(path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "{", "", "\0"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        files.parse_json(text)


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    mounts = (
        "22 1 0:9 / / rw - ext4 /dev/vda rw\n"
        f"36 22 0:8 / {tmp_path} rw,nosuid shared:7 - nfs4 host:/x rw,local_lock=none\n"
        f"37 22 0:7 / {tmp_path}/a\\040b rw - nfs host:/y rw,local_lock=all\n"
    )
    (tmp_path / "mounts").write_text(mounts)
    found = {name: find_file_system(tmp_path / name, tmp_path / "mounts") for name in ("..", "x", "a b/c")}
    assert [kind for kind, _ in found.values()] == ["ext4", "nfs4", "nfs"]
    assert "local_lock=all" in found["a b/c"][1]
    (tmp_path / "mounts").write_text("")
    assert find_file_system(tmp_path, tmp_path / "mounts") == ("unknown", frozenset())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("campaign.common.files.fcntl.flock", refuse)
    path = tmp_path / "x.lock"
    kind = find_file_system(tmp_path)[0]
    for use in (lambda: hold_lock(path).__enter__(), lambda: acquire_lock(path), lambda: is_locked(path)):
        with pytest.raises(
            RecordError, match=rf"x.lock: its file system \({kind}\) does not support locks \({os.strerror(number)}\)"
        ):
            use()
