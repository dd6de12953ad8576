"""Percentiles, rates and flags of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign.workloads.load import Load, SentRequest, columns, flags, summary, window


def requests(count: int, gap_s: float = 0.1, takes_s: float = 0.05, late_s: float = 0.0) -> list[SentRequest]:
    """Requests of 3 tokens, the first after a fifth of the time that they take."""
    return [
        SentRequest(at, at + late_s, at + takes_s / 5, at + takes_s, 10, 3, None, 10, 3)
        for at in (gap_s * number for number in range(count))
    ]


def test_what_counts_is_inside_the_window() -> None:
    rows = requests(100)
    load = Load(warmup_s=1.0).for_run({"rate_per_s": 10, "duration_s": 9.0})
    assert window(load, rows) == (1.0, 9.0)
    found = summary(rows, window(load, rows))
    assert found["requests"] == 80
    assert found["requests_per_s"] == found["offered_per_s"] == pytest.approx(10)
    assert found["output_tokens_per_s"] == pytest.approx(30)
    assert found["e2e_ms_p50"] == pytest.approx(50)
    assert found["ttft_ms_mean"] == pytest.approx(10)
    assert found["tpot_ms_p95"] == pytest.approx(20)
    counted = Load().for_run({"rate_per_s": 10, "requests": 100})
    assert window(counted, rows) == (0.0, pytest.approx(9.95))
    refused = [replace(row, error="refused", first_s=None, last_s=None) for row in rows]
    assert summary(refused, window(counted, refused))["errors"] == 100


def test_a_percentile_that_would_be_the_maximum_is_none() -> None:
    found = summary(requests(99), (0.0, 100.0))
    assert "ttft_ms_p99" not in found
    assert "ttft_ms_p95" in found
    assert found["ttft_ms_max"] == pytest.approx(10)
    assert "ttft_ms_p99" in summary(requests(100), (0.0, 100.0))


def test_failed_requests_are_slower_than_any_other() -> None:
    rows = requests(200)
    failed = [replace(row, error="time-out", last_s=None) if number < 4 else row for number, row in enumerate(rows)]
    found = summary(failed, (0.0, 100.0))
    assert (found["errors"], found["errors_pct"]) == (4, 2)
    assert "e2e_ms_p99" not in found
    assert found["e2e_ms_p95"] == pytest.approx(50)
    assert found["requests_per_s"] == pytest.approx(1.96)
    assert not {"ttft_ms_mean", "e2e_ms_mean", "e2e_ms_max"} & set(found)
    assert {"late_ms_mean", "late_ms_max"} <= set(found)


def test_a_late_generator_is_flagged_beyond_1_percent_of_the_median_or_5_ms() -> None:
    def late(takes_s: float, late_s: float) -> bool:
        return any("late" in flag for flag in flags(requests(200, takes_s=takes_s, late_s=late_s), (0.0, 100.0)))

    assert not late(0.01, 0.0019)  # the resolution of timers
    assert late(0.01, 0.0021)
    assert not late(0.4, 0.0039)
    assert late(0.4, 0.0041)
    assert late(30.0, 0.0051)


def test_tokens_that_are_not_as_requested_are_flagged() -> None:
    rows = requests(10)
    assert flags(rows, (0.0, 100.0)) == ()
    short = [replace(row, output_tokens=1) for row in rows[:5]] + rows[5:]
    assert flags(short, (0.0, 100.0)) == (
        "5 of 10 outputs have other lengths than requested: mean 1 tokens, requested 3",
    )
    uncounted = [replace(row, reported=False) for row in rows]
    no_usage = "the server reports no usage for 10 of 10 requests: pieces count as tokens"
    assert flags(uncounted, (0.0, 100.0)) == (no_usage,)
    assert flags([replace(row, output_tokens=2) for row in uncounted], (0.0, 100.0)) == (
        no_usage,
        "10 of 10 outputs have other lengths than requested: mean 2 tokens, requested 3",
    )
    assert flags([replace(row, error="x") for row in rows], (0.0, 100.0)) == ()


def test_columns() -> None:
    table = columns(requests(2))
    assert table["intended_s"] == [0.0, 0.1]
    assert table["error"] == [None, None]
