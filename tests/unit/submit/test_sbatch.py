"""What sbatch is called with, whatever the shell of the caller says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from submitit.core.utils import FailedSubmissionError

from campaign.submit.sbatch import Sbatch, personal

PROGRAM = """#!{python} -IS
import json, os, sys
json.dump([sys.argv[1:], sorted(os.environ)], open({out!r}, "w"))
print("sbatch: this site says: 12 hours at most\\n42;cluster1")
"""


@pytest.mark.parametrize(
    "shell", [{}, {"SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "debug", "SLURM_HINT": "nomultithread"}]
)
def test_defaults_of_the_users_shell_change_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: dict[str, str]
) -> None:
    program, out = tmp_path / "bin" / "sbatch", tmp_path / "called"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, out=str(out)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    executor = Sbatch(folder=tmp_path / "jobs")
    executor.update_parameters(job_name="c/1x1", time=7)
    for numbers, expected in (([1], ["42"]), ([1, 2, 3], ["42_0", "42_1", "42_2"])):
        assert [job.job_id for job in executor.map_array(print, numbers)] == expected
        argv, names = json.loads(out.read_text())
        assert argv[0] == "--parsable"
        assert ("#SBATCH --array=0-2" in Path(argv[1]).read_text()) == (len(numbers) > 1)
        assert not {*shell} & {*names}
        assert {"SLURM_CONF", "PATH"} <= {*names}
        assert all((tmp_path / "jobs" / f"{job_id}_submitted.pkl").exists() for job_id in expected)


def test_inside_of_a_job_its_own_variables_do_not_shape_the_next() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "64", "SLURM_CONF": "x", "HOME": "/root", "SBATCH_QOS": "low"}
    assert list(personal(job)) == ["SBATCH_QOS", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID"]
    assert list(personal({"SLURM_CPUS_PER_TASK": "64"})) == []


@pytest.mark.parametrize("said", ["", "Submitted", "sbatch: error 12\n", "4x"])
def test_an_answer_without_a_number_is_not_guessed_at(said: str) -> None:
    with pytest.raises(FailedSubmissionError):
        Sbatch._get_job_id_from_submission_command(said)
