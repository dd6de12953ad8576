"""Jobs that Slurm has started again: how often they may be, and when nobody waits for them any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.documents.driver_messages import DriverRequest
from campaign.errors import LaunchError
from campaign.paths import Results
from campaign.run.driver import Driver
from campaign.slurm import submitted_jobs
from campaign.slurm.submitted_jobs import Submitted


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Of a campaign whose lease `one` is measured by job 7."""
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    results = Results(tmp_path / "results", "study")
    submitted_jobs.write(results, Submitted("one", "7", "f", 1.0))
    return results


def test_a_first_start_is_always_wanted_though_its_job_is_not_written_down_yet(results: Results) -> None:
    submitted_jobs.remove(results, "one")
    submitted_jobs.check_restart(results, "one")
    assert submitted_jobs.restart_count() == 0


@pytest.mark.parametrize(
    ("count", "wanted"), [(1, True), (submitted_jobs.RESTARTS_MAX, True), (submitted_jobs.RESTARTS_MAX + 1, False)]
)
def test_a_job_is_not_started_again_for_ever(
    results: Results, monkeypatch: pytest.MonkeyPatch, count: int, wanted: bool
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(count))
    if wanted:
        submitted_jobs.check_restart(results, "one")
        assert submitted_jobs.restart_count() == count
    else:
        with pytest.raises(LaunchError, match=f"{count} times"):
            submitted_jobs.check_restart(results, "one")


@pytest.mark.parametrize(
    ("count", "another"), [(0, True), (submitted_jobs.RESTARTS_MAX - 1, True), (submitted_jobs.RESTARTS_MAX, False)]
)
def test_a_driver_asks_for_another_start_only_where_it_will_be_wanted(
    results: Results, monkeypatch: pytest.MonkeyPatch, count: int, another: bool
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(count))
    driver = Driver(DriverRequest("p.json", str(results.root), results.campaign, "one", "study.one.1", None, ()))
    if another:
        assert driver.checkpoint().function == driver
    else:
        with pytest.raises(LaunchError, match="which is the limit"):
            driver.checkpoint()


@pytest.mark.parametrize("job_id", ["8", "7_0", None])
def test_a_job_that_was_given_up_measures_nothing(
    results: Results, monkeypatch: pytest.MonkeyPatch, job_id: str | None
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    if job_id is None:
        submitted_jobs.remove(results, "one")
    else:
        submitted_jobs.write(results, Submitted("one", job_id, "f", 1.0))
    with pytest.raises(LaunchError, match="job 7 was given up"):
        submitted_jobs.check_restart(results, "one")


def test_a_task_of_an_array_knows_itself(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ARRAY_JOB_ID": "5", "ARRAY_TASK_ID": "2", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    submitted_jobs.write(results, Submitted("one", "5_2", "f", 1.0))
    submitted_jobs.check_restart(results, "one")
    submitted_jobs.write(results, Submitted("one", "5_1", "f", 1.0))
    with pytest.raises(LaunchError, match="job 5_2 was given up"):
        submitted_jobs.check_restart(results, "one")
