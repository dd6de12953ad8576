"""Emulated Slurm cluster on one machine: start, query, stop, and re-registration of a host with other devices.

Hosts are network namespaces with shaped links. All daemons and jobs share separate process ids and mounts, held by one process.
Ports therefore do not collide, and `/etc` is never touched. Stopping the cluster ends that process, and the kernel then ends all
others. Only one interface is visible outside. Slurm's commands use it to reach the controller, with the SLURM_CONF of
`build_slurm_environment`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaign.common.errors import LaunchError
from campaign.common.processes.command import TIMEOUT_EXIT_CODE, run_command
from campaign.emulators.hosts.cluster_spec import DESCRIPTION_FILE, Cluster, ClusterSpec, build_slurm_environment
from campaign.emulators.hosts.network import EmulationUnavailable, NamespaceKeeper, find_program, kill_and_wait
from campaign.emulators.hosts.topology import (
    BRIDGE,
    BRIDGE_NAMESPACE,
    OUTSIDE_NAMESPACE,
    PRIVATE_NETWORK,
    Batch,
    list_namespaces,
    plan_layout,
)
from campaign.emulators.slurm import cluster_directory, daemons
from campaign.emulators.slurm.daemons import check_requirements

_SLURMDBD_PORT = 6819
_DATABASE_TIMEOUT_S = 120.0
_CAUSE_LINES = 5
_UNLINK_TIMEOUT_S = 10.0
_READY_STATES = frozenset({"idle", "mixed", "allocated", "completing"})

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Status of one host in Slurm's terms: its state as printed by `sinfo`, and its Gres."""

    name: str
    state: str
    gres: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of one job as `squeue` prints it.

    Attributes:
        job_id: id of the job.
        state: state of the job.
        place: hosts of the job, or, in parentheses, the reason why it waits.
        name: name of the job.
    """

    job_id: str
    state: str
    place: str
    name: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Status of a cluster.

    Attributes:
        cluster: running cluster; None if no cluster runs in the directory.
        running: running daemons.
        hosts: status of the hosts.
        missing: daemons that should run but do not.
        jobs: status of the jobs.
    """

    cluster: Cluster | None
    running: tuple[daemons.RunningDaemon, ...] = ()
    hosts: tuple[HostStatus, ...] = ()
    missing: tuple[str, ...] = ()
    jobs: tuple[JobStatus, ...] = ()


def start_cluster(directory: Path, spec: ClusterSpec, report: Report = lambda line: None) -> Cluster:
    """Start a cluster in a directory and return it.

    If this process is killed during the start, everything that it started ends too. Raises LaunchError if something is missing,
    is in the way, or does not start. In this case, nothing is running and only the logs are left.

    Args:
        directory: directory of the cluster.
        spec: specification of the cluster.
        report: callback for messages about the stages.
    """
    directory = directory.absolute()
    cluster_directory.check_path_length(directory, [host.name for host in spec.hosts])
    check_requirements(spec.accounting)
    lock = cluster_directory.lock_directory(directory)
    try:
        cluster_directory.prepare_directories(directory)
        keeper, cluster = _create_hosts(directory, spec, lock)
        try:
            os.pwrite(lock, f"{keeper.held_namespaces.pid}\n".encode(), 0)
            report(
                f"Hosts: {', '.join(host.name for host in spec.hosts)}. Address of the controller: {cluster.control_address}."
            )
            cluster_directory.write_files(cluster)
            _start_daemons(cluster, report)
            (directory / DESCRIPTION_FILE).write_text(cluster.model_dump_json(indent=2), encoding="utf-8")
            cluster_directory.write_owner(directory)
            keeper.detach()
        except BaseException:
            keeper.close()
            _wait_for_unlink(cluster.interface)
            cluster_directory.remove_cluster_files(directory)
            raise
    finally:
        os.close(lock)
    report(f"The cluster is running with SLURM_CONF={cluster.slurm_conf}")
    return cluster


def stop_cluster(directory: Path, *, any_owner: bool = True) -> bool:
    """Stop the cluster in a directory, remove its files except the logs, and return True if a cluster was running.

    This is a power-off, not a shutdown: jobs are killed, and the accounting is lost.

    Args:
        directory: directory of the cluster.
        any_owner: True to also stop a cluster that another checkout started. If False, LaunchError is raised instead.
    """
    directory = directory.absolute()
    pid = cluster_directory.find_keeper_pid(directory)
    if pid is not None:
        if not any_owner and (owner := cluster_directory.find_other_owner(directory)):
            raise LaunchError(
                f"{directory}: this cluster was started by another checkout, {owner}; stop it there, or with "
                f"`campaign cluster down --directory {directory}`"
            )
        cluster_directory.require_keeper_holds_lock(directory, pid)
        kill_and_wait(pid)
        with suppress(FileNotFoundError):
            _wait_for_unlink(
                Cluster.model_validate_json((directory / DESCRIPTION_FILE).read_text(encoding="utf-8")).interface
            )
    cluster_directory.remove_cluster_files(directory)
    return pid is not None


def query_status(directory: Path) -> ClusterStatus:
    """Return the status of the cluster in a directory.

    Slurm is queried, so this takes as long as the controller does (at most 10 s).
    """
    directory = directory.absolute()
    if cluster_directory.find_keeper_pid(directory) is None:
        return ClusterStatus(None)
    cluster = find_running_cluster(directory)
    processes = daemons.list_running_daemons(cluster)
    running_names = {process.host if process.daemon == "slurmd" else process.daemon for process in processes}
    required_daemons = ["munged", *(["mariadbd", "slurmdbd"] if cluster.spec.accounting else []), "slurmctld"]
    hosts = [host.name for host in cluster.spec.hosts if host.registration != "cloud"]
    missing_daemons = [name for name in required_daemons if name not in running_names] + [
        f"slurmd of {name}" for name in hosts if name not in running_names
    ]
    # Without the controller, Slurm's commands would only wait.
    has_controller = "slurmctld" in running_names
    return ClusterStatus(
        cluster,
        processes,
        _query_hosts(cluster) if has_controller else (),
        tuple(missing_daemons),
        parse_squeue(_run_slurm_command(cluster, "squeue", "--noheader", "--format=%i|%T|%R|%j"))
        if has_controller
        else (),
    )


def find_running_cluster(directory: Path) -> Cluster:
    """Return the cluster that is running in a directory. Raises LaunchError if there is none."""
    directory = directory.absolute()
    try:
        if cluster_directory.find_keeper_pid(directory) is not None:
            return Cluster.model_validate_json((directory / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LaunchError(f"{directory}: the cluster is starting or stopping; try again in a moment") from error
    raise LaunchError(f"{directory}: no cluster is running here; start one with `campaign cluster up`")


def register_devices(cluster: Cluster, host: str, devices: int) -> None:
    """Register a dynamic host again with another number of devices, as after a recomposition.

    Raises LaunchError if the host is not dynamic, has jobs, has too few device files, or does not come back.
    """
    host_spec = cluster.spec.find_host(host)
    if host_spec.registration != "dynamic":
        raise LaunchError(
            f"{host} is registered as {host_spec.registration}; only a dynamic host can register again with other devices"
        )
    if devices > host_spec.slots:
        raise LaunchError(f"{host} has device files for {host_spec.slots} devices, not {devices}; increase devices_max")
    if jobs := _run_slurm_command(
        cluster, "squeue", "--noheader", "--states=R,S", f"--nodelist={host}", "--format=%A"
    ).split():
        raise LaunchError(f"{host} has running jobs: {', '.join(jobs)}; drain the host and wait until they have ended")
    if daemons.find_processes(cluster, "slurmd", host):
        daemons.stop_daemon(cluster, "slurmd", host)

    def is_deregistered() -> bool:
        # Slurm refuses the deletion while a job completes.
        _run_slurm_command(cluster, "scontrol", "delete", f"nodename={host}")
        return host not in {host_status.name for host_status in _query_hosts(cluster)}

    daemons.wait_until_ready(
        is_deregistered, f"the controller does not remove {host}", cluster, "slurmctld", "slurmctld"
    )
    daemons.start_daemon(cluster, "slurmd", host, devices)
    _wait_for_hosts(cluster, {host})


def _start_daemons(cluster: Cluster, report: Report) -> None:
    """Start all daemons of a cluster in order, and wait for each."""

    def start_and_wait(daemon: daemons.Daemon, answers: Callable[[], bool], log: str = "") -> None:
        daemons.start_daemon(cluster, daemon)
        daemons.wait_until_ready(answers, f"{daemon} does not answer", cluster, log or daemon, daemon)

    run = cluster.directory / "run"
    if cluster.spec.accounting:
        report("Creating the accounting database.")
        _create_database(cluster)
        start_and_wait("mariadbd", lambda: daemons.is_socket_served(run / "mariadb.sock"), "mariadb")
    start_and_wait("munged", lambda: daemons.is_socket_served(run / "munge.sock"))
    if cluster.spec.accounting:
        report("Starting slurmdbd.")
        start_and_wait("slurmdbd", lambda: daemons.is_port_served(cluster.control_address, _SLURMDBD_PORT))
    report("Starting slurmctld.")
    start_and_wait("slurmctld", lambda: "is UP" in _run_slurm_command(cluster, "scontrol", "ping"))
    host_names = [host.name for host in cluster.spec.hosts if host.registration != "cloud"]
    report(f"Starting slurmd on {len(host_names)} hosts.")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda host: daemons.start_daemon(cluster, "slurmd", host), host_names))
    _wait_for_hosts(cluster, set(host_names))


def _create_database(cluster: Cluster) -> None:
    """Create the accounting database. Raises LaunchError, with the cause, if that fails."""
    argv = [find_program("mariadb-install-db"), f"--defaults-file={cluster.directory}/etc/my.cnf"]
    options = ["--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"]
    result = run_command([*argv, *options], _DATABASE_TIMEOUT_S)
    if result.code:
        log = cluster.get_log_path("mariadb-install-db")
        log.write_text(result.out + result.err, encoding="utf-8")
        # The first lines give the cause, and the others general advice.
        lines = [line.strip() for line in (result.err or result.out).splitlines() if line.strip()]
        raise LaunchError(f"the database could not be created: {' | '.join(lines[:_CAUSE_LINES])} (log: {log})")


def _wait_for_hosts(cluster: Cluster, names: set[str]) -> None:
    """Wait until Slurm reports these hosts as ready."""

    def are_ready() -> bool:
        return names <= {host.name for host in _query_hosts(cluster) if host.state.rstrip("*~#$@+-") in _READY_STATES}

    # The log of the first host is shown, because a problem mostly affects all hosts.
    first = min(names, default="")
    daemons.wait_until_ready(
        are_ready,
        f"not all hosts became ready ({', '.join(sorted(names))})",
        cluster,
        f"slurmd-{first}",
        "slurmd",
        first or None,
    )


def _query_hosts(cluster: Cluster) -> tuple[HostStatus, ...]:
    """Query the status of all hosts."""
    return parse_sinfo(_run_slurm_command(cluster, "sinfo", "--noheader", "--Node", "--format=%N|%T|%G"))


def parse_sinfo(text: str) -> tuple[HostStatus, ...]:
    """Parse the status of hosts from the output of `sinfo --noheader --Node --format='%N|%T|%G'`."""
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 2]
    return tuple(HostStatus(*row) for row in rows)


def parse_squeue(text: str) -> tuple[JobStatus, ...]:
    """Parse jobs from `squeue --noheader --format='%i|%T|%R|%j'`. The name is last, because it may contain anything."""
    rows = [line.strip().split("|", 3) for line in text.splitlines() if line.count("|") >= 3]
    return tuple(JobStatus(*row) for row in rows)


def _run_slurm_command(cluster: Cluster, *argv: str) -> str:
    """Run a Slurm command and return its output, or an empty string if it times out.

    A controller that does not answer is a state, not an error.
    """
    result = run_command(argv, 10.0, {**os.environ, **build_slurm_environment(cluster)})
    return "" if result.code == TIMEOUT_EXIT_CODE else result.out


def _create_hosts(directory: Path, spec: ClusterSpec, lock: int) -> tuple[NamespaceKeeper, Cluster]:
    """Create the emulated hosts on the first free network.

    The name of the interface claims the network, because two clusters cannot create the same interface.
    """
    routes = subprocess.run(
        [find_program("ip"), "-4", "route"], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    for number, network in enumerate(PRIVATE_NETWORK.subnets(new_prefix=24)):
        if f"{network.network_address}/" in routes:
            continue
        plan = plan_layout(spec.to_emulation_spec(), network)
        control, visitor = network[254], network[253]
        interface = f"campaign{number}"
        outside_batch = Batch(
            BRIDGE_NAMESPACE, "ip", (f"link add outside type veth peer name {interface} netns {{{OUTSIDE_NAMESPACE}}}",)
        )
        join_batch = Batch(
            BRIDGE_NAMESPACE,
            "ip",
            (f"link set outside master {BRIDGE}", "link set outside up", f"address add {control}/24 dev {BRIDGE}"),
        )
        visitor_batch = Batch(
            OUTSIDE_NAMESPACE, "ip", (f"address add {visitor}/24 dev {interface}", f"link set {interface} up")
        )
        try:
            with Path("/proc/self/ns/net").open(encoding="utf-8") as network_namespace:
                keeper = NamespaceKeeper.start(
                    [(name, name.partition("-")[0]) for name in list_namespaces(spec.to_emulation_spec())],
                    [outside_batch, *plan.batches, join_batch, visitor_batch],
                    hostname="control",
                    commands=[("mount", "--bind", str(directory / "etc" / "hosts"), "/etc/hosts")],
                    outside=network_namespace.fileno(),
                    anchor=lock,
                )
        except EmulationUnavailable as error:
            if "File exists" in str(error):
                continue
            raise
        addresses = {name: str(address) for name, address in plan.addresses.items()}
        cluster = Cluster(
            directory=directory,
            spec=spec,
            held=keeper.held_namespaces,
            control_address=str(control),
            addresses=addresses,
            interface=interface,
        )
        return keeper, cluster
    raise LaunchError(f"no network in {PRIVATE_NETWORK} is free; list the used ones with `ip route`")


def _wait_for_unlink(interface: str) -> None:
    """Wait until the kernel has removed the interface, which it does shortly after the last process at the other end."""
    deadline_s = time.monotonic() + _UNLINK_TIMEOUT_S
    while Path(f"/sys/class/net/{interface}").exists():
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"{interface} still exists {_UNLINK_TIMEOUT_S:g} s after its cluster ended; run `ip link delete {interface}`"
            )
        time.sleep(0.02)
