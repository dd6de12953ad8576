"""What a campaign finds out about its leases from their journals: compositions that Slurm asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.errors import LaunchError
from campaign.lease.campaign_leases import lease_id, obtained_on_demand
from campaign.lease.manual import compose, release
from campaign.paths import Results
from tests.campaign_files import write_files

FAST = {f"system.fabric.{name}": 0.0 for name in ("operation_s", "attach_s", "detach_s", "enumerate_s")}


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    return write_files(tmp_path, FAST)


def test_what_slurm_had_composed_for_a_job_is_what_its_driver_stands_on(tmp_path: Path, campaign_file: Path) -> None:
    results = Results(tmp_path / "results", "small")
    document = compose(campaign_file, results.root, "1x2-fabric", ["host2"], "job-12")
    obtained = obtained_on_demand(results, "bench", "12")
    assert obtained.composition.document() == document["obtained"]
    assert [host.name for host in obtained.composition.hosts] == ["host2"]
    assert obtained.use == f"{lease_id(results, 'kept-job-12')}.1"
    assert obtained.mismatches == ()


def test_two_jobs_of_one_configuration_have_each_their_own(tmp_path: Path, campaign_file: Path) -> None:
    results = Results(tmp_path / "results", "small")
    for job, host in (("12", "host1"), ("13", "host2")):
        compose(campaign_file, results.root, "1x1-fabric", [host], f"job-{job}")
    found = {job: obtained_on_demand(results, "bench", job) for job in ("12", "13")}
    assert [found[job].composition.hosts[0].name for job in ("12", "13")] == ["host1", "host2"]


def test_a_requeued_job_stands_on_its_last_composition(tmp_path: Path, campaign_file: Path) -> None:
    results = Results(tmp_path / "results", "small")
    for _ in range(2):
        compose(campaign_file, results.root, "1x1-fabric", (), "job-12")
        use = obtained_on_demand(results, "bench", "12").use
        release(campaign_file, results.root, "1x1-fabric", "job-12")
    assert use.endswith(".2")
    with pytest.raises(
        LaunchError, match=r"job 12: .* are not composed \(RELEASED\); look at the log of the ResumeProgram"
    ):
        obtained_on_demand(results, "bench", "12")


def test_a_job_that_nothing_was_composed_for_is_an_error(tmp_path: Path, campaign_file: Path) -> None:
    with pytest.raises(LaunchError, match=r"job 12: .* are not composed \(never asked for\)"):
        obtained_on_demand(Results(tmp_path / "results", "small"), "bench", "12")
