"""The directory of a cluster: its lock, its files, and their removal."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from campaign.errors import LaunchError
from campaign.files import acquire_lock, is_locked
from campaign.launch.emulation.cluster_spec import DESCRIPTION, Cluster
from campaign.testbed.slurm.config_files import PROGRAMS, render

_LOCK = "keeper.lock"
_MADE = ("etc", "run", "state", "spool", "database", "devices", "bin")
_SOCKET_PATH_MAX = 107


def prepare(directory: Path) -> None:
    """Make empty directories for a new cluster, and remove the logs of an earlier one."""
    clear(directory)
    shutil.rmtree(directory / "log", ignore_errors=True)
    for name in (*_MADE, "log"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "etc" / "hosts").touch()


def check_length(directory: Path, hosts: Iterable[str]) -> None:
    """LaunchError: a local socket in the directory would have too long a path."""
    # slurmd has one for each step of a job; a batch script's is step 4294967291.
    steps = [directory / "spool" / host / f"{host}_999999.4294967291" for host in hosts]
    over = max(len(str(path)) for path in (directory / "run" / "mariadb.sock", *steps)) - _SOCKET_PATH_MAX
    if over > 0:
        raise LaunchError(
            f"{directory}: {over} characters too long for the paths of local sockets; choose a shorter directory"
        )


def write(cluster: Cluster) -> None:
    """Configuration, key and device files."""
    for path, text in render(cluster).items():
        (cluster.directory / path).write_text(text)
    (cluster.directory / "etc" / "slurmdbd.conf").chmod(0o600)
    (cluster.directory / "bin" / "on-host").chmod(0o755)
    for program in PROGRAMS.iterdir():
        if program.name != "settings":
            shutil.copy(program, cluster.directory / "bin" / program.name)
            (cluster.directory / "bin" / program.name).chmod(0o755)
    key = cluster.directory / "etc" / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    for host in cluster.spec.hosts:
        devices = cluster.directory / "devices" / host.name
        devices.mkdir()
        for index in range(host.slots):
            # The null device under another name: nobody opens it, Slurm only wants it to be there.
            os.mknod(devices / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (cluster.directory / "spool" / host.name).mkdir()


def lock(directory: Path) -> int:
    """The lock that the keeper will hold for as long as it lives, so that nobody has to believe a process id."""
    if directory.exists() and directory.stat().st_uid != os.geteuid():
        # A well-known name under a temporary directory is anybody's to take first.
        raise LaunchError(f"{directory}: belongs to another user; choose another directory")
    if directory.exists() and any(directory.iterdir()) and not (directory / _LOCK).exists():
        raise LaunchError(f"{directory}: is not empty and is not the directory of a cluster; choose another one")
    if (descriptor := acquire_lock(directory / _LOCK, holder="")) is None:
        raise LaunchError(f"{directory}: a cluster is running here already; stop it with `campaign cluster down`")
    return descriptor


def keeper(directory: Path) -> int | None:
    """Process id of the keeper of a cluster that is up; LaunchError: it is only just coming up."""
    if not is_locked(directory / _LOCK):
        return None
    text = (directory / _LOCK).read_text().strip()
    if not text:
        raise LaunchError(f"{directory}: another process is starting a cluster here; try again in a moment")
    return int(text)


def clear(directory: Path) -> None:
    """Remove what a cluster made but for its logs and the lock; nothing in a directory that is no cluster's."""
    if not (directory / _LOCK).exists():
        return
    for name in _MADE:
        with suppress(FileNotFoundError):
            shutil.rmtree(directory / name)
    (directory / DESCRIPTION).unlink(missing_ok=True)
