from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.common.processes.command import TIMEOUT_EXIT_CODE
from campaign.slurm.commands import SHOW_HIDDEN, SlurmCommands, build_command_environment
from campaign.slurm.run_on_hosts import run_slurm_command


def test_an_answer_and_its_line_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "not" / "there" / "calls.jsonl"
    slurm = SlurmCommands(log)
    answer = slurm("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (answer.code, answer.out, answer.err, answer.is_success) == (3, "out\n", "err\n", False)
    assert answer.last_error_line == "err"
    slurm("true")
    first, second = map(json.loads, log.read_text().splitlines())
    assert (first["argv"], first["code"]) == (["sh", "-c", "echo out; echo err >&2; exit 3"], 3)
    assert (second["argv"], second["code"]) == (["true"], 0)
    assert second["time_s"] >= first["time_s"] >= 0
    assert first["seconds"] >= 0


def test_a_call_of_somebody_else_is_counted(tmp_path: Path) -> None:
    slurm = SlurmCommands(tmp_path / "log")
    slurm.log_call(("sbatch", "name", "3"), 1.5, 0.25, 1)
    assert json.loads((tmp_path / "log").read_text()) == {
        "time_s": 1.5,
        "argv": ["sbatch", "name", "3"],
        "seconds": 0.25,
        "code": 1,
    }


def test_a_log_that_cannot_be_written_does_not_end_a_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert SlurmCommands(tmp_path / "file" / "log")("echo", "there").out == "there\n"


def test_no_slurm_says_what_to_do_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"squeue: Slurm is not installed on this machine.*snakemake --profile local"):
        SlurmCommands()("squeue", "--me")


def test_a_program_that_may_not_be_started_is_no_slurm(tmp_path: Path) -> None:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\n")
    program.chmod(stat.S_IRUSR)
    with pytest.raises(ConfigError, match="Slurm is not installed on this machine"):
        SlurmCommands()(str(program))


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    slurm = SlurmCommands(tmp_path / "log")
    before_s = time.monotonic()
    answer = slurm("sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60", timeout_s=0.5)
    assert answer.code == TIMEOUT_EXIT_CODE
    assert "no answer for 0.5 s" in answer.last_error_line
    assert time.monotonic() - before_s < 30
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    assert json.loads((tmp_path / "log").read_text())["code"] == TIMEOUT_EXIT_CODE


def test_words_that_are_not_utf8_are_read() -> None:
    assert SlurmCommands()("printf", r"na\377me").out == "na\ufffdme"


def test_silence_has_words_too() -> None:
    assert SlurmCommands()("false").last_error_line == "exit status 1, no message"


def test_ctrl_c_in_the_terminal_does_not_reach_a_command() -> None:
    answer = SlurmCommands()("sh", "-c", "ps -o pgid= -p $$ || cut -d' ' -f5 /proc/$$/stat")
    assert int(answer.out.split()[0]) != os.getpgrp()


def test_personal_defaults_do_not_change_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = build_command_environment(
        {"SQUEUE_STATES": "PD", "SACCT_FORMAT": "x", "SLURM_CONF": "/c", "SLURM_TIME_FORMAT": "relative"}
    )
    assert kept == {**SHOW_HIDDEN, "SLURM_CONF": "/c", "SLURM_TIME_FORMAT": "standard"}
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    assert SlurmCommands()("sh", "-c", 'echo "${SQUEUE_FORMAT-unset}"').out == "unset\n"


@pytest.mark.parametrize("program", ["SQUEUE", "SINFO", "SCONTROL"])
def test_every_query_shows_hidden_partitions(program: str) -> None:
    script = f'echo "${{{program}_ALL-unset}}"'
    assert SlurmCommands()("sh", "-c", script).out == "1\n"
    assert run_slurm_command(["sh", "-c", script], 60.0).out == "1\n"


def test_a_waiting_process_loads_little() -> None:
    asked = SlurmCommands()(
        sys.executable,
        "-c",
        "import sys, campaign.slurm.job_state, campaign.slurm.refusal; "
        "heavy = ('pydantic', 'submitit', 'yaml', 'numpy', 'torch', 'campaign.plan.campaign'); "
        "print([name for name in heavy if name in sys.modules])",
    )
    assert (asked.code, asked.out) == (0, "[]\n")
