"""Golden batch files: what submitit really hands to sbatch, for every strategy, and for what sites and persons ask.

Refresh after a wanted change: `python -m tests.unit.slurm.submission.test_sbatch_files`, then look at the difference.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from campaign.common.paths import lease_id
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.spec.system_file import SlurmOptions
from tests.fake_slurm import FakeSlurm
from tests.unit.slurm.submission.login import ALIKE, Login, login

GOLDEN = Path(__file__).parents[3] / "golden" / "sbatch"
REFRESH = "if the change is wanted: python -m tests.unit.slurm.submission.test_sbatch_files"
TWO_HOSTS: Mapping[str, Any] = {
    "campaign.configurations": [{"hosts": 2, "devices_per_host": 3, "attach": "hybrid", "local_devices_per_host": 1}],
    "campaign.axes.batch": 1,
    "campaign.axes.precision": "fp32",
}
SLURMD = {"stop": ["ssh", "{host}", "systemctl stop slurmd"], "start": ["ssh", "{host}", "start-slurmd {gres}"]}


def one(login: Login, hosts: tuple[str, ...] = ("host1", "host2")) -> None:
    login.submit("2x3-hybrid1.c1", hosts=hosts)


def scheduled(login: Login) -> None:
    login.submit(login.leases()[0])


def without_a_host(login: Login) -> None:
    ExcludedHosts(login.results.slurm_state).exclude_hosts(
        {"host1": "not responding"}, "1x1-local", login.campaign.system
    )
    scheduled(login)


CASES: dict[str, tuple[Mapping[str, Any], SlurmOptions, Callable[[Login], None]]] = {
    "static-scheduler": (ALIKE, SlurmOptions(), scheduled),
    "static-pinned": (TWO_HOSTS, SlurmOptions(), one),
    "dynamic": ({**TWO_HOSTS, "system.slurm": {"strategy": "dynamic", "slurmd": SLURMD}}, SlurmOptions(), one),
    "reservation": ({**TWO_HOSTS, "system.slurm": {"strategy": "reservation"}}, SlurmOptions(), one),
    "resume": ({**TWO_HOSTS, "system.slurm": {"strategy": "resume"}}, SlurmOptions(), lambda login: one(login, ())),
    "host-left-out": (ALIKE, SlurmOptions(), without_a_host),
    "overrides": (
        {
            **TWO_HOSTS,
            "system.slurm": {
                "gres": "gpu:a100",
                "partition": "gpu",
                "account": "science",
                "overrides": [{"when": "hosts > 1", "partition": "wide", "qos": "large", "constraint": "ib", "time_min": 90}],
            },
        },
        SlurmOptions(),
        one,
    ),
    "person": (
        {**TWO_HOSTS, "system.slurm": {"partition": "gpu", "exclusive": False, "additional": {"nice": 100}}},
        SlurmOptions(account="mine", time_min=30, memory_gib=12.5, cpus_per_device=4, additional={"licenses": "a b", "nice": 0}),
        one,
    ),
    "long": ({**TWO_HOSTS, "campaign.protocol.repetitions": 900}, SlurmOptions(), one),
}  # fmt: skip


def made(name: str, directory: Path, slurm: FakeSlurm) -> str:
    """The batch file of a case, as sbatch was given it, without what differs between machines and times."""
    changes, person, submit = CASES[name]
    here = login(directory, changes, person=person)
    submit(here)
    (text,) = slurm.files()
    text = text.replace(str(directory), "PROJECT").replace(sys.executable, "PYTHON")
    text = text.replace(lease_id(here.results, "|").partition("|")[2], ".RESULTS")
    return re.sub(r"\b[0-9a-f]{16}\b", "TOKEN", text)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    assert made(name, tmp_path / "project", fake_slurm) == (GOLDEN / f"{name}.sh").read_text(), REFRESH


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(CASES)


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in CASES:
        with tempfile.TemporaryDirectory() as directory:
            slurm = FakeSlurm(Path(directory) / "slurm")
            os.environ["PATH"] = f"{slurm.bin}{os.pathsep}{os.environ['PATH']}"
            (GOLDEN / f"{name}.sh").write_text(made(name, Path(directory) / "project", slurm))


if __name__ == "__main__":
    main()
