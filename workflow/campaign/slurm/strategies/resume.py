"""`resume`: hosts are CLOUD nodes, and Slurm's ResumeProgram composes a job's configuration once the job has its hosts.

All that changes hosts is done by the programs in envs/slurm, which slurmctld calls: `resume` reads from the job's comment what to
compose, starts the hosts, and lets them go down after that one job; `suspend` and `resume-fail` release. So a lease is as long as
its job, a campaign that dies leaves nothing composed behind, and there is nothing to say to Slurm from here.

A job starts up to 30 s after its hosts, because slurmctld looks at jobs that are CONFIGURING every half minute. A composition that
failed powers its hosts down, which puts the job back into the queue; `scontrol requeue` would leak its devices (Slurm 22.05).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from campaign.config.system_file import SystemFile
from campaign.fabrics.hardware import Composition
from campaign.slurm.commands import Slurm


class Resumed:
    """See `protocol.Strategy`."""

    composed_by_slurm = True

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Nothing to do: a host that is down has no jobs, and one that is up for another job goes down after it."""

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Nothing to do: a host registers when it was composed."""

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Nothing to do: hosts go down, and their devices are released, when the job is over."""

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {}


def open_strategy(system: SystemFile, slurm: Slurm, say: Callable[[str], None]) -> Resumed:
    return Resumed()
