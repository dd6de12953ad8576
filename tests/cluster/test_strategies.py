"""The contract of strategies, on real daemons: others stay away, exactly the composed devices are offered, nothing remains."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import HostFailed, LaunchError
from campaign.common.processes.command import CompletedCommand
from campaign.emulators.hosts.cluster_spec import Cluster, ClusterHost, ClusterSpec, build_slurm_environment
from campaign.emulators.slurm import daemons
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.spec_from_system import build_cluster_spec
from campaign.lease.fabric_calls import MAX_ATTEMPTS
from campaign.lease.manual import verify_compositions
from campaign.plan.campaign.load import read_system
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.strategies import SlurmStrategy, open_strategy
from campaign.slurm.strategies.controller import Controller, make_reservation_name
from campaign.slurm.strategies.dynamic import DynamicStrategy
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile
from tests import campaign_files
from tests.cluster.cluster_project import equal_hosts

LEASE = "night.4x1.0a1b2c"
OWN = 2
_SLURMD = "slurmd-of"
_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@contextmanager
def cluster_up(spec: ClusterSpec) -> Iterator[Cluster]:
    """Not below pytest's directory, which nobody else may enter: others are to submit jobs."""
    directory = Path(tempfile.mkdtemp(prefix="strategies-"))
    directory.chmod(0o755)
    try:
        yield start_cluster(directory, spec)
    finally:
        stop_cluster(directory)
        shutil.rmtree(directory)


def light_slurmd(cluster: Cluster) -> None:
    """A program that does what `campaign cluster slurmd` does, without a python: these tests do it some hundred times.

    That command in its place: test_campaign, test_cluster_commands.
    """
    on = "\n".join(
        f"{host.name}) on={shlex.quote(shlex.join(cluster.build_command_prefix(host.name)))} ;;"
        for host in cluster.spec.hosts
    )
    shape = f"CPUs={cluster.spec.cpus} RealMemory={cluster.spec.memory_mib} Feature=composed Gres=gpu:$2"
    wait = "while kill -0 $pid 2>&-; do sleep 0.02; done"
    (cluster.directory / _SLURMD).write_text(f"""#!/bin/sh
        case $1 in
        {on}
        esac
        if [ "$2" ]; then exec $on setsid --fork slurmd -D -N "$1" -Z --conf "{shape}" </dev/null >/dev/null 2>&1; fi
        exec $on sh -c 'pid=$(cat {cluster.directory}/run/slurmd-'$1'.pid) && kill $pid && {wait}; true' 2>/dev/null
    """)


def slurmd_commands(devices: str = "{devices}") -> dict[str, list[str]]:
    """`slurm.slurmd` of a system file, by that program of the cluster that is meant here."""
    script = str(Path(os.environ["SLURM_CONF"]).parents[1] / _SLURMD)
    return {"stop": ["sh", script, "{host}"], "start": ["sh", script, "{host}", devices]}


@pytest.fixture(scope="module")
def cluster(slurm_installed: None) -> Iterator[Cluster]:
    """Two static hosts and two dynamic ones, each with two devices of its own; up to six can be attached to a dynamic one."""
    dynamic = [ClusterHost(name=f"dyn{n}", devices=OWN, devices_max=8, registration="dynamic") for n in (1, 2)]
    with cluster_up(ClusterSpec(hosts=(*equal_hosts(2, OWN), *dynamic), accounting=False)) as started:
        light_slurmd(started)
        yield started


@pytest.fixture(autouse=True)
def here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm's commands mean the cluster; afterwards its hosts are as the next test expects them."""
    for name, value in build_slurm_environment(cluster).items():
        monkeypatch.setenv(name, value)
    yield
    slurm("scancel", "--user=root")
    slurm("scancel", "--user=nobody")
    for reservation in slurm("scontrol", "show", "reservation", "--oneliner").split():
        if reservation.startswith("ReservationName="):
            slurm("scontrol", "delete", reservation)
    for strategy in ("dynamic", "reservation"):
        opened = Case(strategy).open()
        opened.end(Case(strategy).hosts, LEASE)
        slurm("scontrol", "update", f"nodename={','.join(Case(strategy).hosts)}", "state=resume")
    assert devices() == dict.fromkeys(("dyn1", "dyn2", "host1", "host2"), OWN)


@dataclass
class Case:
    """A strategy, hosts that it is for, and how many devices the fabric attaches to each."""

    strategy: str
    said: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> tuple[str, str]:
        return ("dyn1", "dyn2") if self.strategy == "dynamic" else ("host1", "host2")

    @property
    def attached(self) -> tuple[int, int]:
        """The second host of `dynamic` stays as it is."""
        return (3, 0) if self.strategy == "dynamic" else (0, 0)

    @property
    def offered(self) -> dict[str, int]:
        return {host: OWN + count for host, count in zip(self.hosts, self.attached, strict=True)}

    def system(self, **settings: object) -> SystemFile:
        return SystemFile.model_validate(
            {
                "name": "contract",
                "launcher": "slurm",
                "fabric": {"kind": "simulated"},
                "hosts": [{"name": host, "devices": [{"model": "gpu-a", "count": OWN}]} for host in self.hosts],
                "slurm": {
                    "strategy": self.strategy,
                    "poll_s": 1,
                    "slurmd": slurmd_commands(),
                    **settings,
                },
            }
        )

    def open(self, commands: SlurmCommands | None = None, **settings: object) -> SlurmStrategy:
        strategy = open_strategy(self.system(**settings), commands or SlurmCommands(), self.said.append)
        if controller := getattr(strategy, "controller", None):
            assert isinstance(controller, Controller)
            controller.grace_s = 1.0
        return strategy

    def composition(self) -> Composition:
        def device(host: str, number: int, local: bool, kind: str = "gpu") -> Device:
            return Device(f"{host}/{kind}{number}{local}", kind, "gpu-a", None, "", local, attached_to=host)

        return Composition(
            tuple(
                ComposedHost(
                    host,
                    16,
                    16.0,
                    # One of the host's own is enough for the lease; the other one is there all the same.
                    devices=(device(host, 0, True), *(device(host, number, False) for number in range(count))),
                    storage=(device(host, 0, False, "nvme"),),
                )
                for host, count in zip(self.hosts, self.attached, strict=True)
            )
        )


def slurm(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout


def nodes() -> dict[str, tuple[str, str]]:
    """State and Gres of every host. Slurm says some seconds late that an idle host is reserved, or not any more."""
    rows = [line.split() for line in slurm("sinfo", "--Node", "--noheader", "--format=%N %T %G").splitlines()]
    return {name: (state.replace("reserved", "idle"), gres) for name, state, gres in rows}


def devices() -> dict[str, int]:
    return {name: int(gres.rpartition(":")[2]) for name, (_, gres) in nodes().items()}


def reservations() -> str:
    return slurm("scontrol", "show", "reservation", "--oneliner")


def submit(host: str, command: str, *options: str, nobody: bool = False) -> str:
    """A batch job's id."""
    who = _NOBODY if nobody else ()
    argv = [*who, "sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", f"--nodelist={host}", *options]
    done = subprocess.run([*argv, f"--wrap={command}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(job: str) -> str:
    return slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def until(wanted: Callable[[], bool], what: str, patience_s: float = 30) -> None:
    until_s = time.monotonic() + patience_s
    while not wanted():
        assert time.monotonic() < until_s, what
        time.sleep(0.1)


def run(host: str, count: int, options: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and output of a step of the lease that needs devices."""
    argv = [
        "srun",
        f"--nodelist={host}",
        f"--gres=gpu:{count}",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    argv += ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout or done.stderr


def pids(cluster: Cluster) -> set[int]:
    return {found.pid for found in daemons.find_processes(cluster, "slurmd")}


@pytest.mark.parametrize("strategy", ["static", "reservation", "dynamic"])
def test_the_composed_devices_are_offered_and_all_is_as_before(strategy: str) -> None:
    case, before = Case(strategy), nodes()
    opened = case.open()
    opened.begin(case.hosts, LEASE)
    opened.announce(case.composition(), LEASE)
    options = opened.options(LEASE)
    for host, count in case.offered.items():
        assert run(host, count, options) == (0, ",".join(map(str, range(count))) + "\n")
        code, said = run(host, count + 1, options)
        assert (code, "not available" in said) == (1, True), said
    opened.begin(case.hosts, LEASE)
    opened.end(case.hosts, LEASE)
    assert nodes() == before
    assert "No reservations" in reservations()


@pytest.mark.parametrize("strategy", ["reservation", "dynamic"])
def test_nobody_elses_job_starts_between_begin_and_end(strategy: str) -> None:
    case = Case(strategy)
    opened = case.open()
    opened.begin(case.hosts, LEASE)
    early = [submit(host, "true", nobody=nobody) for host in case.hosts for nobody in (True, False)]
    opened.announce(case.composition(), LEASE)
    late = [submit(host, "true", nobody=nobody) for host in case.hosts for nobody in (True, False)]
    options = [f"--{name}={value}" for name, value in opened.options(LEASE).items()]
    mine = [submit(host, "true", "--exclusive", *options) for host in case.hosts]
    until(lambda: {state(job) for job in mine} == {"COMPLETED"}, "the lease's own jobs do not run")
    # Ours came last and is over: the scheduler has been round.
    assert {state(job) for job in late} == {"PENDING"}
    # A dynamic host cannot be reserved before it has registered: a job that is quicker is waited for before the lease's own.
    assert {state(job) for job in early} <= {"PENDING", "COMPLETED" if strategy == "dynamic" else "PENDING"}
    opened.begin(case.hosts, LEASE)
    assert {state(job) for job in late} == {"PENDING"}
    opened.end(case.hosts, LEASE)
    until(lambda: {state(job) for job in early + late} == {"COMPLETED"}, "the others' jobs do not run afterwards")


@pytest.mark.parametrize("strategy", ["static", "reservation", "dynamic"])
def test_a_second_time_changes_nothing(strategy: str, cluster: Cluster) -> None:
    case = Case(strategy)
    seen = []
    for _ in range(2):
        case.open().begin(case.hosts, LEASE)
        seen.append((nodes(), reservations(), pids(cluster)))
    assert seen[0] == seen[1]
    case.open().announce(case.composition(), LEASE)
    job = submit(case.hosts[0], "sleep 1000", *(f"--{n}={v}" for n, v in case.open().options(LEASE).items()))
    until(lambda: state(job) == "RUNNING", "the lease's job does not run")
    before = nodes(), reservations(), pids(cluster)
    case.open().announce(case.composition(), LEASE)
    assert (nodes(), reservations(), pids(cluster)) == before
    assert state(job) == "RUNNING"
    slurm("scancel", job)
    until(lambda: nodes()[case.hosts[0]][0] != "completing", "the lease's job does not end")
    seen = []
    for _ in range(2):
        case.open().end(case.hosts, LEASE)
        seen.append((nodes(), reservations(), pids(cluster)))
    assert seen[0] == seen[1]


def killed_before(step: int, call: Callable[[], None]) -> bool:
    """Whether a process that does the call was killed before its n-th command that changes something."""
    child = os.fork()
    if child:
        return os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 9
    count = 0

    class Counted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, argv: Collection[str], *rest: Any, **options: Any) -> None:
            nonlocal count
            words = list(argv)
            if words[0] == "sh" or (words[0] == "scontrol" and words[1] != "show"):
                count += 1
                if count > step:
                    os._exit(9)
            super().__init__(argv, *rest, **options)

    subprocess.Popen = Counted  # type: ignore[assignment,misc]
    try:
        call()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["reservation", "dynamic"])
def test_a_kill_at_any_moment_is_repaired_by_the_same_calls(strategy: str, cluster: Cluster) -> None:
    case = Case(strategy)

    def compose() -> None:
        opened = case.open()
        opened.begin(case.hosts, LEASE)
        opened.announce(case.composition(), LEASE)

    def release() -> None:
        opened = case.open()
        opened.begin(case.hosts, LEASE)
        opened.end(case.hosts, LEASE)

    # Its process may be started again, or the lease be given back by somebody else; each begins where the one before ended.
    rounds = [(compose, release), (compose, compose), (release, compose), (release, release)]
    step, killed = 0, True
    while killed:
        killed = False
        for call, repair in rounds:
            killed |= killed_before(step, call)
            repair()
            expected = case.offered if repair is compose else dict.fromkeys(case.hosts, OWN)
            where = f"{call.__name__} killed before step {step}, then {repair.__name__}"
            assert {host: devices()[host] for host in case.hosts} == expected, where
            assert {nodes()[host][0] for host in case.hosts} == {"idle"}, where
            assert len(daemons.find_processes(cluster, "slurmd")) == len(nodes()), where
            assert ("No reservations" in reservations()) == (repair is release), where
        step += 1
    assert step > (5 if strategy == "dynamic" else 1)


@pytest.mark.parametrize("strategy", ["reservation", "dynamic"])
def test_jobs_of_others_are_waited_for_by_name(strategy: str) -> None:
    case = Case(strategy)
    job = submit(case.hosts[1], "sleep 3", nobody=True)
    until(lambda: state(job) == "RUNNING", "the other's job does not run")
    case.open().begin(case.hosts, LEASE)
    assert state(job) == "COMPLETED"
    assert f"{job} of nobody" in " ".join(case.said)


@pytest.mark.parametrize("strategy", ["reservation", "dynamic"])
def test_a_job_of_the_lease_on_devices_that_go_is_cancelled(strategy: str) -> None:
    case = Case(strategy)
    opened = case.open()
    opened.begin(case.hosts, LEASE)
    opened.announce(case.composition(), LEASE)
    job = submit(case.hosts[0], "sleep 1000", *(f"--{name}={value}" for name, value in opened.options(LEASE).items()))
    until(lambda: state(job) == "RUNNING", "the lease's job does not run")
    opened.begin(case.hosts, LEASE)
    assert state(job) == "CANCELLED"


@pytest.mark.parametrize("strategy", ["reservation", "dynamic"])
def test_a_host_that_an_administrator_drained_is_named_and_stays_drained(strategy: str) -> None:
    case = Case(strategy)
    opened = case.open()
    opened.begin(case.hosts, LEASE)
    opened.announce(case.composition(), LEASE)
    slurm("scontrol", "update", f"nodename={case.hosts[0]}", "state=drain", "reason=fan broken")
    opened.begin(case.hosts, LEASE)
    opened.end(case.hosts, LEASE)
    assert devices()[case.hosts[0]] == OWN
    assert nodes()[case.hosts[0]][0] == "drained"
    with pytest.raises(HostFailed, match="fan broken") as failed:
        opened.begin(case.hosts, LEASE)
    assert list(failed.value.hosts) == [case.hosts[0]]


class Nobody(SlurmCommands):
    """Slurm's commands in the name of a user without rights."""

    def __call__(self, *argv: str, timeout_s: float = 60.0) -> CompletedCommand:
        return super().__call__(*_NOBODY, *argv, timeout_s=timeout_s)


@pytest.mark.parametrize("strategy", ["reservation", "dynamic"])
def test_without_rights_it_says_whose_they_have_to_be(strategy: str) -> None:
    case = Case(strategy)
    with pytest.raises(LaunchError, match="operator"):
        case.open(Nobody()).begin(case.hosts, LEASE)
    case.open().begin(case.hosts, LEASE)
    with pytest.raises(LaunchError, match="operator"):
        case.open(Nobody()).end(case.hosts, LEASE)


def test_a_later_reservation_of_others_bounds_ours_and_one_that_has_begun_is_waited_for() -> None:
    case = Case("reservation")
    slurm(
        "scontrol",
        "create",
        "reservationname=course",
        "users=daemon",
        "nodes=host2",
        "starttime=now+1hour",
        "duration=60",
    )
    start = reservations().split("StartTime=")[1].split()[0]
    case.open().begin(case.hosts, LEASE)
    mine = slurm("scontrol", "show", "reservation", make_reservation_name(LEASE), "--oneliner")
    assert f"EndTime={start}" in mine
    case.open().end(case.hosts, LEASE)
    slurm("scontrol", "delete", "reservationname=course")
    slurm("scontrol", "create", "reservationname=course", "users=daemon", "nodes=host2", "starttime=now", "duration=60")
    begun = threading.Thread(target=case.open().begin, args=(case.hosts, LEASE))
    begun.start()
    until(lambda: "course" in " ".join(case.said), "it does not say whom it waits for")
    assert begun.is_alive()
    slurm("scontrol", "delete", "reservationname=course")
    begun.join(30)
    assert make_reservation_name(LEASE) in reservations()


def test_a_host_that_registers_with_less_is_named() -> None:
    case = Case("dynamic")
    opened = case.open(slurmd=slurmd_commands("3"))
    assert isinstance(opened, DynamicStrategy)
    opened.registration_timeout_s = 2.0
    opened.begin(case.hosts, LEASE)
    with pytest.raises(HostFailed, match=r"dyn1: registered as .*gpu:3.*not with gpu:5") as failed:
        opened.announce(case.composition(), LEASE)
    assert list(failed.value.hosts) == ["dyn1"]


def test_a_command_of_the_site_that_fails_is_quoted() -> None:
    case = Case("dynamic")
    complain = ["sh", "-c", "echo no way to {host} >&2; exit 3"]
    opened = case.open(slurmd={"stop": complain, "start": complain})
    opened.begin(case.hosts, LEASE)
    with pytest.raises(HostFailed, match=r"stopped: .* exited with code 3: no way to dyn1"):
        opened.announce(case.composition(), LEASE)


def test_a_restart_of_the_controller_is_waited_out(cluster: Cluster) -> None:
    case = Case("dynamic")
    opened = case.open()
    opened.begin(case.hosts, LEASE)
    daemons.stop_daemon(cluster, "slurmctld")
    announced = threading.Thread(target=opened.announce, args=(case.composition(), LEASE))
    announced.start()
    time.sleep(1)
    daemons.start_daemon(cluster, "slurmctld")
    announced.join(60)
    assert {host: devices()[host] for host in case.hosts} == case.offered


@pytest.mark.slow
def test_a_failing_fabric_under_resume_puts_the_job_back_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The success of this strategy, and its other failures, are in test_power: nothing of it is in this process."""
    changes = {
        "system.launcher": "slurm",
        "system.slurm": {"strategy": "resume"},
        # As often as one composition is tried.
        "system.fabric": {"kind": "simulated", "faults": [{"kind": "lost_request", "times": MAX_ATTEMPTS}]},
        "campaign.configurations": [{"hosts": [1], "devices_per_host": [2], "attach": ["fabric"]}],
    }
    campaign, results = campaign_files.write_files(tmp_path / "config", changes), tmp_path / "results"
    system = read_system("bench", campaign)
    opened = open_strategy(system, SlurmCommands())
    assert (opened.composed_by_slurm, opened.options(LEASE)) == (True, {})
    with (
        cluster_up(build_cluster_spec(system, accounting=False, slurm_conf=())) as cloud,
        monkeypatch.context() as there,
    ):
        there.setenv("SLURM_CONF", str(cloud.slurm_conf))
        names = f"campaign={campaign} results={results} configuration=1x2-fabric python={sys.executable}"
        job = submit("host1", "sleep 1000", "--exclusive", "--gres=gpu:2", "--comment", names)
        power = cloud.get_log_path("power")
        until(lambda: power.exists() and "attempt 1 of" in power.read_text(), "the fabric did not fail")
        assert verify_compositions(campaign, results) == []
        # slurmctld looks twice a minute at jobs that wait for their hosts.
        until(lambda: state(job) == "RUNNING", "the job does not run", 90)
        assert {device["host"] for lease in verify_compositions(campaign, results) for device in lease["devices"]} == {
            "host1"
        }
        # What a campaign says to this strategy is of no consequence to a job that runs.
        opened.begin(["host1"], LEASE)
        opened.end(["host1"], LEASE)
        assert state(job) == "RUNNING"
        slurm("scancel", job)
        until(lambda: verify_compositions(campaign, results) == [], "what was composed for the job is not released")
