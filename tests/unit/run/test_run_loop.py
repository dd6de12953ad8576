"""What a driver makes of a run that telemetry has seen."""

from __future__ import annotations

import pytest

from campaign.observe.telemetry.run_telemetry import TelemetrySummary
from campaign.run.run_loop import invalidate_if_devices_idle
from campaign.spec.record import Status
from campaign.workloads.protocol import Outcome


@pytest.mark.parametrize(
    ("status", "unused", "expected"),
    [("ok", ("gpu:1 on h was never busy",), "invalid"), ("ok", (), "ok"), ("crashed", ("gpu:1",), "crashed")],
)
def test_a_run_whose_devices_did_nothing_is_invalid(status: Status, unused: tuple[str, ...], expected: Status) -> None:
    found = invalidate_if_devices_idle(
        Outcome(status, throughput_per_s=5.0), TelemetrySummary(unused_device_messages=unused)
    )
    assert found.status == expected
    if expected == "invalid":
        assert found.failure is not None
        assert found.failure.evidence == unused[0]
        assert found.throughput_per_s == 5.0, "kept, and not believed"
