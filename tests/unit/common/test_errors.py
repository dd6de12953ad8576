"""Errors keep what they know, also on their way from a driver to whoever waits for it."""

from __future__ import annotations

import pickle

import pytest

from campaign.common.errors import HostFailed, LaunchError


@pytest.mark.parametrize("error", [LaunchError("it broke"), HostFailed("it broke", {"host1": "is down"})])
def test_a_log_is_named_once_and_the_nearest_one_wins(error: LaunchError) -> None:
    named = error.with_log("logs/run.log").with_log("driver.err")
    assert str(named) == "it broke (log: logs/run.log)"
    assert type(named) is type(error)


def test_hosts_and_log_survive_the_way_back_from_a_driver() -> None:
    error = HostFailed("it broke", {"host1": "is down"}).with_log("x.log")
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.hosts) == ("it broke (log: x.log)", {"host1": "is down"})
