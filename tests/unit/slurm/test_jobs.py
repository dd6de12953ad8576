"""Which job measures which lease, and whether it is still expected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common import files
from campaign.common.paths import Results
from campaign.slurm import submitted_jobs
from campaign.slurm.submitted_jobs import SubmittedJob
from campaign.spec.driver_messages import DriverRequest
from tests.fake_slurm import FakeSlurm


def submitted(lease: str, job_id: str, folder: str, submitted_s: float, name: str = "study/one") -> SubmittedJob:
    request = DriverRequest("p.json", "/results", "study", lease, f"study.{lease}.1", None, (), "0" * 16)
    return SubmittedJob(request, job_id, folder, submitted_s, name)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results", "study")


@given(st.from_regex(r"\A[0-9]{1,9}\Z"), st.text(min_size=1, max_size=30), st.floats(0, 2e9))
def test_reading_gives_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, job_id: str, folder: str, time_s: float
) -> None:
    results = Results(tmp_path_factory.mktemp("r"), "study")
    job = submitted("1x2-local", job_id, folder, time_s)
    submitted_jobs.write(results, job)
    assert submitted_jobs.read(results, "1x2-local") == job


def test_only_what_was_written_and_not_removed_is_there(results: Results) -> None:
    assert submitted_jobs.read(results, "one") is None
    submitted_jobs.write(results, submitted("one", "1", "f", 1.0))
    submitted_jobs.write(results, submitted("one", "2", "f", 2.0))
    assert submitted_jobs.read(results, "two") is None
    assert submitted_jobs.read(results, "one") == submitted("one", "2", "f", 2.0)
    submitted_jobs.remove(results, "one")
    submitted_jobs.remove(results, "one")
    assert submitted_jobs.read(results, "one") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"lease": "one"}', '{"more": 1}'])
def test_a_damaged_file_is_no_job(results: Results, content: str) -> None:
    path = results.work_directory("one") / "job.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert submitted_jobs.read(results, "one") is None


def test_a_file_that_cannot_be_written_leaves_the_former_one(results: Results) -> None:
    submitted_jobs.write(results, submitted("one", "1", "f", 1.0))
    with pytest.raises(TypeError):
        files.write_json(results.work_directory("one") / "job.json", {"job_id": object()})
    assert [path.name for path in results.work_directory("one").iterdir()] == ["job.json"]
    assert submitted_jobs.read(results, "one") == submitted("one", "1", "f", 1.0)


def test_a_lease_is_expected_while_it_is_not_known_what_became_of_its_submission(results: Results) -> None:
    submitted_jobs.write(results, submitted("one", "", "f", 1.0))
    assert submitted_jobs.is_expected(results, "one", 0.0)
    assert submitted_jobs.read(results, "one") is None
    assert submitted_jobs.read_unanswered(results, "one") == submitted("one", "", "f", 1.0)
    assert not submitted_jobs.is_expected(results, "two", 0.0)


def test_a_job_is_expected_for_as_long_as_it_is_queued(results: Results, fake_slurm: FakeSlurm) -> None:
    assert not submitted_jobs.is_expected(results, "one", 0.0)
    job_id = fake_slurm.add("study/one")
    submitted_jobs.write(results, submitted("one", job_id, "f", 1.0))
    assert submitted_jobs.is_expected(results, "one", 0.0)
    fake_slurm.set(job_id, state="COMPLETED")
    assert not submitted_jobs.is_expected(results, "one", 0.0)
    fake_slurm.forget(job_id)
    assert not submitted_jobs.is_expected(results, "one", 0.0)


@pytest.mark.parametrize(
    ("comment", "name", "ours"),
    [
        ("python=x token=a1", "study/one", True),
        ("python=x token=a1 and a word of the site", "study/one", True),
        ("python=x token=b2", "study/one", False),
        ("", "other", False),
        ("", "study/one", True),
    ],
)
def test_a_job_is_known_by_its_token_and_not_by_its_number(
    results: Results, fake_slurm: FakeSlurm, comment: str, name: str, ours: bool
) -> None:
    job_id = fake_slurm.add(name, comment=comment)
    submitted_jobs.write(results, submitted("one", job_id, "jobs/a1", 1.0))
    assert submitted_jobs.is_expected(results, "one", 0.0) == ours


def test_a_job_is_expected_while_nobody_can_tell(
    results: Results, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted_jobs.write(results, submitted("one", "12", "f", 1.0))
    fake_slurm.reachable(False)
    assert submitted_jobs.is_expected(results, "one", 0.0)
    monkeypatch.setenv("PATH", "")
    assert submitted_jobs.is_expected(results, "one", 0.0)
