"""Whatever befalls Slurm's daemons and the jobs of a campaign: nothing is lost, measured twice or submitted twice."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from campaign.launch.emulation.cluster_spec import Cluster
from campaign.testbed.slurm import daemons
from tests.cluster.fault_site import GATED, FaultSite, impatient_cluster
from tests.warm_start import Started

pytestmark = pytest.mark.usefixtures("slurm_installed")

Begun = tuple[FaultSite, Started]


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this module's own, whose daemons may be killed."""
    with impatient_cluster(tmp_path_factory.mktemp("frail"), accounting=True) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with impatient_cluster(tmp_path_factory.mktemp("plain"), accounting=False) as running:
        yield running


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with impatient_cluster(tmp_path_factory.mktemp("lonely"), accounting=False) as running:
        yield running


@pytest.fixture
def site(frail: Cluster, tmp_path: Path) -> Iterator[FaultSite]:
    made = FaultSite(tmp_path / "site", frail)
    try:
        yield made
    finally:
        made.repair()


# -- daemons ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("limited", "untold")  # whose minutes pass while the others run
def test_the_controller_is_away_for_ten_seconds(site: FaultSite) -> None:
    """A run goes on meanwhile, and another campaign wants to submit."""
    site.gated(batch=[1, 2], repetitions=2)
    site.campaign("d", batch=3)
    process = site.begin()
    site.stop("slurmctld")
    gone_s = time.monotonic()
    other = site.start(campaign="d")
    site.until_said("Slurm does not answer")
    site.until_said("Slurm did not answer")
    site.until(lambda: time.monotonic() > gone_s + 10)
    daemons.start(site.cluster, "slurmctld")
    site.open()
    site.ends(process)
    site.ends(other)
    assert site.accepted("c") == site.accepted("d") == 1
    site.assert_whole(runs=4)
    site.assert_whole(runs=1, campaign="d")


def test_the_controller_is_killed_and_starts_again(site: FaultSite) -> None:
    site.gated(batch=[1, 2], repetitions=2)
    process = site.begin()
    # What it had not written down before it was killed it would not know of.
    saved = site.cluster.directory / "state" / "job_state"
    site.until(lambda: saved.exists() and saved.stat().st_mtime > site.starts()[0].time_s)
    site.stop("slurmctld", signal.SIGKILL)
    daemons.start(site.cluster, "slurmctld")
    site.open()
    site.ends(process)
    assert site.accepted("c") == 1
    site.assert_whole(runs=4)


def test_accounting_is_away(site: FaultSite) -> None:
    site.gated(batch=[1, 2], lease_per="cell")
    process = site.begin(runs=2)
    site.stop("slurmdbd")
    site.slurm("scancel", min(site.jobs()))
    site.open()
    site.ends(process)
    daemons.start(site.cluster, "slurmdbd")
    site.assert_whole(runs=2, again=1)


# -- jobs ------------------------------------------------------------------------------------------------------------------


def test_one_task_of_an_array_is_cancelled(site: FaultSite) -> None:
    site.gated(batch=[1, 2, 3], lease_per="cell")
    process = site.begin_array(3)
    cancelled = min(site.jobs())
    assert cancelled.endswith("_0")
    site.slurm("scancel", cancelled)
    site.until_said(f"job {cancelled}: was cancelled")
    site.open()
    site.ends(process)
    assert site.accepted() == 2
    site.assert_whole(runs=3, again=1)


def test_a_requeued_job_goes_on_with_what_has_no_record(site: FaultSite) -> None:
    site.workload("logged", body=f'case "$CAMPAIGN_RUN" in *.1) echo rate: 10; exit;; esac; {GATED}')
    site.campaign(repetitions=3)
    process = site.begin(runs=2)
    assert len(site.records()) == 1
    job_id = site.job("1x1-local")
    site.slurm("scontrol", "requeue", job_id)
    site.at_once(job_id)
    site.open()
    site.ends(process)
    assert site.accepted() == 1
    site.assert_whole(runs=3, again=1)


def test_a_run_over_its_memory_limit(site: FaultSite) -> None:
    greedy = "import time; held = bytearray(400 << 20); time.sleep(60)"
    site.workload("logged", body=f"exec python3 -c '{greedy}'")
    site.workload("modest", sleep_s=0.1)
    site.campaign(workload=["logged", "modest"], memory_limit_mib=200)
    site.measure()
    assert {record.cell.workload: record.status for record in site.records()} == {"logged": "oom_host", "modest": "ok"}
    site.assert_whole(runs=2)


# -- files and others ------------------------------------------------------------------------------------------------------


def test_records_cannot_be_written_for_a_while(site: FaultSite) -> None:
    site.gated(repetitions=3)
    process = site.begin()
    (records := site.results().directory / "records").mkdir(exist_ok=True)
    with unwritable(records):
        site.open()
        site.until(lambda: "could not be written" in site.log_of(site.job("1x1-local")))
        assert site.records() == []
    site.ends(process)
    site.assert_whole(runs=3)


def test_two_campaigns_at_once(site: FaultSite) -> None:
    site.workload("logged", sleep_s=0.3)
    site.campaign("c", devices=[1, 2], repetitions=2)
    site.campaign("d", devices=[1, 2], repetitions=2, batch=2)
    both = [site.start(campaign=name) for name in ("c", "d")]
    for process in both:
        site.ends(process)
    for name in ("c", "d"):
        assert site.accepted(name) <= 2
        site.assert_whole(runs=4, campaign=name)


# -- what takes a minute, and a cluster without accounting -----------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(plain: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """A campaign that comes to its time limit, a minute, in its second run."""
    site = FaultSite(tmp_path_factory.mktemp("limited") / "site", plain)
    site.change_system(slurm={"time_min": 1})
    site.workload("logged", body='case "$CAMPAIGN_RUN" in *.2) mkdir "$STARTS.late" && sleep 600;; esac; echo rate: 10')
    site.campaign(repetitions=3)
    return site, site.begin()


@pytest.fixture(scope="module")
def untold(lonely: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """A campaign whose first run has ended while the controller was away."""
    site = FaultSite(tmp_path_factory.mktemp("untold") / "site", lonely)
    site.gated(repetitions=3)
    process = site.begin()
    site.stop("slurmctld")
    site.open()
    try:
        site.until(lambda: site.records() or _has_ended(site))
        with suppress(AssertionError):  # a newer srun ends only when it has told the controller
            site.until(site.records, 10.0)
        if site.records():
            site.until(lambda: "Unable to contact" in site.run_log("2"))
    finally:
        daemons.start(site.cluster, "slurmctld")
    return site, process


def _has_ended(site: FaultSite) -> bool:
    """Whether the first run's rank has."""
    with suppress(FileNotFoundError):
        ends = site.results().work("1x1-local").glob("runs/*/rank.0")
        return any("ended" in end.read_text() for end in ends)
    return False


def test_an_allocation_ends_at_its_time_limit(limited: Begun) -> None:
    site, process = limited
    site.until(lambda: "PENDING" in site.jobs().values() or process.poll() is not None)
    for job_id in site.jobs():
        site.at_once(job_id)
    site.ends(process)
    assert site.accepted() == 1
    site.assert_whole(runs=3, again=1)


def test_a_run_ends_while_the_controller_is_away(untold: Begun) -> None:
    """Slurm is told of the end of its step only a minute later, and takes its memory for used until then."""
    site, process = untold
    site.ends(process)
    assert site.accepted() == 1
    site.assert_whole(runs=3)


def test_jobs_end_unseen_on_a_cluster_without_accounting(plain: Cluster, tmp_path: Path) -> None:
    site = FaultSite(tmp_path / "site", plain)
    site.gated(batch=[1, 2], lease_per="cell")
    process = site.begin_array(2)
    site.kill_all()
    site.ends(process, -9)
    site.slurm("scancel", min(site.jobs()))
    site.open()
    site.until(lambda: not site.jobs())
    site.measure()
    assert site.accepted() == 2
    site.assert_whole(runs=2, again=1)


# -- support ---------------------------------------------------------------------------------------------------------------


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """Nothing can be made in a directory, not even by root."""
    subprocess.run(["chattr", "+i", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(directory)], check=True)
