"""A project whose campaigns are measured through Slurm, on a cluster that is up."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign.emulators.hosts.cluster_spec import Cluster, ClusterHost, Registration, build_slurm_environment
from tests.workflow.checkout_twin import Project

SLURM = {"poll_s": 2, "latency_s": 5}
"""A cluster of tests answers at once, and tests have no patience."""


def equal_hosts(
    hosts: int = 4, devices: int = 4, devices_max: int = 0, registration: Registration = "static", fabric_ports: int = 0
) -> tuple[ClusterHost, ...]:
    """`hosts` equal hosts: host1, host2 .."""
    return tuple(
        ClusterHost(
            name=f"host{number}",
            devices=devices,
            devices_max=devices_max,
            registration=registration,
            fabric_ports=fabric_ports,
        )
        for number in range(1, hosts + 1)
    )


class ClusterProject(Project):
    """See `Project`; commands are given `--profile slurm`."""

    def __init__(self, directory: Path, cluster: Cluster, *, copied: Sequence[str] = ()) -> None:
        self.cluster = cluster
        super().__init__(directory, copied=copied)
        self.environment |= build_slurm_environment(cluster)

    def system(self, name: str = "bench", *, hosts: int = 4, devices: int = 4, slurm: Any = None, **keys: Any) -> Path:
        """The cluster's static hosts as they are; `keys`: of the system file."""
        document = {
            "name": name,
            "launcher": "slurm",
            "fabric": {"kind": "static"},
            "hosts": [
                {"name": f"host[1-{hosts}]", "devices": [{"kind": "gpu", "model": "cpu-rank", "count": devices}]}
            ],
            "devices": {"cpu-rank": {"runs_on": "cpu"}},
            "slurm": SLURM | (slurm or {}),
            **keys,
        }
        return self.write(f"systems/{name}.yaml", document)

    def command(self, *arguments: str, campaign: str = "c", profile: str = "slurm", **config: str) -> list[str]:
        return super().command(*arguments, campaign=campaign, profile=profile, **config)

    def slurm(self, *argv: str) -> str:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env={**os.environ, **build_slurm_environment(self.cluster)},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def queue(self) -> list[tuple[str, str, str]]:
        """Job id, name and state of every job in the queue."""
        rows = self.slurm("squeue", "--noheader", "--format=%i|%j|%T").splitlines()
        return [(job_id, name, state) for job_id, name, state in (row.split("|") for row in rows)]

    def calls(self, campaign: str = "c") -> Counter[str]:
        """How often each of Slurm's commands was called for a campaign."""
        path = self.results(campaign).slurm_state / "commands.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(json.loads(line)["argv"][0] for line in lines)
