"""Daemons of a cluster: requirements of this machine, and functions that start, find, stop and await daemons.

A daemon belongs to the cluster if it is in its namespace of process ids. Pid files are not used. Every host has a separate munged
like a real machine, because a munged rejects a credential that it decodes twice, so that a step on several hosts would fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from campaign.common.errors import LaunchError
from campaign.emulators.hosts.cluster_spec import Cluster, build_slurm_environment
from campaign.emulators.hosts.network import check_availability, find_program
from campaign.emulators.hosts.topology import BRIDGE_NAMESPACE

Daemon = Literal["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"]
DAEMONS: tuple[Daemon, ...] = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")
_START_TIMEOUT_S = 30.0
_APPEARANCE_TIMEOUT_S = 1.0
_LOG_LINES = 6
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """Running daemon of a cluster.

    Attributes:
        daemon: kind of daemon.
        host: host of a slurmd and its munged.
        pid: process id as seen from outside the cluster.
    """

    daemon: Daemon
    host: str | None
    pid: int


def list_running_daemons(cluster: Cluster) -> tuple[RunningDaemon, ...]:
    """List every running daemon of the cluster, in the order in which they start."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    processes = [process for pid in pids if (process := _identify_daemon(pid, cluster.held.pid_namespace)) is not None]
    return tuple(
        sorted(processes, key=lambda process: (DAEMONS.index(process.daemon), process.host or "", process.pid))
    )


def _identify_daemon(pid: int, namespace: int) -> RunningDaemon | None:
    """Return the daemon that a process of this namespace runs, or None if it runs no daemon of the cluster."""
    try:
        if Path(f"/proc/{pid}/ns/pid").stat().st_ino != namespace:
            return None
        comm = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None  # The process has ended.
    daemon = next((name for name in DAEMONS if name == comm), None)
    # A process without arguments has ended but was not reaped.
    if daemon is None or arguments == [b""]:
        return None
    host = arguments[arguments.index(b"-N") + 1].decode() if b"-N" in arguments else None
    if daemon == "munged":
        socket_name = next((Path(word.decode()).stem for word in arguments if word.startswith(b"--socket=")), "")
        host = socket_name.partition("-")[2] or None
    return RunningDaemon(daemon, host, pid)


def find_processes(cluster: Cluster, daemon: Daemon, host: str | None = None) -> tuple[RunningDaemon, ...]:
    """Return the running processes of one daemon, optionally of one host."""
    return tuple(
        process
        for process in list_running_daemons(cluster)
        if process.daemon == daemon and host in (None, process.host)
    )


def start_daemon(cluster: Cluster, daemon: Daemon, host: str | None = None, devices: int | None = None) -> None:
    """Start a daemon, and return before the daemon serves requests.

    Raises LaunchError if the daemon could not be executed.

    Args:
        cluster: running cluster.
        daemon: daemon to start.
        host: host of a slurmd or its munged.
        devices: number of devices to register. Default: as in the specification.
    """
    if daemon == "slurmd" and host and not find_processes(cluster, "munged", host):
        start_daemon(cluster, "munged", host)
        wait_until_ready(
            lambda: is_socket_served(_get_munge_socket_path(cluster, host)),
            "munged does not answer",
            cluster,
            f"munged-{host}",
            "munged",
            host,
        )
    argv = _build_argv(cluster, daemon, host, devices)
    name = daemon if host is None else f"{daemon}-{host}"
    with cluster.get_log_path(f"{name}.out").open("ab") as log:
        result = subprocess.run(
            [*cluster.held.build_command_prefix(host or BRIDGE_NAMESPACE), "setsid", "--fork", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": _PATH, "LANG": "C.UTF-8", **build_slurm_environment(cluster)},
            check=False,
        )
    if result.returncode:
        raise LaunchError(f"{name} could not be started: {_format_log_tail(cluster, name)}")
    # The process must first have the name of its program, or `wait_until_ready` would regard it as ended.
    deadline_s = time.monotonic() + _APPEARANCE_TIMEOUT_S
    while not find_processes(cluster, daemon, host) and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _build_argv(cluster: Cluster, daemon: Daemon, host: str | None, devices: int | None) -> list[str]:
    """Build the command line of a daemon."""
    directory, program = cluster.directory, find_program(daemon)
    if daemon == "munged":
        name = _get_munge_socket_path(cluster, host).stem
        files = ("key-file", "etc/munge.key"), ("socket", f"run/{name}.sock"), ("pid-file", f"run/{name}.pid")
        log_files = ("log-file", f"log/{name.replace('munge', 'munged')}.log"), ("seed-file", f"run/{name}.seed")
        options = [f"--{option}={directory / path}" for option, path in (*files, *log_files)]
        # --force is needed, because munged refuses a directory inside a temporary directory.
        return [program, "--foreground", "--force", *options]
    if daemon == "mariadbd":
        return [program, f"--defaults-file={directory}/etc/my.cnf"]
    if daemon != "slurmd":
        return [program, "-D"]
    if host is None:
        raise LaunchError("slurmd cannot be started without the name of its host")
    return [*_build_munge_mount_prefix(cluster, host), program, "-D", *_build_slurmd_options(cluster, host, devices)]


def _get_munge_socket_path(cluster: Cluster, host: str | None = None) -> Path:
    """Return the path of the socket of a host's munged, or of the controller's."""
    return cluster.directory / "run" / f"munge{f'-{host}' if host else ''}.sock"


def _build_munge_mount_prefix(cluster: Cluster, host: str) -> list[str]:
    """Return the command prefix that mounts the host's munge socket at the path given in the shared slurm.conf."""
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    sockets = [str(_get_munge_socket_path(cluster, host)), str(_get_munge_socket_path(cluster))]
    return ["unshare", "--mount", "--propagation=slave", "sh", "-c", script, "munge", *sockets]


def _build_slurmd_options(cluster: Cluster, host: str, devices: int | None) -> list[str]:
    """Build the options of a host's slurmd."""
    host_spec = cluster.spec.find_host(host)
    if host_spec.registration == "cloud":
        # -b reports a new boot, without which Slurm would not regard the host as resumed.
        return ["-b", "-N", host]
    if host_spec.registration != "dynamic":
        return ["-N", host]
    count = host_spec.devices if devices is None else devices
    gres = f" Gres={cluster.spec.format_gres(count)}" if count else ""
    shape = f"CPUs={cluster.spec.cpus} RealMemory={cluster.spec.memory_mib} Feature=composed{gres}"
    return ["-N", host, "-Z", "--conf", shape]


def stop_daemon(cluster: Cluster, daemon: Daemon, host: str | None = None, signal_number: int = signal.SIGTERM) -> None:
    """Signal a daemon and wait until it has ended. Raises LaunchError if it is not running, or does not end."""
    processes = find_processes(cluster, daemon, host)
    if not processes:
        raise LaunchError(f"{daemon}{f' of {host}' if host else ''} is not running in {cluster.directory}")
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal_number)
    wait_until_ready(
        lambda: not find_processes(cluster, daemon, host),
        f"{daemon} did not end after signal {signal_number}",
        cluster,
        daemon,
    )


def wait_until_ready(
    is_ready: Callable[[], bool],
    complaint: str,
    cluster: Cluster,
    name: str,
    required_daemon: Daemon | None = None,
    host: str | None = None,
) -> None:
    """Wait until a condition holds.

    Raises LaunchError, with the end of the daemon's log, after 30 s or once the required daemon has ended.

    Args:
        is_ready: condition to wait for.
        complaint: beginning of the error message.
        cluster: running cluster.
        name: name of the log to show.
        required_daemon: daemon that must keep running.
        host: host of that daemon.
    """
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not is_ready():
        has_ended = required_daemon is not None and not find_processes(cluster, required_daemon, host)
        if has_ended or time.monotonic() > deadline_s:
            raise LaunchError(f"{complaint}{' (it ended)' if has_ended else ''}: {_format_log_tail(cluster, name)}")
        time.sleep(0.05)


def _format_log_tail(cluster: Cluster, name: str) -> str:
    """Format the last lines of a daemon's logs."""
    lines: list[str] = []
    for file in (cluster.get_log_path(name), cluster.get_log_path(f"{name}.out")):
        with suppress(OSError):
            lines += file.read_text(errors="replace", encoding="utf-8").splitlines()[-_LOG_LINES:]
    return f"{cluster.get_log_path(name)} ends with: " + " | ".join(lines or ["nothing"])


def is_socket_served(path: Path) -> bool:
    """Return True if a process serves a local socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def is_port_served(address: str, port: int) -> bool:
    """Return True if a process serves a TCP port."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((address, port)) == 0


DEBIAN_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge", "mariadb-server", "iproute2")
"""Debian packages that the cluster needs."""
_SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol", "srun", "sbatch")
_SYSTEM_PROGRAMS = ("ip", "tc", "nsenter", "setsid", "mount")
# The last program is called by the one before it, but Debian has it in another package.
_ACCOUNTING_PROGRAMS = ("slurmdbd", "sacct", "mariadbd", "mariadb-install-db", "my_print_defaults")
_DAEMONS = frozenset({"slurmctld", "slurmd", "slurmdbd"})
_SLURM_PORTS = (6817, 6818, 6819)
_LISTENING_STATE = "0A"
_SLURM_CONFIGURATION_FILES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])


def list_missing_programs(accounting: bool = True) -> tuple[str, ...]:
    """List the programs that the cluster needs but that are not installed."""
    programs = (*_SLURM_PROGRAMS, *_SYSTEM_PROGRAMS, *(_ACCOUNTING_PROGRAMS if accounting else ()))
    return tuple(name for name in programs if shutil.which(name, path=_SEARCH_PATH) is None)


def check_requirements(accounting: bool = True) -> None:
    """Raise LaunchError, with the remedy, if a cluster cannot run on this machine."""
    if os.geteuid() != 0:
        raise LaunchError(
            "an emulated Slurm requires root, because its daemons start jobs as their users; run `sudo campaign cluster up` "
            "(emulated hosts without Slurm also work as an ordinary user if the kernel allows user namespaces)"
        )
    if missing_programs := list_missing_programs(accounting):
        raise LaunchError(
            f"required programs are not installed: {', '.join(missing_programs)}; on Debian and Ubuntu, run: "
            f"apt-get install --no-install-recommends {' '.join(DEBIAN_PACKAGES)}"
        )
    if evidence := find_real_slurm():
        raise LaunchError(
            f"this machine already has a Slurm ({evidence}), which is left unchanged; use another machine"
        )
    if reason := check_availability().reason:
        raise LaunchError(reason)


def find_real_slurm(proc: Path = Path("/proc")) -> str | None:
    """Return evidence of a real Slurm on this machine, or None if there is none.

    An emulated Slurm has separate process ids and ports.
    """
    own_namespace = (proc / "self/ns/pid").stat().st_ino
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # The process may have ended.
                comm = (entry / "comm").read_text(encoding="utf-8").strip()
                if comm in _DAEMONS and (entry / "ns/pid").stat().st_ino == own_namespace:
                    configuration = next((path for path in _SLURM_CONFIGURATION_FILES if Path(path).exists()), None)
                    return f"{comm}, process {entry.name}" + (f", {configuration}" if configuration else "")
    listening_ports = _list_listening_ports(proc)
    if ports_in_use := [str(port) for port in _SLURM_PORTS if port in listening_ports]:
        return f"a process listens on Slurm's port {', '.join(ports_in_use)}"
    return None


def _list_listening_ports(proc: Path) -> set[int]:
    """List the TCP ports with a listening process in this network namespace."""
    ports = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in (proc / "self/net" / table).read_text(encoding="utf-8").splitlines()[1:]]
            ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING_STATE}
    return ports
