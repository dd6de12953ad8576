"""Wrappers of ranks that lie, as real processes: what counts is which ranks started and ended, whatever the wrapper's exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.run.launched_run import LaunchedRun
from campaign.run.launchers import open_launcher
from campaign.workloads.command import CommandWorkload
from campaign.workloads.launcher import StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome
from tests.campaign_files import one_cell, one_run
from tests.unit.run.launch.compositions import composition, system

# Words of the wrapper up to the shell that marks a rank, and then two ranks as mpirun starts them.
TO_RANKS = 'while test "$1" != sh; do shift; done\n'
TWO = (
    TO_RANKS
    + 'OMPI_COMM_WORLD_RANK=0 "$@" & one=$!\nOMPI_COMM_WORLD_RANK=1 "$@" & two=$!\nwait $one; a=$?; wait $two; b=$?\n'
)
ONE = TO_RANKS + '"$@"; a=$? b=0\n'
HONEST = "test $a = 0 || exit $a; exit $b"
MPIRUN = {"launch": "mpirun"}
CONDA = {"software": {"conda": "ml"}}
IMAGE = {"software": {"apptainer": {"image": "/a.sif"}}}
TORCHRUN = {"launch": "torchrun"}
WELL = "echo rate: 5"
Measured = Callable[..., Outcome]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Measure a program of two ranks on this machine, behind a wrapper that is this shell script."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def measure(keys: dict[str, Any], wrapper: str, program: str = WELL) -> Outcome:
        names = {"mpirun": "mpirun", "torchrun": "torchrun"}
        name = names.get(keys.get("launch", ""), next(iter(keys.get("software", {"": ""}))))
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{wrapper}\n")
        path.chmod(0o755)
        document = {"name": "p", "kind": "command", "precisions": ["fp32"], **keys}
        parsers = [{"metric": "throughput_per_s", "regex": r"rate: (\S+)", "take": "sum"}]
        words = program.split() if program == "/no/such/program" else ["/bin/sh", "-c", program]
        file = CommandWorkload.model_validate({**document, "command": words, "parsers": parsers})
        run = one_run(tmp_path / "run", one_cell(hosts=1, devices=2))
        launcher = open_launcher("local", system(), composition((2, 0)))
        try:
            launched = LaunchedRun(launcher, file, run, f"test-{tmp_path}", tmp_path / "log", StepLimits(60.0))
            ended = launched.execute(file.step(run))
        finally:
            launcher.close()
        return file.read(run, ended, Log(tmp_path / "log"))

    return measure


@pytest.mark.parametrize(
    ("keys", "wrapper", "message"),
    [
        (MPIRUN, "exit 0", "mpirun started 0 of 2 ranks and ended with exit code 0"),
        (MPIRUN, "echo no slots; exit 1", "mpirun started 0 of 2 ranks and ended with exit code 1 (no slots)"),
        (MPIRUN, "exit 137", "mpirun started 0 of 2 ranks and ended with exit code 137"),
        (MPIRUN, ONE + "exit 0", "mpirun started 1 of 2 ranks"),
        (MPIRUN, ONE + "exit 213", "mpirun started 1 of 2 ranks"),
        (MPIRUN, TWO + "exit 255", "mpirun failed after all 2 ranks had ended with exit code 0"),
        (CONDA, "exit 0", "conda started 0 of 1 ranks"),
        (CONDA, "echo EnvironmentLocationNotFound >&2; exit 1", "conda started 0 of 1 ranks .* (EnvironmentLocationNotFound)"),
        (IMAGE, "echo FATAL: container creation failed; exit 255", "(FATAL: container creation failed)"),
        (IMAGE, "exit 125", "apptainer started 0 of 1 ranks and ended with exit code 125"),
        (TORCHRUN, "echo torch.distributed.RendezvousTimeoutError: late; exit 1", "started no rank: RendezvousTimeoutError"),
    ],
)  # fmt: skip
def test_no_start_or_end_of_a_rank_is_no_result_of_the_workload(
    keys: dict[str, Any], wrapper: str, message: str, measured: Measured
) -> None:
    with pytest.raises(LaunchError) as told:
        measured(keys, wrapper)
    for part in message.split(" .* "):
        assert part in str(told.value)


def test_a_rank_that_was_lost_under_a_wrapper_that_ends_well_is_no_result(measured: Measured) -> None:
    # The rank and the shell around it are killed together, as with a lost host.
    with pytest.raises(LaunchError, match="2 of 2 ranks of mpirun did not end"):
        measured(MPIRUN, TWO + "exit 0", "echo rate: 5; kill -9 $PPID")


@pytest.mark.parametrize("keys", [MPIRUN, CONDA, IMAGE])
def test_a_program_that_is_not_where_the_ranks_are_is_no_result(keys: dict[str, Any], measured: Measured) -> None:
    with pytest.raises(LaunchError, match="did not find the program /no/such/program in"):
        measured(keys, (TWO if keys is MPIRUN else ONE) + HONEST, "/no/such/program")


@pytest.mark.parametrize("code", [1, 125, 126, 127, 137, 255])
@pytest.mark.parametrize(("keys", "ranks"), [(MPIRUN, TWO), (CONDA, ONE), (IMAGE, ONE)])
def test_a_rank_that_fails_is_the_workloads_failure_whatever_the_wrapper_says(
    keys: dict[str, Any], ranks: str, code: int, measured: Measured
) -> None:
    for says in (HONEST, "exit 0"):
        outcome = measured(keys, ranks + says, f"echo rate: 5; exit {code}")
        assert outcome.status == "crashed"


def test_what_the_ranks_end_by_themselves_stays_their_failure(measured: Measured) -> None:
    killed = "echo 'MPI_ABORT was invoked on rank 0'; kill -9 $PPID"
    assert measured(MPIRUN, TWO + "exit 1", killed).status == "crashed"
    improper = "echo mpirun has exited: rank 0 exiting improperly; exit 1"
    assert measured(MPIRUN, TWO + improper).status == "crashed"
    failed = "echo RendezvousClosedError; echo ChildFailedError; exit 1"
    assert measured(TORCHRUN, failed).status == "crashed"


@pytest.mark.parametrize(("keys", "ranks", "rate"), [(MPIRUN, TWO, 10.0), (CONDA, ONE, 5.0), (IMAGE, ONE, 5.0)])
def test_an_honest_wrapper_changes_nothing(keys: dict[str, Any], ranks: str, rate: float, measured: Measured) -> None:
    outcome = measured(keys, ranks + HONEST)
    assert (outcome.status, outcome.throughput_per_s) == ("ok", rate)


def test_an_image_that_does_not_show_the_runs_directory_is_no_failure(measured: Measured) -> None:
    hidden = TO_RANKS + 'a=$1 b=$2 c=$3 d=$4; shift 5; exec "$a" "$b" "$c" "$d" /not/there "$@"'
    assert measured(IMAGE, hidden).status == "ok"
