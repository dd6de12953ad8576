from __future__ import annotations

import pytest

from campaign.common.errors import LaunchError
from campaign.run.launched_run import MAX_PACE_TRIES, MAX_TRIES, repeat_until_undisturbed
from campaign.spec.record import Failure
from campaign.workloads.failures import KILLED_FROM_OUTSIDE, PACE_NOT_HELD, REPEATED_FOR_PACE
from campaign.workloads.protocol import Outcome, StepEnd

FINE = (StepEnd((0,), 0.0, 1.0), Outcome("ok", throughput_per_s=9.9))
SLOWED = (StepEnd((0,), 0.0, 5.0, disturbance="the run was suspended"), Outcome("ok", throughput_per_s=1.8))
LATE = (
    StepEnd((-9,), 0.0, 5.0, timed_out=True, disturbance="the clock was set"),
    Outcome("time_limit", Failure(reason="")),
)
SHOT = (StepEnd((-9,), 0.0, 1.0), Outcome("crashed", Failure(reason=KILLED_FROM_OUTSIDE)))
BUSY = (StepEnd((0,), 0.0, 1.0), Outcome("invalid", Failure(reason=PACE_NOT_HELD), throughput_per_s=1.8))
CRASHED = (StepEnd((7,), 0.0, 1.0), Outcome("crashed", Failure(reason="exit code 7")))
Launched = tuple[StepEnd, Outcome]


@pytest.mark.parametrize(
    ("launches", "counts"),
    [
        ([FINE], 0),
        ([CRASHED, FINE], 0),
        ([SLOWED, FINE], 1),
        ([LATE, SHOT, FINE], 2),
        ([SHOT, CRASHED, FINE], 1),
        ([SHOT] * MAX_TRIES, MAX_TRIES - 1),
    ],
)
def test_the_first_undisturbed_launch_counts(launches: list[Launched], counts: int) -> None:
    left = iter(launches)
    assert repeat_until_undisturbed("run", lambda: next(left)) == launches[counts]


@pytest.mark.parametrize(
    ("launches", "counts"),
    [
        ([BUSY, BUSY, FINE], 2),
        ([BUSY] * (MAX_PACE_TRIES - 1) + [FINE], MAX_PACE_TRIES - 1),
        ([BUSY, SHOT, SLOWED, BUSY, CRASHED], 4),
        ([BUSY] * MAX_PACE_TRIES, MAX_PACE_TRIES - 1),
    ],
)
def test_a_launch_after_one_that_lost_its_pace_is_flagged(launches: list[Launched], counts: int) -> None:
    left = iter(launches)
    ended, outcome = repeat_until_undisturbed("run", lambda: next(left))
    assert outcome == launches[counts][1]
    assert ended.flags == (REPEATED_FOR_PACE,)
    assert list(left) == launches[counts + 1 :]


@pytest.mark.parametrize(
    "launches", [[SLOWED] * MAX_TRIES, [SHOT, SHOT, SLOWED], [LATE, SHOT, SHOT], [BUSY, LATE, BUSY, SHOT, SHOT]]
)
def test_a_machine_that_disturbs_every_launch_gives_no_record(launches: list[Launched]) -> None:
    left = iter(launches)
    with pytest.raises(LaunchError, match=f"disturbed {MAX_TRIES} times in a row"):
        repeat_until_undisturbed("run", lambda: next(left))
