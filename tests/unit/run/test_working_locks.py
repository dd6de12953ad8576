from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from campaign.common import files
from campaign.common.errors import RecordError
from campaign.run.locks import hold_process_lock

HOLD = "import sys, pathlib; from campaign.run.locks import hold_process_lock\n"
HOLD += "with hold_process_lock(pathlib.Path(sys.argv[1]), across_hosts=False): print('held', flush=True); input()"


@pytest.fixture
def other(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that measures."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_processes_that_see_each_others_locks_measure_and_leave_nothing(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    with hold_process_lock(tmp_path, across_hosts=True):
        assert len(list(tmp_path.iterdir())) == 2
    assert other.communicate("\n") == ("", None)
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_left_is_removed(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    with hold_process_lock(tmp_path, across_hosts=False):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_locks_that_nobody_keeps_are_found_by_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: None)
    kind = files.find_file_system(tmp_path)[0]
    with pytest.raises(
        RecordError, match=rf"its file system \({kind}\) lets two processes hold the same lock; choose --results on"
    ):
        hold_process_lock(tmp_path, across_hosts=False).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_live_process_that_is_not_seen_is_another_mounts(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    """Its file seen through another mount that has locks of its own is one that nobody holds."""
    (path,) = tmp_path.iterdir()
    content = path.read_text()
    path.unlink()
    path.write_text(content)
    with pytest.raises(
        RecordError, match=f"does not show the lock that process {other.pid} holds, perhaps because it is mounted twice"
    ):
        hold_process_lock(tmp_path, across_hosts=False).__enter__()
    other.communicate("\n")


@pytest.mark.parametrize(
    ("kind", "option", "refused"),
    [
        ("nfs", "local_lock=all", True),
        ("nfs4", "local_lock=none", False),
        ("lustre", "localflock", True),
        ("lustre", "flock", False),
    ],
)
def test_locks_of_one_host_are_refused_where_hosts_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, option: str, refused: bool
) -> None:
    monkeypatch.setattr(files, "find_file_system", lambda _: (kind, frozenset({"rw", option})))
    with hold_process_lock(tmp_path, across_hosts=False):
        pass
    if not refused:
        with hold_process_lock(tmp_path, across_hosts=True):
            return
    with pytest.raises(RecordError, match=rf"\({kind}\) is mounted with {option}, so hosts do not see"):
        hold_process_lock(tmp_path, across_hosts=True).__enter__()
