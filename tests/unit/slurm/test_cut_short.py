"""A run that the time limit of its job ends although it was the first there: it is noted, recorded, and not started for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from campaign.common.processes.command import CompletedCommand
from campaign.slurm import cut_short
from campaign.slurm.cut_short import FirstRunFile


class Job:
    """What squeue says of the job that this process is in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said = "0:50|10:00"
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
        monkeypatch.setattr(
            cut_short, "run_slurm_command", lambda argv, timeout_s: CompletedCommand(0, f"{self.said}\n", "")
        )


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def begun(directory: Path, ran_s: float) -> FirstRunFile:
    first = FirstRunFile(directory)
    first.record_start("cell.1")
    document = json.loads(first.path.read_text())
    first.path.write_text(json.dumps({**document, "began_s": document["began_s"] - ran_s}))
    return first


@pytest.mark.parametrize(
    ("said", "ran_s", "cut"),
    [
        ("0:50|10:00", 540.0, True),
        ("2:00|10:00", 470.0, True),  # Slurm warns up to a minute early
        ("5:00|10:00", 290.0, False),  # preempted
        ("0:50|10:00", 5.0, False),  # not the first for long
        ("UNLIMITED|UNLIMITED", 540.0, False),
        ("", 540.0, False),
        ("slurm_load_jobs error: Unable to contact slurm controller", 540.0, False),
    ],
)
def test_a_time_limit_is_told_from_a_preemption(tmp_path: Path, job: Job, said: str, ran_s: float, cut: bool) -> None:
    first, job.said = begun(tmp_path, ran_s), said
    assert first.record_if_cut_short() is first.was_cut_short() is cut
    job.said = "10:00|10:00"
    assert bool(first.explain_no_retry("cell.1")) is cut


def test_what_an_earlier_job_or_a_finished_run_left_counts_for_nothing(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path, 540.0)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert not first.record_if_cut_short()
    first.record_start("cell.2")
    first.remove()
    assert not first.record_if_cut_short()
    assert first.explain_no_retry("cell.2") == ""


def test_it_is_started_again_in_a_longer_job_only(tmp_path: Path, job: Job) -> None:
    first = begun(tmp_path, 540.0)
    assert first.record_if_cut_short()
    assert "10 min (`slurm.time_min`)" in first.explain_no_retry("cell.1")
    assert first.explain_no_retry("cell.2") == ""
    job.said = "20:00|20:00"
    assert first.explain_no_retry("cell.1") == ""
