from __future__ import annotations

import pytest

from campaign.common.errors import LaunchError
from campaign.run.launched_run import TRIES, until_undisturbed
from campaign.spec.record import Failure
from campaign.workloads.failures import KILLED, PACE_NOT_HELD
from campaign.workloads.protocol import Ended, Outcome

FINE = (Ended((0,), 0.0, 1.0), Outcome("ok", throughput_per_s=9.9))
SLOWED = (Ended((0,), 0.0, 5.0, disturbed="the run was suspended"), Outcome("ok", throughput_per_s=1.8))
LATE = (
    Ended((-9,), 0.0, 5.0, timed_out=True, disturbed="the clock was set"),
    Outcome("time_limit", Failure(reason="")),
)
SHOT = (Ended((-9,), 0.0, 1.0), Outcome("crashed", Failure(reason=KILLED)))
BUSY = (Ended((0,), 0.0, 1.0), Outcome("invalid", Failure(reason=PACE_NOT_HELD), throughput_per_s=1.8))
CRASHED = (Ended((7,), 0.0, 1.0), Outcome("crashed", Failure(reason="exit code 7")))
Launched = tuple[Ended, Outcome]


@pytest.mark.parametrize(
    ("launches", "counts"),
    [
        ([FINE], 0),
        ([CRASHED, FINE], 0),
        ([SLOWED, FINE], 1),
        ([LATE, SHOT, FINE], 2),
        ([SHOT, CRASHED, FINE], 1),
        ([SHOT] * TRIES, TRIES - 1),
        ([BUSY, BUSY, FINE], 2),
        ([BUSY] * TRIES, TRIES - 1),
    ],
)
def test_the_first_undisturbed_launch_counts(launches: list[Launched], counts: int) -> None:
    left = iter(launches)
    assert until_undisturbed("run", lambda: next(left)) == launches[counts]


@pytest.mark.parametrize("launches", [[SLOWED] * TRIES, [SHOT, SHOT, SLOWED], [LATE, SHOT, SHOT]])
def test_a_machine_that_disturbs_every_launch_gives_no_record(launches: list[Launched]) -> None:
    left = iter(launches)
    with pytest.raises(LaunchError, match=f"disturbed {TRIES} times in a row"):
        until_undisturbed("run", lambda: next(left))
