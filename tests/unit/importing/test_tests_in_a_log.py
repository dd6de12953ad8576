"""Logs that hold several tests, and logs that were cut off, as an import takes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from campaign.analysis.tables.collect import build_tables, read_campaign_results
from campaign.cli.main import main
from campaign.plan.campaign.resolve import load_campaign
from campaign.spec.record import Record, RecordStore
from campaign.workloads.parsers.reading import NO_END_MARK
from tests.unit.importing.logs_of_old import LOGS, put, write_map

ONE = {"configuration": "1x1", "batch": 1, "precision": "fp32"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(workload: dict[str, Any], *, path: str = "{workload}-*.log", **pattern: Any) -> Any:
    """What an import of the logs of one workload `x` says."""
    write_map(Path("map.yaml"), workloads={"x": workload}, logs=[{"path": path, "values": ONE, **pattern}])
    result = CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml", "--format", "json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout) if result.exit_code == 0 else result.output


def records() -> list[Record]:
    return sorted(
        RecordStore(Path("results/old")), key=lambda record: (sorted(record.cell.options.items()), record.repetition)
    )


def n_planned() -> list[int]:
    tables = build_tables(
        read_campaign_results(load_campaign(Path("results/old/config/campaign.yaml")), Path("results/old"))
    )
    assert set(tables.cells["n_missing"]) == {0}
    return [int(count) for count in tables.cells["n_planned"]]


def mlperf_runs(minutes: list[float]) -> str:
    """Logs of runs glued together; neither their starts nor their files are in the order of time."""
    text = (LOGS / "mlperf/evaluated-after-the-run.log").read_text().splitlines(keepends=True)
    logs = []
    for number, took in enumerate(minutes):
        shift = [7, 3, 0, 9, 1, 5, 8, 2, 6, 4][number] * 86_400_000
        events = [json.loads(line.removeprefix(":::MLLOG ")) for line in text]
        for event in events:
            event["time_ms"] += shift
            if event["key"] == "run_stop":
                event["time_ms"] = 1716000060010 + shift + round(took * 60_000)
        logs += [f":::MLLOG {json.dumps(event)}\n" for event in events]
    return "".join(logs)


def test_runs_in_one_log_are_refused_with_a_list_and_are_records_where_the_map_says_so() -> None:
    took = [20.5 + 0.1 * number for number in range(10)]
    put(Path("logs"), "x-all.log", mlperf_runs(took))
    told = imported({"parser": "mlperf"})
    assert "the log has 10 tests (1: throughput_per_s 4170, 2: " in told
    assert "with 'tests'" in told
    found = imported({"parser": "mlperf"}, tests="repetitions")
    assert found["logs"] == {"new": 10, "present": 0, "unread": 0}
    made = records()
    assert [record.metrics["time_to_train_s"] for record in made] == pytest.approx([60 * each for each in took])
    assert [(each.source.test, each.source.timed) for each in made if each.source] == [(n, False) for n in range(1, 11)]
    assert n_planned() == [10]
    assert imported({"parser": "mlperf"}, tests="repetitions")["logs"] == {"new": 0, "present": 10, "unread": 0}


def test_repetitions_with_equal_numbers_are_as_many_runs() -> None:
    once = (LOGS / "osu/barrier.log").read_text()
    put(Path("logs"), "x-1.log", once * 3)
    imported({"parser": "osu"})
    assert n_planned() == [1]
    shutil.rmtree("results")
    imported({"parser": "osu"}, tests="repetitions")
    assert n_planned() == [3]
    assert len({record.metrics["barrier_latency_us"] for record in records()}) == 1


def test_a_run_that_is_printed_and_written_to_a_file_is_one() -> None:
    file = (LOGS / "gromacs/md-log-24-ranks.log").read_text()
    printed = file.replace("Log file opened on Mon Oct 18 22:14:52 2021\n", "").replace("Finished mdrun", "done")
    put(Path("logs"), "x-1.log", printed + file)
    imported({"parser": "gromacs"}, tests="repetitions")
    assert n_planned() == [1]


def test_the_workload_may_choose_one_test() -> None:
    put(Path("logs"), "x-all.log", mlperf_runs([20.5, 21.0]))
    imported({"parser": "mlperf", "test": "last"})
    (record,) = records()
    assert record.metrics["time_to_train_s"] == pytest.approx(60 * 21)
    assert "test 2 of the 2 tests in the log counts" in record.flags


def test_each_test_may_be_the_value_of_an_option() -> None:
    reduced = (LOGS / "nccl_tests/all-reduce-8-ranks.log").read_text()
    again = reduced.replace("122.57", "122.56")
    other = reduced.replace("all_reduce_perf", "sendrecv_perf").replace("122.57", "122.55")
    put(Path("logs"), "x-1.log", reduced + other + again)
    workload = {"parser": "nccl_tests", "options": {"program": "all_reduce_perf"}}
    pattern = {"values": {**ONE, "configuration": "1x4"}}
    assert "1: all_reduce_perf busbw_peak_gb_per_s" in imported(workload, **pattern)
    found = imported(workload, tests="program", **pattern)
    assert found["logs"] == {"new": 3, "present": 0, "unread": 0}
    assert [(each.cell.options["program"], each.repetition) for each in records()] == [
        ("all_reduce_perf", 1),
        ("all_reduce_perf", 2),
        ("sendrecv_perf", 1),
    ]
    assert sorted(n_planned()) == [1, 2]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ({"tests": "kind"}, "'kind' is not a property of a log"),
        ({"tests": "program", "path": "{workload}-{repetition}.log"}, "test 1 of 2 has no name"),
        ({"tests": "repetitions", "path": "{workload}-{repetition}.log"}, "write * instead of {repetition}"),
    ],
)
def test_what_cannot_be_is_told(pattern: dict[str, Any], words: str) -> None:
    put(Path("logs"), "x-1.log", mlperf_runs([20.5, 21.0]))
    assert words in " ".join(imported({"parser": "mlperf", "options": {"program": ""}}, **pattern).split())


@pytest.mark.parametrize(
    ("parser", "log"),
    [
        ("osu", "osu/bibw"),
        ("osu", "osu/barrier"),
        ("perftest", "perftest/write-lat"),
        ("mlc", "mlc/idle-latency"),
        ("gpu_copy", "gpu_copy/two-gpus"),
        ("nvbandwidth", "nvbandwidth/old-diagonal"),
        ("yolov5", "yolov5/results"),
    ],
)
def test_every_record_of_a_log_without_an_end_mark_says_so(parser: str, log: str) -> None:
    text = (LOGS / f"{log}.log").read_text()
    put(Path("logs"), "x-1.log", f"exit 0\n{text}")
    put(Path("logs"), "x-2.log", f"{text}exit 0\n")
    imported({"parser": parser})
    assert all(NO_END_MARK in record.flags for record in records())
    # An exit code that the map finds is the end of it.
    put(Path("logs"), "x-3.log", f"exit 0\n{text} \n")
    imported({"parser": parser}, exit_code="^exit (.*)")
    assert NO_END_MARK not in records()[-1].flags


def test_own_parsers_do_not_know_an_end_either() -> None:
    put(Path("logs"), "x-1.log", "rate 100\n")
    imported({"parsers": [{"metric": "throughput_per_s", "regex": "rate (.*)"}]})
    assert NO_END_MARK in records()[0].flags


@pytest.mark.parametrize(
    ("names", "planned"),
    [
        (["l1 r1", "l2 r2", "l3 r3"], 3),
        (["l1 r1", "l1 r2", "l2 r3", "l2 r4"], 4),
        (["l1 r1", "l1 r2", "l2 r1", "l2 r2"], 4),
        (["l1 r1", "l2 r1", "l3 r1"], 3),
    ],
)
def test_repetitions_count_over_the_cell_or_in_each_lease(names: list[str], planned: int) -> None:
    for number, name in enumerate(names):
        lease, repetition = name.split()
        put(Path("logs"), f"x-{lease}-{repetition}.log", f"rate {100 + number}\n")
    parsers = [{"metric": "throughput_per_s", "regex": "rate (.*)"}]
    for _ in range(2):
        found = imported({"parsers": parsers}, path="{workload}-l{lease}-r{repetition}.log")
        assert found["cells"][0]["runs"] == f"{planned} of {planned}"
        assert n_planned() == [planned]
