"""What a lease needs of Slurm, against what Slurm lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.lease.campaign_leases import Site
from campaign.lease.check_hosts import check_against_slurm, check_before_leases
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.listed_hosts import parse_listing
from campaign.spec.system_file import SlurmOptions, SystemFile
from tests.fake_slurm import FakeSlurm

_FEATURES = "ib,2080ti,GPU_MEM:80GB"
_LISTED = parse_listing(
    "".join(
        f"host{n}|{'batch' if n < 3 else 'debug'}|{'idle' if n < 2 else 'drained'}|gpu:4|ib,2080ti,GPU_MEM:80GB\n"
        for n in (1, 2, 3)
    )
)


def findings(hosts: str = "host[1-2]", given: str | None = None, **slurm: Any) -> list[tuple[str, str]]:
    system = SystemFile.model_validate({
        "name": "lab", "launcher": "slurm", "fabric": {"kind": "simulated"}, "hosts": [{"name": hosts}],
        "pool": [{"model": "a100", "count": 4}], "slurm": {"partition": "batch", **slurm},
    })  # fmt: skip
    found = check_against_slurm(system, SlurmOptions(partition=given), _LISTED)
    return [(finding.verdict, finding.words) for finding in found]


@pytest.mark.parametrize(
    ("verdict", "words", "asked"),
    [
        ("ok", "Slurm lists host1, host2", {}),
        ("note", "no job can start on host2 (drained) now", {}),
        ("stop", "Slurm does not list node9 (`hosts`); it lists: host1, host2, host3", {"hosts": "node9"}),
        (
            "stop",
            "Slurm does not list n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12 and 28 more",
            {"hosts": "n[1-40]"},
        ),
        ("stop", "Slurm has no partition 'batsch' (`slurm.partition`); it has: batch, debug", {"partition": "batsch"}),
        ("stop", "Slurm has no partition 'dbug' (`slurm.partition`); it has: batch, debug", {"given": "dbug"}),
        (
            "stop",
            "Slurm has no partition 'dbug' (`slurm.partition`); it has: batch, debug",
            {"partition": "batch,dbug"},
        ),
        ("problem", "partition batch (`slurm.partition`) does not contain host3", {"hosts": "host[1-3]"}),
        (
            "stop",
            "no host has the feature 'a100' (`slurm.constraint`); hosts have: ib, 2080ti, GPU_MEM:80GB",
            {"constraint": "ib&a100"},
        ),
        (
            "stop",
            "generic resource 'gpu:h100' (`slurm.gres`) is missing; Slurm lists: host1 gpu:4",
            {"gres": "gpu:h100"},
        ),
    ],
)
def test_what_slurm_does_not_have_is_named_with_what_it_has(verdict: str, words: str, asked: dict[str, Any]) -> None:
    assert any(each == verdict and said.startswith(words) for each, said in findings(**asked)), findings(**asked)


def test_hosts_that_come_back_only_for_a_job_are_no_mistake() -> None:
    changed = {"hosts": "cloud[1-2]", "partition": "cloud", "constraint": "composed", "strategy": "resume"}
    assert {verdict for verdict, _ in findings(**changed)} == {"note"}


def test_what_slurm_has_is_ready() -> None:
    assert {verdict for verdict, _ in findings("host1", constraint="[ib*2]")} == {"ok"}
    assert {
        verdict
        for verdict, _ in findings("host1", strategy="dynamic", gres="gpu:h100", slurmd={"stop": ["a"], "start": ["b"]})
    } == {"ok"}


@pytest.mark.parametrize(
    "asked",
    [
        {"constraint": "2080ti"},
        {"constraint": "[GPU_MEM:80GB*1&ib]"},
        {"partition": "debug,batch"},
        {"partition": "batch,debug", "hosts": "host[1-3]"},
    ],
)
def test_what_sbatch_takes_is_no_problem(asked: dict[str, Any]) -> None:
    assert {verdict for verdict, _ in findings(**asked)} <= {"ok", "note"}


@pytest.mark.parametrize(("directory", "stops"), [("results", []), ("re\nsults", ["results"])])
def test_results_in_a_directory_with_a_line_break_stop_leases_of_slurm(
    directory: str, stops: list[str], tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.put(hosts=["host1|idle|gpu:4|none"])
    system = SystemFile.model_validate(
        {"name": "lab", "launcher": "slurm", "fabric": {"kind": "static"}, "hosts": [{"name": "host1"}]}
    )
    found = check_before_leases(Site(system, tmp_path / directory), SlurmOptions(), SlurmCommands())
    assert [finding.what for finding in found if finding.verdict == "stop"] == stops
