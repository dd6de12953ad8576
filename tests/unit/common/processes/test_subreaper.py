"""A rank's last resort: nothing that it starts outlives it, whatever it does about SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from campaign.common.processes.marked import list_pids, read_process_words

_IGNORES = "trap '' TERM; setsid sleep {s} & env -i setsid sleep {s} & exec sleep {s}"
_ENDS = "setsid sleep {s} & env -i setsid sleep {s} & sleep {s} & trap 'exit 7' TERM; wait"


@pytest.mark.parametrize(("program", "code"), [(_IGNORES, 143), (_ENDS, 7)])
def test_what_goes_on_after_sigterm_is_ended(tmp_path: Path, program: str, code: int) -> None:
    seconds = str(500_000 + os.getpid())  # of this test alone

    def alive() -> list[int]:
        return [pid for pid in list_pids() if read_process_words(pid, "cmdline")[:2] == [b"sleep", seconds.encode()]]

    argv = [sys.executable, "-m", "campaign.common.processes.subreaper", str(tmp_path / "stopped"), "sh", "-c"]
    reaper = subprocess.Popen([*argv, program.format(s=seconds)])
    try:
        until_s = time.monotonic() + 30
        while len(alive()) < 3:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        reaper.terminate()
        # Slurm sends it to all.
        (shell,) = [int(pid) for pid in Path(f"/proc/{reaper.pid}/task/{reaper.pid}/children").read_text().split()][:1]
        os.kill(shell, 15)
        assert reaper.wait(20) == code
        assert alive() == []
    finally:
        reaper.kill()
        for pid in alive():
            os.kill(pid, 9)
