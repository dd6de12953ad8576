"""Whatever ends a campaign early: the same command again completes it, measures nothing twice and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.warm_start import Started
from tests.workflow.checkout_twin import TIME_OUT_S, Project, until

RUN_S = 0.4


def small(project: Project, *, repetitions: int = 3) -> int:
    """A campaign on fabric devices that takes a little while at every moment; gives its number of runs."""
    project.system(attach_s=0.5, detach_s=0.5)
    project.workload("logged", sleep_s=RUN_S)
    project.campaign(attach=["fabric"], repetitions=repetitions)
    return repetitions


def journal_states(project: Project) -> list[str]:
    text = "".join(path.read_text() for path in project.results_root.glob(".systems/*/leases/*.jsonl"))
    return [part.split('"')[1] for part in text.split('"state": ')[1:]]


MOMENTS: dict[str, Callable[[Project], bool]] = {
    "composing": lambda project: "COMPOSING" in journal_states(project),
    "driver starts": lambda project: "IN_USE" in journal_states(project),
    "first run": lambda project: len(project.starts()) == 1,
    "between runs": lambda project: len(project.record_files()) >= 1,
    "last run": lambda project: len(project.starts()) >= 3,
    "releasing": lambda project: "DETACHING" in journal_states(project),
}


def start_until(project: Project, moment: str) -> Started:
    process = project.start("--until", "measure")
    until(lambda: MOMENTS[moment](project) or process.poll() is not None, TIME_OUT_S, project.said)
    assert process.poll() is None, project.said()
    return process


def wait(process: Started) -> int:
    return process.wait(TIME_OUT_S)


def assert_clean(project: Project) -> None:
    project.await_quiet()
    assert project.held() == {}


def complete(project: Project, runs: int) -> None:
    """The same command again, with nothing cleared by hand, and what must be true afterwards."""
    before, started = project.record_files(), project.started()
    project.measure()
    after = project.record_files()
    assert len(after) == runs
    assert {path: after[path] for path in before} == before, "a finished record was lost or changed"
    for path in before:
        assert project.started()[path.stem] == started[path.stem], f"{path.stem} was measured again"
    last = {start.run: start.time_s for start in project.starts()}
    records = project.records()
    for record in records:
        # The record is that of the last start of its run.
        assert record.started - 1 < last[f"{record.cell_id}.{record.repetition}"] < record.ended
    ordered = sorted(records, key=lambda record: record.started)
    assert all(one.ended <= other.started for one, other in pairwise(ordered))
    documents = {document["lease_id"] for document in project.leases()}
    assert {record.lease_id for record in records} <= documents, "a record's lease has no document"
    assert_clean(project)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("composing", signal.SIGINT, marks=pytest.mark.slow),
        ("first run", signal.SIGINT),
        ("between runs", signal.SIGHUP),
        pytest.param("releasing", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_group_stops_and_releases_at_once(project: Project, moment: str, number: int) -> None:
    """Ctrl-C, or the terminal is closed."""
    runs = small(project)
    process = start_until(project, moment)
    os.killpg(process.pid, number)
    assert wait(process) != 0
    assert_clean(project)
    complete(project, runs)


def test_sigterm_to_snakemake_finishes_the_lease(project: Project) -> None:
    runs = small(project)
    process = start_until(project, "first run")
    process.send_signal(signal.SIGTERM)
    wait(process)
    assert_clean(project)
    assert len(project.record_files()) == runs
    complete(project, runs)
    assert set(project.started().values()) == {1}


def test_a_hang_up_of_snakemake_alone_loses_nothing(project: Project) -> None:
    runs = small(project)
    process = start_until(project, "first run")
    process.send_signal(signal.SIGHUP)
    assert wait(process) != 0
    # What it started goes on; the next invocation waits for it.
    complete(project, runs)
    assert set(project.started().values()) == {1}


EVERYTHING: tuple[str, ...] = ()
KILLS = [
    ("composing", EVERYTHING),
    ("between runs", EVERYTHING),
    ("first run", ("measure",)),
    ("first run", ("driver",)),
    ("releasing", ("snakemake", "measure")),
]
MORE_KILLS = [
    ("composing", ("snakemake",)),
    ("driver starts", EVERYTHING),
    ("first run", ("snakemake",)),
    ("last run", ("snakemake", "measure")),
]


@pytest.mark.parametrize(
    ("moment", "kinds"),
    [
        *(pytest.param(*kill, id=f"{kill[0]}-{'+'.join(kill[1]) or 'everything'}") for kill in KILLS),
        *(
            pytest.param(*kill, id=f"{kill[0]}-{'+'.join(kill[1]) or 'everything'}", marks=pytest.mark.slow)
            for kill in MORE_KILLS
        ),
    ],
)
def test_kill_9_and_the_same_command_again(project: Project, moment: str, kinds: tuple[str, ...]) -> None:
    runs = small(project)
    process = start_until(project, moment)
    project.kill(*kinds)
    wait(process)
    complete(project, runs)
    if kinds and "driver" not in kinds and "measure" not in kinds:
        assert set(project.started().values()) == {1}


def test_kill_9_between_compositions_and_the_same_command_again(project: Project) -> None:
    project.system(attach_s=0.5, detach_s=0.5)
    project.workload("logged", sleep_s=RUN_S)
    project.campaign(attach=["local", "fabric"], repetitions=4, compositions=2)
    process = project.start("--until", "measure")
    until(lambda: len(project.record_files()) >= 5 or process.poll() is not None, TIME_OUT_S, project.said)
    project.kill()
    wait(process)
    complete(project, 8)
    by_lease: dict[str, set[int]] = {}
    for record in project.records():
        by_lease.setdefault(record.cell.configuration, set()).add(record.repetition)
    assert by_lease == {key: {1, 2, 1001, 1002} for key in ("1x1-local", "1x1-fabric")}


def test_a_driver_that_lost_its_invocation_is_found_again(project: Project) -> None:
    project.system(attach_s=0.5, detach_s=0.5)
    # Runs last until the driver was found, however long Snakemake takes to start.
    project.workload("logged", body='echo rate: 10; while [ ! -e "$STARTS.found" ]; do sleep 0.1; done')
    project.campaign(attach=["fabric"], repetitions=4)
    process = start_until(project, "first run")
    project.kill("snakemake", "measure")
    wait(process)
    assert len(project.pids("driver")) == 1
    again = project.start("--until", "measure")
    until(
        lambda: "found its driver still there" in project.said() or again.poll() is not None, TIME_OUT_S, project.said
    )
    (project.directory / "starts.log.found").touch()
    assert wait(again) == 0, project.said()
    assert "found its driver still there" in project.said()
    assert len(project.record_files()) == 4
    assert set(project.started().values()) == {1}, "a run was started twice although its driver lived"
    assert {document["adoptions"] for document in project.leases()} == {1}
    assert_clean(project)


def test_a_run_that_outlives_its_driver_does_not_disturb_the_next(project: Project) -> None:
    project.workload("logged", body='echo rate: 10; if mkdir "$STARTS.hung"; then sleep 600; fi')
    project.campaign(repetitions=2)
    process = start_until(project, "first run")
    until((project.directory / "starts.log.hung").exists, TIME_OUT_S, project.said)
    project.kill("snakemake", "measure", "driver")
    wait(process)
    left = project.pids("run")
    assert left, "the run died with its driver"
    complete(project, 2)
    assert not set(project.pids("run")) & set(left)


@pytest.mark.slow
def test_eight_kills_at_random_moments(project: Project) -> None:
    runs = small(project, repetitions=8)
    moments = random.Random(20260730)
    choices = [(), ("snakemake",), ("measure",), ("snakemake", "measure"), ("driver",)]
    finished: dict[Path, tuple[bytes, int]] = {}
    for _ in range(8):
        process = project.start("--until", "measure")
        time.sleep(moments.uniform(1.0, 5.0))
        project.kill(*moments.choice(choices))
        project.kill("snakemake")
        wait(process)
        starts = project.started()
        for path, content in project.record_files().items():
            finished.setdefault(path, (content, starts[path.stem]))
    complete(project, runs)
    records, starts = project.record_files(), project.started()
    assert {path: (records[path], starts[path.stem]) for path in finished} == finished
