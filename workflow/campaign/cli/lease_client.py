"""Has a lease measured by a fork of a process that has everything loaded (`lease_server`), and passes on what becomes of it.

Only modules that load in a few milliseconds are used here: this runs once a lease.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

INVOCATION = "CAMPAIGN_INVOCATION"
"""Variable with a token of the Snakemake that starts leases: they share one server, and look once for what others left behind."""
_START_S = 60.0  # from the start of a server to its first fork: it loads torch on a busy machine
_LOOK_S = 0.01
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def measured_elsewhere(arguments: list[str]) -> int | None:
    """Exit code of `campaign measure` with these arguments, from a fork of the server; None where there can be none, as by hand."""
    token = os.environ.get(INVOCATION, "")
    lease = next((Path(word) for word in arguments if word.endswith(".json")), None)
    if not token or lease is None or "--help" in arguments:
        return None
    try:
        connection = _connected(token, lease.absolute().parents[2] / "work")
    except (OSError, IndexError):
        return None
    with connection:
        return _followed(connection, arguments)


def end_server() -> None:
    """Have the server of this invocation fork nothing more, and end; leases under way go on."""
    if token := os.environ.get(INVOCATION):
        with suppress(OSError), _connect(token) as connection:
            connection.send(b"end")


def is_own(connection: socket.socket) -> bool:
    """Whether this user is at the other end: names of sockets that are no files are everybody's."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", peer)[1] == os.geteuid())


def _address(token: str) -> str:
    """A name that is no file: no path is too long for it, no disk too full, and nothing stays when its process dies."""
    return f"\0campaign.leases.{token}"


def _connect(token: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_START_S)
        connection.connect(_address(token))
        if not is_own(connection):
            raise PermissionError("another user's")
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(token: str, work: Path) -> socket.socket:
    """To the server, which is started if it is not there: what it listens at is made here, so that it is there at once, and once.

    OSError: it cannot be started.
    """
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        with suppress(ConnectionRefusedError):
            return _connect(token)
        with socket.socket(socket.AF_UNIX) as listening:
            try:
                listening.bind(_address(token))
            except OSError:  # another lease is just doing the same
                time.sleep(_LOOK_S)
                continue
            listening.listen(512)
            work.mkdir(exist_ok=True)
            command = [sys.executable, "-P", "-m", "campaign.cli.lease_server", str(listening.fileno())]
            with (work / "leases.log").open("ab") as log:
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[listening.fileno()],
                )
    raise TimeoutError


def _followed(connection: socket.socket, arguments: list[str]) -> int | None:
    """Hand over, pass on signals, and wait for the exit code; None where no fork begins."""
    wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in _ENDING}
    signal.set_wakeup_fd(wake)  # gets the number of each signal
    begun, signals = False, b""
    until = time.monotonic() + _START_S
    with suppress(OSError):
        _hand_over(connection, arguments)
        waited = [connection.fileno(), wakes]
        while ready := select.select(waited, [], [], None if begun else max(0.0, until - time.monotonic()))[0]:
            if wakes in ready:
                signals += (new := os.read(wakes, 64))
                with suppress(OSError):
                    connection.send(new)
            if connection.fileno() in ready:
                word = connection.recv(1)
                if begun and word:
                    return word[0]
                if not word:
                    break
                begun = True
    if begun:
        if not signals:
            print("the process that measures this lease was killed; the same command again goes on", file=sys.stderr)
        return 128 + signals[0] if signals else 1
    connection.close()
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    if signals:
        signal.raise_signal(signals[0])
    return None


def _hand_over(connection: socket.socket, arguments: list[str]) -> None:
    """The request is a file: an environment may be larger than what a socket takes at once."""
    os.umask(mask := os.umask(0))
    request = {"arguments": arguments, "directory": str(Path.cwd()), "umask": mask, "environment": dict(os.environ)}
    with os.fdopen(os.memfd_create("request"), "wb") as file:
        file.write(json.dumps(request).encode())
        file.flush()
        socket.send_fds(connection, [b"fork"], [0, 1, 2, file.fileno()])
