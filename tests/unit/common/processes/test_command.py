from __future__ import annotations

import time

import pytest

from campaign.common.processes.command import TIMEOUT_EXIT_CODE, CompletedCommand, run_command


def test_a_command_gives_its_exit_code_and_what_it_printed() -> None:
    assert run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], 5) == CompletedCommand(3, "out\n", "err\n")
    assert run_command(["sh", "-c", "echo $A"], 5, {"A": "b"}).out == "b\n"
    assert run_command(["sh", "-c", "kill -9 $$"], 5).code == -9


def test_what_was_printed_before_a_time_out_is_kept() -> None:
    found = run_command(["sh", "-c", "echo first; sleep 60"], 0.3)
    assert (found.code, found.out) == (TIMEOUT_EXIT_CODE, "first\n")
    assert found.err == "sh: no answer for 0.3 s"


def test_children_that_keep_the_output_open_do_not_outlast_a_time_out() -> None:
    started = time.monotonic()
    assert run_command(["sh", "-c", "sleep 60 & sleep 60"], 0.3).code == TIMEOUT_EXIT_CODE
    assert time.monotonic() - started < 10


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        run_command(["/not/there"], 5)
