"""The rule of logs, over every parser: cut off, a log gives no other number without a flag; of two in one none is passed over."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.main_metrics import MAIN_METRICS
from campaign.workloads.parsers import PARSERS, PARSERS_WITHOUT_RATE, LogReading, RunContext, read_log, read_tests
from campaign.workloads.parsers.reading import NO_END_MARK
from tests.unit.workloads.parsed import LOGS, flagged

SAMPLES = {name: sorted((LOGS / name).glob("*.log")) for name in PARSERS}
EACH = [path for paths in SAMPLES.values() for path in paths]
CUTS = 20
SIDE_BY_SIDE = ("nvbandwidth", "mlc")
"""Programs whose tests have names and metrics of their own, so that one log has room for several."""

RESULTS = LOGS / "yolov5/results.log"
"""The results.csv of a training, which belongs to what the training printed."""


def ident(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def read(path: Path, text: bytes, **scope: Any) -> LogReading:
    return read_log(path.parent.name, Log(text), RunContext(**scope))


def joined(*texts: bytes) -> bytes:
    return b"\n".join(text.rstrip(b"\n") for text in texts) + b"\n"


def numbers(reading: LogReading) -> tuple[Any, ...]:
    return reading.throughput_per_s, reading.metrics, reading.curves, reading.matrices


def part_of(reading: LogReading, whole: LogReading) -> bool:
    """Whether all of its numbers are those of the whole log."""
    return (
        reading.throughput_per_s in (None, whole.throughput_per_s)
        and reading.metrics.items() <= whole.metrics.items()
        and reading.curves.items() <= whole.curves.items()
        and reading.matrices.items() <= whole.matrices.items()
    )


def test_every_parser_has_two_logs_to_try_it_on() -> None:
    assert [name for name, paths in SAMPLES.items() if len(paths) < 2] == []


@pytest.mark.parametrize("path", EACH, ids=ident)
def test_a_cut_log_gives_no_other_number_without_a_flag(path: Path) -> None:
    text = path.read_bytes()
    whole = read(path, text)
    for place in range(1, CUTS + 1):
        cut = text[: len(text) * place // (CUTS + 1)]
        for found in (read(path, cut), read(path, joined(cut, text))):
            assert found.status != "ok" or part_of(found, whole) or NO_END_MARK in found.flags, (place, found)


@pytest.mark.parametrize("name", SAMPLES)
def test_of_two_logs_in_one_none_is_passed_over(name: str) -> None:
    for path, other in permutations(SAMPLES[name], 2):
        assert_both_are_noticed(path, other)


def assert_both_are_noticed(path: Path, other: Path) -> None:
    both = joined(path.read_bytes(), other.read_bytes())
    found = read(path, both)
    if found.status == "ok":
        alone = [read(each, each.read_bytes()).metrics.items() for each in (path, other)]
        if all(items <= found.metrics.items() for items in alone):
            assert path.parent.name in SIDE_BY_SIDE or RESULTS in (path, other), (path, other)
        else:
            assert flagged(found, "results.csv is ignored"), (path, other)
        return
    assert (found.status, numbers(found)) == ("invalid", (None, {}, {}, {})), (path, other)
    assert " tests (1: " in found.problem, (path, other)
    assert "1: " in found.problem, (path, other)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_test_that_is_chosen_is_read_as_if_it_stood_alone(name: str) -> None:
    for path, other in permutations(SAMPLES[name], 2):
        assert_each_can_be_chosen(path, other)


def assert_each_can_be_chosen(path: Path, other: Path) -> None:
    tests = [read_tests(path.parent.name, Log(each.read_bytes()), RunContext()) for each in (path, other)]
    whole = joined(path.read_bytes(), other.read_bytes())
    if len(read_tests(path.parent.name, Log(whole), RunContext())) < 2:
        return
    for number, alone in enumerate((each for test in tests for each in test), 1):
        found = read(path, whole, test=number)
        assert numbers(found) == numbers(alone), (path, other, number)
        assert flagged(found, f"test {number} of the "), (path, other, number)
    assert numbers(read(path, whole, test="last")) == numbers(tests[1][-1]), (path, other)
    assert "the log has no test 99" in read(path, whole, test=99).problem


@pytest.mark.parametrize("path", EACH, ids=ident)
def test_a_log_twice_has_its_numbers_once(path: Path) -> None:
    """A program may print its result and write it to the file that is appended to its log."""
    text = path.read_bytes()
    assert numbers(read(path, joined(text, text))) == numbers(read(path, text))


@pytest.mark.parametrize("path", EACH, ids=ident)
def test_a_mark_of_bytes_before_the_text_is_no_part_of_it(path: Path) -> None:
    assert read(path, b"\xef\xbb\xbf" + path.read_bytes()) == read(path, path.read_bytes())


@pytest.mark.parametrize("name", MAIN_METRICS)
def test_metrics_that_may_lead_are_given(name: str) -> None:
    tests = [test for path in SAMPLES[name] for test in read_tests(name, Log(path.read_bytes()), RunContext())]
    given = {metric for test in tests for metric in test.metrics}
    assert set(MAIN_METRICS[name][:1]) <= given
    assert MAIN_METRICS.keys() == PARSERS_WITHOUT_RATE
