"""The clock of an emulated device."""

from __future__ import annotations

import time

import pytest

from campaign.workloads.trainer.pace import Pacer


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_work_takes_the_device_s_time() -> None:
    pacer, started = Pacer(), time.perf_counter()
    for _ in range(40):
        _compute(0.001)
        pacer.advance(0.005)
    assert time.perf_counter() - started == pytest.approx(0.2, rel=0.02)
    assert pacer.paced_s == pytest.approx(0.2)


def test_what_a_thread_is_blocked_for_is_no_work() -> None:
    pacer, started = Pacer(), time.perf_counter()
    for _ in range(20):
        time.sleep(0.005)
        pacer.advance(0.005)
    assert time.perf_counter() - started >= 0.195


@pytest.mark.alone
def test_a_slow_part_is_made_up_for() -> None:
    pacer, started = Pacer(), time.perf_counter()
    _compute(0.02)
    pacer.advance(0.001)
    assert pacer.late_s > 0.015
    for _ in range(20):
        pacer.advance(0.005)
    assert pacer.late_s < 0.001
    assert time.perf_counter() - started == pytest.approx(0.101, rel=0.05)


def test_a_core_that_is_too_slow_is_late() -> None:
    pacer = Pacer()
    for _ in range(5):
        _compute(0.004)
        pacer.advance(0.002)
    assert pacer.late_s >= 0.009
