from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.run.local_launcher import OomKillCounter


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def test_the_group_counts_and_where_there_is_none_the_host(tmp_path: Path) -> None:
    assert OomKillCounter(tmp_path).count() == 0
    made(
        tmp_path,
        {"proc/vmstat": "nr_free_pages 1\noom_kill 7\n", "proc/self/cgroup": "4:cpu,memory:/a/b\n0::/job/step\n"},
    )
    assert OomKillCounter(tmp_path).count() == 7
    # The step's group has no controller, so that the job's counts.
    made(tmp_path, {"sys/fs/cgroup/job/memory.events": V2.format(2), "sys/fs/cgroup/job/step/cgroup.procs": ""})
    assert OomKillCounter(tmp_path).count() == 2
    made(tmp_path, {"sys/fs/cgroup/memory/a/b/memory.oom_control": V1.format(1)})
    assert OomKillCounter(tmp_path).count() == 1


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 64 MiB below this process's own, where this kernel and user allow one."""
    top = Path("/sys/fs/cgroup/memory")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = [line.split(":", 2)[2] for line in lines if "memory" in line.split(":", 2)[1].split(",")]
    if not own:
        pytest.skip("no memory controller of version 1 here")
    path = top / own[0].strip("/") / f"test-{uuid.uuid4().hex}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made: {error.strerror}")
    yield path
    path.rmdir()


def test_a_kill_of_the_kernel_is_counted(group: Path) -> None:
    """A process in the group starts one that takes too much, and counts before and after."""
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from campaign.run.local_launcher import OomKillCounter\n"
        f"Path({str(group)!r}, 'cgroup.procs').write_text(str(os.getpid()))\n"
        "kills = OomKillCounter()\nbefore = kills.count()\n"
        "code = subprocess.run([sys.executable, '-S', '-c', 'bytearray(200 << 20)']).returncode\n"
        "print(code, kills.count() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["-9", "1"], done.stderr
