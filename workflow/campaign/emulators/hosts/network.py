"""Emulated hosts for ranks: network namespaces that are joined by rate-limited links.

`emulate_hosts` keeps the hosts for the length of a block. An ordinary user's namespaces are inside a user namespace, those of
root are not. Nothing is left after a crash: one process holds the namespaces, it ends with its owner, and no name, mount or
interface is visible outside of them.
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
from campaign.emulators.hosts.topology import (
    Batch,
    EmulatedHost,
    EmulationSpec,
    LinkRates,
    list_device_namespaces,
    list_namespaces,
    plan_layout,
)

NamespaceMode = Literal["root", "user namespace"]
_DAEMON_FILE = Path(__file__).with_name("namespace_daemon.py")
_ADMIN_PATHS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_APPARMOR_SWITCH = "apparmor_restrict_unprivileged_userns"
_KERNEL_SWITCHES: Mapping[str, tuple[str, str]] = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    f"/proc/sys/kernel/{_APPARMOR_SWITCH}": ("1", f"sysctl kernel.{_APPARMOR_SWITCH}=0"),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
}


@dataclass(frozen=True, slots=True)
class EmulationAvailability:
    """Result of the test whether this process can emulate hosts.

    Attributes:
        mode: kind of namespaces; None if hosts cannot be emulated.
        reason: reason why hosts cannot be emulated.
    """

    mode: NamespaceMode | None
    reason: str = ""


class EmulatedHosts:
    """Existing emulated hosts. Ranks are numbered in the order of `rank_namespaces` (see `topology.list_device_namespaces`)."""

    def __init__(
        self, spec: EmulationSpec, held_namespaces: HeldNamespaces, addresses: Mapping[str, IPv4Address]
    ) -> None:
        self.spec = spec
        self.rank_namespaces = list_device_namespaces(spec)
        self.held_namespaces = held_namespaces
        self._addresses = dict(addresses)

    def list_namespace_paths(self, rank: int) -> tuple[str, ...]:
        """Return the files of the namespaces that a rank must enter, in order (see `campaign.common.processes.namespaces`)."""
        return self.held_namespaces.list_namespace_paths(self._find_rank_namespace(rank))

    def get_rank_address(self, rank: int) -> str:
        """Return the address at which other ranks reach a rank."""
        return str(self._addresses[self._find_rank_namespace(rank)])

    @property
    def mode(self) -> NamespaceMode:
        """Kind of namespaces of the hosts."""
        return "user namespace" if self.held_namespaces.user else "root"

    def _find_rank_namespace(self, rank: int) -> str:
        """Return the namespace of a rank. Raises LaunchError if the hosts have no device for it."""
        if not 0 <= rank < len(self.rank_namespaces):
            raise LaunchError(
                f"rank {rank} has no device, because the emulated hosts have only {len(self.rank_namespaces)} devices"
            )
        return self.rank_namespaces[rank]


@contextmanager
def emulate_hosts(spec: EmulationSpec) -> Iterator[EmulatedHosts]:
    """Emulate hosts for the duration of a block; processes that still run in them at its end are killed.

    Raises EmulationUnavailable, with the missing tool or kernel setting, if this machine cannot emulate hosts.
    """
    plan = plan_layout(spec)
    keeper = NamespaceKeeper.start([(name, None) for name in list_namespaces(spec)], plan.batches)
    try:
        yield EmulatedHosts(spec, keeper.held_namespaces, plan.addresses)
    finally:
        keeper.close()


@functools.cache
def check_availability() -> EmulationAvailability:
    """Test whether hosts can be emulated on this machine, and return the mode or the reason why not.

    The test runs once per process with the smallest example (about 0.1 s).
    """
    hosts = (EmulatedHost(name="probe", local_devices=1, fabric_devices=1),)
    try:
        rates = LinkRates(fabric_gb_per_s=10, network_gb_per_s=10)
        with emulate_hosts(EmulationSpec(hosts=hosts, rates=rates)) as emulation:
            return EmulationAvailability(emulation.mode)
    except EmulationUnavailable as error:
        return EmulationAvailability(None, str(error))


class EmulationUnavailable(LaunchError):
    """Error for a machine that cannot emulate hosts; the message names the missing tool or kernel setting."""


class HeldNamespaces(BaseModel):
    """Namespaces that a live keeper holds open, and the ways to enter them.

    Attributes:
        pid: process id of the keeper, as seen from where it was started.
        user: True if the namespaces belong to the user namespace of an ordinary user.
        isolated: True if the namespaces have separate process ids and mounts.
        descriptors: descriptors in the keeper, by namespace and kind.
        pid_namespace: inode of the namespace of process ids, if they are isolated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    user: bool
    isolated: bool
    descriptors: dict[str, dict[str, int]]
    pid_namespace: int = 0

    def is_inside(self) -> bool:
        """Return True if this process runs under the isolated keeper itself."""
        return self.isolated and self.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino

    def build_command_prefix(self, namespace: str, nsenter: str | None = None) -> tuple[str, ...]:
        """Return the command prefix that runs a command in a namespace. Raises KeyError for an unknown namespace."""
        if self.is_inside():
            return self.build_inner_command_prefix(namespace)
        argv = [nsenter or find_program("nsenter")]
        if self.user:
            # File access keeps the user's identity; inside the namespace the user appears as root.
            argv += [f"--user=/proc/{self.pid}/ns/user", "--preserve-credentials"]
        if self.isolated:
            argv += [f"--mount=/proc/{self.pid}/ns/mnt", f"--pid=/proc/{self.pid}/ns/pid"]
        return (*argv, *self._build_nsenter_options(namespace, self.pid), "--")

    def list_namespace_paths(self, namespace: str) -> tuple[str, ...]:
        """Return the files of a namespace that is not isolated, in the order to enter them.

        Raises KeyError for an unknown namespace.
        """
        user_namespace = [f"/proc/{self.pid}/ns/user"] if self.user else []
        return (*user_namespace, *(f"/proc/{self.pid}/fd/{number}" for number in self.descriptors[namespace].values()))

    def build_inner_command_prefix(self, namespace: str) -> tuple[str, ...]:
        """Return the counterpart of `build_command_prefix` for use inside an isolated namespace, where the keeper is process 1."""
        return ("nsenter", *self._build_nsenter_options(namespace, 1), "--")

    def _build_nsenter_options(self, namespace: str, pid: int) -> list[str]:
        """Return the options of nsenter for the namespaces of a host."""
        return [f"--{kind}=/proc/{pid}/fd/{number}" for kind, number in self.descriptors[namespace].items()]


class NamespaceKeeper:
    """Running keeper of namespaces. It ends with its owner or by `close`. After `detach`, only `kill_and_wait` ends it."""

    def __init__(self, process: subprocess.Popen[str], held_namespaces: HeldNamespaces) -> None:
        self._process = process
        self.held_namespaces = held_namespaces

    @classmethod
    def start(
        cls,
        names: Sequence[tuple[str, str | None]],
        batches: Sequence[Batch],
        *,
        hostname: str | None = None,
        commands: Sequence[Sequence[str]] = (),
        outside: int | None = None,
        anchor: int | None = None,
    ) -> NamespaceKeeper:
        """Start a keeper that creates the namespaces and runs the batches in them.

        Raises EmulationUnavailable if the kernel or a tool refuses. Nothing is left in this case.

        Args:
            names: (name, host name or None) of each namespace.
            batches: lines for `ip` and `tc` in the namespaces.
            hostname: host name of the keeper. If it is given, the namespaces have separate process ids and mounts.
            commands: commands to run once the namespaces are isolated.
            outside: descriptor of the network namespace that batches use as {@outside}.
            anchor: descriptor of a file that the keeper holds open, and whose removal ends a detached keeper.
        """
        user = os.geteuid() != 0
        program_commands = {"ip": (find_program("ip"), "-batch", "-"), "tc": (find_program("tc"), "-batch", "-")}
        owner = os.pidfd_open(os.getpid())
        plan = {
            "user": user,
            "isolate": hostname is not None,
            "hostname": hostname,
            "commands": [list(argv) for argv in commands],
            "namespaces": list(names),
            # Consecutive batches of one namespace and program share a process, because its start costs more than its lines.
            "batches": [
                (namespace, program_commands[program], [line for batch in group for line in batch.lines])
                for (namespace, program), group in groupby(batches, lambda batch: (batch.namespace, batch.program))
            ],
            "outside": outside,
            "anchor": anchor,
            "owner": owner,
        }
        descriptors = [owner, *(descriptor for descriptor in (anchor, outside) if descriptor is not None)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_DAEMON_FILE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
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
                    f"the process that holds the emulated hosts ended: {process.stderr.read().strip() or process.wait()}"
                )
            answer = json.loads(line)
            if "failed" in answer:
                raise EmulationUnavailable(format_refusal(answer["failed"], answer["stage"]))
        except BaseException:
            _close_pipes(process)
            raise
        inode = Path(f"/proc/{answer['pid']}/ns/pid").stat().st_ino
        return cls(process, HeldNamespaces(user=user, isolated=hostname is not None, pid_namespace=inode, **answer))

    def detach(self) -> None:
        """Let the namespaces outlive this process."""
        assert self._process.stdin is not None
        self._process.stdin.write("keep\n")
        _close_pipes(self._process)

    def close(self) -> None:
        """End the keeper, and with it everything that runs in the namespaces."""
        _close_pipes(self._process)
        kill_and_wait(self.held_namespaces.pid)


def _close_pipes(process: subprocess.Popen[str]) -> None:
    """Close the pipes of a process and wait for its end."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    try:
        # An isolated keeper is a grandchild whose parent has already ended. Any other keeper ends with its standard input.
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_and_wait(pid: int, timeout_s: float = 5.0) -> None:
    """Kill a process, which need not be a child of this one, and wait until the kernel has removed it.

    Raises LaunchError if the process still exists after the timeout.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + timeout_s
    while _is_alive(pid):
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"process {pid} still exists {timeout_s:g} s after SIGKILL; inspect it with `ps -o stat,wchan -p {pid}`"
            )
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Return True if a process is alive. A process that has ended but was not reaped is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def find_program(name: str) -> str:
    """Find a program in PATH or in administrators' directories outside of it, and return its path.

    Raises EmulationUnavailable if the program is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ADMIN_PATHS])
    program = shutil.which(name, path=path)
    if program is None:
        package = "util-linux" if name in {"nsenter", "mount"} else "iproute2"
        raise EmulationUnavailable(
            f"emulated hosts require `{name}`, which is not installed; install the package {package}"
        )
    return program


def format_refusal(message: str, stage: str) -> str:
    """Format the error message for a refusal by the kernel, with the setting that would allow the operation."""
    if stage == "setup":
        return f"the emulated hosts could not be set up: {message}"
    switches = []
    for path, (blocking_value, remedy) in _KERNEL_SWITCHES.items():
        with suppress(OSError):
            if Path(path).read_text(encoding="utf-8").strip() == blocking_value:
                switches.append(remedy)
    user = "root without CAP_SYS_ADMIN (a container?)" if os.geteuid() == 0 else "an ordinary user"
    permission_hint = f"an administrator can allow it with: {'; '.join(switches)}"
    remedy = permission_hint if switches else "no setting that allows it is known"
    return f"the kernel refuses a request of {user}: {message}; {remedy}"
