"""A campaign's own command as a job: what sbatch is given, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.common.errors import ConfigError, LaunchError
from campaign.common.paths import Results
from campaign.run.submitters import submit_command
from campaign.spec.system_file import SlurmOptions
from tests.campaign_files import write_files
from tests.fake_slurm import FakeSlurm

COMMAND = ["python", "-m", "snakemake", "--config", "where=batch > 8"]


def test_the_command_is_a_job_with_a_log_in_the_results(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    results = Results(tmp_path / "results", "c")
    said = submit_command(COMMAND, results, SlurmOptions(partition="long", account="abc", constraint="gpu"))
    (script,) = fake_slurm.files()
    assert script.splitlines()[-1] == "exec python -m snakemake --config 'where=batch > 8'"
    for option in ("--ntasks=1", "--partition=long", "--account=abc", "--requeue"):
        assert f"#SBATCH {option}\n" in script
    assert "constraint" not in script, "that is what leases ask for"
    assert said.startswith(f"submitted job 1, which logs to {results.logs.resolve()}/run.1.log")
    assert results.logs.is_dir()


def test_a_directory_with_a_line_break_is_refused(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match="contains a line break"):
        submit_command(COMMAND, Results(tmp_path / "re\nsults", "c"), SlurmOptions())
    assert fake_slurm.calls("sbatch") == []


def test_a_refusal_and_a_machine_without_slurm_are_said(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm.answer("Invalid account")
    with pytest.raises(LaunchError, match=r"sbatch refused .*run\.sh: .*Invalid account"):
        submit_command(COMMAND, Results(tmp_path, "c"), SlurmOptions())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="leave out --submit"):
        submit_command(COMMAND, Results(tmp_path, "c"), SlurmOptions())


def test_campaign_run_submits_itself_without_the_option(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    path = write_files(tmp_path)
    done = CliRunner().invoke(main, ["run", str(path), "--results", str(tmp_path / "results"), "--submit", "--", "-q"])
    assert done.exit_code == 0, done.output
    (script,) = fake_slurm.files()
    last = script.splitlines()[-1]
    assert f"campaign={path}" in last
    assert " -q " in last
    assert "--submit" not in last


def test_a_race_submits_the_command_that_goes_through_its_blocks(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    path = write_files(tmp_path)
    options = ["--until", "best", "--within", "7", "--profile", "local", "--submit", "--", "--jobs", "3"]
    done = CliRunner().invoke(main, ["run", str(path), "--results", str(tmp_path / "results"), *options])
    assert done.exit_code == 0, done.output
    (script,) = fake_slurm.files()
    command, _, snakemake = script.splitlines()[-1].partition(" -- ")
    assert f" -P -m campaign.cli run {path} --results={tmp_path / 'results'} --until=best --within=7" in command
    assert command.endswith("--profile=local")
    assert snakemake == "--jobs 3"
