"""Leases measured by forks of one server: what passes between client and fork, and what becomes of a lease when one dies."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from campaign.cli.lease_client import INVOCATION, _address

WAIT_S = 60.0
NOBODY = 65534
SERVER = """
import os, socket, sys
from campaign.cli import lease_server

def command(args, prog_name):
    exec(os.environ["PROBE"], {})

lease_server.main = command
lease_server._load_once = lambda *_: None
lease_server._IDLE_S = float(os.environ.get("IDLE_S", "60"))
lease_server.serve(socket.socket(fileno=int(sys.argv[1])))
"""
"""The server itself, with a command that does what its client's environment says."""
TELL = """
import json, logging, os, random
from campaign.run import progress
umask = os.umask(0)
os.umask(umask)
print(json.dumps({
    "directory": os.getcwd(), "umask": umask, "word": os.environ.get("WORD"), "stdin": os.read(0, 9).decode(),
    "size": len(os.environ.get("LARGE", "")), "level": logging.getLogger().level,
    "read": len(progress._read), "random": random.random(),
}))
"""
SPOIL = """
import logging, os, random, sys
from campaign.run import progress
os.environ["WORD"] = "spoiled"; os.chdir("/"); os.umask(0); logging.getLogger().setLevel(1); progress._read["x"] = 1; sys.exit(3)
"""
LISTEN = """
import pathlib, signal, sys, time
def end(number, _):
    pathlib.Path("heard").write_text(str(number)); sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end)
pathlib.Path("begun").touch(); time.sleep(60)
"""
PAUSE = """
import pathlib, sys, time
pathlib.Path("begun").touch()
while not pathlib.Path("go").exists(): time.sleep(0.02)
sys.exit(5)
"""


class Leases:
    """A directory with leases that no file describes: measured by the client itself, they fail and name it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token = secrets.token_hex(8)
        self.lease = directory / "results/c/plan/leases/a.c1.json"
        self.lease.parent.mkdir(parents=True)
        self.started: list[subprocess.Popen[str]] = []

    def environment(self, probe: str, **more: str) -> dict[str, str]:
        return {**os.environ, INVOCATION: self.token, "PROBE": probe, **more}

    def server(self, **more: str) -> subprocess.Popen[str]:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(_address(self.token))
            listening.listen()
            command = [sys.executable, "-c", SERVER, str(listening.fileno())]
            return self.kept(
                subprocess.Popen(command, pass_fds=[listening.fileno()], env=self.environment("", **more), text=True)
            )

    def client(self, probe: str = "", umask: int = -1, **more: str) -> subprocess.Popen[str]:
        return self.kept(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "campaign.cli", "measure", str(self.lease)],
                cwd=self.directory, env=self.environment(probe, **more), umask=umask, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip

    def kept(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.started.append(process)
        return process

    def told(self, probe: str = TELL, umask: int = -1, **more: str) -> dict[str, object]:
        client = self.client(probe, umask, **more)
        out, err = client.communicate("stdin", WAIT_S)
        assert (client.returncode, err) == (0, "")
        found: dict[str, object] = json.loads(out)
        return found

    def await_file(self, name: str) -> str:
        until(lambda: (self.directory / name).exists())
        return (self.directory / name).read_text()

    def processes(self, word: str) -> list[int]:
        """Those of these leases with a word in their command line."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if word in (path / "cmdline").read_text() and self.token in (path / "environ").read_text():
                    found.append(int(path.name))
        return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[Leases]:
    site = Leases(tmp_path)
    yield site
    for process in site.started:
        process.kill()
        process.communicate()
    for pid in site.processes("campaign.cli"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_fork_is_as_its_client_and_leaves_nothing_to_the_next_one(leases: Leases) -> None:
    leases.server(WORD="the server's")
    large = {f"LARGE{number}": "x" * 100_000 for number in range(10)}  # more than a socket takes at once
    first = leases.told(WORD="mine", LARGE="x" * 100_000, umask=0o027, **large)
    spoiling = leases.client(SPOIL)
    assert (spoiling.communicate(timeout=WAIT_S), spoiling.returncode) == (("", ""), 3)
    second = leases.told(WORD="mine", LARGE="x" * 100_000, umask=0o027, **large)
    assert first.pop("random") != second.pop("random")
    assert first == second
    assert first == {
        "directory": str(leases.directory),
        "umask": 0o027,
        "word": "mine",
        "stdin": "stdin",
        "size": 100_000,
        "level": 30,
        "read": 0,
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_exit_code_comes_back(leases: Leases, number: signal.Signals) -> None:
    leases.server()
    client = leases.client(LISTEN)
    leases.await_file("begun")
    client.send_signal(number)
    assert client.wait(WAIT_S) == 7
    assert leases.await_file("heard") == str(int(number))


def test_the_death_of_a_client_is_a_hang_up(leases: Leases) -> None:
    leases.server()
    client = leases.client(LISTEN)
    leases.await_file("begun")
    client.kill()
    assert leases.await_file("heard") == str(int(signal.SIGHUP))


def test_a_fork_that_is_killed_fails_its_lease(leases: Leases) -> None:
    leases.server()
    client = leases.client("import os; os.kill(os.getpid(), 9)")
    _, err = client.communicate(timeout=WAIT_S)
    assert (client.returncode, "was killed; the same command again goes on" in err) == (1, True)


def test_a_lease_under_way_survives_its_server(leases: Leases) -> None:
    server = leases.server()
    client = leases.client(PAUSE)
    leases.await_file("begun")
    server.kill()
    server.wait()
    (leases.directory / "go").touch()
    assert client.wait(WAIT_S) == 5


def test_a_lease_is_measured_by_its_client_when_the_server_dies_before_it_forks(leases: Leases) -> None:
    server = leases.server()
    server.send_signal(signal.SIGSTOP)
    client = leases.client(TELL)
    until(lambda: handles(client.pid, signal.SIGTERM))
    time.sleep(0.2)  # its request is sent
    assert client.poll() is None
    server.kill()
    assert_measures_itself(leases, client)


def test_a_signal_that_no_fork_hears_ends_the_client(leases: Leases) -> None:
    server = leases.server()
    server.send_signal(signal.SIGSTOP)
    client = leases.client(TELL)
    until(lambda: handles(client.pid, signal.SIGTERM))
    client.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    server.kill()
    assert client.wait(WAIT_S) == -signal.SIGTERM


def test_clients_that_begin_at_once_start_one_server_wherever_they_are(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "/".join(["long-name" * 10] * 4))  # longer than the path of a socket may be
    try:
        clients = [leases.client(TELL) for _ in range(6)]
        for client in clients:
            _, err = client.communicate(timeout=WAIT_S)
            assert (client.returncode, str(leases.lease) in err) == (1, True)
        assert len(leases.processes("campaign.cli.lease_server")) == 1
        end = "from campaign.cli.lease_client import end_server; end_server()"
        subprocess.run([sys.executable, "-c", end], env=leases.environment(""), check=True)
        until(lambda: not leases.processes("campaign.cli.lease_server"))
    finally:
        for pid in leases.processes("campaign.cli"):
            os.kill(pid, signal.SIGKILL)


def test_without_room_for_its_log_there_is_no_server(leases: Leases) -> None:
    (leases.directory / "results/c/work").touch()
    assert_measures_itself(leases, leases.client(TELL))
    assert not leases.processes("campaign.cli.lease_server")


def test_an_idle_server_ends(leases: Leases) -> None:
    server = leases.server(IDLE_S="0.1")
    assert server.wait(WAIT_S) == 0
    assert leases.token not in connections(leases.token)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_is_neither_served_nor_trusted(leases: Leases) -> None:
    def as_nobody(code: str) -> subprocess.Popen[str]:
        code = f"import socket, os, time\nos.setuid({NOBODY})\ns, name = socket.socket(socket.AF_UNIX), os.environ['NAME']\n{code}"
        environment = {"NAME": _address(leases.token)[1:]}
        return leases.kept(
            subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, stdout=subprocess.PIPE)
        )

    imposter = as_nobody("s.bind('\\0' + name); s.listen(); print('listens', flush=True); time.sleep(60)")
    assert imposter.stdout
    assert imposter.stdout.readline() == "listens\n"
    assert_measures_itself(leases, leases.client(TELL))
    imposter.kill()
    imposter.wait()

    leases.server()
    asking = as_nobody("s.connect('\\0' + name); s.send(b'end')")
    assert asking.wait(WAIT_S) == 0
    assert leases.told()["word"] is None


def assert_measures_itself(leases: Leases, client: subprocess.Popen[str]) -> None:
    out, err = client.communicate(timeout=WAIT_S)
    assert (client.returncode, out, str(leases.lease) in err) == (1, "", True)


def connections(token: str) -> str:
    return "\n".join(line for line in Path("/proc/net/unix").read_text().splitlines() if token in line)


def handles(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (number - 1) & 1)
