from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.workloads.command import CommandWorkload
from campaign.workloads.command_template import RESERVED_NAMES, check_template, collect_template_values, fill_template
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers.reading import NO_END_MARK
from campaign.workloads.protocol import Outcome, StepEnd
from tests.campaign_files import one_cell, one_run
from tests.unit.workloads.parsed import LOGS

RATE = {"metric": "throughput_per_s", "regex": r"rate: (\S+)"}
STEPS = {"metric": "step_time_s", "regex": r"step: (\S+)", "take": "all"}


def workload(**values: Any) -> CommandWorkload:
    document = {"name": "p", "kind": "command", "precisions": ["fp32"], "command": ["run"], **values}
    return CommandWorkload.model_validate(document)


def outcome(tmp_path: Path, log: str, codes: tuple[int | None, ...] = (0,), *parsers: Any, **ended: Any) -> Outcome:
    run = one_run(tmp_path / "run", one_cell(hosts=2, devices=2, batch=4))
    return workload(parsers=parsers or [RATE]).read(run, StepEnd(codes, 0.0, 1.0, **ended), Log.from_text(log))


def test_values_of_the_run_are_filled_in(tmp_path: Path) -> None:
    file = workload(
        command=["run", "-b{batch}", "{precision}:{ranks}:{size}", "{{braces}}"],
        environment={"N": "{hosts}x{devices_used}", "SEED": "{seed}"},
        options={"size": 3},
        launch="per_rank",
    )
    step = file.step(one_run(tmp_path, one_cell(hosts=2, devices=3)))
    assert step.argv == ("run", "-b4", "fp32:6:3", "{braces}")
    assert dict(step.environment) == {"N": "2x3", "SEED": "1234"}
    assert dict(step.ranks_by_host) == {"host1": 3, "host2": 3}
    assert step.per_rank
    assert step.preload is None


def test_an_axis_replaces_the_default_of_an_option(tmp_path: Path) -> None:
    step = workload(command=["run", "{size}"], options={"size": 3}).step(
        one_run(tmp_path, one_cell(options={"size": 9}))
    )
    assert step.argv == ("run", "9")


def test_exactly_the_documented_names_can_be_filled_in() -> None:
    assert set(collect_template_values({"size": 3}, one_cell(), 1)) == RESERVED_NAMES | {"size"}


def test_the_workload_says_which_test_of_its_output_counts(tmp_path: Path) -> None:
    log, run = Log(LOGS / "lammps/two-runs-real-units.log"), one_run(tmp_path / "run", one_cell(hosts=1, devices=2))
    ended = StepEnd((0,), 0.0, 1.0)
    refused = workload(parser="lammps").read(run, ended, log)
    assert (refused.status, refused.metrics) == ("invalid", {})
    assert refused.failure is not None
    assert "such as 'test: last'" in refused.failure.reason
    for test, number in (("last", 0.092), (1, 0.090)):
        assert workload(parser="lammps", test=test).read(run, ended, log).metrics["simulated_ns_per_day"] == number
    with pytest.raises(ValueError, match="with 'parsers', use 'take' instead"):
        workload(parsers=[RATE], test="last")


@pytest.mark.parametrize("known", [True, False])
def test_a_log_without_an_end_mark_is_flagged_unless_its_program_is_known_to_have_ended(
    tmp_path: Path, known: bool
) -> None:
    run = one_run(tmp_path / "run", one_cell())
    found = workload(parser="osu").read(
        run, StepEnd((0,), 0.0, 1.0, has_exit_codes=known), Log(LOGS / "osu/reduce.log")
    )
    assert (NO_END_MARK in found.flags) != known


@given(st.text(max_size=30))
def test_what_passes_the_check_can_be_filled_in_and_the_rest_cannot(text: str) -> None:
    values = {"a": 1, "b": "x"}
    try:
        check_template(text, values, "here")
    except ConfigError:
        with pytest.raises(ConfigError, match="here"):
            fill_template(text, values, "here")
    else:
        assert isinstance(fill_template(text, values, "here"), str)


@given(st.text(max_size=20))
def test_doubled_braces_are_braces_and_values_are_not_filled_in_again(text: str) -> None:
    assert fill_template(text.replace("{", "{{").replace("}", "}}"), {}, "x") == text
    assert fill_template("{a}", {"a": "{b}" + text}, "x") == "{b}" + text


def test_a_rate_is_what_was_printed(tmp_path: Path) -> None:
    found = outcome(tmp_path, "rate: 10\nrate: 12.5\n")
    assert (found.status, found.throughput_per_s, found.failure) == ("ok", 12.5, None)


def test_a_rate_follows_from_step_times(tmp_path: Path) -> None:
    found = outcome(tmp_path, "step: 0.5\nstep: 0.25\nstep: 0.25\n", (0,), STEPS)
    assert found.throughput_per_s == pytest.approx(16 * 3 / 1.0)
    assert found.step_times_s == ((0.5, 0.25, 0.25),)
    assert found.window_s == (1.0,)


def test_other_numbers_are_metrics(tmp_path: Path) -> None:
    found = outcome(tmp_path, "rate: 1\nloss=0.5\n", (0,), RATE, {"metric": "loss", "regex": "loss=(.*)"})
    assert dict(found.metrics) == {"loss": 0.5}


@pytest.mark.parametrize(
    ("log", "codes", "ended", "status"),
    [
        ("nothing", (0,), {}, "incomplete"),
        ("rate: soon", (0,), {}, "incomplete"),
        ("rate: nan", (0,), {}, "nan"),
        ("rate: inf", (0,), {}, "nan"),
        ("rate: 5\nsegfault", (-11,), {}, "crashed"),
        ("rate: 5", (0, 1), {}, "crashed"),
        ("rate: 5", (-9,), {"timed_out": True}, "time_limit"),
        ("rate: 5", (-9,), {"memory_limit_hit": True}, "oom_host"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", (1,), {}, "oom_device"),
    ],
)
def test_failures_of_the_program_are_outcomes(tmp_path: Path, log: str, codes: Any, ended: Any, status: str) -> None:
    found = outcome(tmp_path, log, codes, **ended)
    assert found.status == status
    assert found.failure is not None
    assert found.failure.reason


@pytest.mark.parametrize(
    "log", ["step: 0\nstep: 0.0\n", "step: inf\nstep: 1\n", "step: nan\n", "step: inf\nstep: -inf\n"]
)
def test_step_times_that_cannot_be_are_not_believed(tmp_path: Path, log: str) -> None:
    found = outcome(tmp_path, log, (0,), STEPS)
    assert found.status == "nan"
    assert found.throughput_per_s is None


@pytest.mark.parametrize("rate", ["0", "0.0", "-3"])
def test_a_rate_that_no_work_has_is_a_failure(tmp_path: Path, rate: str) -> None:
    run = one_run(tmp_path / "run", one_cell())
    found = workload(parsers=[RATE]).judge_run(run, StepEnd((0,), 0.0, 1.0), Log.from_text(f"rate: {rate}\n"))
    assert found.status == "invalid"
    assert found.failure is not None
    assert f"throughput_per_s is {float(rate):g};" in found.failure.reason


def test_a_run_without_a_rate_is_none_of_rate_zero(tmp_path: Path) -> None:
    run = one_run(tmp_path / "run", one_cell())
    latency = {"metric": "latency_us", "regex": r"latency: (\S+)"}
    found = workload(parsers=[latency]).judge_run(run, StepEnd((0,), 0.0, 1.0), Log.from_text("latency: 5.1\n"))
    assert (found.status, found.throughput_per_s, dict(found.metrics)) == ("ok", None, {"latency_us": 5.1})
