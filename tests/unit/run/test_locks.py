from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.run import locks
from campaign.run.locks import hold_machine_locks
from campaign.spec.system_file import SystemFile

HELD = (
    "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); input()"
)
NOBODY = 65534


def system(**keys: Any) -> SystemFile:
    return SystemFile.model_validate(
        {"name": "bench", "fabric": {"kind": "simulated"}, "hosts": [{"name": "host1"}], **keys}
    )


def refuse(message: str) -> None:
    raise AssertionError(message)


def test_the_place_of_the_lock_does_not_depend_on_the_environment(tmp_path: Path) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", "from campaign.run import locks; print(locks.MACHINE_LOCK)"],
            env={**os.environ, "TMPDIR": str(tmp_path / user), "XDG_RUNTIME_DIR": str(tmp_path / user)},
            capture_output=True,
            check=True,
        ).stdout
        for user in "ab"
    ]
    assert said == [b"/tmp/composable-campaign.lock\n"] * 2


@pytest.mark.parametrize("named", [True, False], ids=["named", "fixed"])
def test_waiting_names_the_process_that_really_holds_it_and_the_way_out(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    monkeypatch.setattr(locks, "MACHINE_LOCK", path)
    systems = [system(machine_lock=str(path)) if named else system()]
    with hold_machine_locks(systems, refuse):
        pass
    assert path.stat().st_mode & 0o777 == 0o444  # every user may lock it, and nobody write to it
    with subprocess.Popen([sys.executable, "-c", HELD, path], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout
        holder.stdout.readline()
        told: list[str] = []

        def end(message: str) -> None:
            told.append(message)
            holder.kill()

        with hold_machine_locks(systems, end), path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (message,) = told
    assert message.startswith(f"waiting for process {holder.pid} (python")
    assert (
        f"of user root, which measures on this machine and holds {path} (if it is not a campaign, end it" in message
        or os.geteuid()
    )
    assert "machine_lock" in message


def test_who_locks_the_directory_of_temporary_files_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MACHINE_LOCK", tmp_path / "x.lock")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with hold_machine_locks([system()], refuse):
        os.close(descriptor)


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_the_lock_any_more(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    held = os.open(path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)

    def remove(_: str) -> None:
        path.unlink()
        os.close(held)

    with (
        hold_machine_locks([system(machine_lock=str(path))], remove),
        path.open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.root
@pytest.mark.parametrize(
    "take",
    [lambda path: path.symlink_to("private"), lambda path: path.parent.chmod(0o500), lambda path: path.touch(0o000)],
)
def test_a_lock_that_cannot_be_opened_is_named_with_the_remedy(take: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "x.lock"
        path.parent.chmod(0o777)
        take(path)
        if (child := os.fork()) == 0:
            os.seteuid(NOBODY)
            try:
                with hold_machine_locks([system(machine_lock=str(path))], refuse):
                    os._exit(1)
            except ConfigError as error:
                right = f"{path}: the file cannot be locked" in str(
                    error
                ) and "set `machine_lock` in the system file" in str(error)
                os._exit(0 if right else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not (path.parent / "private").exists()
