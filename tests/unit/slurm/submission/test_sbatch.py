"""What sbatch is called with, whatever the shell of the caller says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.run.driver import Driver
from campaign.slurm.job_submission import UnansweredSubmission, call_sbatch, without_personal_defaults
from tests.fake_slurm import FakeSlurm
from tests.unit.slurm.submission.login import ALIKE, login

PROGRAM = """#!{python} -IS
import json, os, sys
json.dump([sys.argv[1:], sorted(os.environ)], open({out!r}, "w"))
print({said!r})
"""
SAID = "sbatch: this site says: 12 hours at most\nSubmitted batch job 42 on cluster cluster1"


def submitted(tmp_path: Path, slurm: FakeSlurm, said: str) -> tuple[str, list[str], list[str]]:
    """Id of the job, arguments of sbatch, names of its environment."""
    out = tmp_path / "called"
    (slurm.bin / "sbatch").write_text(PROGRAM.format(python=sys.executable, out=str(out), said=said))
    here = login(tmp_path / "project", ALIKE)
    driver = Driver(here.request(here.leases()[0]))
    folder = tmp_path / "jobs"
    folder.mkdir()
    job_id = call_sbatch(folder, driver, {"job_name": "c/1x1", "time": 7}, "comment")
    assert (folder / f"{job_id}_submitted.pkl").exists()
    return job_id, *json.loads(out.read_text())


@pytest.mark.parametrize(
    "shell", [{}, {"SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "debug", "SLURM_HINT": "nomultithread"}]
)
def test_defaults_of_the_users_shell_change_no_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake_slurm: FakeSlurm,
    shell: dict[str, str],
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    job_id, argv, names = submitted(tmp_path, fake_slurm, SAID)
    assert job_id == "42"
    assert "#SBATCH --job-name=c/1x1" in Path(argv[0]).read_text()
    assert not {*shell} & {*names}
    assert {"SLURM_CONF", "PATH"} <= {*names}
    assert {*shell} <= {*os.environ}


def test_inside_of_a_job_its_own_variables_do_not_shape_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"SLURM_CPUS_PER_TASK": "64", "SLURM_CONF": "x", "SBATCH_QOS": "low"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with without_personal_defaults():
        assert {*job} & {*os.environ} == {"SLURM_CPUS_PER_TASK", "SLURM_CONF"}
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with without_personal_defaults():
        assert {*job, "SLURM_JOB_ID"} & {*os.environ} == {"SLURM_CONF"}
    assert {*job} <= {*os.environ}


@pytest.mark.parametrize("said", ["", "Submitted", "sbatch: error 12", "4x"])
def test_an_answer_without_a_number_is_not_guessed_at(tmp_path: Path, fake_slurm: FakeSlurm, said: str) -> None:
    with pytest.raises(UnansweredSubmission):
        submitted(tmp_path, fake_slurm, said)


def test_a_job_is_no_longer_than_its_partition_allows(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.put(longest="5:00")
    here = login(tmp_path, {**ALIKE, "system.slurm": {"partition": "gpu"}})
    here.submit(here.leases()[0])
    assert "#SBATCH --time=5\n" in fake_slurm.files()[0]


def test_a_time_limit_that_no_partition_allows_is_refused_with_both_numbers(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put(longest="5:00")
    here = login(tmp_path, {**ALIKE, "system.slurm": {"partition": "gpu", "time_min": 60}})
    with pytest.raises(ConfigError, match="time_min is 60 min, but partition gpu allows at most 5 min"):
        here.submit(here.leases()[0])
    assert fake_slurm.calls("sbatch") == []
