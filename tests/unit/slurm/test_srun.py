"""The srun step of a run without Slurm: its command and script as golden files, and what the script does when a shell runs it.

Refresh the golden files after a wanted change: `python -m tests.unit.slurm.test_srun`, then look at the difference.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError, HostFailed, LaunchError
from campaign.common.processes.marked import find_marked_processes
from campaign.emulators.hosts.cluster_spec import Cluster, ClusterHost, ClusterSpec
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED
from campaign.emulators.hosts.network import HeldNamespaces
from campaign.emulators.hosts.topology import LinkRates, list_namespaces
from campaign.slurm.rank_placement import SlurmPlacement
from campaign.slurm.srun import SrunLauncher
from campaign.slurm.srun_step import (
    RankEnd,
    StepPlacement,
    build_rank_script,
    build_step_argv,
    find_launch_error,
    has_failed_rank,
    list_exit_codes,
    parse_host_memory_mib,
    parse_rank_end,
    read_rank_ends,
)
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step

GOLDEN = Path(__file__).parents[2] / "golden"
REFRESH = "if the change is wanted: python -m tests.unit.slurm.test_srun"
DIRECTORY = Path("/shared/results/work/2x2/runs/cell.1")
TWO = {"host1": 2, "host2": 2}
TRAIN = Step(("python", "-m", "campaign.workloads.trainer.rank"), {"CAMPAIGN_SPEC": "spec.json"}, TWO)
MPI = Step(("mpirun", "./a program", "it's"), {}, TWO, per_rank=False)
BEHIND = {1: ("nsenter", "--net=/proc/1/fd/9", "--"), 3: ("nsenter", "--net=/proc/1/fd/12", "--")}
REAPER = ("python", "-m", "campaign.common.processes.subreaper")
CASES: Mapping[str, tuple[Step, StepPlacement, bool, dict[str, object]]] = {
    "ranks": (TRAIN, StepPlacement("host1", 29500), False, {"gres": "gpu:a100", "cpus_per_task": 8}),
    "devices": (
        TRAIN,
        StepPlacement(
            "host1", 29500, devices={"host1": "GPU-1,GPU-2", "host2": "GPU-3,GPU-4"}, masks=("CUDA_VISIBLE_DEVICES",)
        ),
        False,
        {"gres": None, "cpus_per_task": None},
    ),
    "fabric": (
        TRAIN,
        StepPlacement("198.18.1.1", 29500, BEHIND, environment={"GLOO_SOCKET_IFNAME": "eth0"}),
        True,
        {"gres": "gpu", "cpus_per_task": None},
    ),
    "one": (MPI, StepPlacement("host1", 29500), False, {"gres": "gpu", "cpus_per_task": 8}),
}


def made(case: str) -> str:
    """The command as a comment, and the script that it starts."""
    step, placement, sweeps, options = CASES[case]
    limits = StepLimits(600.0, 4096 if case == "ranks" else None)
    log = Path("/shared/results/logs/2x2/cell.1.log")
    argv = build_step_argv(step, limits, DIRECTORY / "rank.sh", log, name="cell.1", **options)  # type: ignore[arg-type]
    return f"# {shlex.join(argv)}\n" + build_rank_script(
        step, placement, "0123/2x2/cell.1", DIRECTORY, reaper=REAPER if sweeps else ()
    )


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    assert made(case) == (GOLDEN / f"step-{case}.sh").read_text(), REFRESH


class Task:
    """What srun would do for a task of the script."""

    def __init__(
        self,
        directory: Path,
        step: Step,
        placement: StepPlacement = StepPlacement("host1", 29500),  # noqa: B008
        sweeps: bool = True,
    ) -> None:
        self.directory, self.step = directory, step
        self.mark = f"test-{os.getpid()}/{directory.name}"
        reaper = (sys.executable, "-I", *REAPER[1:]) if sweeps else ()
        (directory / "rank.sh").write_text(build_rank_script(step, placement, self.mark, directory, reaper=reaper))

    def run(self, host: str, local: int = 0) -> subprocess.CompletedProcess[str]:
        slurm = {"SLURMD_NODENAME": host, "SLURM_LOCALID": str(local), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}
        return subprocess.run(
            ["/bin/sh", str(self.directory / "rank.sh"), *self.step.argv],
            env={**os.environ, **slurm, **self.step.environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


def sh(code: str, ranks_by_host: Mapping[str, int] = TWO, per_rank: bool = True, **environment: str) -> Step:
    return Step(("sh", "-c", code), environment, ranks_by_host, per_rank)


def test_each_task_is_the_rank_of_its_host_and_number(tmp_path: Path) -> None:
    step = sh("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $CAMPAIGN_HOST", {"a": 1, "b": 3})
    task = Task(tmp_path, step)
    shown = [task.run(host, local).stdout.strip() for host, local in (("a", 0), ("b", 0), ("b", 2))]
    assert shown == ["0 4 0 1 a", "1 4 0 3 b", "3 4 2 3 b"]
    assert [end.host for end in read_rank_ends(tmp_path, 4)] == ["a", "b", None, "b"]
    assert task.run("c").returncode == 125


@pytest.mark.parametrize(
    ("per_rank", "gres", "asked"),
    [
        (True, "gpu", ["--ntasks=4", "--nodelist=a,b,b,b", "--distribution=arbitrary", "--gpus-per-task=1"]),
        (True, "gpu:a100", ["--gpus-per-task=a100:1", "--gpu-bind=none"]),
        (False, "gpu", ["--ntasks=1", "--nodelist=a", "--ntasks-per-node=1", "--gpus-per-task=1"]),
        (True, "fpga", ["--nodelist=a,b,b,b", "--gres=none"]),
    ],
)
def test_tasks_of_unequal_hosts_ask_for_their_own_devices(per_rank: bool, gres: str, asked: list[str]) -> None:
    step = sh("true", {"a": 1, "b": 3}, per_rank)
    argv = build_step_argv(step, StepLimits(1.0), Path("s"), Path("l"), name="n", gres=gres, cpus_per_task=None)
    assert set(asked) <= set(argv)
    assert not any(word.startswith("--gres=gpu") for word in argv)


def test_what_the_workload_says_of_its_environment_counts(tmp_path: Path) -> None:
    step = sh("echo $MASTER_PORT $MASTER_ADDR", MASTER_PORT="1")
    assert Task(tmp_path, step).run("host1").stdout.strip() == "1 host1"


def test_arguments_and_marks_arrive_unharmed(tmp_path: Path) -> None:
    step = Step(
        (
            sys.executable,
            "-S",
            "-c",
            "import os, sys; print(sys.argv[1:], os.environ['CAMPAIGN_RUN'])",
            "it's $HOME",
            "",
        ),
        {},
        TWO,
    )
    task = Task(tmp_path, step)
    assert task.run("host1").stdout.strip() == f"{['it' + chr(39) + 's $HOME', '']} {task.mark}"


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", -signal.SIGKILL),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("exit 255", 255),
    ],
)
def test_how_a_rank_ended_is_in_its_file(tmp_path: Path, code: str, end: int) -> None:
    Task(tmp_path, sh(code)).run("host1", 1)
    assert read_rank_ends(tmp_path, 2) == (RankEnd(), RankEnd("host1", "7.3", end))


def test_clocks_and_kills_are_compared_from_the_start_of_a_rank_to_its_end() -> None:
    looks = "before 1000.5 50.25 2\nended 137\nafter {} {} 3\n"
    assert parse_rank_end(looks.format(1010.5, 60.25)) == RankEnd(code=-9, memory_kills=1)
    assert parse_rank_end(looks.format(-6189.5, 60.25)) == RankEnd(code=-9, memory_kills=1, clock_set_s=-7200.0)
    assert parse_rank_end("before 1000.%N 50.25 2\nafter 1010.%N 60.25 3\n") == RankEnd()
    assert parse_rank_end("before 1000.5 50.25 2\nstopped\nstopped\n") == RankEnd(
        stopped=True
    )  # killed with its script


def test_a_program_that_is_not_there_is_told_from_one_that_fails(tmp_path: Path) -> None:
    Task(tmp_path, Step(("no-such-program",), {}, TWO)).run("host1")
    assert read_rank_ends(tmp_path, 1)[0].missing
    Task(tmp_path, sh("exit 127")).run("host1")
    assert read_rank_ends(tmp_path, 1)[0] == RankEnd("host1", "7.3", 127)


def test_what_a_rank_leaves_behind_is_ended_and_its_neighbours_are_not(tmp_path: Path) -> None:
    neighbour = dict(os.environ, CAMPAIGN_RUN="x", CAMPAIGN_RUN_RANK=f"test-{os.getpid()}/{tmp_path.name}#10#")
    other = subprocess.Popen(["sleep", "60"], env=neighbour)
    try:
        task = Task(tmp_path, sh("setsid sleep 60 & setsid sleep 60 >/dev/null 2>&1 & echo done"))
        assert task.run("host1", 1).stdout == "done\n"
        assert list(find_marked_processes(task.mark)) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_daemon_that_cleans_its_environment_is_ended_with_its_rank(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    daemon = f"env -i setsid sh -c 'sleep 60 & echo $$ $! >{pid_file}; wait' >/dev/null 2>&1 &"
    daemon += f" while ! test -s {pid_file}; do sleep 0.01; done; kill -9 $$"
    Task(tmp_path, sh(daemon)).run("host1")
    assert read_rank_ends(tmp_path, 1)[0].code == -signal.SIGKILL
    assert not [pid for pid in pid_file.read_text().split() if Path(f"/proc/{pid}").exists()]


def test_a_rank_that_is_stopped_for_a_while_says_so(tmp_path: Path) -> None:
    code = "(sleep 0.2; kill -CONT $$) & kill -STOP $$; echo went on"
    assert Task(tmp_path, sh(code)).run("host1").stdout == "went on\n"
    assert read_rank_ends(tmp_path, 1)[0] == RankEnd("host1", "7.3", 0, stopped=True)


def test_one_program_for_all_sees_hosts_and_ranks_of_the_run(tmp_path: Path) -> None:
    step = sh("echo $CAMPAIGN_HOSTS $CAMPAIGN_RANKS $SLURM_NODELIST $SLURM_NTASKS ${SLURM_PROCID-none}", per_rank=False)
    assert Task(tmp_path, step).run("host1").stdout.strip() == "host1,host2 4 host1,host2 4 none"
    assert read_rank_ends(tmp_path, 1)[0].code == 0


def test_ranks_behind_something_are_started_through_it(tmp_path: Path) -> None:
    placement = StepPlacement("host1", 29500, {1: ("env", "BEHIND=it's")})
    task = Task(tmp_path, sh("echo ${BEHIND-open}"), placement)
    assert [task.run("host1", local).stdout.strip() for local in (0, 1)] == ["open", "it's"]


@given(st.text(alphabet="started 7.1host\nendmig0-", max_size=60))
def test_a_torn_file_of_a_rank_is_understood_as_far_as_it_goes(text: str) -> None:
    end = parse_rank_end(text)
    whole = "started 7.1 host1\nended 0\n"
    assert end.code is None or "ended" in text
    assert [parse_rank_end(whole[:size]).code for size in range(len(whole))] == [None] * len(whole)


RAN = (RankEnd("host1", "7.3", 0), RankEnd("host2", "7.3", 0))
FAILED = (RankEnd("host1", "7.3", 0), RankEnd("host2", "7.3", 3))
GONE = (RankEnd("host1", "7.3"), RankEnd("host2", "7.3"))
CANCELLED = "slurmstepd-host1: error: *** STEP 7.3 ON host1 CANCELLED AT 2026-11-21T10:54:49 ***\n"
MEMORY = "slurmstepd-host1: error: StepId=7.3 exceeded memory limit (335060992 > 104857600), being killed\n"
OOM_KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.3. Some of the step tasks have been OOM Killed."
KILLED = "srun: error: host1: task 0: Killed\nsrun: error: host2: task 1: Killed\n"


def objected(words: str, tail: str, ends: tuple[RankEnd, ...], by_us: bool = False) -> LaunchError | None:
    return find_launch_error(1, words, tail, ends, ended_by_us=by_us, program="p")


@pytest.mark.parametrize(
    ("words", "tail", "ends", "by_us"),
    [
        ("srun: error: host2: task 1: Exited with exit code 3\n", "", FAILED, False),
        (KILLED, MEMORY + CANCELLED, GONE, False),
        (KILLED, OOM_KILL, GONE, False),
        (KILLED, "", GONE, True),
        # Somebody else's step.
        ("", CANCELLED.replace("7.3", "7.31"), FAILED, False),
        ("", CANCELLED.replace("7.3", "17.3"), FAILED, False),
        ("", "", (RankEnd("host1", "7.3"), RankEnd("host2", "7.3", 3)), False),
    ],
)  # fmt: skip
def test_a_failure_of_the_subject_is_no_objection(
    words: str, tail: str, ends: tuple[RankEnd, ...], by_us: bool
) -> None:
    assert objected(words, tail, ends, by_us) is None


@pytest.mark.parametrize(
    ("words", "tail", "ends", "said"),
    [
        (KILLED, CANCELLED, GONE, "cancelled from outside"),
        (KILLED, CANCELLED, FAILED, "cancelled from outside"),
        (KILLED, CANCELLED.replace(" ***\n", " DUE TO TIME LIMIT ***\n"), GONE, "due to time limit"),
        (KILLED, CANCELLED.replace("STEP 7.3", "JOB 7").replace(" ***\n", " DUE TO PREEMPTION ***\n"), GONE, "preemption"),
        (KILLED, "", GONE, "ended from outside"),
        (KILLED, "", (RankEnd("host1", "7.3", -9), RankEnd("host2", "7.3")), "ended from outside"),
        ("srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification", "", (RankEnd(),) * 2,
         "did not start rank 0, 1 of 2: srun: error: Unable to create step for job 7: Invalid generic"),
        ("", "", (RankEnd("host1", "7.3", 3), RankEnd()), "did not start rank 1 of 2"),
        ("", "", (RankEnd("host1", "7.3", 127, True), RankEnd("host2", "7.3", 0)), "p: no such program on host1"),
    ],
)  # fmt: skip
def test_what_slurm_did_to_a_run_is_no_measurement(words: str, tail: str, ends: tuple[RankEnd, ...], said: str) -> None:
    found = objected(words, tail, ends)
    assert found is not None
    assert said in str(found)
    assert not isinstance(found, HostFailed)


@pytest.mark.parametrize(
    "words",
    [
        "srun: error: Task launch for StepId=7.3 failed on node host2: Communication connection failure\n",
        "srun: error: Node failure on host2\n",
    ],
)
def test_a_host_that_failed_is_named(words: str) -> None:
    found = objected(words, "", (RankEnd("host1", "7.3"), RankEnd()))
    assert isinstance(found, HostFailed)
    assert list(found.hosts) == ["host2"]


LAUNCH_TIMEOUT = "srun: error: timeout waiting for task launch, started 0 of 1 tasks\n"


def test_a_step_whose_ranks_ended_well_did_so_whatever_srun_printed() -> None:
    assert find_launch_error(0, KILLED, CANCELLED, RAN, ended_by_us=True, program="p") is None
    assert list_exit_codes(RAN, ended_by_us=True) == (0, 0)


@pytest.mark.parametrize(
    ("words", "ends", "message"),
    [
        ("", GONE, "ended from outside: srun printed no message"),
        ("", (RAN[0], GONE[1]), "ended from outside"),
        (LAUNCH_TIMEOUT, (RankEnd(),), "did not start rank 0 of 1: srun: error: timeout waiting for task launch"),
        ("srun: error: Node failure on host2\n", (RAN[0], GONE[1]), "host2 failed during a run"),
        ("", (RankEnd("host1", "7.3", 127, True),), "p: no such program on host1"),
    ],
)
def test_exit_code_0_of_srun_does_not_prove_that_ranks_ran(words: str, ends: tuple[RankEnd, ...], message: str) -> None:
    error = find_launch_error(0, words, "", ends, ended_by_us=False, program="p")
    assert error is not None
    assert message in str(error)


@pytest.mark.parametrize(
    ("tail", "message"),
    [("srun: error: Node failure on host2\n", "host2 failed"), (LAUNCH_TIMEOUT, "did not start all ranks")],
)
def test_exit_code_0_of_an_srun_inside_the_program_does_not_prove_that_ranks_ran(tail: str, message: str) -> None:
    error = find_launch_error(0, "", tail, (RAN[0],), ended_by_us=False, program="p")
    assert error is not None
    assert message in str(error)


def test_a_rank_that_was_ended_at_the_time_limit_has_no_exit_code_although_srun_ends_with_0() -> None:
    assert find_launch_error(0, KILLED, "", GONE, ended_by_us=True, program="p") is None
    assert list_exit_codes(GONE, ended_by_us=True) == (None, None)


def test_ranks_that_were_ended_did_not_end_by_themselves() -> None:
    ends = (RankEnd("host1", "7.3", -9), RankEnd("host1", "7.3", 4), RankEnd("host1", "7.3"))
    assert list_exit_codes(ends, ended_by_us=True) == (None, 4, None)
    assert list_exit_codes(ends, ended_by_us=False) == (-9, 4, None)


def test_the_first_failed_rank_is_noticed_while_the_others_run() -> None:
    assert has_failed_rank("srun: error: host2: task 2: Exited with exit code 3\n")
    assert has_failed_rank("srun: error: host2: tasks 2-3: Killed\n")
    assert not has_failed_rank("srun: warning: something\nsrun: Job step creation temporarily disabled, retrying\n")


def device(host: str, number: int, local: bool = True, **more: object) -> Device:
    values = {"host_id": None, "location": "", "local": local, **more}
    return Device(f"{host}/{number}", "gpu", "a100", **values)  # type: ignore[arg-type]


def system(**more: object) -> SystemFile:
    base = {"name": "s", "launcher": "slurm", "fabric": {"kind": "static"}, "hosts": [{"name": "host[1-2]"}]}
    return SystemFile.model_validate({**base, **more})


def composed(*devices_of_a_host: bool, hosts: int = 2, **more: object) -> Composition:
    def devices(name: str) -> tuple[Device, ...]:
        return tuple(device(name, i, local, **more) for i, local in enumerate(devices_of_a_host))

    names = [f"host{number}" for number in range(1, hosts + 1)]
    return Composition(tuple(ComposedHost(name, 4, 8.0, devices(name)) for name in names))


def cluster(ports: int = 2, local_gb_per_s: float | None = None) -> Cluster:
    hosts = tuple(
        ClusterHost(name=f"host{i}", devices=2, fabric_ports=ports, local_ports=2 if local_gb_per_s else 0)
        for i in (1, 2)
    )
    spec = ClusterSpec(hosts=hosts, rates=LinkRates(local_gb_per_s=local_gb_per_s))
    names = list_namespaces(spec.to_emulation_spec())
    held = HeldNamespaces(
        pid=1, user=False, isolated=True, descriptors={name: {"net": 10 + i} for i, name in enumerate(names)}
    )
    addresses = {name: f"198.18.0.{1 + i}" for i, name in enumerate(names)}
    return Cluster(
        directory=Path("/c"), spec=spec, held=held, control_address="198.18.0.254", addresses=addresses, interface="i"
    )


def test_real_hosts_meet_at_the_first_one_by_name() -> None:
    placement = SlurmPlacement(system(), composed(True, False), None).place_step(TRAIN, 1234)
    assert placement == StepPlacement("host1", 1234)


def test_one_host_meets_on_its_loopback() -> None:
    step = Step(("p",), {}, {"host1": 2})
    assert SlurmPlacement(system(), composed(True, True), None).place_step(step, 1).address == "127.0.0.1"


def test_a_run_is_given_its_own_devices_where_they_have_names() -> None:
    hosts = tuple(
        ComposedHost(
            name,
            4,
            8.0,
            (device(name, 0, False, host_id=f"GPU-{name[-1]}f"), device(name, 1, True, host_id=f"GPU-{name[-1]}a")),
        )
        for name in ("host1", "host2")
    )
    step = Step(("p",), {}, {"host1": 1, "host2": 1})
    assert SlurmPlacement(system(), Composition(hosts), None).place_step(step, 1).devices == {
        "host1": "GPU-1a",
        "host2": "GPU-2a",
    }
    amd = SlurmPlacement(system(devices={"a100": {"runs_on": "rocm"}}), numbered(hosts, "GPU-a{}"), None).place_step(
        step, 1
    )
    assert amd.devices == {"host1": "GPU-a1", "host2": "GPU-a1"}
    script = build_rank_script(step, amd, "m", Path("/d"))
    assert "export ROCR_VISIBLE_DEVICES=$devices" in script
    assert "unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES" in script, "they would number what the other mask leaves"
    on_cpu = system(devices={"a100": {"runs_on": "cpu"}})
    assert SlurmPlacement(on_cpu, Composition(hosts), None).place_step(step, 1).devices == {}


def numbered(hosts: Sequence[ComposedHost], name: str) -> Composition:
    return Composition(
        tuple(
            replace(host, devices=tuple(replace(d, host_id=name.format(n)) for n, d in enumerate(host.devices)))
            for host in hosts
        )
    )


@pytest.mark.parametrize(("name", "hierarchy"), [("{}", "FLAT"), ("0.{}", "COMPOSITE")])
def test_each_rank_sees_its_own_tile_of_an_intel_gpu_alone(name: str, hierarchy: str) -> None:
    site = system(devices={"a100": {"runs_on": "xpu"}})
    tiles = numbered(composed(True, True, hosts=1).hosts, name)
    placement = SlurmPlacement(site, tiles, None).place_step(Step(("p",), {}, {"host1": 2}), 1)
    assert placement.devices == {}
    assert [dict(placement.device_environments[rank].environment) for rank in (0, 1)] == [
        {"ZE_AFFINITY_MASK": name.format(rank), "ZE_FLAT_DEVICE_HIERARCHY": hierarchy} for rank in (0, 1)
    ]
    one = SlurmPlacement(site, tiles, None).place_step(Step(("p",), {}, {"host1": 2}, per_rank=False), 1)
    assert one.device_environments[0].environment["ZE_AFFINITY_MASK"] == f"{name.format(0)},{name.format(1)}"
    unnamed = SlurmPlacement(site, numbered(tiles.hosts, "00000000-{}"), None).place_step(
        Step(("p",), {}, {"host1": 2}), 1
    )
    assert (unnamed.devices, unnamed.device_environments) == ({}, {}), (
        "a mask knows numbers only, so that Slurm chooses"
    )


def test_emulated_ranks_stand_behind_the_ports_of_their_devices() -> None:
    hosts = SlurmPlacement(system(emulation={"scale": 0.01}), composed(True, False), cluster())
    placement = hosts.place_step(TRAIN, 1)
    assert placement.address == "198.18.0.1"
    assert {rank: argv[1] for rank, argv in placement.prefixes.items()} == {
        1: "--net=/proc/1/fd/11",
        3: "--net=/proc/1/fd/14",
    }
    assert placement.environment == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert hosts.links is not None
    assert hosts.links["emulated"] == "root"
    first_behind = SlurmPlacement(system(emulation={"scale": 0.01}), composed(False, False), cluster())
    assert first_behind.place_step(TRAIN, 1).address == "198.18.0.2"


def test_emulated_ranks_on_local_devices_stand_behind_ports_of_their_own() -> None:
    """Descriptors: 10 is host1, 11 and 12 its own devices, 13 and 14 its fabric ports, 15 is host2."""
    emulated = system(emulation={"scale": 0.01})
    placement = SlurmPlacement(emulated, composed(True, False), cluster(local_gb_per_s=36.0)).place_step(TRAIN, 1)
    assert placement.address == "198.18.0.2"
    assert {rank: argv[1].rpartition("/")[2] for rank, argv in placement.prefixes.items()} == {
        0: "11", 1: "13", 2: "16", 3: "18",
    }  # fmt: skip


def test_one_program_cannot_stand_behind_several_ports_and_says_so() -> None:
    hosts = SlurmPlacement(system(emulation={"scale": 0.01}), composed(True, False), cluster())
    assert hosts.record_flags(MPI) == (NOT_CROSSED,)
    assert hosts.record_flags(TRAIN) == ()
    assert hosts.place_step(MPI, 1).prefixes == {}


def test_a_system_that_shall_be_emulated_on_real_hosts_says_that_it_is_not() -> None:
    hosts = SlurmPlacement(system(emulation={"scale": 0.01}), composed(True), None)
    assert hosts.links is not None
    assert hosts.links["emulated"] is None
    assert "campaign cluster up" in hosts.links["reason"]
    assert SlurmPlacement(system(), composed(True), None).links is None


@pytest.mark.parametrize(
    ("composition", "said"),
    [(composed(True), "needs device 2"), (composed(True, True, hosts=1), "host2: the run needs device 1")],
)
def test_a_rank_without_a_device_is_a_launch_error(composition: Composition, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        SlurmPlacement(system(), composition, None).place_step(TRAIN, 1)


def test_a_port_that_the_cluster_lacks_is_a_launch_error() -> None:
    hosts = SlurmPlacement(system(emulation={"scale": 0.01}), composed(False, False), cluster(ports=1))
    with pytest.raises(LaunchError, match="no port host1-fabric1"):
        hosts.place_step(TRAIN, 1)


def test_outside_of_a_job_there_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigError, match="does not run in one"):
        SrunLauncher(system(), composed(True))


def test_numbers_of_devices_are_in_the_order_of_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    # A machine without Slurm has no scontrol to ask.
    monkeypatch.setattr("campaign.slurm.srun.run_slurm_command", lambda *_: (0, "", ""))
    assert SrunLauncher(system(), composed(True))._build_environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"step-{case}.sh").write_text(made(case))


@pytest.mark.parametrize(
    ("job", "mib"),
    [
        ("NumNodes=2 NumCPUs=32 TRES=cpu=32,mem=32G,node=2,billing=32,gres/gpu=8 Socks/Node=*", 16384),
        ("ReqTRES=cpu=1,mem=1M,node=1 AllocTRES=cpu=4,mem=1536M,node=1", 1536),
        ("TRES=cpu=1,mem=0.5T,node=4", 131072),
        ("TRES=cpu=1,node=1", math.inf),
        ("", math.inf),
    ],
)
def test_the_memory_of_a_job_on_each_host(job: str, mib: float) -> None:
    assert parse_host_memory_mib(job) == mib
