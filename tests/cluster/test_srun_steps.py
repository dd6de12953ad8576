"""Runs as steps of real jobs: what they see, how they end, and that nothing is left of them whatever ends them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from campaign.common.errors import CampaignError, HostFailed, LaunchError
from campaign.common.processes.marked import find_marked_processes, list_pids, read_process_words
from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.emulators.slurm import daemons
from campaign.observe.telemetry.run_metrics import SHARED_MACHINE_FLAG
from campaign.slurm.verify_devices import DeviceMismatchError, DeviceVerification
from campaign.spec.host_load import FOREIGN_LOAD_FLAG
from campaign.spec.system_file import SystemFile
from campaign.workloads.failures import classify_failure
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd
from tests.cluster.in_job import Done, Job, Run, Work, composition, slurm, submitted, until

pytestmark = pytest.mark.usefixtures("slurm_installed")
LIMITS = StepLimits(60.0)
BOTH = {"host1": 2, "host2": 2}
SHOW = "print(*(os.environ.get(name, '-') for name in {names}), flush=True)"
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CAMPAIGN_HOST", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")
GREEDY = "\nif os.environ['RANK'] == '1':\n    kept = bytearray(400 << 20)\ntime.sleep(30)"
DAEMON = "\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)"
ESCAPED = "\nif os.environ['RANK'] == '2':\n    os.system('env -i setsid sleep 4711 </dev/null >/dev/null 2>&1 &')"
MANY = "os.fork()\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(1000)"
MEET = """
import socket
here = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if os.environ['RANK'] == '0':
    server = socket.create_server(here)
    print('from', server.accept()[1][0], os.environ['GLOO_SOCKET_IFNAME'], flush=True)
else:
    for _ in range(100):
        try:
            socket.create_connection(here).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""


def system(**slurm_settings: object) -> SystemFile:
    return SystemFile.model_validate(
        {
            "name": "site",
            "launcher": "slurm",
            "fabric": {"kind": "static"},
            "hosts": [{"name": "host[1-4]"}],
            "devices": {"core": {"runs_on": "cpu"}},
            "slurm": slurm_settings,
        }
    )


def python(code: str, ranks_by_host: Mapping[str, int] | None = None, per_rank: bool = True) -> Step:
    argv = (sys.executable, "-S", "-c", f"import os, sys, time\n{code}")
    return Step(argv, {"GIVEN": "it's"}, ranks_by_host or BOTH, per_rank)


def show(*names: str) -> str:
    return SHOW.replace("{names}", repr(names))


INNER = """
import subprocess
print(os.environ['CAMPAIGN_HOSTS'], os.environ['CAMPAIGN_RANKS'], flush=True)
subprocess.run(['srun', '--gres=gpu:2', 'sh', '-c', 'echo $SLURMD_NODENAME'], check=True)
"""
POWER_W, BUSY_S = 120.0, 0.7
DEVICES = {f"host{host}/{device}": {"power_w": POWER_W} for host in (1, 2) for device in (0, 1)}
# A program of the host's: what it publishes is seen by the sampler beside it, and its power is known.
KNOWN = f"""
import json, time
from campaign.workloads.synthetic_program import publish_gauges
with publish_gauges({DEVICES!r}):
    started = time.time()
    while time.process_time() < {BUSY_S}:
        pass
    time.sleep(max(0, started + 1.5 - time.time()))
    print(json.dumps({{'window': [started, time.time()]}}), flush=True)
"""
RUNS = (
    Run("place", python(show(*PLACE)), LIMITS),
    Run("surroundings", python(show("GIVEN", "SITE", "OMP_NUM_THREADS", "SUBMITIT_X", "SLURM_JOB_ID")), LIMITS),
    Run("exits", python("sys.exit(3 * (os.environ['RANK'] == '2'))"), LIMITS),
    Run("killed", python("os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)"), LIMITS),
    Run("time", python(MANY), StepLimits(0.5)),
    Run("daemon", python(DAEMON), LIMITS),
    Run("escaped", python(ESCAPED), LIMITS),
    Run("stopped", python("os.environ['RANK'] == '3' and os.kill(os.getpid(), 19)"), StepLimits(1.0)),
    Run("memory", python(GREEDY), StepLimits(60.0, 100)),
    Run("missing", Step(("no-such-program",), {}, BOTH), LIMITS),
    Run("too much memory", python(""), StepLimits(60.0, 10**7)),
    Run("too many ranks", python("", {"host1": 5, "host2": 5}), LIMITS),
    Run("one", python(INNER, per_rank=False), LIMITS),
    Run(
        "inner", python("import subprocess; subprocess.run(['srun', 'sleep', '1000'])", per_rank=False), StepLimits(1.0)
    ),
    Run("hangs", python("if os.environ['RANK'] == '1':\n    sys.exit(4)\ntime.sleep(1000)"), LIMITS),
    Run("after", python(show("RANK")), LIMITS),
    Run("known", Step((sys.executable, "-c", KNOWN), {}, BOTH, per_rank=False), LIMITS),
)


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One job in which everything of RUNS happens, one after the other; so each run also shows what the one before has left."""
    directory = tmp_path_factory.mktemp("steps")
    settings = system(environment={"SITE": "of the site"})
    work = Work(settings, composition(["host1", "host2"], 4), directory, RUNS, sampled_s=0.1)
    os.environ["SUBMITIT_X"] = "of the driver"
    try:
        job = submitted(cluster, work, 4)
        job.done(120)
        yield job
    finally:
        del os.environ["SUBMITIT_X"]
        job.end()


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts jobs on two hosts of their own (or others), and ends them."""
    jobs: list[Job] = []

    def start(
        *runs: Run, hosts: tuple[str, ...] = ("host3", "host4"), options: tuple[str, ...] = (), **more: object
    ) -> Job:
        what: dict[str, object] = {"system": system(), "composition": composition(hosts, 2), "verify": False, **more}
        work = Work(directory=tmp_path / f"job{len(jobs)}", runs=runs, **what)  # type: ignore[arg-type]
        jobs.append(submitted(cluster, work, 2, *options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def ended(done: Done, name: str) -> StepEnd:
    result = done.results[name]
    assert isinstance(result, StepEnd), result
    return result


def error(done: Done, name: str) -> CampaignError:
    result = done.results[name]
    assert isinstance(result, CampaignError), result
    return result


def test_ranks_know_their_places_and_their_devices(job: Job) -> None:
    assert ended(job.done(), "place").codes == (0,) * 4
    lines = sorted(job.log("place").splitlines())
    assert lines == [f"{rank} 4 {rank % 2} 2 host{1 + rank // 2} host1 0,1" for rank in range(4)]


def test_the_jobs_environment_is_kept_and_the_drivers_is_not(job: Job) -> None:
    assert set(job.log("surroundings").splitlines()) == {f"it's of the site 1 - {job.id}"}


def test_telemetry_stands_beside_the_runs_and_finds_the_true_energy(job: Job) -> None:
    done = job.done()
    kept = done.kept["known"]
    assert kept.samples_file
    assert {*kept.flags} - {FOREIGN_LOAD_FLAG} == {SHARED_MACHINE_FLAG}
    (load,) = kept.loads  # of the machine on which both hosts are emulated
    assert 0.3 < load.own_s <= BUSY_S
    assert kept.metrics["device_power_mean_w"] == pytest.approx(POWER_W, rel=0.05)
    assert kept.metrics["energy_j"] == pytest.approx(POWER_W * 4 * 1.5, rel=0.05)
    assert kept.metrics["telemetry_cpu_mean_pct"] < 5
    assert {"cpu_utilisation_mean_pct", "host_memory_used_peak_mib", "network_rx_mean_gb_per_s"} <= kept.metrics.keys()


def test_exit_codes_are_by_rank(job: Job) -> None:
    done = job.done()
    assert ended(done, "exits").codes == (0, 0, 3, 0)
    assert ended(done, "killed").codes == (0, -signal.SIGKILL, 0, 0)


def test_a_step_ends_at_its_time_limit_with_all_that_it_started(job: Job) -> None:
    result = ended(job.done(), "time")
    assert result.timed_out
    assert result.codes == (None,) * 4
    assert list(find_marked_processes(f"{job.done().mark}/time")) == []


def test_what_ranks_leave_behind_is_ended_and_delays_nothing(job: Job) -> None:
    result = ended(job.done(), "daemon")
    assert result.codes == (0,) * 4
    assert result.ended - result.started < 20
    assert list(find_marked_processes(f"{job.done().mark}/daemon")) == []


def test_a_daemon_that_cleans_its_environment_is_ended_with_its_run(job: Job) -> None:
    assert ended(job.done(), "escaped").codes == (0,) * 4
    assert not [pid for pid in list_pids() if read_process_words(pid, "cmdline")[:2] == [b"sleep", b"4711"]]


def test_a_rank_that_is_stopped_disturbs_its_run(job: Job) -> None:
    assert ended(job.done(), "stopped").disturbance == "rank 3 was stopped on host2"


def test_a_step_over_its_memory_is_out_of_memory(job: Job) -> None:
    result = ended(job.done(), "memory")
    assert result.memory_limit_hit
    verdict = classify_failure(
        job.log("memory"),
        result.codes,
        timed_out=False,
        killed_by_launcher=True,
        memory_limit_hit=result.memory_limit_hit,
    )
    assert verdict is not None
    assert verdict[0] == "oom_host"
    assert "exceeded memory limit" in verdict[1].evidence


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("missing", "no-such-program: no such program on host1, host2"),
        ("too much memory", "memory_limit_mib is 10,000,000, but the job has only"),
        ("too many ranks", "the composition has only 4 devices on this host"),
    ],
)
def test_what_cannot_be_started_is_a_launch_error_that_says_why(job: Job, name: str, complaint: str) -> None:
    found = error(job.done(), name)
    assert isinstance(found, LaunchError)
    assert complaint in str(found)


def test_one_program_for_all_ranks_can_start_them_itself(job: Job) -> None:
    assert ended(job.done(), "one").codes == (0,)
    first, *hosts = job.log("one").splitlines()
    assert first == "host1,host2 4"
    assert sorted(hosts) == ["host1", "host1", "host2", "host2"]


def test_steps_inside_a_step_end_with_it(job: Job) -> None:
    assert ended(job.done(), "inner").timed_out
    assert list(find_marked_processes(f"{job.done().mark}/inner")) == []


def test_ranks_that_wait_for_a_failed_one_are_ended_and_not_blamed(job: Job) -> None:
    result = ended(job.done(), "hangs")
    assert result.codes == (None, 4, None, None)
    assert not result.timed_out


def test_the_job_can_go_on_after_all_that(job: Job) -> None:
    assert ended(job.done(), "after").codes == (0,) * 4
    assert sorted(job.log("after").split()) == ["0", "1", "2", "3"]
    assert list(find_marked_processes(job.done().mark)) == []


@pytest.mark.parametrize("how", [(), ("--signal=KILL",), ("--signal=TERM",)])
def test_a_step_that_somebody_cancels_is_no_measurement(
    cluster: Cluster, start: Callable[..., Job], how: tuple[str, ...]
) -> None:
    here = {"host3": 1, "host4": 1}
    job = start(Run("cancelled", python(MANY, here), LIMITS), Run("after", python("", here), LIMITS))
    slurm(cluster, "scancel", *how, job.step("cancelled"))
    found = error(job.done(), "cancelled")
    assert isinstance(found, LaunchError)
    assert "outside" in str(found)
    assert ended(job.done(), "after").codes == (0, 0)
    assert list(find_marked_processes(job.done().mark)) == []


def test_a_run_whose_job_is_suspended_is_disturbed(cluster: Cluster, start: Callable[..., Job]) -> None:
    here = {"host3": 1, "host4": 1}
    job = start(Run("suspended", python("time.sleep(1000)", here), LIMITS), Run("after", python("", here), LIMITS))
    job.step("suspended")
    slurm(cluster, "scontrol", "suspend", job.id)
    time.sleep(1)
    slurm(cluster, "scontrol", "resume", job.id)
    result = ended(job.done(), "suspended")
    assert result.disturbance
    assert not result.timed_out
    after = ended(job.done(), "after")
    assert (after.codes, after.disturbance) == ((0, 0), "")
    assert list(find_marked_processes(job.done().mark)) == []


def test_a_driver_that_is_told_to_stop_leaves_nothing_of_its_run(cluster: Cluster, start: Callable[..., Job]) -> None:
    here = {"host3": 1, "host4": 1}
    job = start(Run("run", python(MANY, here), LIMITS), Run("after", python("", here), LIMITS))
    job.step("run", 0)
    job.step("run", 1)
    slurm(cluster, "scancel", "--signal=USR1", "--batch", job.id)
    done = job.done()
    assert "run" not in done.results
    assert ended(done, "after").codes == (0, 0)
    assert list(find_marked_processes(done.mark)) == []


def test_a_job_that_is_cancelled_leaves_nothing(cluster: Cluster, start: Callable[..., Job]) -> None:
    job = start(Run("run", python("time.sleep(1000)", {"host3": 1, "host4": 1}), LIMITS))
    job.step("run", 0)
    job.step("run", 1)
    slurm(cluster, "scancel", job.id)
    until(lambda: not job.runs(), 30, lambda: "the job stays")
    assert list(find_marked_processes(job.work.directory.name)) == []
    done = job.file.with_suffix(".done")
    assert not done.exists() or isinstance(job.done().results["run"], LaunchError)


def back(cluster: Cluster, host: str) -> None:
    """Start a host's slurmd again, and wait until the controller has heard of it."""
    daemons.start_daemon(cluster, "slurmd", host)
    good = {"idle", "mixed", "allocated", "completing"}
    until(
        lambda: slurm(cluster, "sinfo", "-h", "-n", host, "-o", "%T").strip() in good,
        40,
        lambda: f"{host} does not come back",
    )


@pytest.mark.slow
def test_a_run_outlives_the_slurmd_of_its_host_and_the_next_one_names_the_host(
    cluster: Cluster, start: Callable[..., Job]
) -> None:
    here = {"host3": 1, "host4": 1}
    job = start(Run("run", python("time.sleep(3)", here), LIMITS), Run("next", python("", here), LIMITS))
    job.step("run", 1)
    daemons.stop_daemon(cluster, "slurmd", "host4", signal.SIGKILL)
    try:
        assert ended(job.done(), "run").codes == (0, 0)
        found = error(job.done(), "next")
        assert isinstance(found, HostFailed)
        assert list(found.hosts) == ["host4"]
    finally:
        back(cluster, "host4")


@pytest.mark.slow
def test_a_host_that_dies_under_a_run_is_not_the_runs_failure(cluster: Cluster, start: Callable[..., Job]) -> None:
    here = {"host3": 1, "host4": 1}
    job = start(Run("run", python("time.sleep(1000)", here), StepLimits(3.0)), options=("--no-requeue",))
    job.step("run", 1)
    daemons.stop_daemon(cluster, "slurmd", "host4", signal.SIGKILL)
    try:
        network = os.stat(f"/proc/{cluster.held.pid}/fd/{cluster.held.descriptors['host4']['net']}").st_ino  # noqa: PTH116
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _inode(entry / "ns/net") == network:
                os.kill(int(entry.name), signal.SIGKILL)
        done = job.file.with_suffix(".done")
        # The controller declares the host dead after a while, and ends the job: whoever is first.
        until(lambda: done.exists() or not job.runs(), 90, lambda: "neither the launcher nor Slurm takes notice")
        if done.exists():
            found = error(job.done(), "run")
            assert isinstance(found, HostFailed)
            assert list(found.hosts) == ["host4"]
        assert list(find_marked_processes(job.work.directory.name)) == []
    finally:
        back(cluster, "host4")


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def test_a_controller_that_restarts_is_waited_for(cluster: Cluster, start: Callable[..., Job]) -> None:
    here = {"host3": 1, "host4": 1}
    job = start(Run("run", python("time.sleep(2)", here), LIMITS), Run("next", python("", here), LIMITS))
    job.step("run")
    daemons.stop_daemon(cluster, "slurmctld")
    try:
        ends = [job.work.directory / "run" / f"rank.{rank}" for rank in (0, 1)]
        until(
            lambda: all("ended" in end.read_text() for end in ends),
            30,
            lambda: "ranks do not end without the controller",
        )
    finally:
        daemons.start_daemon(cluster, "slurmctld")
    # A newer srun waits until the controller has heard of the end of its step, which it is told again once a minute.
    assert ended(job.done(150), "run").codes == (0, 0)
    assert ended(job.done(), "next").codes == (0, 0)


def test_ranks_behind_the_fabric_stand_behind_their_ports(cluster: Cluster, start: Callable[..., Job]) -> None:
    settings = SystemFile.model_validate({**system().model_dump(), "emulation": {"scale": 0.01}})
    job = start(
        Run("local and fabric", python(MEET, {"dynamic1": 2}), LIMITS),
        Run("alone", python(show("MASTER_ADDR", "GLOO_SOCKET_IFNAME"), {"dynamic1": 1}), LIMITS),
        hosts=("dynamic1",),
        system=settings,
        composition=composition(["dynamic1"], 1, 1),
    )
    done = job.done()
    assert ended(done, "local and fabric").codes == (0, 0)
    assert job.log("local and fabric").split() == ["from", cluster.addresses["dynamic1-fabric0"], "eth0"]
    assert job.log("alone").split() == ["127.0.0.1", "lo"]
    assert done.links is not None
    assert done.links["emulated"] == "root"


def test_the_devices_of_every_host_are_counted(start: Callable[..., Job]) -> None:
    verified = start(verify=True).done().verified
    assert isinstance(verified, DeviceVerification)
    assert {host: len(seen) for host, seen in verified.hosts.items()} == {"host3": 2, "host4": 2}


def test_a_host_without_the_composed_devices_stops_the_lease(start: Callable[..., Job]) -> None:
    command = ["sh", "-c", "echo GPU-1, core; test $SLURMD_NODENAME = host4 || echo GPU-2, core"]
    found = start(verify=True, system=system(devices_command=command)).done().verified
    assert isinstance(found, DeviceMismatchError)
    assert found.hosts == {"host4": "only 1 of 2 devices found"}


def test_devices_that_slurm_does_not_have_for_the_job_stop_the_lease(start: Callable[..., Job]) -> None:
    found = start(verify=True, composition=composition(["host3", "host4"], 5)).done().verified
    assert isinstance(found, LaunchError)
    assert "gres" in str(found)
