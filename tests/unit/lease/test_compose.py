"""What a campaign finds out about its leases from their journals: compositions that Slurm asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.common.errors import LaunchError
from campaign.common.paths import Results, lease_id
from campaign.lease.campaign_leases import Site, get_kept_marker, read_on_demand_composition
from campaign.lease.check_site import clean_up_site
from campaign.lease.journal import Journal, LeaseState
from campaign.lease.manual import compose_kept_lease, release_kept_lease, verify_compositions
from campaign.plan.campaign.resolve import load_campaign
from tests.campaign_files import write_files

FAST = {f"system.fabric.{name}": 0.0 for name in ("operation_s", "attach_s", "detach_s", "enumerate_s")}


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    return write_files(tmp_path, FAST)


def test_what_slurm_had_composed_for_a_job_is_what_its_driver_stands_on(tmp_path: Path, campaign_file: Path) -> None:
    results = Results(tmp_path / "results", "small")
    document = compose_kept_lease(campaign_file, results.root, "1x2-fabric", ["host2"], "job-12")
    obtained = read_on_demand_composition(results, "bench", "12")
    assert obtained.composition.document() == document["obtained"]
    assert [host.name for host in obtained.composition.hosts] == ["host2"]
    assert obtained.use == f"{lease_id(results, 'kept-job-12')}.1"
    assert obtained.mismatches == ()


def test_two_jobs_of_one_configuration_have_each_their_own(tmp_path: Path, campaign_file: Path) -> None:
    results = Results(tmp_path / "results", "small")
    for job, host in (("12", "host1"), ("13", "host2")):
        compose_kept_lease(campaign_file, results.root, "1x1-fabric", [host], f"job-{job}")
    found = {job: read_on_demand_composition(results, "bench", job) for job in ("12", "13")}
    assert [found[job].composition.hosts[0].name for job in ("12", "13")] == ["host1", "host2"]


def test_a_requeued_job_stands_on_its_last_composition(tmp_path: Path, campaign_file: Path) -> None:
    results = Results(tmp_path / "results", "small")
    for _ in range(2):
        compose_kept_lease(campaign_file, results.root, "1x1-fabric", (), "job-12")
        use = read_on_demand_composition(results, "bench", "12").use
        release_kept_lease(campaign_file, results.root, "1x1-fabric", "job-12")
    assert use.endswith(".2")
    with pytest.raises(
        LaunchError, match=r"job 12: .* are not composed \(RELEASED\); see the log of the ResumeProgram"
    ):
        read_on_demand_composition(results, "bench", "12")


def test_a_job_that_nothing_was_composed_for_is_an_error(tmp_path: Path, campaign_file: Path) -> None:
    with pytest.raises(LaunchError, match=r"job 12: .* are not composed \(never requested\)"):
        read_on_demand_composition(Results(tmp_path / "results", "small"), "bench", "12")


@pytest.mark.parametrize(
    "left", [["UNKNOWN"], ["UNKNOWN", "PARTIAL"], ["DRAINING", "DETACHING", "LEAKED"]], ids=lambda left: str(left[-1])
)
def test_what_is_kept_and_was_not_composed_whole_or_leaked_has_no_owner(
    left: list[LeaseState], tmp_path: Path, campaign_file: Path
) -> None:
    results = Results(tmp_path / "results", "small")
    compose_kept_lease(campaign_file, results.root, "1x1-fabric")
    mine, site = lease_id(results, "kept-1x1-fabric"), Site(load_campaign(campaign_file).system, results.root)
    assert site.is_live(mine)
    for state in left:
        Journal(site.journals_directory, mine).enter_state(state)
    assert [lease["live"] for lease in verify_compositions(campaign_file, results.root)] == [False]
    assert [orphan.outcome for orphan in clean_up_site(site, dry_run=True, grace_s=0)[0]] == ["would_release"]
    (orphan,), *_ = clean_up_site(site, dry_run=False, grace_s=0)
    assert (orphan.lease_id, orphan.outcome) == (mine, "released")
    assert not get_kept_marker(site.journals_directory, mine).exists()
    assert verify_compositions(campaign_file, results.root) == []


def test_one_device_of_two_that_its_host_does_not_see_is_found(tmp_path: Path, campaign_file: Path) -> None:
    root = tmp_path / "results"
    compose_kept_lease(campaign_file, root, "1x2-fabric")
    verify = ["verify", str(campaign_file), "--results", str(root)]
    assert CliRunner().invoke(main, verify).exit_code == 0
    with Site(load_campaign(campaign_file).system, root).open_fabric() as fabric, fabric.state.edit() as state:
        state.get_or_create_slot("falcon1/drawer1/slot2").visible_s = None
    shown = CliRunner().invoke(main, verify)
    assert (shown.exit_code, "differs from the request" in shown.output) == (1, False)


def test_what_nobody_looks_at_is_not_said_to_be_seen(tmp_path: Path) -> None:
    here = {"system.fabric.kind": "static", "system.pool": [], "campaign.configurations.0.attach": ["local"]}
    campaign_file, root = write_files(tmp_path, here), tmp_path / "results"
    document = compose_kept_lease(campaign_file, root, "1x1-local")
    assert document["times"]["host_visible_s"] is None
    assert document["times"]["ready_s"] is not None
    (lease,) = verify_compositions(campaign_file, root)
    assert [device["host_sees"] for device in lease["devices"]] == [None]
    shown = CliRunner().invoke(main, ["verify", str(campaign_file), "--results", str(root)])
    assert (shown.exit_code, "not checked" in shown.output) == (0, True)
