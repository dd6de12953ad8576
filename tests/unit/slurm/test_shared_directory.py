"""Whether a host sees the results: the real script, in an srun that runs it here, there, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.lease.campaign_leases import Site
from campaign.lease.check_hosts import check_before_leases, check_shared_results
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.listed_hosts import parse_listing
from campaign.slurm.shared_directory import choose_free_host
from campaign.spec.system_file import SlurmOptions, SystemFile
from tests.fake_slurm import FakeSlurm

_SYSTEM = {
    "name": "lab", "launcher": "slurm", "fabric": {"kind": "static"}, "hosts": [{"name": "host[1-2]"}],
    "slurm": {"partition": "gpu", "account": "abc", "latency_s": 0},
}  # fmt: skip
# srun's own options end where the program begins.
_SRUN = 'while test "$1" != /bin/sh; do shift; done\necho "a banner of the site"\n{}exec "$@"\n'


def put_srun(fake_slurm: FakeSlurm, before: str) -> None:
    """Have srun run its program on this machine, after these lines of a shell."""
    fake_slurm.put(hosts=["host1|ALLOCATED|gpu:4|none", "host2|IDLE|gpu:4|none"])
    program = fake_slurm.bin / "srun"
    program.write_text(f'#!/bin/sh\necho "$@" > {fake_slurm.directory}/srun.argv\n{_SRUN.format(before)}')
    program.chmod(0o755)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "results").mkdir()
    return Site(SystemFile.model_validate(_SYSTEM), tmp_path / "results")


def test_results_that_no_host_sees_stop_the_first_lease(site: Site, fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "disk_of_the_host").mkdir()
    put_srun(
        fake_slurm,
        f'script=$3; token=$6; set -- /bin/sh -c "$script" sh {tmp_path}/disk_of_the_host "$token" "$7" "$8"\n',
    )
    (found,) = check_before_leases(site, SlurmOptions(), SlurmCommands())
    assert (found.what, found.verdict) == ("results", "stop")
    assert found.words == (
        f"host2 (partition gpu) does not see {site.root} of this machine; "
        "give a directory on a file system that all hosts share, at the same path (--results)"
    )
    assert not list(site.root.iterdir())
    asked = (fake_slurm.directory / "srun.argv").read_text()
    assert "--partition=gpu --account=abc --nodelist=host2" in asked


@pytest.mark.parametrize(
    ("before", "verdict", "words"),
    [
        ("", "ok", "host2 (partition gpu) sees {} and can write there"),
        (
            'set -- "$1" "$2" "$3" "$4" "$5" "$6" /no/python "$8"\n',
            "stop",
            "host2 (partition gpu) does not see the Python",
        ),
        ("echo 'srun: error: Unable to allocate resources: Invalid account' >&2; exit 1\n", "note", "it is unknown"),
    ],
)
def test_each_answer_of_a_host_has_a_verdict(
    site: Site, fake_slurm: FakeSlurm, before: str, verdict: str, words: str
) -> None:
    put_srun(fake_slurm, before)
    (found,) = check_shared_results(site, SlurmOptions(), SlurmCommands())
    assert (found.verdict, found.words.startswith(words.format(site.root))) == (verdict, True), found
    assert not list(site.root.iterdir())


@pytest.mark.root
def test_a_host_that_may_only_read_is_no_place_for_results(site: Site, fake_slurm: FakeSlurm) -> None:
    # What access(2) says of a read-only file system, also to root.
    put_srun(
        fake_slurm,
        'exec unshare --mount sh -c \'mount --bind -o ro "$5" "$5" && mount -o remount,bind,ro "$5" && exec "$@"\' sh "$@"\n',
    )
    (found,) = check_shared_results(site, SlurmOptions(), SlurmCommands())
    if found.verdict == "note":
        pytest.skip(f"nothing can be mounted here: {found.words}")
    assert (found.verdict, found.words.partition(";")[0]) == (
        "stop",
        f"host2 (partition gpu) cannot write to {site.root}",
    )


def test_no_host_is_woken_up_or_waited_for(site: Site, fake_slurm: FakeSlurm) -> None:
    fake_slurm.put(hosts=["host1|ALLOCATED|gpu:4|none", "host2|IDLE~|gpu:4|none"])
    (found,) = check_shared_results(site, SlurmOptions(), SlurmCommands())
    assert (found.verdict, fake_slurm.calls("srun")) == ("note", [])


def test_the_partition_that_has_the_host_is_asked_for() -> None:
    listed = parse_listing("host1|batch|allocated|gpu:4|x\nhost2|debug|idle|gpu:4|x\nhost3|batch|mixed|gpu:4|x\n")
    names = ("host1", "host2", "host3")
    assert choose_free_host(names, listed, SlurmOptions(partition="batch")) == ("host3", "batch")
    assert choose_free_host(names, listed, SlurmOptions(partition="batch,debug")) == ("host2", "debug")
    assert choose_free_host(names, listed, SlurmOptions()) == ("host2", None)
    assert choose_free_host(names[:1], listed, SlurmOptions()) is None
