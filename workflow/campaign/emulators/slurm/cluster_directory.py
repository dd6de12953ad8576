"""Directory of a cluster: its lock, configuration and device files, notes of its ResumeProgram, and their removal."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from campaign.common.errors import LaunchError
from campaign.common.files import acquire_lock, is_locked, is_untrusted_directory
from campaign.common.paths import ROOT
from campaign.common.processes.command import run_command
from campaign.common.processes.marked import has_file_open
from campaign.emulators.hosts.cluster_spec import DESCRIPTION_FILE, Cluster

_LOCK_FILE = "keeper.lock"
_OWNER_FILE = "run/checkout"
_CLUSTER_DIRECTORIES = ("etc", "run", "state", "spool", "database", "devices", "bin")
_MAX_SOCKET_PATH_CHARACTERS = 107
_RELEASE_TIMEOUT_S = 600.0
_JOB_NOTES_DIRECTORY = Path("state/compositions/jobs")
TEMPLATE_DIRECTORY = ROOT / "envs" / "cluster"
SLURM_PROGRAM_DIRECTORY = ROOT / "envs" / "slurm"
"""Programs that Slurm calls to compose hosts, the same as on a site's own cluster."""
_TEMPLATE_BY_PATH = {
    f"etc/{name}": name for name in ("slurm.conf", "gres.conf", "cgroup.conf", "slurmdbd.conf", "my.cnf", "hosts")
}
_TEMPLATE_BY_PATH |= {f"bin/{name}": name for name in ("on-host", "settings")}


def prepare_directories(directory: Path) -> None:
    """Create empty directories for a new cluster, and remove the logs of an earlier one."""
    remove_cluster_files(directory)
    shutil.rmtree(directory / "log", ignore_errors=True)
    for name in (*_CLUSTER_DIRECTORIES, "log"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "etc" / "hosts").touch()


def check_path_length(directory: Path, hosts: Iterable[str]) -> None:
    """Raise LaunchError if the path of a local socket in the directory would be too long."""
    # slurmd has one socket per step of a job. The step of a batch script is 4294967291.
    steps = [directory / "spool" / host / f"{host}_999999.4294967291" for host in hosts]
    excess_characters = (
        max(len(str(path)) for path in (directory / "run" / "mariadb.sock", *steps)) - _MAX_SOCKET_PATH_CHARACTERS
    )
    if excess_characters > 0:
        raise LaunchError(
            f"{directory}: the path is {excess_characters} characters too long for local sockets; choose a shorter path"
        )


def write_files(cluster: Cluster) -> None:
    """Write the configuration, key and device files of a cluster."""
    for path, text in render_files(cluster).items():
        (cluster.directory / path).write_text(text, encoding="utf-8")
    (cluster.directory / "etc" / "slurmdbd.conf").chmod(0o600)
    (cluster.directory / "bin" / "on-host").chmod(0o755)
    for program in SLURM_PROGRAM_DIRECTORY.iterdir():
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
            # The file is the null device under another name. Slurm only requires that it exists.
            os.mknod(devices / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (cluster.directory / "spool" / host.name).mkdir()


def lock_directory(directory: Path) -> int:
    """Acquire the lock that the keeper holds as long as it runs, so that process ids need not be trusted.

    Raises LaunchError if the directory is not suitable or already has a running cluster.
    """
    _require_own_directory(directory)
    if directory.exists() and any(directory.iterdir()) and not (directory / _LOCK_FILE).exists():
        raise LaunchError(
            f"{directory}: the directory is not empty and does not belong to a cluster; choose another one"
        )
    if (descriptor := acquire_lock(directory / _LOCK_FILE, holder="")) is None:
        if owner := find_other_owner(directory):
            raise LaunchError(
                f"{directory}: a cluster of another checkout, {owner}, is running here; use it, stop it there, or start another "
                "one with `campaign cluster up --directory DIRECTORY`"
            )
        raise LaunchError(f"{directory}: a cluster is already running here; stop it with `campaign cluster down`")
    return descriptor


def write_owner(directory: Path) -> None:
    """Write the path of this checkout, as the owner of the cluster."""
    (directory / _OWNER_FILE).write_text(str(ROOT), encoding="utf-8")


def find_other_owner(directory: Path) -> str:
    """Return the checkout that started the cluster in a directory, or an empty string if it is this one."""
    with suppress(FileNotFoundError):
        owner = (directory / _OWNER_FILE).read_text(encoding="utf-8")
        return owner if owner != str(ROOT) else ""
    return ""


def find_keeper_pid(directory: Path) -> int | None:
    """Return the process id of the keeper of a running cluster, or None if no cluster is running.

    Raises LaunchError if the cluster is just starting, or belongs to another user.
    """
    _require_own_directory(directory)
    if not is_locked(directory / _LOCK_FILE):
        return None
    text = (directory / _LOCK_FILE).read_text(encoding="utf-8").strip()
    if not text:
        raise LaunchError(f"{directory}: another process is starting a cluster here; try again in a moment")
    return int(text)


def require_keeper_holds_lock(directory: Path, pid: int) -> None:
    """Raise LaunchError if the process does not hold the lock, because in another container the id may belong to any process."""
    if not has_file_open(pid, directory / _LOCK_FILE):
        raise LaunchError(
            f"{directory}: the cluster was started in another container or by another user; stop it there"
        )


def _require_own_directory(directory: Path) -> None:
    """Raise LaunchError if the directory belongs to another user."""
    # Any user can create a directory with a well-known name in a temporary directory.
    if is_untrusted_directory(directory, trusted_uids=(os.geteuid(), 0)):
        raise LaunchError(f"{directory}: this belongs to another user or is not a directory; choose another directory")


def remove_cluster_files(directory: Path) -> None:
    """Remove the files of a cluster except its logs and lock. A directory without a cluster's lock is not touched."""
    if not (directory / _LOCK_FILE).exists():
        return
    for name in _CLUSTER_DIRECTORIES:
        with suppress(FileNotFoundError):
            shutil.rmtree(directory / name)
    (directory / DESCRIPTION_FILE).unlink(missing_ok=True)


def render_files(cluster: Cluster) -> dict[str, str]:
    """Render every configuration file, and return the texts by path in the cluster's directory."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # Only the start of a cluster needs them.

    templates = Environment(
        loader=FileSystemLoader(TEMPLATE_DIRECTORY),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    spec = cluster.spec
    static_hosts = [host.name for host in spec.hosts if host.registration != "dynamic"]
    has_dynamic_hosts = len(static_hosts) < len(spec.hosts)
    variables = {
        **{name: getattr(spec, name) for name in type(spec).model_fields},
        "directory": cluster.directory,
        "control_address": cluster.control_address,
        # Newer controllers resolve the name of their machine for each answer, which without an entry waits for a name server.
        "outside_address": ip_address(cluster.control_address) - 1,
        "machine": socket.gethostname(),
        "addresses": cluster.addresses,
        "gres": spec.format_gres,
        "dynamic": has_dynamic_hosts,
        "cloud": any(host.registration == "cloud" for host in spec.hosts),
        "campaign": shlex.join([sys.executable, "-m", "campaign.cli.main"]),
        "members": ",".join([*static_hosts, *(["composed"] if has_dynamic_hosts else [])]),
        "memory_per_cpu_mib": spec.memory_mib // spec.cpus,
        "inner_prefixes": {
            host.name: shlex.join(cluster.held.build_inner_command_prefix(host.name)) for host in spec.hosts
        },
    }
    return {path: templates.get_template(name).render(variables) for path, name in _TEMPLATE_BY_PATH.items()}


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """Device of a host that Slurm granted. `identity` is HOST/gpuN, the Nth device file of the host."""

    identity: str
    model: str


def list_granted_devices(cluster: Cluster, environment: Mapping[str, str]) -> tuple[GrantedDevice, ...]:
    """List the devices that Slurm granted to the step with this environment, on the host of the step.

    Raises LaunchError if this is not a step of the cluster, or if Slurm granted devices that the host does not have.
    """
    host = environment.get("SLURMD_NODENAME")
    if host is None or host not in cluster.addresses:
        raise LaunchError("this is not a job of the cluster; run `srun --gres=gpu:2 campaign cluster devices`")
    indices = [int(word) for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.isdigit()]
    # Slurm also grants devices that are registered but do not exist.
    if missing_indices := [
        index for index in indices if not (cluster.directory / "devices" / host / f"gpu{index}").exists()
    ]:
        raise LaunchError(
            f"{host}: Slurm granted device {', '.join(map(str, missing_indices))}, which does not exist on this host"
        )
    return tuple(GrantedDevice(f"{host}/gpu{index}", cluster.spec.model) for index in indices)


@dataclass(frozen=True, slots=True)
class OnDemandComposition:
    """Composition made for one job, identified by the arguments of `campaign release`."""

    job_id: str
    configuration: str
    campaign: str
    results: str
    python: str

    def release(self) -> str:
        """Release the composition, and return the output of `campaign release`."""
        argv = [self.python, "-m", "campaign.cli.main", "release", self.configuration, "--campaign", self.campaign]
        argv += ["--results", self.results, "--name", f"job-{self.job_id}"]
        result = run_command(argv, _RELEASE_TIMEOUT_S)
        return (result.err if result.code else result.out).strip()


def list_on_demand_compositions(directory: Path) -> tuple[OnDemandComposition, ...]:
    """List the on-demand compositions of all jobs of the cluster in this directory."""
    notes = sorted(path for path in (directory / _JOB_NOTES_DIRECTORY).glob("[0-9]*") if path.is_dir())
    fields = ("configuration", "campaign", "results", "python")
    return tuple(
        OnDemandComposition(note.name, *((note / field).read_text(encoding="utf-8").strip() for field in fields))
        for note in notes
    )
