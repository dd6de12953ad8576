"""Repeats a run that something from outside has disturbed, so that the apparatus is not taken for the subject."""

from __future__ import annotations

from collections.abc import Callable

from campaign.errors import LaunchError
from campaign.workloads.failures import KILLED, PACE_NOT_HELD
from campaign.workloads.protocol import Ended, Outcome

TRIES = 3


def until_undisturbed(name: str, launch: Callable[[], tuple[Ended, Outcome]]) -> tuple[Ended, Outcome]:
    """The first of a few launches that nothing has disturbed. LaunchError: each was stopped, suspended, or had its clock set.

    A rank that gets SIGKILL in each of them gets it for what it does, and one whose pace was never held asks for more than this
    machine has: that is the run's outcome.
    """
    own = 0
    for _ in range(TRIES):
        ended, outcome = launch()
        why = ended.disturbed
        if not why and outcome.failure is not None and outcome.failure.reason in (KILLED, PACE_NOT_HELD):
            own += 1
            why = outcome.failure.reason
        if not why or own == TRIES:
            return ended, outcome
        print(f"{name}: {why}; the run has no record and is repeated", flush=True)
    raise LaunchError(f"{name}: {why}; disturbed {TRIES} times in a row: find out what stops or kills runs here")
