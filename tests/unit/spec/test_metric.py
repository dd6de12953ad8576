from __future__ import annotations

import pytest

from campaign.spec.metric import THROUGHPUT, Metric, find_metric, from_document


@pytest.mark.parametrize(
    ("name", "unit", "better"),
    [
        ("throughput_per_s", "samples/s", "higher"),
        ("latency_us", "µs", "lower"),
        ("bandwidth_gb_per_s", "GB/s", "higher"),
        ("hpl_gflops", "GFLOP/s", "higher"),
        ("time_to_train_min", "min", "lower"),
        ("energy_per_sample_j", "J", "lower"),
        ("step_median_s", "s", "lower"),
        ("ttft_ms_p99", "ms", "lower"),
        ("e2e_ms_mean", "ms", "lower"),
        ("e2e_ms_min", "ms", "lower"),
        ("e2e_ms_p99_9", "ms", "lower"),
        ("idle_latency_min_ns", "ns", "lower"),
    ],
)
def test_unit_and_direction_come_from_the_name(name: str, unit: str, better: str) -> None:
    found = find_metric(name)
    assert found is not None
    assert (found.unit, found.better) == (unit, better)


@pytest.mark.parametrize("name", ["score", "loss_last", "f1_pct"])
def test_a_direction_that_no_unit_tells_has_to_be_said(name: str) -> None:
    assert find_metric(name) is None
    assert find_metric(name, better="higher") is not None


def test_what_is_said_wins_over_the_name() -> None:
    assert find_metric("uptime_s", "h", "higher") == Metric("uptime_s", "h", "higher")


def test_a_document_gives_the_metric_again() -> None:
    for each in (THROUGHPUT, Metric("latency_us", "µs", "lower")):
        assert from_document(each.document()) == each
    assert from_document({}) == THROUGHPUT


def test_a_label_has_no_unit() -> None:
    assert [
        Metric(n, "", "lower").label
        for n in ("latency_us", "ttft_ms_p99", "throughput_per_s", "time_to_train_min", "score")
    ] == [
        "latency",
        "ttft p99",
        "throughput",
        "time to train",
        "score",
    ]
