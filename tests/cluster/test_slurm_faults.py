"""Whatever befalls a campaign on a real Slurm: nothing is lost, and nothing is measured or submitted twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from campaign.launch.emulation.cluster_spec import Cluster, ClusterSpec
from campaign.tables.collect import collect, gather_planned
from campaign.testbed.slurm import daemons
from campaign.testbed.slurm.cluster import down, up
from tests.cluster.fault_site import DEVICES, GATED, HOSTS, SNAKEMAKE, FaultSite
from tests.equal_hosts import equal_hosts
from tests.warm_start import Started

pytestmark = pytest.mark.usefixtures("slurm_installed")

IMPATIENT = ("SlurmdTimeout=6", "KillWait=2")
"""So that Slurm itself is soon done with what tests do to it."""


Begun = tuple[FaultSite, Started]


@contextmanager
def cluster(directory: Path, *, accounting: bool) -> Iterator[Cluster]:
    """A cluster of this module's own, whose daemons may be killed."""
    spec = ClusterSpec(hosts=equal_hosts(HOSTS, DEVICES), accounting=accounting, slurm_conf=IMPATIENT)
    try:
        yield up(directory, spec, print)
    finally:
        down(directory)


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("frail"), accounting=True) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("plain"), accounting=False) as running:
        yield running


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("lonely"), accounting=False) as running:
        yield running


@pytest.fixture
def site(frail: Cluster, tmp_path: Path) -> Iterator[FaultSite]:
    made = FaultSite(tmp_path / "site", frail)
    try:
        yield made
    finally:
        made.repair()


# -- who waits on the login node dies --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("limited", "untold")  # whose minutes pass while the others run
def test_kill_9_with_jobs_queued_and_running(site: FaultSite) -> None:
    other = site.occupy("host2,host3,host4,host5")
    site.gated(batch=[1, 2, 3], lease_per="cell")
    process = site.begin_array(3, *SNAKEMAKE, running=1)
    site.until(lambda: sorted(site.jobs().values()) == ["PENDING", "PENDING", "RUNNING"])
    site.kill_all()
    site.ends(process, -9)
    jobs = site.jobs()
    assert len(jobs) == 3
    again = site.start(*SNAKEMAKE)
    site.until_said("found its driver still there", times=3)
    assert site.jobs() == jobs
    site.slurm("scancel", other)
    site.open()
    site.ends(again)
    assert site.accepted() == 1
    site.assert_whole(runs=3)


def test_death_between_sbatch_and_its_journal(site: FaultSite) -> None:
    """All of the login node dies in the moment in which sbatch has answered."""
    sbatch = wrapped(site, "sbatch", 'if mkdir "$STARTS.died"; then "$real" "$@"; kill -9 0; fi')
    site.gated(batch=[1, 2], lease_per="cell")
    process = site.submit_array(2)
    site.ends(process, -9)
    site.kill_all()
    assert len(site.jobs()) == 2
    again = site.start()
    site.until_said("found its driver still there", times=2)
    site.open()
    site.ends(again)
    assert sbatch.read_text().count("\n") == 1
    site.assert_whole(runs=2)


def test_ctrl_c_leaves_the_jobs_and_the_same_command_picks_them_up(site: FaultSite) -> None:
    site.gated(devices=[1, 2])
    process = site.begin(*SNAKEMAKE, runs=2)
    jobs = site.jobs()
    os.killpg(process.pid, signal.SIGINT)
    site.ends(process, 1)
    assert "the same command picks them up" in site.said()
    assert site.jobs() == jobs
    again = site.start(*SNAKEMAKE)
    site.until_said("found its driver still there", times=2)
    site.open()
    site.ends(again)
    assert site.accepted() == 2
    site.assert_whole(runs=2)


def test_ctrl_c_twice_cancels_and_releases(site: FaultSite) -> None:
    site.gated(devices=[1, 2])
    process = site.begin(*SNAKEMAKE, runs=2)
    os.killpg(process.pid, signal.SIGINT)
    site.until_said("Ctrl-C again")
    os.killpg(process.pid, signal.SIGINT)
    site.ends(process, 1)
    assert "cancelling" in site.said()
    site.assert_clean()
    assert site.records() == []
    site.open()
    site.measure()
    site.assert_whole(runs=2, again=2)


# -- hosts -----------------------------------------------------------------------------------------------------------------


def test_hosts_die(site: FaultSite) -> None:
    """One that Slurm chose, so that it may choose another; and one that was composed, so that another has to be composed."""
    site.system("pinned", hosts=HOSTS, devices=DEVICES, slurm={"placement": "pinned"})
    site.gated(repetitions=2)
    site.campaign("d", system="pinned", batch=2)
    pinned = site.start(campaign="d")
    site.until(lambda: len(site.starts()) == 1)
    chosen = site.begin(runs=2)
    dead = {name: site.host_of(site.job("1x1-local", name)) for name in ("c", "d")}
    for host in dead.values():
        site.power_off(host)
    for host in dead.values():
        site.until_said(f"{host} is left out from now on")
    assert f"host {dead['c']} is excluded" in site.status()
    site.at_once(site.job("1x1-local"))
    site.open()
    site.ends(pinned)
    site.ends(chosen)
    assert site.accepted("c") == 1
    # The other dead host is tried too, where Slurm has not found out yet.
    assert site.accepted("d") in (2, 3)
    for name, host in dead.items():
        assert host not in {host for record in site.records(name) for host in record.hosts}
    site.assert_whole(runs=2, again=1)
    site.assert_whole(runs=1, campaign="d", again=1)
    assert dead["c"] in report_context(site)


def test_nothing_is_composed_while_others_have_the_hosts(site: FaultSite) -> None:
    """An administrator drains one of them meanwhile; what is composed for is the first that becomes free."""
    site.change_system(slurm={"placement": "pinned"})
    site.gated()
    others = [site.occupy("host1,host2,host3,host4"), site.occupy("host5")]
    process = site.start()
    site.until_said("nothing is composed until 1 fitting hosts are free")
    site.slurm("scontrol", "update", "nodename=host1", "state=drain", "reason=a fan is loud")
    assert site.jobs() == {}
    assert not list(site.results_root.glob(".systems/*/leases/*.jsonl"))
    site.slurm("scancel", others[1])
    site.open()
    site.ends(process)
    assert site.queue() == [(others[0], "other", "RUNNING")]
    assert {host for record in site.records() for host in record.hosts} == {"host5"}
    site.assert_whole(runs=1)


def test_a_host_with_other_devices_than_composed_measures_nothing(site: FaultSite) -> None:
    tells = 'test "$SLURMD_NODENAME" = host1 && model=P4 || model=cpu-rank; echo "id0, $model"; echo "id1, $model"'
    site.change_system(
        slurm={"placement": "pinned", "devices_command": ["sh", "-c", tells]},
        devices={"cpu-rank": {"runs_on": "cpu", "reported_as": "cpu-rank"}},
    )
    site.campaign(repetitions=2)
    site.measure()
    assert "host1" not in {host for record in site.records() for host in record.hosts}
    site.assert_whole(runs=2)
    differing, measured = site.leases()
    assert "P4" in str(differing["faults"])
    assert measured["faults"] == []
    assert "host1" in report_context(site)


# -- daemons ---------------------------------------------------------------------------------------------------------------


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


def wrapped(site: FaultSite, program: str, lines: str) -> Path:
    """Put shell lines before one of Slurm's programs; gives a file with a line for each call that got through."""
    places = site.directory / "bin"
    places.mkdir()
    calls = places / "calls"
    real = subprocess.run(["which", program], capture_output=True, text=True, check=True).stdout.strip()
    (places / program).write_text(f'#!/bin/sh\nreal={real}\necho "$*" >>{calls}\n{lines}\nexec $real "$@"\n')
    (places / program).chmod(0o755)
    site.environment["PATH"] = f"{places}{os.pathsep}{site.environment['PATH']}"
    return calls


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """Nothing can be made in a directory, not even by root."""
    subprocess.run(["chattr", "+i", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(directory)], check=True)


def report_context(site: FaultSite) -> str:
    tables = site.results().tables
    collect(gather_planned(site.results().plan_document), tables)
    return (tables / "context.json").read_text()
