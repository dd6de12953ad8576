"""`campaign run --until`: Snakemake is started once a round, and what ends the one ends the other in good order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from campaign.cli import run as run_command
from campaign.cli import until
from campaign.cli.main import main
from campaign.files import acquire_lock
from campaign.insight import question_rounds
from campaign.paths import Results
from campaign.plan.dag import open_dag
from campaign.plan.write import write_plan
from tests.measured_rounds import ASSUMED, BEST, asked, measure, two_configurations


class _Snakemake:
    """In the place of Snakemake: measures what a plan of the campaign has, or ends with a code."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.code, self.measures, self.speed = asked(directory), 0, True, 1.0
        self.targets: list[str] = []
        self.last: list[str] = []
        monkeypatch.setattr(question_rounds, "decide", two_configurations)
        monkeypatch.setattr(until, "_run", self.run)
        monkeypatch.setattr(run_command.os, "execv", lambda _, command: self.last.extend(command))

    def run(self, targets: list[str], command: list[str]) -> int:
        self.targets.append(" ".join(targets))
        dag = open_dag(self.asked)
        assert dag.plan.is_mid_round, "a round was not written before it is measured"
        write_plan(dag.plan, dag.results)
        if self.measures and not self.code:
            measure(dag, self.speed)
        return self.code

    def campaign(self, *options: str) -> Result:
        given = [str(self.asked.campaign), f"--results={self.asked.results}", f"--assume={ASSUMED.text}"]
        return CliRunner().invoke(main, ["run", *given, "--until", BEST, *options])

    @property
    def rounds(self) -> list[str]:
        return sorted(path.name for path in Results(self.asked.results, "small").questions.rglob("*.json"))


@pytest.fixture
def snakemake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Snakemake:
    return _Snakemake(tmp_path, monkeypatch)


def test_snakemake_is_started_once_a_round_and_once_for_the_page(snakemake: _Snakemake) -> None:
    told = snakemake.campaign("--", "--quiet")
    assert told.exit_code == 0, told.output
    assert snakemake.targets == ["tables", "tables"]
    assert snakemake.rounds == ["round-01.json", "round-02.json", "round-03.json"]
    assert f"until={BEST}" in snakemake.last
    assert snakemake.last.index("--quiet") < snakemake.last.index("--config")
    words = " ".join(told.output.split())
    assert "round 1: 2 leases (" in words
    assert "round 2: 2 leases (" in words
    assert (
        f"until {BEST}: answered 1x1-fabric is the best, by 8 runs. Two compositions of each. 4 of 12 leases" in words
    )
    assert re.search(r"measured, 0.0800 of 0.\d+ device-hours \(\d+ %\), in 2 rounds$", words)
    again = snakemake.campaign()
    assert again.exit_code == 0
    assert len(snakemake.targets) == 2
    assert "is the best, by 8 runs" in again.output


def test_a_round_that_fails_is_the_one_that_the_same_command_goes_on_with(snakemake: _Snakemake) -> None:
    snakemake.code = 3
    for _ in range(2):
        told = snakemake.campaign()
        assert told.exit_code == 3
        assert "round 1 is not complete; the same command again goes on with it" in told.output
        assert snakemake.rounds == ["round-01.json"]
    assert snakemake.last == []
    snakemake.code, snakemake.measures = 0, False
    told = snakemake.campaign()
    assert told.exit_code == 1
    assert "error: round 1: runs of it have no record" in told.output
    snakemake.measures = True
    assert snakemake.campaign().exit_code == 0
    assert len(snakemake.rounds) == 3


def test_a_target_of_the_users_stands_alone(snakemake: _Snakemake) -> None:
    """Snakemake takes no targets from two places, and an option takes all words that follow it."""
    assert snakemake.campaign("--", "report").exit_code == 0
    assert snakemake.targets == ["", ""]


def test_records_that_were_set_aside_are_measured_before_the_question_is_answered_again(snakemake: _Snakemake) -> None:
    assert snakemake.campaign().exit_code == 0
    results = Results(snakemake.asked.results, "small")
    gone = next(results.records.glob("*/*.json"))
    gone.unlink()
    told = snakemake.campaign()
    assert told.exit_code == 0, told.output
    assert gone.exists()
    assert snakemake.targets == ["tables"] * 3
    assert len(snakemake.rounds) == 3, "the same measurements were weighed twice"
    gone.unlink()
    snakemake.speed = 1.01
    assert snakemake.campaign().exit_code == 0
    assert len(snakemake.rounds) == 4


def test_a_second_command_does_not_choose_beside_the_first(snakemake: _Snakemake) -> None:
    results = Results(snakemake.asked.results, "small")
    descriptor = acquire_lock(results.questions_lock)
    assert descriptor is not None
    told = snakemake.campaign()
    assert told.exit_code == 1
    assert "measures rounds of a question; wait for it, or end it" in " ".join(told.output.split())
    assert snakemake.rounds == snakemake.targets == []


def test_a_dry_run_is_snakemakes_and_a_job_runs_the_command_itself(
    snakemake: _Snakemake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert snakemake.campaign("-n").exit_code == 0
    assert f"until={BEST}" in snakemake.last
    assert "-n" in snakemake.last
    assert not snakemake.asked.results.exists()
    submitted: list[Any] = []
    monkeypatch.setattr(run_command, "submit_command", lambda command, *_: submitted.extend(command))
    assert snakemake.campaign("--submit", "--profile", "slurm", "--", "--quiet").exit_code == 0
    assert submitted[1:4] == ["-m", "campaign.cli", "run"]
    assert {f"--until={BEST}", f"--assume={ASSUMED.text}", "--profile=slurm"} <= set(submitted)
    assert submitted[-2:] == ["--", "--quiet"]
    assert "--submit" not in submitted


PROGRAM = """
import signal, sys, time
from pathlib import Path
def end(number, frame):
    time.sleep(0.5)  # longer than a waiting process would give it
    Path(sys.argv[1], "ended").write_text(str(number))
    sys.exit(20)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
Path(sys.argv[1], "began").touch()
time.sleep(30)
"""
CALL = "import sys; from campaign.cli.until import _run; sys.exit(_run(['all'], [sys.executable, *sys.argv[1:]]))"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_for_snakemake_and_waits_for_its_end(tmp_path: Path, number: signal.Signals) -> None:
    """The terminal sends Ctrl-C to both; SIGTERM is for the one that was started."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, "-c", CALL, str(program), str(tmp_path)], start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(timeout=20) == 20
    finally:
        process.kill()
    assert (tmp_path / "ended").read_text() == str(int(number))
