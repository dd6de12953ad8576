"""Forks a process for each lease of one invocation of Snakemake: `python -m campaign.cli.lease_server SOCKET`, which it inherits.

What leases need is loaded once, torch too where their runs are forked on this machine (3.5 s of processor time and 300 MB each
otherwise), and shared with all forks. Nothing is decided here: Snakemake starts a lease; `lease_client` asks for the fork, which
has the client's terminal, directory and environment, and ends when the client is gone. The server ends when it has had
nothing to do for half a minute; its death harms no lease.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from campaign.cli.lease_client import is_own
from campaign.cli.main import main
from campaign.config.resolve import Campaign
from campaign.documents.lease_plan import read_lease_plan
from campaign.fabrics.registry import fabric_kind
from campaign.launch import LAUNCHERS
from campaign.plan.lease_plans import campaign_of
from campaign.processes.signals import ENDING
from campaign.run.environment import package_versions
from campaign.submit import SUBMITTERS

NAME = "campaign-lease"
"""What `ps -o comm` and `top` show of a fork, whose command line is the server's."""
_IDLE_S = 30.0
_FILES = 4  # of a request: the client's standard files, and what it asks for


def serve(listening: socket.socket) -> None:
    """Fork what is asked for until there was nothing to do for a while, or nothing more is to come."""
    loaded: set[str] = set()
    children: set[int] = set()
    ends_s = time.monotonic() + _IDLE_S
    while children or time.monotonic() < ends_s:
        if select.select([listening], [], [], 1.0)[0]:
            connection, _ = listening.accept()
            with connection:
                word, files = _received(connection)
                if word == b"end":
                    return
                if len(files) == _FILES:
                    request = json.loads(os.pread(files[-1], os.fstat(files[-1]).st_size, 0))
                    _load_once(request["arguments"], Path(request["directory"]), loaded)
                    children.add(_forked(listening, connection, request, files))
                for each in files:
                    os.close(each)
            ends_s = time.monotonic() + _IDLE_S
        running = {pid for pid in children if not os.waitpid(pid, os.WNOHANG)[0]}
        if running != children:
            ends_s = time.monotonic() + _IDLE_S
        children = running


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A word with files; nothing of another user, or of a client that has gone."""
    connection.settimeout(10.0)
    with suppress(OSError):
        if is_own(connection):
            word, files, _, _ = socket.recv_fds(connection, 16, _FILES)
            return word, files
    return b"", []


def _load_once(arguments: list[str], directory: Path, loaded: set[str]) -> None:
    """Load what leases of a system would load or look up by themselves, which takes longer than a short run."""
    try:
        plan = read_lease_plan(next(directory / word for word in arguments if word.endswith(".json")))
        if plan.configuration.system not in loaded:
            loaded.add(plan.configuration.system)
            _load(campaign_of(plan))
            gc.freeze()  # what is there is shared with the forked processes, as long as nobody writes to it
    except Exception:  # each lease says by itself what is wrong
        traceback.print_exc()


def _load(campaign: Campaign) -> None:
    package_versions()
    launcher = campaign.system.launcher
    pkgutil.resolve_name(LAUNCHERS[launcher]).load(torch=any(each.needs_torch for each in campaign.workloads.values()))
    import_module(SUBMITTERS[launcher])
    if launcher == "local" and campaign.protocol.telemetry_s is not None:
        # What writes telemetry, and brings pandas as soon as it is given a list: 0.3 s in each driver, after its first run.
        import_module("pyarrow.parquet")
        import_module("pandas")
    fabric_kind(campaign.system.fabric["kind"])


def _forked(listening: socket.socket, connection: socket.socket, request: dict[str, Any], files: list[int]) -> int:
    # A signal must not arrive before the fork is ready for it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        pid = os.fork()
        if not pid:
            listening.close()
            _work(connection, request, files)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: socket.socket, request: dict[str, Any], files: list[int]) -> NoReturn:
    """The fork, from its beginning to its end: the command of the client in its place."""
    code = 1
    try:
        connection.send(b"+")
    except OSError:  # its client has gone, or measures by itself
        os._exit(code)
    try:
        os.setsid()
        Path("/proc/self/comm").write_text(NAME)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        for descriptor, file in enumerate(files[:3]):
            os.dup2(file, descriptor)
        for file in files:
            os.close(file)
        # New ones: those of the server are of a file, which a pipe is not.
        sys.stdout, sys.stderr = (
            open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            for number in (1, 2)
        )
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.umask(request["umask"])
        _follow(connection)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        code = _command(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # a client that has its exit code and ends is no hang-up
        with suppress(OSError):
            connection.setblocking(True)
            connection.send(bytes([code & 255]))
        os._exit(code)


def _follow(connection: socket.socket) -> None:
    """Have this process told what the client is told: numbers of signals; its death is a hang-up."""

    def heard(*_: object) -> None:
        try:
            while words := connection.recv(16):
                for number in words:
                    os.kill(os.getpid(), number)
        except BlockingIOError:
            return
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGHUP)

    connection.setblocking(False)
    signal.signal(signal.SIGIO, heard)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    heard()  # what came before


def _command(arguments: list[str]) -> int:
    try:
        main(args=arguments, prog_name="campaign")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


if __name__ == "__main__":
    main.get_command(None, "measure")  # loaded once
    serve(socket.socket(fileno=int(sys.argv[1])))
