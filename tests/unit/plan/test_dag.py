"""What a plan is made of: hosts that are left out, and with them only what no longer fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.concurrency import resource_limits
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.spec.race import RaceDocument, write_race
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
    assert "the system has only" in removed.why
    kept = {cell.id for _, cell in whole.cells if cell.configuration.name == "1x1-fabric"}
    assert {cell.id for _, cell in some.cells} == kept  # leaving hosts out changes no cell
    assert resource_limits(some.campaign)["hosts"] == 1


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("host3", "there is no host host3; the hosts are: host1, host2"),
        ("host[2-1]", "a range must be ascending"),
        ("host[1-2]", "no host of system bench would remain"),
    ],
)
def test_hosts_that_cannot_be_left_out_are_named(hosts: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        read_plan(PlanRequest(write_files(tmp_path), tmp_path / "results", without_hosts=hosts))
    assert words in str(told.value)


def test_a_race_has_the_compositions_that_its_document_gives_to_each_configuration(tmp_path: Path) -> None:
    changes = {
        "campaign.configurations": SHAPES,
        "campaign.protocol.compositions": 3,
        "campaign.protocol.repetitions": 3,
    }
    request = PlanRequest(write_files(tmp_path, changes), tmp_path / "results", until="best")
    results = Results(request.results, "small")

    def leases() -> list[str]:
        return sorted(lease.name for lease in read_plan(request).leases)

    assert leases() == ["1x1-fabric.c1", "2x1-fabric.c1"]  # the first block
    race = RaceDocument(
        within_pct=5, blocks=3, ended=False, compositions={"1x1-fabric": 3, "2x1-fabric": 2}, compositions_planned=6
    )
    write_race(results.race_file, race)
    plan = read_plan(request)
    assert leases() == [f"1x1-fabric.c{n}" for n in (1, 2, 3)] + [f"2x1-fabric.c{n}" for n in (1, 2)]
    whole = read_plan(replace(request, until=None))
    assert len(whole.leases) == 6
    assert {cell.id for cell in plan.matrix} == {cell.id for cell in whole.matrix}
    # Names, runs and digests of leases are those of the whole campaign.
    digests = {lease.name: lease.digest for lease in whole.leases}
    assert all(lease.digest == digests[lease.name] for lease in plan.leases)
    write_plan(plan, results)
    assert results.race_file.exists()
    write_plan(whole, results)  # whoever measures the rest has left the race
    assert not results.race_file.exists()
