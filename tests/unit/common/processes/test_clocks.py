from __future__ import annotations

import time

import pytest

from campaign.common.processes.clocks import ClockReading, get_timestamp_s

BEFORE = ClockReading(1e9, 500.0, 400.0)


@pytest.mark.parametrize(
    ("wall_s", "since_boot_s", "running_s", "words"),
    [
        (60.0, 60.0, 60.0, ""),
        (60.04, 60.0, 60.0, ""),
        (-7140.0, 60.0, 60.0, "the clock was set by -7200.0 s"),
        (63.0, 60.0, 60.0, "the clock was set by +3.0 s"),
        (60.0, 60.0, 20.0, "the machine was suspended for 40.0 s"),
        (36003.0, 36000.0, 36000.0, ""),  # slewed by less than 0.1 % of ten hours
    ],
)
def test_what_happened_to_the_clocks(wall_s: float, since_boot_s: float, running_s: float, words: str) -> None:
    after = ClockReading(1e9 + wall_s, 500.0 + since_boot_s, 400.0 + running_s)
    assert after.describe_change_since(BEFORE) == words


def test_stamps_go_on_evenly_where_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_timestamp_s() == pytest.approx(time.time(), abs=5)
    before = get_timestamp_s()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= get_timestamp_s() - before < 5
    assert ClockReading.read().describe_change_since(BEFORE)
