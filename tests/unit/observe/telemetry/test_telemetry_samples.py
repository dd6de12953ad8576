"""Reading a sampler's file while it grows, and the samples of a run as series."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.observe.telemetry.samples import HostSamples, SampleFile, build_columns

HEADER = {"schema_version": "telemetry/1", "host": "h", "machine": "m", "network": 1, "interval_s": 1.0}


def tick(time: float, value: float, monotonic: float | None = None) -> dict[str, Any]:
    read = {"gpu:a": {"power_w": value}}
    return {"time": time, "monotonic": time - 1000 if monotonic is None else monotonic, "read": read}


def text(*documents: dict[str, Any]) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def between(file: SampleFile, start: float, end: float) -> HostSamples:
    file.read_new_lines()
    found = file.collect_samples(start, end)
    assert found is not None
    return found


def powers(samples: HostSamples) -> tuple[float, ...]:
    series = samples.find_series("gpu:a", "power_w")
    return series.values if series else ()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "h.jsonl"


def test_a_torn_last_line_is_read_when_it_is_whole(path: Path) -> None:
    whole = text(HEADER, tick(1, 10), tick(2, 20))
    file = SampleFile(path)
    path.write_text(whole[:-15])
    assert powers(between(file, 0, 9)) == (10,)
    path.write_text(whole)
    assert powers(between(file, 0, 9)) == (10, 20)


@pytest.mark.parametrize(
    "torn", ['{"time": 3, "mono', "\0\0\0\0", "[1]", '{"time": 3, "monotonic": 3, "read": 7}', "{}"]
)
def test_what_is_torn_inside_costs_no_other_sample(path: Path, torn: str) -> None:
    path.write_text(text(HEADER, tick(1, 10)) + torn + "\n" + text(tick(3, 30)))
    assert powers(between(SampleFile(path), 0, 9)) == (10, 30)


def test_only_samples_of_the_run_count_and_the_past_is_forgotten(path: Path) -> None:
    path.write_text(text(HEADER, *(tick(time, time) for time in range(1, 9))))
    file = SampleFile(path)
    assert powers(between(file, 2, 4)) == (2, 3, 4)
    file.drop_before(6)
    later = between(file, 7, 9)
    assert powers(later) == (7, 8)
    assert later.earlier == {"gpu:a": {"power_w": 6}}, "the last one before a run says who was there"
    assert powers(between(file, 0, 9)) == (6, 7, 8)


def test_samples_of_the_driver_stand_at_their_own_times(path: Path) -> None:
    kept = [
        {**tick(time, time), "sampled": {"gpu:a": {"clock_sm_mhz": [[time - 0.5, 1], [time, 2]]}}} for time in (2, 3)
    ]
    path.write_text(text(HEADER, *kept))
    series = between(SampleFile(path), 2, 9).find_series("gpu:a", "clock_sm_mhz")
    assert series is not None
    assert (series.times, series.values) == ((2.0, 2.5, 3.0), (2.0, 1.0, 2.0)), "what was before the run is not of it"
    jumped = [*kept, {**kept[1], "time": 5000.0}]
    path.write_text(text(HEADER, *jumped))
    assert between(SampleFile(path), 2, 9000).find_series("gpu:a", "clock_sm_mhz") is None


def test_a_sampler_says_how_often_it_looks_and_what_that_costs(path: Path) -> None:
    problem = "the package nvidia-ml-py is not installed on the host"
    path.write_text(text({**HEADER, "interval_s": 1.5, "look_s": 0.07, "problems": [problem]}, tick(1, 1)))
    found = between(SampleFile(path), 0, 9)
    assert (found.interval_s, found.look_s, found.problems) == (1.5, 0.07, (problem,))


def test_a_sampler_that_has_said_nothing_is_none(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / "none.jsonl")
    file.read_new_lines()
    assert file.collect_samples(0, 9) is None
    (tmp_path / "none.jsonl").write_text(text(tick(1, 1)))
    file.read_new_lines()
    assert file.collect_samples(0, 9) is None


@pytest.mark.parametrize("jump", [-3600.0, 40.0])
def test_a_clock_that_is_set_is_told_and_time_goes_on(path: Path, jump: float) -> None:
    after = [tick(time + jump, time, time - 1000) for time in (4, 5, 6)]
    path.write_text(text(HEADER, *(tick(time, time) for time in (1, 2, 3)), *after))
    found = between(SampleFile(path), min(0, jump), 9 + max(0, jump))
    assert found.jumped_s == pytest.approx(abs(jump))
    series = found.find_series("gpu:a", "power_w")
    assert series is not None
    assert series.times == (1, 2, 3, 4, 5, 6)
    assert series.values == (1, 2, 3, 4, 5, 6)


def test_a_clock_that_is_kept_in_step_is_not_set(path: Path) -> None:
    path.write_text(text(HEADER, *(tick(100 * n, n, 100.02 * n) for n in range(1, 5))))
    assert between(SampleFile(path), 0, 999).jumped_s == 0


def test_rows_are_long(path: Path) -> None:
    path.write_text(text(HEADER, tick(1, 10), tick(2, 20)))
    assert build_columns([between(SampleFile(path), 0, 9)]) == {
        "time": [1, 2],
        "host": ["h", "h"],
        "part": ["gpu:a", "gpu:a"],
        "quantity": ["power_w", "power_w"],
        "value": [10, 20],
    }
