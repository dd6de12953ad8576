"""A whole Slurm on one machine: it does what Slurm does, and nothing of it is left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.common.files import is_locked
from campaign.emulators.hosts.cluster_spec import Cluster, ClusterHost, ClusterSpec, build_slurm_environment
from campaign.emulators.slurm import daemons
from campaign.emulators.slurm.cluster import (
    HostStatus,
    find_running_cluster,
    parse_sinfo,
    query_status,
    register_devices,
    start_cluster,
    stop_cluster,
)
from tests.cluster.cluster_project import equal_hosts

pytestmark = pytest.mark.usefixtures("slurm_installed")
SMALL = ClusterSpec(hosts=equal_hosts(1, 1), accounting=False)


def run(cluster: Cluster, *argv: str) -> str:
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        env={**os.environ, **build_slurm_environment(cluster)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for a cluster of the test's own, which is down afterwards whatever became of the test."""
    # Not named after the test: local sockets leave little room for the path.
    directory = tmp_path_factory.mktemp("own")
    yield directory
    stop_cluster(directory)


def states(cluster: Cluster) -> set[str]:
    return {host.state for host in query_status(cluster.directory).hosts}


def about(directory: Path) -> list[str]:
    """Command lines of live processes that name a cluster's directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if line else "Z"
        except OSError:
            continue
        if str(directory).encode() in line and state != "Z" and entry.name != str(os.getpid()):
            found.append(line.replace(b"\0", b" ").decode())
    return found


def outside() -> dict[str, object]:
    """What of a cluster could be left outside its directory. Interfaces only where no other worker of pytest makes clusters."""
    links = sorted(path.name for path in Path("/sys/class/net").iterdir())
    return {
        "links": [name for name in links if "PYTEST_XDIST_WORKER" not in os.environ or not name.startswith("campaign")],
        "mounts": Path("/proc/self/mounts").read_text(),
        "hosts": (Path("/etc/hosts").read_bytes(), Path("/etc/hosts").stat().st_mtime_ns),
        "etc": sorted(path.name for path in Path("/etc").iterdir()),
        "run": sorted(path.name for path in Path("/run").iterdir()),
    }


def inside(cluster: Cluster) -> int:
    """How many processes have the cluster's process ids."""
    wanted = Path(f"/proc/{cluster.held.pid}/ns/pid").stat().st_ino
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            count += entry.name.isdigit() and (entry / "ns/pid").stat().st_ino == wanted
        except OSError:
            continue
    return count


def test_every_host_is_there_with_its_devices(cluster: Cluster) -> None:
    found = query_status(cluster.directory)
    assert found.cluster == cluster == find_running_cluster(cluster.directory)
    assert found.missing == ()
    expected = {**{f"host{number}": "gpu:4" for number in range(1, 5)}, "dynamic1": "gpu:2"}
    assert {host.name: host.gres for host in found.hosts} == expected


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_step_over_four_hosts_sees_its_devices(cluster: Cluster, devices: int) -> None:
    shown = run(
        cluster,
        "srun",
        "-w",
        "host[1-4]",
        "-N4",
        "-n4",
        f"--gres=gpu:{devices}",
        "sh",
        "-c",
        "echo $(hostname) $CUDA_VISIBLE_DEVICES",
    )
    visible = ",".join(str(index) for index in range(devices))
    assert sorted(shown.split("\n")[:-1]) == [f"host{number} {visible}" for number in range(1, 5)]


def test_every_host_has_a_munged_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    """One for all would take the second host's look at a step's credential for a replay."""
    munge, credential = cluster.directory / "run" / "munge.sock", tmp_path / "credential"
    run(cluster, "munge", "--no-input", f"--socket={munge}", f"--output={credential}")
    told = run(cluster, "srun", "--nodes=2", "unmunge", f"--socket={munge}", f"--input={credential}", "--keys=STATUS")
    assert told.count("Success") == 2, told


def test_jobs_beside_each_other_get_different_devices(cluster: Cluster) -> None:
    argv = ["srun", "-w", "host1", "--gres=gpu:2", "--mem=100", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 2"]
    surroundings = {**os.environ, **build_slurm_environment(cluster)}
    pair = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=surroundings) for _ in range(2)]
    assert {process.communicate(timeout=60)[0].strip() for process in pair} == {"0,1", "2,3"}


def test_jobs_go_round_through_submitit(cluster: Cluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    for name, value in build_slurm_environment(cluster).items():
        monkeypatch.setenv(name, value)
    executor = submitit.AutoExecutor(directory, cluster="slurm")
    executor.update_parameters(nodes=2, tasks_per_node=2, gpus_per_node=2, timeout_min=5, slurm_nodelist="host[1-2]")
    jobs = [
        executor.submit(lambda number: (number * 2, socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"]), number)
        for number in range(3)
    ]
    for number, job in enumerate(jobs):
        results = job.results()
        assert [result[0] for result in results] == [number * 2] * 4
        assert [result[1] for result in results] == ["host1", "host1", "host2", "host2"]
        assert {result[2] for result in results} <= {"0,1", "2,3"}
    accounted = ""
    deadline_s = time.monotonic() + 20
    while accounted.count("COMPLETED") < 3 and time.monotonic() < deadline_s:
        accounted = run(cluster, "sacct", "-X", "-n", "-j", ",".join(job.job_id for job in jobs), "-o", "state")
        time.sleep(0.5)
    assert accounted.split() == ["COMPLETED"] * 3


def test_a_dynamic_host_comes_back_with_other_devices(cluster: Cluster) -> None:
    for devices in (6, 1, 2):
        register_devices(cluster, "dynamic1", devices)
        shown = run(
            cluster, "srun", "-w", "dynamic1", f"--gres=gpu:{devices}", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"
        )
        assert shown.strip() == ",".join(str(index) for index in range(devices))
        too_many = subprocess.run(
            ["srun", "-w", "dynamic1", f"--gres=gpu:{devices + 1}", "true"],
            capture_output=True,
            text=True,
            env={**os.environ, **build_slurm_environment(cluster)},
            timeout=60,
            check=False,
        )
        assert "not available" in too_many.stderr


@pytest.mark.parametrize(
    ("host", "devices", "complaint"), [("host1", 2, "only a dynamic host"), ("dynamic1", 9, "devices_max")]
)
def test_a_registration_that_cannot_be_is_refused(cluster: Cluster, host: str, devices: int, complaint: str) -> None:
    with pytest.raises(LaunchError, match=complaint):
        register_devices(cluster, host, devices)


def test_a_host_with_jobs_is_not_taken_away(cluster: Cluster) -> None:
    argv = ["srun", "-w", "dynamic1", "sh", "-c", "echo here; sleep 1000"]
    job = subprocess.Popen(
        argv, stdout=subprocess.PIPE, env={**os.environ, **build_slurm_environment(cluster)}, text=True
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "here\n"
        with pytest.raises(LaunchError, match="has running jobs"):
            register_devices(cluster, "dynamic1", 4)
        assert not query_status(cluster.directory).missing
    finally:
        run(cluster, "scancel", "--state=RUNNING", "-w", "dynamic1")
        job.wait(30)


def test_a_step_over_its_memory_is_ended(cluster: Cluster) -> None:
    greedy = "import time; kept = bytearray(400 << 20); time.sleep(20)"
    done = subprocess.run(
        ["srun", "-w", "host3", "--mem=100", sys.executable, "-c", greedy],
        capture_output=True,
        text=True,
        env={**os.environ, **build_slurm_environment(cluster)},
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "exceeded" in done.stderr.lower() or "oom" in done.stderr.lower()


def test_a_job_can_put_a_rank_behind_a_fabric_port(cluster: Cluster) -> None:
    shown = run(
        cluster,
        "srun",
        "-w",
        "dynamic1",
        *cluster.build_port_prefix("dynamic1-fabric1"),
        "ip",
        "-4",
        "-br",
        "address",
        "show",
        "eth0",
    )
    assert cluster.addresses["dynamic1-fabric1"] in shown


def test_a_program_of_slurm_can_reach_any_host(cluster: Cluster) -> None:
    assert (
        run(cluster, "srun", "-w", "host1", f"{cluster.directory}/bin/on-host", "host3", "hostname").strip() == "host3"
    )


@pytest.mark.parametrize(
    ("daemon", "host", "number"),
    # A slurmctld that is killed may forget a dynamic host that has only just come, so this one may say good-bye.
    [("slurmctld", None, signal.SIGTERM), ("slurmd", "host4", signal.SIGKILL), ("slurmdbd", None, signal.SIGKILL)],
)
def test_a_daemon_can_be_stopped_and_comes_back(
    cluster: Cluster, daemon: daemons.Daemon, host: str | None, number: int
) -> None:
    daemons.stop_daemon(cluster, daemon, host, number)
    assert query_status(cluster.directory).missing == (f"slurmd of {host}" if host else daemon,)
    daemons.start_daemon(cluster, daemon, host)
    deadline_s = time.monotonic() + 40
    while states(cluster) != {"idle"} and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert run(cluster, "srun", "-w", "host4", "hostname").strip() == "host4"
    assert query_status(cluster.directory).missing == ()


def test_down_leaves_nothing_but_logs(directory: Path) -> None:
    before = outside()
    cluster = start_cluster(directory, SMALL)
    running = subprocess.Popen(
        ["srun", "sleep", "1000"], env={**os.environ, **build_slurm_environment(cluster)}, stderr=subprocess.PIPE
    )
    deadline_s = time.monotonic() + 20
    while (
        run(cluster, "sinfo", "-h", "-o", "%T").strip() not in {"mixed", "allocated"} and time.monotonic() < deadline_s
    ):
        time.sleep(0.1)
    assert inside(cluster) > 3
    assert stop_cluster(directory)
    # srun is a client outside; it learns soon that its step is gone, but that is its own affair.
    running.kill()
    running.wait()
    assert about(directory) == []
    assert outside() == before
    assert sorted(path.name for path in directory.iterdir()) == ["keeper.lock", "log"]
    assert not stop_cluster(directory)
    assert query_status(directory).cluster is None


def test_without_accounting_there_is_no_database(directory: Path) -> None:
    cluster = start_cluster(directory, SMALL)
    try:
        assert {process.daemon for process in query_status(directory).running} == {"munged", "slurmctld", "slurmd"}
        assert run(cluster, "srun", "--gres=gpu:1", "hostname").strip() == "host1"
        sacct = subprocess.run(
            ["sacct"],
            capture_output=True,
            text=True,
            env={**os.environ, **build_slurm_environment(cluster)},
            check=False,
        )
        assert "accounting storage is disabled" in sacct.stderr
    finally:
        stop_cluster(directory)


def test_a_cloud_host_is_resumed_by_the_sites_program(directory: Path) -> None:
    # -b: a host that was up before it was asked for would not count as resumed. A session and files of its own: Slurm kills what is
    # left of its programs, and waits for the end of their output.
    resume = directory.parent / f"{directory.name}-resume"
    slurmd = "setsid --fork /usr/sbin/slurmd -D -b -N $1"
    resume.write_text(
        f"#!/bin/sh\nexec {directory}/bin/on-host $1 {slurmd} </dev/null >{directory}/log/resumed.log 2>&1\n"
    )
    resume.chmod(0o755)
    lines = (f"ResumeProgram={resume}", "SuspendProgram=/bin/true", "SuspendTime=600", "ResumeTimeout=30")
    hosts = (ClusterHost(name="host1"), ClusterHost(name="cloud1", devices=2, registration="cloud"))
    cluster = start_cluster(directory, ClusterSpec(hosts=hosts, accounting=False, slurm_conf=lines))
    assert query_status(directory).missing == ()
    assert not daemons.find_processes(cluster, "slurmd", "cloud1")
    shown = run(cluster, "srun", "-w", "cloud1", "--gres=gpu:2", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES")
    assert shown.strip() == "cloud1 0,1"
    assert daemons.find_processes(cluster, "slurmd", "cloud1")


def test_two_clusters_do_not_meet(cluster: Cluster, directory: Path) -> None:
    other = start_cluster(directory, SMALL)
    try:
        assert other.control_address != cluster.control_address
        assert run(other, "sinfo", "-h", "-N", "-o", "%N").split() == ["host1"]
        assert "host4" in run(cluster, "sinfo", "-h", "-N", "-o", "%N")
        with pytest.raises(LaunchError, match="already"):
            start_cluster(directory, SMALL)
    finally:
        stop_cluster(directory)
    assert query_status(cluster.directory).missing == ()


@pytest.mark.parametrize(
    ("line", "accounting", "said"),
    [
        ("Nonsense=1", False, "unrecognized key: Nonsense"),
        ("SelectType=select/nothing", False, "select/nothing"),
        ("SlurmctldPort=6819", True, "Address already in use"),
    ],
    ids=["a key that is unknown", "a plugin that is not there", "a port that is occupied"],
)
def test_a_cluster_that_cannot_come_up_says_why_and_leaves_nothing(
    directory: Path, line: str, accounting: bool, said: str
) -> None:
    before = outside()
    with pytest.raises(LaunchError, match=said):
        start_cluster(directory, SMALL.model_copy(update={"slurm_conf": (line,), "accounting": accounting}))
    assert about(directory) == []
    assert outside() == before
    assert sorted(path.name for path in directory.iterdir()) == ["keeper.lock", "log"]


_CALLER = """
import sys, time
from pathlib import Path
from campaign.emulators.slurm.cluster import start_cluster
from campaign.emulators.hosts.cluster_spec import ClusterSpec
def say(line):
    print(line, flush=True)
    if line.startswith(sys.argv[3]):
        time.sleep(1000)
start_cluster(Path(sys.argv[1]), ClusterSpec.model_validate_json(sys.argv[2]), say)
"""


@pytest.mark.parametrize("when", ["The cluster is running", "Starting slurmctld"])
def test_a_caller_that_is_killed(directory: Path, when: str) -> None:
    """After `up` the cluster stays for `down`; on the way, what was started goes with its starter."""
    before = outside()
    caller = subprocess.Popen(
        [sys.executable, "-c", _CALLER, str(directory), SMALL.model_dump_json(), when],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    while not caller.stdout.readline().startswith(when):
        assert caller.poll() is None
    caller.kill()
    caller.wait()
    if when == "The cluster is running":
        assert query_status(directory).missing == ()
        assert stop_cluster(directory)
    deadline_s = time.monotonic() + 5
    lock = directory / "keeper.lock"
    while (about(directory) or is_locked(lock) or outside() != before) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert about(directory) == []
    assert outside() == before
    assert not stop_cluster(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["keeper.lock", "log"]


def test_clusters_of_tests_that_are_killed_end(directory: Path) -> None:
    guarded = f"""
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from tests.cluster.clusters_end_with_tests import clusters_end_with_this_process
with clusters_end_with_this_process(Path(sys.argv[1])):
    start_cluster("""
    program = f"{guarded}".join(_CALLER.rsplit("\nstart_cluster(", 1))
    caller = subprocess.Popen(
        [sys.executable, "-c", program, str(directory), SMALL.model_dump_json(), "The cluster is running"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    while not caller.stdout.readline().startswith("The cluster is running"):
        assert caller.poll() is None
    assert about(directory)
    caller.kill()
    caller.wait()
    deadline_s = time.monotonic() + 40
    while about(directory) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert about(directory) == []


def test_a_cluster_whose_directory_is_removed_ends(directory: Path) -> None:
    before = outside()
    cluster = start_cluster(directory, SMALL)
    shutil.rmtree(directory)
    deadline_s = time.monotonic() + 40
    keeper = Path(f"/proc/{cluster.held.pid}/ns/pid")
    while (about(directory) or keeper.exists() or outside() != before) and time.monotonic() < deadline_s:
        with suppress(ChildProcessError):
            os.waitpid(cluster.held.pid, os.WNOHANG)  # a launcher of an earlier test adopts what is orphaned
        time.sleep(0.05)
    assert about(directory) == []
    assert outside() == before
    assert not keeper.exists()


def test_a_directory_of_somebody_else_is_refused(directory: Path) -> None:
    (directory / "thesis.tex").write_text("years of work")
    with pytest.raises(LaunchError, match="not empty"):
        start_cluster(directory, SMALL)
    assert not stop_cluster(directory)
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]


def test_a_directory_that_somebody_else_made_is_refused(directory: Path) -> None:
    os.chown(directory, 65534, 65534)
    with pytest.raises(LaunchError, match="belongs to another user"):
        start_cluster(directory, SMALL)
    assert list(directory.iterdir()) == []
    # Its owner has a process of somebody else hold the lock, and wants it killed.
    with (
        files.hold_lock(directory / "keeper.lock", holder="1"),
        pytest.raises(LaunchError, match="belongs to another user"),
    ):
        stop_cluster(directory)
    os.chown(directory, 0, 0)
    with (
        files.hold_lock(directory / "keeper.lock", holder="1"),
        pytest.raises(LaunchError, match="in another container"),
    ):
        stop_cluster(directory)


def test_a_machine_with_a_slurm_of_its_own_is_left_alone(directory: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 6817))
        taken.listen()
        with pytest.raises(LaunchError, match="left unchanged"):
            start_cluster(directory, SMALL)
    assert daemons.find_real_slurm() is None
    assert list(directory.iterdir()) == []


def test_a_daemon_with_our_process_ids_is_a_real_one(directory: Path) -> None:
    """A slurmctld among one's own process ids is the machine's; one of an emulated cluster never is."""
    program = directory / "slurmctld"
    program.symlink_to("/bin/sleep")
    real = subprocess.Popen([str(program), "1000"])
    try:
        deadline_s = time.monotonic() + 5
        while (found := daemons.find_real_slurm()) is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert found is not None
        assert f"slurmctld, process {real.pid}" in found
    finally:
        real.kill()
        real.wait()


def test_hosts_are_read_from_sinfo() -> None:
    text = (
        "host1|idle|gpu:4\nhost2|drained*|gpu:a100:2(S:0)\nslurm_load_partitions: Unable to contact slurm controller\n"
    )
    assert parse_sinfo(text) == (
        HostStatus("host1", "idle", "gpu:4"),
        HostStatus("host2", "drained*", "gpu:a100:2(S:0)"),
    )


def test_a_host_may_not_be_the_controller() -> None:
    with pytest.raises(ValueError, match="controller"):
        ClusterSpec(hosts=(ClusterHost(name="control"),))
