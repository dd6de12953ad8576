"""When a run began and ended, and how, by what its log says."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from campaign.importing.log_facts import LogFacts, compute_run_span, read_log_facts
from campaign.plan.campaign.import_file import LogPattern
from campaign.workloads.log_reader import Log

TEN = datetime.datetime(2022, 5, 3, 10, tzinfo=datetime.UTC).timestamp()


def found(text: str, **times: Any) -> LogFacts:
    return read_log_facts(LogPattern.model_validate({"path": "x", "times": times}), Log.from_text(text))


@pytest.mark.parametrize(
    ("written", "times"),
    [
        ("2022-05-03T10:00:00", {}),
        ("2022-05-03 12:00:00+02:00", {"timezone": "America/Chicago"}),
        ("2022-05-03 12:00:00", {"timezone": "Europe/Berlin"}),
        ("03/May/2022 10:00", {"form": "%d/%b/%Y %H:%M"}),
        ("1651572000", {"form": "unix"}),
    ],
)
def test_times_are_read_as_they_are_written(written: str, times: dict[str, str]) -> None:
    said = found(f"at {written}\nat 1999\n", start="^at (.*)", **times)
    assert said.start_s == TEN
    assert said.problems == ()


def test_the_first_start_and_the_last_end_count() -> None:
    said = found(
        "a 1\na 2\nb 7\nb 9\ntook 5\ntook 6 \n", form="unix", start="a (.*)", end="b (.*)", duration_s="took (.*)"
    )
    assert (said.start_s, said.end_s, said.duration_s) == (1, 9, 6)


def test_a_duration_may_be_written_in_hours_minutes_and_seconds() -> None:
    assert found("took 1:02:03.5\n", duration_s="^took (.*)").duration_s == 3723.5


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (LogFacts(start_s=10, end_s=30), (10, 30, True)),
        (LogFacts(start_s=10, duration_s=5), (10, 15, True)),
        (LogFacts(end_s=30, duration_s=5), (25, 30, True)),
        (LogFacts(duration_s=5), (95, 100, True)),
        (LogFacts(start_s=10), (100, 100, False)),
        (LogFacts(end_s=30), (30, 30, False)),
        (LogFacts(), (100, 100, False)),
        (LogFacts(start_s=40, end_s=30), (30, 30, False)),
    ],
)
def test_a_span_is_known_where_both_ends_are(said: LogFacts, expected: tuple[float, float, bool]) -> None:
    """A file may have been copied since: when it was written says when the run ended at best, never how long it took."""
    assert compute_run_span(said, 100.0) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [("at noon\n", "'noon' does not have the form 'iso'"), ("took long\n", "'long', which is not a number")],
)
def test_a_time_that_cannot_be_read_is_told(text: str, words: str) -> None:
    (problem,) = found(text, start="^at (.*)", duration_s="^took (.*)").problems
    assert words in problem


def test_names_are_looked_for_in_every_line() -> None:
    pattern = LogPattern(path="x", read={"host": r"on (\w+)"}, exit_code=r"code (\d+)", timed_out="too long")
    said = read_log_facts(pattern, Log.from_text("on a\non b\non a\ncode 3\rcode 4\n\x1b[1mtoo long\x1b[0m"))
    assert (said.values, said.exit_code, said.timed_out) == ({"host": "a,b"}, 4, True)
