"""Commands from a process that has made their imports: Snakemake takes over a second of processor time for them at every start.

What is started is a process of its own: in its own session, with the arguments, environment, directory and output that it is given,
forked before anything but imports was done, and ended as the interpreter ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

IMPORTED = (
    "pandas",
    "snakemake.benchmark",
    "snakemake.cli",
    "snakemake.profiles",
    "snakemake.report.html_reporter",
    "snakemake.storage",
    "smart_open",
    "campaign.cli.main",
    "campaign.cli.measure",
    "campaign.cli.plan",
    "campaign.plan.dag",
    "campaign.report.source_hash",
)


class Started:
    """A started command: the part of subprocess.Popen that tests need."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._server.receive(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._server.receive(left_s)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The process that forks. It ends with this one."""

    def __init__(self, package: str, home: str) -> None:
        self._running: dict[int, Started] = {}
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": package, "HOME": home},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str], output: int) -> Started:
        asked = json.dumps({"argv": argv, "cwd": str(cwd), "environment": dict(environment)}).encode()
        socket.send_fds(self._channel, [asked], [output])
        while (started := self.receive(60.0)) is None:
            pass
        return started

    def receive(self, seconds: float) -> Started | None:
        """Wait so long for a message: of the start of a command, which is returned, or of the end of one."""
        if not select.select([self._channel], [], [], seconds)[0]:
            return None
        message = self._channel.recv(1 << 16)
        assert message, "the process that starts commands has ended"
        pid, code = json.loads(message)
        if code is None:
            return self._running.setdefault(pid, Started(self, pid))
        self._running.pop(pid).returncode = code
        return None


_servers: dict[str, _Server] = {}
"""One for each copy of the package."""


def start(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], output: int) -> Started:
    """Start a command that is a Python script, in the background. output: file descriptor of what it prints."""
    package, script = environment.get("PYTHONPATH", ""), shutil.which(argv[0], path=environment["PATH"])
    assert script, f"{argv[0]} is not installed"
    if package not in _servers:
        _servers[package] = _Server(package, environment["HOME"])
    return _servers[package].start([script, *argv[1:]], cwd, environment, output)


def run(
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    time_out_s: float,
    note: Callable[[Started], object] = lambda _: None,
) -> tuple[int, str]:
    """Exit code of a command, and all that it printed. note: is given the process as soon as there is one."""
    with tempfile.TemporaryFile("w+") as output:
        process = start(argv, cwd, environment, output.fileno())
        note(process)
        try:
            code = process.wait(time_out_s)
        finally:
            process.kill()
        output.seek(0)
        return code, output.read()


def _serve(channel: socket.socket) -> dict[str, object] | None:
    """Fork for each request; returns in each child with what was asked, and in the server at the end."""
    running: dict[int, int] = {}
    while True:
        for ready in select.select([channel, *running], [], [])[0]:
            if ready is not channel:
                os.close(ready)
                pid, status = os.waitpid(running.pop(ready), 0)
                channel.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())
                continue
            message, streams, _, _ = socket.recv_fds(channel, 1 << 20, 1)
            if not message:
                return None
            (output,) = streams
            if pid := os.fork():
                running[os.pidfd_open(pid)] = pid
                os.close(output)
                channel.send(json.dumps([pid, None]).encode())
            else:
                for descriptor in running:
                    os.close(descriptor)
                return {**json.loads(message), "output": output}


def _become(argv: list[str], cwd: str, environment: dict[str, str], output: int) -> None:
    os.setsid()
    os.chdir(cwd)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv[:] = argv
    # What was imported stays frozen: looking through it would copy its pages.
    gc.enable()
    runpy.run_path(argv[0], run_name="__main__")


def main() -> None:
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    # It looks for plugins in all directories of packages, once in a process.
    sys.modules["snakemake.cli"].get_argument_parser()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        asked = _serve(channel)
    if asked:
        _become(**asked)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
