from __future__ import annotations

import pytest

from campaign.observe.telemetry.run_telemetry import TelemetrySummary
from campaign.run.launched_run import RunLaunch, repeat_until_undisturbed
from campaign.spec.record import Failure
from campaign.workloads.failures import KILLED_FROM_OUTSIDE, PACE_NOT_HELD, REPEATED
from campaign.workloads.protocol import Outcome, StepEnd

FINE = RunLaunch(StepEnd((0,), 0.0, 1.0), Outcome("ok", throughput_per_s=9.9))
SLOWED = RunLaunch(StepEnd((0,), 0.0, 5.0, disturbance="the run was suspended"), Outcome("ok", throughput_per_s=1.8))
LATE = RunLaunch(
    StepEnd((-9,), 0.0, 5.0, timed_out=True, disturbance="the clock was set"),
    Outcome("time_limit", Failure(reason="")),
)
SHOT = RunLaunch(StepEnd((-9,), 0.0, 1.0), Outcome("crashed", Failure(reason=KILLED_FROM_OUTSIDE)))
BUSY = RunLaunch(StepEnd((0,), 0.0, 1.0), Outcome("invalid", Failure(reason=PACE_NOT_HELD), throughput_per_s=1.8))
CRASHED = RunLaunch(StepEnd((7,), 0.0, 1.0), Outcome("crashed", Failure(reason="exit code 7")))
SHARED = FINE._replace(telemetry=TelemetrySummary(disturbances=("another process used gpu:0: pid 7",)))


@pytest.mark.parametrize(
    ("launches", "counts"),
    [
        ([FINE], 0),
        ([CRASHED, FINE], 0),
        ([SLOWED, FINE], 1),
        ([SHARED, FINE], 1),
        ([BUSY, LATE, FINE], 2),
        ([SHOT, CRASHED, FINE], 1),
        ([BUSY, SHOT, BUSY, FINE], 2),
        ([SLOWED, SLOWED, SHOT, FINE], 2),
    ],
)
def test_the_first_undisturbed_launch_counts_or_the_last_attempt(launches: list[RunLaunch], counts: int) -> None:
    left = iter(launches)
    ended, outcome, _ = repeat_until_undisturbed("run", lambda: next(left), 3)
    assert outcome == launches[counts][1]
    assert ended.flags == ((REPEATED,) if counts else ())
    assert list(left) == launches[counts + 1 :]


@pytest.mark.parametrize("attempts", [1, 4])
def test_a_run_that_is_stopped_in_every_attempt_is_invalid(attempts: int) -> None:
    left = iter([SLOWED] * (attempts - 1) + [LATE, FINE])
    ended, outcome, _ = repeat_until_undisturbed("run", lambda: next(left), attempts)
    assert (outcome.status, outcome.failure) == ("invalid", Failure(reason="the clock was set"))
    assert (ended.flags, list(left)) == ((REPEATED,) if attempts > 1 else (), [FINE])


def test_a_device_that_another_process_uses_in_every_attempt_is_a_result_and_not_waited_for_again() -> None:
    left = iter([SHARED] * 4)
    shared = repeat_until_undisturbed("run", lambda: next(left), 3)
    assert (shared.outcome, shared.step_end.flags, shared.telemetry) == (FINE.outcome, (REPEATED,), SHARED.telemetry)
    again = repeat_until_undisturbed("run", lambda: next(left), 3, {*shared.telemetry.disturbances})
    assert again == SHARED
