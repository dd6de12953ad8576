"""Whatever befalls the login node and the hosts of a campaign on a real Slurm: nothing is lost, measured twice or submitted twice.

What befalls Slurm's daemons and jobs: test_slurm_daemon_faults.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from campaign.analysis.tables.collect import read_planned_results, write_campaign_tables
from tests.cluster.fault_site import DEVICES, HOSTS, SNAKEMAKE, FaultSite

pytestmark = pytest.mark.usefixtures("slurm_installed")


# -- who waits on the login node dies --------------------------------------------------------------------------------------


def test_kill_9_with_jobs_queued_and_running(site: FaultSite) -> None:
    other = site.occupy("host2,host3,host4,host5")
    site.gated(batch=[1, 2, 3], lease_per="cell")
    process = site.begin(*SNAKEMAKE)
    site.until(lambda: sorted(site.jobs().values()) == ["PENDING", "PENDING", "RUNNING"])
    site.kill_all()
    site.ends(process, -9)
    jobs = site.jobs()
    assert len(jobs) == 3
    again = site.start(*SNAKEMAKE)
    site.until_said("continuing with the existing driver", times=3)
    assert site.jobs() == jobs
    site.slurm("scancel", other)
    site.finish(again, runs=3, accepted=3)


def test_death_between_sbatch_and_its_journal(site: FaultSite) -> None:
    """A process that submits dies in the moment in which sbatch has answered, and all of the login node soon after."""
    sbatch = wrapped(site, "sbatch", 'if mkdir "$STARTS.died"; then "$real" "$@"; kill -9 $PPID $$; fi')
    site.gated(batch=[1, 2], lease_per="cell")
    process = site.start()
    site.until(lambda: len(site.jobs()) == 2)
    site.kill_all()
    site.ends(process, -9)
    assert len(site.jobs()) == 2
    again = site.start()
    site.until_said("continuing with the existing driver", times=2)
    site.open()
    site.ends(again)
    assert sbatch.read_text().count("\n") == 2
    site.assert_whole(runs=2)


def test_ctrl_c_leaves_the_jobs_and_the_same_command_picks_them_up(site: FaultSite) -> None:
    site.gated(devices=[1, 2])
    process = site.begin(*SNAKEMAKE, runs=2)
    jobs = site.jobs()
    os.killpg(process.pid, signal.SIGINT)
    site.ends(process, 1)
    assert "the same command continues with them" in site.said()
    assert site.jobs() == jobs
    again = site.start(*SNAKEMAKE)
    site.until_said("continuing with the existing driver", times=2)
    site.finish(again, runs=2, accepted=2)


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
    dead = {name: site.host_of(site.job("1x1-local.c1", name)) for name in ("c", "d")}
    for host in dead.values():
        site.power_off(host)
    for host in dead.values():
        site.until_said(f"{host} is excluded until it is healthy again")
    assert f"host {dead['c']} is excluded" in site.status()
    site.at_once(site.job("1x1-local.c1"))
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
    site.until_said("composition waits for 1 suitable free host")
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


def report_context(site: FaultSite) -> str:
    tables = site.results().tables
    write_campaign_tables(read_planned_results(site.results().plan_file), tables)
    return (tables / "context.json").read_text()
