"""What hosts answer to a step that asks all of them, and what srun's complaints mean; texts are those of Slurm 22.05."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.slurm.run_on_hosts import (
    RetryBudget,
    build_srun_prefix,
    limit_retry_s,
    parse_answers,
    run_script_on_hosts,
    step_environment,
)

HOSTS = ("host1", "host2")
WHOLE = "a banner: of the site\ncampaign:host2:two: words\ncampaign:host1:\ncampaign:host2.\ncampaign:host1:one\ncampaign:host1.\n"
LAUNCH_FAILED = (
    "srun: error: Task launch for StepId=5.2 failed on node host2: Communication connection failure\n"
    "srun: error: Application launch failed: Communication connection failure\nsrun: Job step aborted\n"
)
NO_CONTROLLER = "srun: error: Unable to create step for job 5: Unable to contact slurm controller (connect failure)\n"
NO_MEMORY = "srun: error: Unable to create step for job 8: Memory required by task is not available\n"


def test_lines_are_by_host_and_only_those_of_the_script() -> None:
    answers = parse_answers(HOSTS, 0, WHOLE, "")
    assert answers.lines == {"host1": ("", "one"), "host2": ("two: words",)}
    assert not answers.problem
    assert not answers.failed


def test_a_host_that_does_not_come_to_the_end_has_failed() -> None:
    answers = parse_answers(HOSTS, 1, WHOLE.replace("campaign:host1.\n", ""), "srun: error: host1: task 0: Killed\n")
    assert list(answers.lines) == ["host2"]
    assert answers.failed == {"host1": "did not answer (srun: error: host1: task 0: Killed)"}


def test_a_host_that_slurm_names_is_blamed_and_no_other() -> None:
    answers = parse_answers(HOSTS, 1, "", LAUNCH_FAILED)
    assert answers.failed == {"host2": "Communication connection failure"}
    assert answers.problem


@pytest.mark.parametrize("words", [NO_CONTROLLER, NO_MEMORY, ""])
def test_a_step_that_slurm_refuses_is_no_hosts_fault(words: str) -> None:
    answers = parse_answers(HOSTS, 1, "", words)
    assert answers.problem == (words.strip() or "srun ended with exit code 1 and no message")
    assert not answers.failed


def test_a_controller_that_is_away_is_waited_for_longest_and_a_dead_host_or_job_not_at_all() -> None:
    assert limit_retry_s(NO_CONTROLLER) > limit_retry_s(NO_MEMORY) > 0
    assert limit_retry_s(LAUNCH_FAILED) == 0
    assert limit_retry_s("srun: error: Unable to create step for job 5: Job/step already completing or completed") == 0
    assert limit_retry_s("srun: error: host1: task 0: Exited with exit code 1") == 0


def test_a_controller_may_refuse_a_step_for_as_long_after_it_was_away_as_before() -> None:
    now = [0.0]
    patience = RetryBudget(clock=lambda: now[0])
    refused = "srun: error: Unable to create step for job 5: Requested node configuration is not available"
    assert patience.allows_retry(refused, 1.0)
    now[0] = 20.0
    assert not patience.allows_retry(refused, 1.0)
    assert patience.allows_retry(NO_CONTROLLER, 1.0)
    now[0] = 25.0
    assert patience.allows_retry(refused, 1.0)
    now[0] = 90.0
    # What a step has still whose end the controller was not told.
    assert patience.allows_retry(NO_MEMORY, 1.0)
    assert not patience.allows_retry(LAUNCH_FAILED, 1.0)


def test_patience_ends_whatever_the_controller_says() -> None:
    now = [0.0]
    patience = RetryBudget(30.0, clock=lambda: now[0])
    assert patience.allows_retry(NO_CONTROLLER, 1.0)
    now[0] = 29.5
    assert not patience.allows_retry(NO_CONTROLLER, 1.0)


def test_what_shapes_a_job_does_not_shape_its_steps() -> None:
    job = {
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_MEM_PER_CPU": "1024",
        "SLURM_CPUS_PER_TASK": "2",
        "SRUN_CPUS_PER_TASK": "2",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_CPU_BIND_LIST": "0x1",
        "SUBMITIT_EXECUTOR": "slurm",
    }
    kept = {
        "SLURM_JOB_ID": "5",
        "SLURM_JOB_NODELIST": "host[1-2]",
        "SLURM_CONF": "/x",
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
    }
    assert step_environment({**job, **kept}) == kept


def test_a_step_says_its_whole_shape() -> None:
    argv = build_srun_prefix({"a": 3, "b": 3})
    assert {"--nodes=2", "--nodelist=a,b", "--ntasks=6", "--ntasks-per-node=3", "--overlap"} <= set(argv)


def program(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A program in the place of srun."""
    path = directory / "srun"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


# The last two arguments of srun are the script's name and the script; for every host it is run as srun would.
AS_SRUN = 'while test "$1" != /bin/sh; do shift; done\nfor host in host1 host2; do SLURMD_NODENAME=$host "$@"; done\n'


@pytest.mark.parametrize("script", ["echo a; echo b >&2; printf c", "cat; echo a; exit 3"])
def test_the_script_is_run_and_all_that_it_prints_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    program(tmp_path, monkeypatch, AS_SRUN)
    said = subprocess.run(["sh", "-c", script], input="", capture_output=True, text=True, check=False)
    expected = tuple((said.stdout.removesuffix("c") + said.stderr).split()) + (("c",) if "printf" in script else ())
    assert run_script_on_hosts(HOSTS, script).lines == dict.fromkeys(HOSTS, expected)


def test_a_controller_that_comes_back_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = shlex.quote(NO_CONTROLLER)
    once = f"test -e {tmp_path}/asked || {{ touch {tmp_path}/asked; echo {away} >&2; exit 1; }}\n"
    program(tmp_path, monkeypatch, once + AS_SRUN)
    assert list(run_script_on_hosts(HOSTS, "true").lines) == list(HOSTS)
    (tmp_path / "asked").unlink()
    assert run_script_on_hosts(HOSTS, "true", max_retry_s=0).problem == NO_CONTROLLER.strip()


def test_a_step_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "exec sleep 60\n")
    assert "no answer for 0.2 s" in run_script_on_hosts(HOSTS, "true", timeout_s=0.2, max_retry_s=0).problem


def test_without_slurm_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="Slurm is not installed on this machine"):
        run_script_on_hosts(HOSTS, "true")
