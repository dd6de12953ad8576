"""Whatever befalls Slurm's daemons and the jobs of a campaign: nothing is lost, measured twice or submitted twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from campaign.common.errors import LaunchError
from campaign.common.processes.marked import list_pids, read_process_words
from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.emulators.slurm import daemons
from campaign.slurm.excluded_hosts import ExcludedHosts
from tests.cluster.fault_site import GATED, SNAKEMAKE, FaultSite, impatient_cluster
from tests.warm_start import Started

pytestmark = pytest.mark.usefixtures("slurm_installed")

Begun = tuple[FaultSite, Started]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with impatient_cluster(tmp_path_factory.mktemp("plain"), accounting=False) as running:
        yield running


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with impatient_cluster(tmp_path_factory.mktemp("lonely"), accounting=False) as running:
        yield running


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that follows processes by control groups, whatever session they are in."""
    directory = tmp_path_factory.mktemp("grouped")
    try:
        with impatient_cluster(directory, accounting=False, more=("ProctrackType=proctrack/cgroup",)) as running:
            yield running
    except LaunchError as refused:
        pytest.skip(f"Slurm cannot use control groups here: {refused}")
    finally:
        for group in sorted(Path("/sys/fs/cgroup/freezer").glob("slurm_host*/**/"), reverse=True):
            with suppress(OSError):  # another cluster's
                group.rmdir()


# -- daemons ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("limited", "outlasting", "untold")  # whose minutes pass while the others run
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
    daemons.start_daemon(site.cluster, "slurmctld")
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
    daemons.start_daemon(site.cluster, "slurmctld")
    site.finish(process, runs=4, accepted=1)


def test_accounting_is_away(site: FaultSite) -> None:
    site.gated(batch=[1, 2], lease_per="cell")
    process = site.begin(runs=2)
    site.stop("slurmdbd")
    site.slurm("scancel", min(site.jobs()))
    site.open()
    site.ends(process)
    daemons.start_daemon(site.cluster, "slurmdbd")
    site.assert_whole(runs=2, again=1)


@pytest.mark.parametrize("strategy", ["static", "reservation"])
def test_a_controller_that_has_just_started_knows_no_host(site: FaultSite, strategy: str) -> None:
    site.change_system(slurm={"placement": "pinned", "strategy": strategy})
    site.gated()
    site.open()
    for round_number in range(2):
        site.stop("slurmctld")
        daemons.start_daemon(site.cluster, "slurmctld")
        site.until(lambda: "unk" in states(site) or "idle" in states(site))
        site.change_system(slurm={"latency_s": 5 + round_number})
        site.campaign(batch=[1, 2][: round_number + 1])
        site.measure()
    assert not excluded(site)
    site.assert_whole(runs=2)


def test_all_hosts_are_away_for_a_while(site: FaultSite) -> None:
    """The switch, or a file system that all of them need: no host is to blame, and the campaign goes on when they are back."""
    site.change_system(slurm={"placement": "pinned"})
    site.gated()
    site.open()
    hosts = [host.name for host in site.cluster.spec.hosts]
    for host in hosts:
        daemons.stop_daemon(site.cluster, "slurmd", host)
    site.until(lambda: states(site).split() == ["down*"] * len(hosts))
    process = site.start()
    site.until_said("composition waits for 1 suitable free host")
    for host in hosts:
        daemons.start_daemon(site.cluster, "slurmd", host)
    site.ends(process)
    assert not excluded(site)
    site.assert_whole(runs=1)


def test_an_excluded_host_is_used_again_when_it_is_healthy(site: FaultSite) -> None:
    site.change_system(slurm={"placement": "pinned"})
    site.gated()
    process = site.begin()
    (host,) = {site.host_of(job_id) for job_id in site.jobs()}
    site.power_off(host)
    site.until_said(f"{host} is excluded until it is healthy again")
    site.open()
    site.ends(process)
    assert excluded(site) == {host}
    site.repair()
    notes = ExcludedHosts(site.results().slurm_state)
    document = json.loads(notes.path(host).read_text())
    notes.path(host).write_text(json.dumps({**document, "time_s": document["time_s"] - 60}))
    site.campaign(batch=[1, 2])
    assert f"{host} is used again: Slurm reports it as idle, and a test job ran on it" in site.measure()
    assert excluded(site) == set()
    site.assert_whole(runs=2, again=1)


# -- jobs ------------------------------------------------------------------------------------------------------------------


def test_one_of_several_jobs_is_cancelled(site: FaultSite) -> None:
    site.gated(batch=[1, 2, 3], lease_per="cell")
    process = site.begin(runs=3)
    cancelled = min(site.jobs())
    site.slurm("scancel", cancelled)
    site.until_said(f"job {cancelled} ended in state CANCELLED")
    site.finish(process, runs=3, accepted=4, again=1)


def test_a_job_that_a_person_holds_is_waited_for(site: FaultSite) -> None:
    site.change_system(slurm={"latency_s": 0})
    others = site.occupy(",".join(host.name for host in site.cluster.spec.hosts))
    site.gated()
    process = site.start()
    site.until(lambda: list(site.jobs().values()) == ["PENDING"])
    (held,) = site.jobs()
    site.slurm("scontrol", "hold", held)
    site.until_said(f"scontrol release {held}")
    site.slurm("scancel", others)
    held_s = time.monotonic()
    site.until(lambda: time.monotonic() > held_s + 8)
    assert site.jobs() == {held: "PENDING"}
    site.slurm("scontrol", "release", held)
    site.finish(process, runs=1, accepted=1)


@pytest.mark.parametrize("tracking", ["linuxproc", "cgroup"])
def test_a_service_ends_with_its_driver(tracking: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A driver that is killed ends nothing. Slurm without control groups loses sight of what has a session of its own."""
    site = FaultSite(tmp_path / "site", request.getfixturevalue("frail" if tracking == "linuxproc" else "grouped"))
    assert f"proctrack/{tracking}\n" in site.slurm("scontrol", "show", "config")
    site.write(
        "workloads/logged.yaml",
        {
            "name": "logged",
            "kind": "service",
            "precisions": ["fp32"],
            "server": {"command": ["sh", "-c", SERVER], "ready": {"tcp": True}},
            "client": {
                "command": ["sleep", "4711"],
                "parsers": [{"metric": "throughput_per_s", "regex": r"rate (\S+)"}],
            },
        },
    )
    site.campaign(batch=1)
    process = site.start(*SNAKEMAKE)
    try:
        site.until(lambda: len(sleepers()) == 4 or process.poll() is not None)
        assert len(sleepers()) == 4, site.said()
        for pid in drivers():
            os.kill(pid, signal.SIGKILL)
        site.until(lambda: not sleepers(), 10.0)
    finally:
        process.kill()
        site.kill_all()
        site.repair()


def test_a_requeued_job_goes_on_with_what_has_no_record(site: FaultSite) -> None:
    site.workload("logged", body=f'case "$CAMPAIGN_RUN" in *.1) echo rate: 10; exit;; esac; {GATED}')
    site.campaign(repetitions=3)
    process = site.begin(runs=2)
    assert len(site.records()) == 1
    job_id = site.job("1x1-local.c1")
    site.slurm("scontrol", "requeue", job_id)
    site.at_once(job_id)
    site.finish(process, runs=3, accepted=1, again=1)


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
        site.until(lambda: "could not be written" in site.log_of(site.job("1x1-local.c1")))
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
def outlasting(plain: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """A campaign whose only run takes longer than its jobs, a minute."""
    site = FaultSite(tmp_path_factory.mktemp("outlasting") / "site", plain)
    site.change_system(slurm={"time_min": 1})
    site.workload("logged", body="sleep 600")
    site.campaign()
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
        daemons.start_daemon(site.cluster, "slurmctld")
    return site, process


def _has_ended(site: FaultSite) -> bool:
    """Whether the first run's rank has."""
    with suppress(FileNotFoundError):
        ends = site.results().work_directory("1x1-local.c1").glob("runs/*/rank.0")
        return any("ended" in end.read_text() for end in ends)
    return False


def ends_with_its_one_job(begun: Begun) -> FaultSite:
    """A campaign whose job comes to its time limit and is started again at once, to its end."""
    site, process = begun
    site.until(lambda: "PENDING" in site.jobs().values() or process.poll() is not None)
    for job_id in site.jobs():
        site.at_once(job_id)
    site.ends(process)
    assert site.accepted() == 1
    return site


def test_an_allocation_ends_at_its_time_limit(limited: Begun) -> None:
    site = ends_with_its_one_job(limited)
    site.assert_whole(runs=3, again=1)


def test_a_run_that_no_job_is_long_enough_for_is_recorded(outlasting: Begun) -> None:
    site = ends_with_its_one_job(outlasting)
    (record,) = site.records()
    assert record.status == "time_limit"
    assert record.failure is not None
    assert "raise or remove `slurm.time_min`" in record.failure.reason
    assert len(site.starts()) == 1


def test_a_run_ends_while_the_controller_is_away(untold: Begun) -> None:
    """Slurm is told of the end of its step only a minute later, and takes its memory for used until then."""
    site, process = untold
    site.ends(process)
    assert site.accepted() == 1
    site.assert_whole(runs=3)


def test_jobs_end_unseen_on_a_cluster_without_accounting(plain: Cluster, tmp_path: Path) -> None:
    site = FaultSite(tmp_path / "site", plain)
    site.gated(batch=[1, 2], lease_per="cell")
    process = site.begin(runs=2)
    site.kill_all()
    site.ends(process, -9)
    site.slurm("scancel", min(site.jobs()))
    site.open()
    site.until(lambda: not site.jobs())
    site.measure()
    assert site.accepted() == 3
    site.assert_whole(runs=2, again=1)


# -- support ---------------------------------------------------------------------------------------------------------------


def states(site: FaultSite) -> str:
    """Of all hosts, in sinfo's words; empty while the controller does not answer."""
    try:
        return site.slurm("sinfo", "--noheader", "--Node", "--format=%T")
    except AssertionError:
        return ""


def excluded(site: FaultSite) -> set[str]:
    return set(ExcludedHosts(site.results().slurm_state).read_current())


SERVER = """trap '' TERM; setsid sleep 4711 & sleep 4711 & env -i setsid sleep 4711 &
exec python3 -m http.server {port} --bind 127.0.0.1"""
"""With processes that SIGTERM does not end: in the background, in sessions of their own, and without the mark of the run."""


def sleepers() -> list[int]:
    return [pid for pid in list_pids() if read_process_words(pid, "cmdline")[:2] == [b"sleep", b"4711"]]


def drivers() -> list[int]:
    return [pid for pid in list_pids() if b"submitit.core._submit" in read_process_words(pid, "cmdline")]


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """Nothing can be made in a directory, not even by root."""
    subprocess.run(["chattr", "+i", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(directory)], check=True)


# -- results ---------------------------------------------------------------------------------------------------------------


def test_results_that_no_host_sees_are_said_before_the_first_lease(site: FaultSite) -> None:
    """Every host has a disk of its own where this machine has the results: the mistake of a first day."""
    site.gated()
    site.results_root.mkdir(exist_ok=True)
    for host in site.cluster.spec.hosts:
        number = daemons.find_processes(site.cluster, "slurmd", host.name)[0].pid
        mount = ["mount", "-t", "tmpfs", "disk", str(site.results_root)]
        subprocess.run(["nsenter", f"--mount=/proc/{number}/ns/mnt", *mount], check=True)
    try:
        process = site.start()
        site.ends(process, code=1)
    finally:
        for host in site.cluster.spec.hosts:  # its mounts end with it
            daemons.stop_daemon(site.cluster, "slurmd", host.name)
        site.repair()
    assert f"does not see {site.results_root.resolve()} of this machine" in site.said()
    assert site.accepted() == 0
