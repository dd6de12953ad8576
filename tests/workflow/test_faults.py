"""Whatever ends a campaign early: the same command again completes it, measures nothing twice and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.warm_start import Started
from tests.workflow.checkout_twin import TIME_OUT_S, Project, until

RUN_S = 0.4
RUNS = 3


def small(project: Project, *, repetitions: int = RUNS) -> int:
    """A campaign on fabric devices that takes a little while at every moment; gives its number of runs."""
    project.system(attach_s=0.5, detach_s=0.5)
    project.workload("logged", sleep_s=RUN_S)
    project.campaign(attach=["fabric"], repetitions=repetitions)
    return repetitions


def journal_states(project: Project) -> Counter[str]:
    text = "".join(path.read_text() for path in project.results_root.glob(".systems/*/leases/*.jsonl"))
    return Counter(part.split('"')[1] for part in text.split('"state": ')[1:])


MOMENTS: dict[str, Callable[[Project], int]] = {
    "composing": lambda project: journal_states(project)["COMPOSING"],
    "driver starts": lambda project: journal_states(project)["IN_USE"],
    "first run": lambda project: len(project.starts()),
    "between runs": lambda project: len(project.record_files()),
    "last run": lambda project: len(project.starts()) - RUNS + 1,
    "releasing": lambda project: journal_states(project)["DETACHING"],
}
"""How often each came, in a campaign that lacks `RUNS` runs."""


def start_until(project: Project, moment: str) -> Started:
    came, before = MOMENTS[moment], MOMENTS[moment](project)
    process = project.start("--until", "measure")
    until(lambda: came(project) > before or process.poll() is not None, TIME_OUT_S, project.said)
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


def test_a_signal_at_each_moment_stops_and_releases_at_once_and_the_next_command_goes_on(project: Project) -> None:
    """Ctrl-C, or the terminal is closed: one after the other, each with further runs to make."""
    for number, (moment, sent) in enumerate(
        [
            ("composing", signal.SIGINT),
            ("first run", signal.SIGINT),
            ("between runs", signal.SIGHUP),
            ("releasing", signal.SIGINT),
        ]
    ):
        small(project, repetitions=RUNS * (number + 1))
        process = start_until(project, moment)
        os.killpg(process.pid, sent)
        assert wait(process) != 0
        assert_clean(project)
    complete(project, RUNS * 4)


def test_sigterm_to_snakemake_finishes_the_lease_and_a_hang_up_of_it_alone_loses_nothing(project: Project) -> None:
    small(project)
    process = start_until(project, "first run")
    process.send_signal(signal.SIGTERM)
    wait(process)
    assert_clean(project)
    assert len(project.record_files()) == RUNS
    complete(project, RUNS)

    small(project, repetitions=2 * RUNS)
    process = start_until(project, "first run")
    process.send_signal(signal.SIGHUP)
    assert wait(process) != 0
    # What it started goes on; the next invocation waits for it.
    complete(project, 2 * RUNS)
    assert set(project.started().values()) == {1}


EVERYTHING: tuple[str, ...] = ()
KILLS = [
    ("composing", EVERYTHING),
    ("composing", ("snakemake",)),
    ("driver starts", EVERYTHING),
    ("first run", ("measure",)),
    ("first run", ("driver",)),
    ("between runs", EVERYTHING),
    ("first run", ("snakemake",)),
    ("last run", ("snakemake", "measure")),
    ("releasing", ("snakemake", "measure")),
]


def test_kill_9_at_each_moment_and_the_same_command_again(project: Project) -> None:
    """Whatever each kill left, the next command takes over, and makes further runs until it is killed itself."""
    finished: dict[Path, tuple[bytes, int]] = {}
    going_on: Counter[str] = Counter()
    for number, (moment, kinds) in enumerate(KILLS):
        small(project, repetitions=RUNS * (number + 1))
        process = start_until(project, moment)
        starts = project.started()
        assert going_on.items() <= starts.items(), "a run was started twice although its driver lived"
        project.kill(*kinds)
        wait(process)
        going_on = starts if kinds and not {"driver", "measure"} & set(kinds) else Counter()
        finished |= with_starts(project)
    complete(project, RUNS * len(KILLS))
    assert finished.items() <= with_starts(project).items(), "a finished record was changed or measured again"


def with_starts(project: Project) -> dict[Path, tuple[bytes, int]]:
    """The bytes of each record, and how often its run was started."""
    starts = project.started()
    return {path: (content, starts[path.stem]) for path, content in project.record_files().items()}


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
        lambda: "continuing with the existing driver" in project.said() or again.poll() is not None,
        TIME_OUT_S,
        project.said,
    )
    (project.directory / "starts.log.found").touch()
    assert wait(again) == 0, project.said()
    assert "continuing with the existing driver" in project.said()
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
def test_kills_at_random_moments(project: Project) -> None:
    runs = small(project, repetitions=8)
    moments = random.Random(20260730)
    choices = [(), ("snakemake",), ("measure",), ("snakemake", "measure"), ("driver",)]
    finished: dict[Path, tuple[bytes, int]] = {}
    for _ in range(5):
        process = project.start("--until", "measure")
        time.sleep(moments.uniform(0.3, 4.3))
        project.kill(*moments.choice(choices))
        project.kill("snakemake")
        wait(process)
        for path, known in with_starts(project).items():
            finished.setdefault(path, known)
    complete(project, runs)
    assert finished.items() <= with_starts(project).items()
