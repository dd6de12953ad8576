"""What a plan is made of: hosts that are left out, and with them only what no longer fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from campaign.errors import ConfigError
from campaign.plan.concurrency import limits
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from tests.campaign_files import write_files

SHAPES = [{"hosts": [1, 2], "devices_per_host": 1, "attach": "fabric"}]


def test_what_no_longer_fits_is_left_out_by_name(tmp_path: Path) -> None:
    asked = PlanRequest(write_files(tmp_path, {"campaign.configurations": SHAPES}), tmp_path / "results")
    whole, some = read_plan(asked), read_plan(replace(asked, without_hosts="host2"))
    assert {lease.configuration.name for lease in whole.leases} == {"1x1-fabric", "2x1-fabric"}
    assert {lease.configuration.name for lease in some.leases} == {"1x1-fabric"}
    assert (some.unfit, some.without_hosts) == ({}, "host2")
    (removed,) = some.removed
    assert (removed.rule, removed.cells) == ("2x1-fabric, without host2", 4)
    assert "exceeds the system" in removed.why
    kept = {cell.id for _, cell in whole.cells if cell.configuration.name == "1x1-fabric"}
    assert {cell.id for _, cell in some.cells} == kept  # leaving hosts out changes no cell
    assert limits(some.campaign)["hosts"] == 1


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("host3", "no host host3; there are: host1, host2"),
        ("host[2-1]", "a range counts upwards"),
        ("host[1-2]", "leaves no host of bench"),
    ],
)
def test_hosts_that_cannot_be_left_out_are_named(hosts: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        read_plan(PlanRequest(write_files(tmp_path), tmp_path / "results", without_hosts=hosts))
    assert words in str(told.value)
