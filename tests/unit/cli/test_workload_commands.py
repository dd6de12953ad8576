"""`campaign workload`, as a person types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from campaign.cli.main import main
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers.expressions import collect_hints
from tests.unit.workloads.parsed import LOGS

PROGRAM = """\
import os, sys, time
print('rate: %s\\n' % (10.0 * {batch} * int(os.environ['WORLD_SIZE']) + {extra}), end='', flush=True)
sys.exit({code})
"""
FILES: dict[str, dict[str, Any]] = {
    "program": {
        "kind": "command",
        "precisions": ["fp32", "fp16"],
        "command": [sys.executable, "-S", "-c", PROGRAM, "{precision}"],
        "launch": "per_rank",
        "options": {"extra": 0.5, "code": 0},
        "parsers": [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}],
    },
    "silent": {
        "kind": "command",
        "precisions": ["fp32"],
        "command": ["echo", "speed is 12.5 images/s"],
        "parsers": [{"metric": "throughput_per_s", "regex": r"speed = (\S+)"}],
    },
    "links": {"kind": "command", "precisions": ["fp32"], "command": ["p2p"], "parser": "p2p_bandwidth_latency"},
    "tasks": {"kind": "command", "precisions": ["fp32"], "command": ["x"], "launch": "srun"},
    "packed": {"kind": "command", "precisions": ["fp32"], "command": ["x"], "software": {"venv": "/no/such/place"}},
    "steps": {"kind": "synthetic", "precisions": ["fp32"], "real_time": False},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config/workloads").mkdir(parents=True)
    for name, document in FILES.items():
        (tmp_path / f"config/workloads/{name}.yaml").write_text(yaml.safe_dump({"name": name, **document}))
    return tmp_path


def command(*words: str) -> Result:
    result = CliRunner().invoke(main, ["workload", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*words: str, code: int = 0) -> Any:
    result = command(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_list_shows_own_and_shipped_workloads() -> None:
    rows = {row["name"]: row for row in told("list")}
    assert set(FILES) < set(rows)
    assert rows["bert-nano"]["parameters"] == 724994
    assert rows["links"]["parser"] == "p2p_bandwidth_latency"
    assert rows["program"]["parser"] == "its own"
    assert rows["bert-large-squad"]["model or program"] == "run_squad.py"
    assert rows["ib-write-bw"]["model or program"] == "ib_write_bw"
    assert "tf_cnn_benchmarks.py" in command("list").output


def test_list_shows_the_others_and_tells_of_a_file_that_is_wrong(here: Path) -> None:
    (here / "config/workloads/wrong.yaml").write_text("name: wrong\nkind: command\n")
    result = command("list")
    assert result.exit_code == 1
    assert "program" in result.stdout
    assert "wrong.yaml" in result.stderr
    assert "precisions: this key is missing" in result.stderr


def test_show_gives_all_keys_and_the_commands_that_they_come_to() -> None:
    shown = yaml.safe_load(command("show", "tf-resnet50").output)
    assert shown["launch"] == "mpirun"
    assert "-H host1:2,host2:2" in shown["example"]["fp16"]["command"]
    assert shown["example"]["fp16"]["command"].endswith("--use_fp16")
    assert shown["example"]["fp32"]["environment"] == {"NVIDIA_TF32_OVERRIDE": "0"}
    assert told("show", "hpl")["example"]["fp32"]["command"].startswith("srun --mpi=pmix --cpu-bind=none ... apptainer")
    assert told("show", "hpl")["example"]["fp32"]["started"] == "once a rank"


@pytest.mark.parametrize("name", ["steps", "bert-nano"])
def test_show_takes_every_kind(name: str) -> None:
    assert "command" in told("show", name)["example"]["fp32"]


def test_try_runs_once_and_shows_what_was_read(here: Path) -> None:
    log = here / "try.log"
    words = ["try", "program", "--batch", "3", "--devices", "2", "--option", "extra=2", "--log", str(log)]
    found = told(*words, "--precision", "fp16")
    assert (found["status"], found["throughput_per_s"]) == ("ok", 62.0)
    assert found["command"][-1] == "fp16"
    assert log.read_text() == "rate: 62.0\n" * 2
    assert not {"failure", "metrics", "hints"} & set(found)  # nothing is not said
    said = command(*words).output
    assert said.startswith("program: ok")
    assert "throughput_per_s" in said
    assert str(log) in said


def test_try_ends_with_1_for_a_run_that_is_not_ok(here: Path) -> None:
    found = told("try", "program", "--option", "code=3", code=1)
    assert found["status"] == "crashed"
    assert Path(found["log"]).read_text() == "rate: 10.5\n"


def test_try_shows_which_lines_looked_near() -> None:
    result = command("try", "silent")
    assert result.exit_code == 1
    assert "silent: incomplete" in result.output
    assert "lines with 'speed = '" not in result.output  # there are none
    assert "speed is 12.5 images/s" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["try", "progam"], "did you mean 'program'?"),
        (["try", "program", "--precision", "bf16"], "does not support 'bf16'; it supports fp32, fp16"),
        (["try", "program", "--option", "extr=1"], "has no such option; did you mean 'extra'?"),
        (["try", "program", "--option", "extra"], "write KEY=VALUE"),
        (["try", "program", "--option", "Extra=1"], "use lower-case letters"),
        (["try", "program", "--system", "no-such"], "no system 'no-such'"),
        (["try", "tasks"], "srun needs a Slurm job"),
        (["try", "packed"], "is not a virtual environment"),
        (
            ["parse", "progam", "config/workloads/steps.yaml"],
            "neither a workload nor a parser; did you mean 'program'?",
        ),
        (["parse", "steps", "config/workloads/steps.yaml"], "writes its numbers to separate files and not to its log"),
    ],
)
def test_what_cannot_be_done_is_one_message(words: list[str], message: str) -> None:
    result = command(*words)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("words", [["--devices", "5000"], ["--batch", "0"], ["--steps", "0"], ["--warmup", "-1"]])
def test_try_takes_what_a_campaign_takes(words: list[str]) -> None:
    assert command("try", "program", *words).exit_code == 2


def test_try_takes_devices_from_a_system() -> None:
    assert told("try", "program", "--system", "falcon-demo")["status"] == "ok"


P2P = """\
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 911.08  20.10
     1  20.30 913.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.59   2.31
     1   2.29   2.61

   CPU     0      1
     0   4.59   3.31
     1   3.29   4.61
"""
OSU = "# OSU MPI-CUDA Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n1  2.5\n1024  1200.25\n4194304  24000.00\n"


@pytest.mark.parametrize("name", ["links", "p2p_bandwidth_latency"])
def test_parse_shows_matrices(name: str, here: Path) -> None:
    (here / "saved.log").write_text(P2P)
    found = told("parse", name, "saved.log", "--ranks", "2")
    assert (found["status"], found["workload"]) == ("ok", name)
    assert any(20.30 in [value for row in matrix["values"] for value in row] for matrix in found["matrices"].values())
    said = command("parse", name, "saved.log").output
    assert "20.3" in said
    assert "2.31" in said


def test_parse_shows_curves(here: Path) -> None:
    (here / "saved.log").write_text(OSU)
    assert told("parse", "osu", "saved.log")["curves"]
    lines = command("parse", "osu-bw", "saved.log").output.splitlines()
    assert [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in ("1", "1024", "4194304")] == [
        "1",
        "1024",
        "4194304",
    ]


def test_parse_reads_with_the_parsers_of_a_workload(here: Path) -> None:
    (here / "saved.log").write_text("rate: 5\nrate: 7.5\n")
    assert told("parse", "program", "saved.log")["throughput_per_s"] == 7.5


def test_parse_shows_what_each_own_parser_matched_and_left_out(here: Path) -> None:
    workload = yaml.safe_load((here / "config/workloads/program.yaml").read_text())
    workload["parsers"] = [
        {"metric": "step_time_s", "regex": r"step (\S+)", "take": "all", "skip": 2},
        {"metric": "loss", "csv_column": "loss"},
    ]
    (here / "config/workloads/program.yaml").write_text(yaml.safe_dump(workload))
    (here / "saved.log").write_text("step 9\nstep 9\nstep 1\nstep 1\nstep 1\nepoch,loss\n1,0.5\n")
    found = told("parse", "program", "saved.log")
    rows = [(row["metric"], row["pattern"], row["found"], row["skipped"], row["counted"]) for row in found["matches"]]
    assert rows == [("step_time_s", r"step (\S+)", 5, 2, 3), ("loss", "loss", 1, 0, 1)]
    assert found["steps"]["measured"] == 3
    assert not any("to be measured" in flag for flag in found.get("flags", []))
    assert "Matches of the workload's own parsers" in command("parse", "program", "saved.log").output
    flagged = told("parse", "program", "saved.log", "--steps", "2")["flags"]
    assert any("the log has 3 steps instead of the 2 to measure" in flag for flag in flagged)


def test_parse_refuses_the_output_of_another_program_of_the_same_suite(here: Path) -> None:
    (here / "saved.log").write_text((LOGS / "osu/reduce.log").read_text())
    found = told("parse", "osu-latency", "saved.log", code=1)
    assert found["failure"]["reason"] == "the output is from osu_reduce, but the command starts osu_latency"
    assert told("parse", "osu", "saved.log")["status"] == "ok"


def test_parse_lists_the_tests_of_a_log_and_reads_the_one_that_is_chosen(here: Path) -> None:
    (here / "saved.log").write_text(OSU + (LOGS / "osu/reduce.log").read_text())
    reason = told("parse", "osu", "saved.log", code=1)["failure"]["reason"]
    assert "the log has 2 tests (1: osu_bw bandwidth_peak_gb_per_s 24, 2: osu_reduce" in reason
    found = told("parse", "osu-bw", "saved.log", "--test", "1")
    assert (found["status"], list(found["curves"])) == ("ok", ["bandwidth"])
    (here / "saved.log").write_text("hello\n")
    assert (
        "the log has no test 2, only 1 test"
        in told("parse", "osu", "saved.log", "--test", "2", code=1)["failure"]["reason"]
    )


def test_parse_of_several_tests_by_the_wrong_parser_says_whose_they_are(here: Path) -> None:
    (here / "saved.log").write_text(OSU + (LOGS / "osu/reduce.log").read_text())
    assert "use 'parser: osu'" in told("parse", "hpl", "saved.log", code=1)["hints"][0]


def test_parse_tells_what_matched_and_is_no_number(here: Path) -> None:
    (here / "saved.log").write_text("rate: 1,234.5 samples/s\n")
    said = command("parse", "program", "saved.log").output
    assert "a match is not a number: throughput_per_s (rate: (\\S+)) matched '1,234.5'" in " ".join(said.split())


def test_parse_of_another_programs_log_says_whose_it_is(here: Path) -> None:
    (here / "saved.log").write_text(P2P)
    found = told("parse", "hpl", "saved.log", code=1)
    assert found["status"] == "incomplete"
    assert "use 'parser: p2p_bandwidth_latency'" in found["hints"][0]


def test_parse_says_why_a_program_failed_where_its_log_does(here: Path) -> None:
    (here / "saved.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    found = told("parse", "nvidia_bert", "saved.log", code=1)
    assert "the device ran out of memory" in found["hints"][0]


def test_hints_end_even_where_there_is_nothing_to_say() -> None:
    assert collect_hints(Log.from_text(""), "hpl", ()) == [
        "the log is empty; does the program write its results to a file?"
    ]
    assert collect_hints(Log.from_text("hello\n"), "hpl", ()) == [
        "no line of the log looks like a rate, a time or a bandwidth"
    ]
