"""A command that is forked from a process with its imports does what it does when it is started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.warm_start import run, start


def test_a_forked_command_is_as_a_started_one(tmp_path: Path) -> None:
    script = tmp_path / "command"
    script.write_text(
        "#!/usr/bin/env python3\nimport atexit, os, sys\natexit.register(print, 'the end')\n"
        "print(sys.argv, __name__, os.getcwd(), sorted(os.environ), os.getsid(0) == os.getpid(), flush=True)\n"
        "print('aside', file=sys.stderr)\nsys.exit(3)\n"
    )
    script.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "LC_CTYPE": "C.UTF-8"}
    code, said = run(["command", "one", "two words"], tmp_path, environment, 60)
    started = subprocess.run(
        [str(script), "one", "two words"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        timeout=60,
        check=False,
    )
    assert (code, said) == (started.returncode, started.stdout)
    assert said.endswith("the end\n")


def test_how_a_forked_command_ended_is_known(tmp_path: Path) -> None:
    script = tmp_path / "sleeper"
    script.write_text("import time\ntime.sleep(60)\n")
    script.chmod(0o755)
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    processes = [start(["sleeper"], tmp_path, environment, 2) for _ in range(2)]
    assert [process.poll() for process in processes] == [None, None]
    processes[1].kill()
    assert processes[1].wait(10) == -signal.SIGKILL
    assert processes[0].poll() is None
    processes[0].send_signal(signal.SIGTERM)
    assert processes[0].wait(10) == -signal.SIGTERM
