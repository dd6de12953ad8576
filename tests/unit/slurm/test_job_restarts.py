"""Jobs that Slurm has started again: how often they may be, and when nobody waits for them any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.common.errors import LaunchError
from campaign.common.paths import Results
from campaign.run.driver import Driver
from campaign.slurm import submitted_jobs
from campaign.slurm.submitted_jobs import SubmittedJob
from campaign.slurm.submitter import ReportingDriver
from campaign.spec.driver_messages import DriverRequest


def request(token: str = "a1") -> DriverRequest:
    return DriverRequest("p.json", "/results", "study", "one", "study.one.1", None, (), token)


def submitted(token: str) -> SubmittedJob:
    return SubmittedJob(request(token), "7", "f", 1.0, "study/one")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Of a campaign whose lease `one` is measured by job 7."""
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    results = Results(tmp_path / "results", "study")
    submitted_jobs.write(results, submitted("a1"))
    return results


def test_a_first_start_is_always_wanted_though_its_job_is_not_written_down_yet(results: Results) -> None:
    submitted_jobs.remove(results, "one")
    submitted_jobs.check_restart(results, request())
    assert submitted_jobs.count_restarts() == 0


@pytest.mark.parametrize(
    ("count", "wanted"), [(1, True), (submitted_jobs.MAX_RESTARTS, True), (submitted_jobs.MAX_RESTARTS + 1, False)]
)
def test_a_job_is_not_started_again_for_ever(
    results: Results, monkeypatch: pytest.MonkeyPatch, count: int, wanted: bool
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(count))
    if wanted:
        submitted_jobs.check_restart(results, request())
        assert submitted_jobs.count_restarts() == count
    else:
        with pytest.raises(LaunchError, match=f"{count} times"):
            submitted_jobs.check_restart(results, request())


@pytest.mark.parametrize(
    ("count", "another"), [(0, True), (submitted_jobs.MAX_RESTARTS - 1, True), (submitted_jobs.MAX_RESTARTS, False)]
)
def test_a_driver_asks_for_another_start_only_where_it_will_be_wanted(
    results: Results, monkeypatch: pytest.MonkeyPatch, count: int, another: bool
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(count))
    driver = ReportingDriver(Driver(request()), results.root)
    if another:
        assert driver.checkpoint().function == driver
    else:
        with pytest.raises(LaunchError, match="which is the limit"):
            driver.checkpoint()


@pytest.mark.parametrize("token", ["b2", None])
def test_a_job_that_was_given_up_measures_nothing(
    results: Results, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """Whatever its number: that of the job that measures now may be the same."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    if token is None:
        submitted_jobs.remove(results, "one")
    else:
        submitted_jobs.write(results, submitted(token))
    with pytest.raises(LaunchError, match="job 7 was given up"):
        submitted_jobs.check_restart(results, request())
