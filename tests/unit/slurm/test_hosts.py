"""Hosts that failed are left out, until a person takes them back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from campaign.documents.driver_messages import DriverResult
from campaign.errors import FabricError, HostFailed
from campaign.slurm.excluded_hosts import ExcludedHosts
from tests.unit.slurm.test_options import system


def test_all_hosts_may_be_used_at_first(tmp_path: Path) -> None:
    assert ExcludedHosts(tmp_path / "none").read() == {}
    assert ExcludedHosts(tmp_path / "none").remaining(system()) == ()


def test_a_host_is_left_out_until_its_file_is_removed(tmp_path: Path) -> None:
    excluded = ExcludedHosts(tmp_path)
    path = excluded.add("host2", "not responding", "1x2-local")
    assert ExcludedHosts(tmp_path).read() == {"host2": "not responding"}
    assert excluded.remaining(system()) == ("host1", "host3", "host4")
    path.unlink()
    assert excluded.remaining(system()) == ()


def test_the_last_reason_counts(tmp_path: Path) -> None:
    excluded = ExcludedHosts(tmp_path)
    excluded.add("host2", "down", "a")
    excluded.add("host2", "drained", "b")
    assert excluded.read() == {"host2": "drained"}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null"])
def test_a_damaged_file_still_leaves_the_host_out(tmp_path: Path, content: str) -> None:
    excluded = ExcludedHosts(tmp_path)
    excluded.add("host2", "down", "a").write_text(content)
    assert excluded.read() == {"host2": "unknown"}


def test_without_any_host_left_it_says_why_and_what_to_do(tmp_path: Path) -> None:
    excluded = ExcludedHosts(tmp_path)
    for number in range(1, 5):
        excluded.add(f"host{number}", f"broke {number}", "a")
    with pytest.raises(FabricError, match=rf"host1: broke 1; .*host4: broke 4.*rm {tmp_path}/excluded/\*\.json"):
        excluded.remaining(system())


def test_a_driver_can_blame_hosts() -> None:
    told = DriverResult(error=HostFailed("lost", {"host2": "not responding"})).document()
    error = DriverResult.of(json.loads(json.dumps(told))).error
    assert isinstance(error, HostFailed)
    assert (str(error), error.hosts) == ("lost", {"host2": "not responding"})
