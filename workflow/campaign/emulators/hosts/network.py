"""Emulated hosts for ranks: network namespaces that are joined by rate-limited links.

`emulated` keeps the hosts for the length of a block. An ordinary user's namespaces are inside a user namespace, those of root are
not. Nothing is left after a crash: one process holds the namespaces, it ends with its owner, and no name, mount or interface is
visible outside of them.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import groupby
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from campaign.common.errors import LaunchError
from campaign.emulators.hosts.topology import Batch, EmulatedHost, EmulationSpec, LinkRates, layout, namespaces, places

NamespaceMode = Literal["root", "user namespace"]
_KEEPER = Path(__file__).with_name("namespace_daemon.py")
_SEARCH = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_APPARMOR = "apparmor_restrict_unprivileged_userns"
_SWITCHES: Mapping[str, tuple[str, str]] = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    f"/proc/sys/kernel/{_APPARMOR}": ("1", f"sysctl kernel.{_APPARMOR}=0"),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
}


@dataclass(frozen=True, slots=True)
class Availability:
    """How this process can emulate hosts (mode), or why it cannot (reason)."""

    mode: NamespaceMode | None
    reason: str = ""


class EmulatedHosts:
    """Emulated hosts that exist now. Ranks are numbered in the order of `places` (see `topology.places`)."""

    def __init__(self, spec: EmulationSpec, held: HeldNamespaces, addresses: Mapping[str, IPv4Address]) -> None:
        self.spec = spec
        self.places = places(spec)
        self.held = held
        self._addresses = dict(addresses)

    def namespace_paths(self, rank: int) -> tuple[str, ...]:
        """Files of the namespaces to enter for a rank, in this order (see `campaign.common.processes.namespaces`)."""
        return self.held.namespace_paths(self._place(rank))

    def address(self, rank: int) -> str:
        """The address under which other ranks reach this one."""
        return str(self._addresses[self._place(rank)])

    @property
    def mode(self) -> NamespaceMode:
        return "user namespace" if self.held.user else "root"

    def _place(self, rank: int) -> str:
        if not 0 <= rank < len(self.places):
            raise LaunchError(f"rank {rank} has no device: the emulated hosts have {len(self.places)} devices")
        return self.places[rank]


@contextmanager
def emulated(spec: EmulationSpec) -> Iterator[EmulatedHosts]:
    """Emulated hosts for the length of the block; processes that still run in them at its end are killed.

    EmulationUnavailable names what this machine lacks.
    """
    plan = layout(spec)
    keeper = Keeper.start([(name, None) for name in namespaces(spec)], plan.batches)
    try:
        yield EmulatedHosts(spec, keeper.held, plan.addresses)
    finally:
        keeper.close()


@functools.cache
def availability() -> Availability:
    """Whether hosts can be emulated here: tried once per process with the smallest example (about 0.1 s)."""
    hosts = (EmulatedHost(name="probe", local_devices=1, fabric_devices=1),)
    try:
        rates = LinkRates(fabric_gb_per_s=10, network_gb_per_s=10)
        with emulated(EmulationSpec(hosts=hosts, rates=rates)) as emulation:
            return Availability(emulation.mode)
    except EmulationUnavailable as error:
        return Availability(None, str(error))


class EmulationUnavailable(LaunchError):
    """This machine cannot emulate hosts; the message names the tool or the kernel switch that is missing."""


class HeldNamespaces(BaseModel):
    """Namespaces that a live keeper holds open, and how to enter them.

    pid: the keeper, as seen from where it was started; descriptors: of each namespace by name and kind, in the keeper.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int  # process id of the keeper
    user: bool  # whether the namespaces belong to a user namespace of an ordinary user
    isolated: bool  # whether the namespaces have process ids and mounts of their own
    descriptors: dict[str, dict[str, int]]  # descriptors in the keeper, by namespace and kind
    pid_namespace: int = 0  # inode of the namespace of process ids, where they are isolated

    def inside(self) -> bool:
        """Whether this process runs under an isolated keeper itself."""
        return self.isolated and self.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino

    def prefix(self, namespace: str, nsenter: str | None = None) -> tuple[str, ...]:
        """The argv to put before a command so that it runs in a namespace. KeyError: there is no such namespace."""
        if self.inside():
            return self.inner_prefix(namespace)
        argv = [nsenter or tool("nsenter")]
        if self.user:
            # The user stays who they are for the files they own; in here they look like root.
            argv += [f"--user=/proc/{self.pid}/ns/user", "--preserve-credentials"]
        if self.isolated:
            argv += [f"--mount=/proc/{self.pid}/ns/mnt", f"--pid=/proc/{self.pid}/ns/pid"]
        return (*argv, *self._kinds(namespace, self.pid), "--")

    def namespace_paths(self, namespace: str) -> tuple[str, ...]:
        """Files of a namespace that is not isolated, in the order to enter them. KeyError: there is no such namespace."""
        first = [f"/proc/{self.pid}/ns/user"] if self.user else []
        return (*first, *(f"/proc/{self.pid}/fd/{number}" for number in self.descriptors[namespace].values()))

    def inner_prefix(self, namespace: str) -> tuple[str, ...]:
        """The argv of `prefix` for a process that already runs in one of the isolated namespaces, where the keeper is process 1."""
        return ("nsenter", *self._kinds(namespace, 1), "--")

    def _kinds(self, namespace: str, pid: int) -> list[str]:
        return [f"--{kind}=/proc/{pid}/fd/{number}" for kind, number in self.descriptors[namespace].items()]


class Keeper:
    """A running keeper. Its owner's death ends it, and so does `close`; after `keep` only `end` does."""

    def __init__(self, process: subprocess.Popen[str], held: HeldNamespaces) -> None:
        self._process = process
        self.held = held

    @classmethod
    def start(
        cls,
        namespaces: Sequence[tuple[str, str | None]],
        batches: Sequence[Batch],
        *,
        isolated_as: str | None = None,
        commands: Sequence[Sequence[str]] = (),
        outside: int | None = None,
        anchor: int | None = None,
    ) -> Keeper:
        """Make the namespaces (name, host name or None) and run the batches in them.

        isolated_as: with process ids, mounts and this host name of their own, after which `commands` run; outside: descriptor of
        the network namespace that batches know as {@outside}; anchor: descriptor of a file that the keeper holds
        open, and whose removal ends a keeper that was told to stay. EmulationUnavailable: the kernel or a tool refused; nothing
        is left.
        """
        user = os.geteuid() != 0
        programs = {"ip": (tool("ip"), "-batch", "-"), "tc": (tool("tc"), "-batch", "-")}
        owner = os.pidfd_open(os.getpid())
        plan = {
            "user": user,
            "isolate": isolated_as is not None,
            "hostname": isolated_as,
            "commands": [list(argv) for argv in commands],
            "namespaces": list(namespaces),
            # Neighbours of one namespace and program as one process: its start costs more than the lines.
            "batches": [
                (namespace, programs[program], [line for batch in group for line in batch.lines])
                for (namespace, program), group in groupby(batches, lambda batch: (batch.namespace, batch.program))
            ],
            "outside": outside,
            "anchor": anchor,
            "owner": owner,
        }
        passed = [owner, *(descriptor for descriptor in (anchor, outside) if descriptor is not None)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_KEEPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
                text=True,
                encoding="utf-8",
            )
        finally:
            os.close(owner)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps(plan) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise LaunchError(
                    f"the process that holds emulated hosts ended: {process.stderr.read().strip() or process.wait()}"
                )
            answer = json.loads(line)
            if "failed" in answer:
                raise EmulationUnavailable(refusal(answer["failed"], answer["stage"]))
        except BaseException:
            _close(process)
            raise
        inode = Path(f"/proc/{answer['pid']}/ns/pid").stat().st_ino
        return cls(process, HeldNamespaces(user=user, isolated=isolated_as is not None, pid_namespace=inode, **answer))

    def keep(self) -> None:
        """Let the namespaces outlive this process."""
        assert self._process.stdin is not None
        self._process.stdin.write("keep\n")
        _close(self._process)

    def close(self) -> None:
        """End the keeper, and with it everything that runs in the namespaces."""
        _close(self._process)
        end(self.held.pid)


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    try:
        # An isolated keeper is a grandchild, and its parent ended at once; another one ends with its standard input.
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end(pid: int, patience_s: float = 5.0) -> None:
    """SIGKILL a process that may be no child of ours, and wait until the kernel has taken it away."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + patience_s
    while _runs(pid):
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"process {pid} still exists {patience_s:g} s after SIGKILL; see `ps -o stat,wchan -p {pid}`"
            )
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process lives; one that has ended but whom no parent has asked for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def tool(name: str) -> str:
    """Path of a program; those of administrators are often not on the PATH of others. EmulationUnavailable: not installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SEARCH])
    found = shutil.which(name, path=path)
    if found is None:
        package = "util-linux" if name in {"nsenter", "mount"} else "iproute2"
        raise EmulationUnavailable(f"emulating hosts needs `{name}`, which is not installed (package {package})")
    return found


def refusal(message: str, stage: str) -> str:
    """What to tell a person whom the kernel refused: what was refused, and the switch that would allow it."""
    if stage == "setup":
        return f"emulated hosts could not be set up: {message}"
    switches = []
    for path, (closed, remedy) in _SWITCHES.items():
        with suppress(OSError):
            if Path(path).read_text(encoding="utf-8").strip() == closed:
                switches.append(remedy)
    who = "root without CAP_SYS_ADMIN (a container?)" if os.geteuid() == 0 else "an ordinary user"
    allowed = f"an administrator can allow it: {'; '.join(switches)}"
    remedy = allowed if switches else "no setting is known that would allow it"
    return f"the kernel refuses {message} to {who}; {remedy}"
