"""A campaign that runs asks Slurm little, however large it is: counted on a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from campaign.slurm import job_monitor, job_parameters, job_queue
from campaign.slurm.slurm_submitter import SlurmSubmitter
from campaign.slurm.submitter import Submission
from campaign.spec.system_file import SlurmSettings
from tests.fake_slurm import PROGRAMS, FakeSlurm
from tests.unit.slurm.submission.login import ALIKE, Login, login

MINUTES = 10
START_S = 1.5  # from one process to the next one, on a busy login node
LOOK_S = 10.0  # of each process at its result; real ones look more often, which changes no count


class Clock:
    """The time of the test; calls_s: when each of Slurm's commands but sbatch was called."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.now_s = time.time()
        self.slurm = slurm
        self.calls_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        called = sum(len(self.slurm.calls(program)) for program in PROGRAMS if program != "sbatch")
        self.calls_s += [self.now_s] * (called - len(self.calls_s))
        self.now_s += seconds


def count_calls_in_worst_minute(times_s: Iterable[float]) -> int:
    """Count the most calls in any 60 s."""
    ordered = sorted(times_s)
    return max((sum(start <= time_s < start + 60.0 for time_s in ordered) for start in ordered), default=0)


def picked_up(here: Login, slurm: FakeSlurm, clock: Clock) -> list[tuple[SlurmSubmitter, Submission]]:
    """All leases, whose jobs run, each found by the submitter of a process of its own, as after a kill of all of them."""
    for lease in here.leases():
        here.submit(lease)
    for job_id in slurm.jobs():
        slurm.set(job_id, state="RUNNING", reason="None", hosts="host1")
    waiting = []
    for lease in here.leases():
        submitter = here.submitter()
        submitter.poll.clock = clock
        clock.advance(START_S)
        found = submitter.find(lease)
        assert found is not None
        waiting.append((submitter, found))
    return waiting


@pytest.mark.parametrize("leases", [3, 40])
def test_a_running_campaign_of_any_size_costs_at_most_six_calls_a_minute(
    leases: int, tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(fake_slurm)
    batches = list(range(1, leases + 1))
    poll_s = SlurmSettings().poll_s
    here = login(
        tmp_path,
        {**ALIKE, "campaign.configurations": [{"devices_per_host": 2}], "campaign.axes.batch": batches},
        poll_s=poll_s,
    )
    time_of_test = SimpleNamespace(time=clock, monotonic=time.monotonic, sleep=lambda seconds: None)
    for module in (job_monitor, job_parameters, job_queue):
        monkeypatch.setattr(module, "time", time_of_test)
    waiting = picked_up(here, fake_slurm, clock)
    # One that the queue has forgotten is asked for in the accounting.
    fake_slurm.forget(waiting.pop()[1].job_id)
    for _ in range(round(60 * MINUTES / LOOK_S)):
        clock.advance(LOOK_S)
        assert all(submitter.check_driver(submission).alive for submitter, submission in waiting)
    clock.advance(0.0)
    assert count_calls_in_worst_minute(clock.calls_s) <= 6
    # It has looked, too.
    assert len(fake_slurm.calls("squeue")) >= 60 * MINUTES / poll_s - 1


@pytest.mark.parametrize(
    ("times_s", "most"), [([], 0), ([5.0], 1), ([0.0, 30.0, 60.0, 90.0], 2), ([0.0, 59.9, 118.0, 118.5, 119.0], 4)]
)
def test_calls_are_counted_in_the_worst_minute(times_s: list[float], most: int) -> None:
    assert count_calls_in_worst_minute(reversed(times_s)) == most
