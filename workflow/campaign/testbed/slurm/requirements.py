"""Whether a cluster can be started on this machine: permissions, installed programs, and a Slurm that runs already."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from campaign.errors import LaunchError
from campaign.launch.emulation.network import availability

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge", "mariadb-server", "iproute2")
"""Debian's names of what the cluster needs."""
_SLURM = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol", "srun", "sbatch")
_TOOLS = ("ip", "tc", "nsenter", "setsid", "mount")
_ACCOUNTING = ("slurmdbd", "sacct", "mariadbd", "mariadb-install-db")
_DAEMONS = frozenset({"slurmctld", "slurmd", "slurmdbd"})
_PORTS = (6817, 6818, 6819)
_LISTENING = "0A"
_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])


def missing_programs(accounting: bool = True) -> tuple[str, ...]:
    """Programs the cluster needs that are not installed."""
    wanted = (*_SLURM, *_TOOLS, *(_ACCOUNTING if accounting else ()))
    return tuple(name for name in wanted if shutil.which(name, path=_SEARCH) is None)


def check(accounting: bool = True) -> None:
    """LaunchError names what prevents a cluster on this machine, and the remedy."""
    if os.geteuid() != 0:
        raise LaunchError(
            "starting a Slurm needs root (its daemons start jobs as their users): `sudo campaign cluster up`; "
            "emulated hosts without Slurm work as an ordinary user where the kernel allows user namespaces"
        )
    if missing := missing_programs(accounting):
        raise LaunchError(
            f"not installed: {', '.join(missing)}; on Debian and Ubuntu: "
            f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        )
    if theirs := slurm_of_this_machine():
        raise LaunchError(f"this machine has a Slurm already ({theirs}), which is not touched; use another machine")
    if reason := availability().reason:
        raise LaunchError(reason)


def slurm_of_this_machine(proc: Path = Path("/proc")) -> str | None:
    """Evidence of a real Slurm on this machine, or None. An emulated one has process ids and ports of its own."""
    ours = (proc / "self/ns/pid").stat().st_ino
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                comm = (entry / "comm").read_text().strip()
                if comm in _DAEMONS and (entry / "ns/pid").stat().st_ino == ours:
                    configured = next((path for path in _CONFIGURATIONS if Path(path).exists()), None)
                    return f"{comm}, process {entry.name}" + (f", {configured}" if configured else "")
    listening = _listening(proc)
    if taken := [str(port) for port in _PORTS if port in listening]:
        return f"a process listens on Slurm's port {', '.join(taken)}"
    return None


def _listening(proc: Path) -> set[int]:
    """TCP ports that somebody listens on in this network namespace."""
    ports = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in (proc / "self/net" / table).read_text().splitlines()[1:]]
            ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING}
    return ports
