"""Strategies: how Slurm learns of composed devices. `STRATEGIES` has one row per strategy.

`begin` -> the fabric attaches -> `announce` -> the driver's allocation, with `options` -> `begin` -> the fabric detaches -> `end`.
Every call may come again, from another process, whatever a dead one left half done: each looks what is there and does the rest.
All raise LaunchError when Slurm refuses or does not answer, and HostFailed where a host is to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from campaign.common.errors import HostFailed
from campaign.slurm.commands import Slurm
from campaign.slurm.strategies.controller import Controller, reservation_name
from campaign.slurm.strategies.dynamic import Dynamic
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile

__all__ = ["STRATEGIES", "SlurmStrategy", "open_strategy"]


class SlurmStrategy(Protocol):
    """How one system's Slurm learns of composed devices."""

    @property
    def composed_by_slurm(self) -> bool:
        """Whether Slurm's own ResumeProgram composes, once the driver's job has its hosts; the fabric is not asked before."""

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Keep others' jobs off hosts whose devices are about to change, and wait until those that run there are over.

        Jobs of this very lease that still run there were started on other devices: they may end by themselves for a moment,
        and are cancelled then.
        """

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Let Slurm offer exactly the composed devices, to this lease's jobs. Nothing to do where it does so already."""

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Give the hosts back as they were before `begin`, to everybody. Hosts that were not begun with are no error."""

    def options(self, lease_id: str) -> Mapping[str, str]:
        """Further sbatch options of this lease's jobs, by long name."""


@dataclass(frozen=True)
class Unannounced:
    """`static` and `resume`: there is nothing to tell Slurm.

    `static`: its gres.conf knows the devices; others' jobs are kept off by the allocation alone. Where the fabric attaches devices
    before there is one, it does so on free hosts (`slurm.free_hosts`).

    `resume`: hosts are CLOUD nodes. slurmctld calls the programs in envs/slurm: `resume` reads from the job's comment what to
    compose, starts the hosts, and lets them go down after that one job; `suspend` and `resume-fail` release. So a lease is as long
    as its job, and a campaign that dies leaves nothing composed behind. A job starts up to 30 s after its hosts, because slurmctld
    looks at jobs that are CONFIGURING every half minute. A composition that failed powers its hosts down, which puts the job back
    into the queue; `scontrol requeue` would leak its devices (Slurm 22.05).
    """

    composed_by_slurm: bool

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Nothing to do."""

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Nothing to do."""

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Nothing to do."""

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class Reserved:
    """`reservation`: Slurm's gres.conf knows the devices; hosts are reserved from before they are recomposed until released.

    So no job of others starts on a host in change, nor takes it away between two attempts of the lease's driver.
    """

    controller: Controller
    composed_by_slurm = False

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        if hosts:
            # What is given back is given back whatever state it is in.
            if self.controller.reserve(lease_id, hosts):
                self._usable(hosts)
            self.controller.emptied(hosts, lease_id)

    def announce(self, composition: Composition, lease_id: str) -> None:
        hosts = [host.name for host in composition.hosts]
        self.controller.reserve(lease_id, hosts)
        self._usable(hosts)

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        self.controller.unreserve(lease_id)

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {"reservation": reservation_name(lease_id)}

    def _usable(self, hosts: Collection[str]) -> None:
        """HostFailed for hosts that would let the driver's job wait for ever."""
        found = self.controller.nodes_heard(hosts)
        failed = {name: f"Slurm: {node.words}" for name, node in found.items() if node.broken}
        failed |= {host: "Slurm does not know it" for host in hosts if host not in found}
        if failed:
            named = "; ".join(f"{host} ({why})" for host, why in failed.items())
            raise HostFailed(f"no jobs can run on {named}", failed)


STRATEGIES: dict[str, Callable[[SystemFile, Controller], SlurmStrategy]] = {
    "static": lambda system, controller: Unannounced(composed_by_slurm=False),
    "dynamic": Dynamic,
    "resume": lambda system, controller: Unannounced(composed_by_slurm=True),
    "reservation": lambda system, controller: Reserved(controller),
}


def open_strategy(system: SystemFile, slurm: Slurm, say: Callable[[str], None] = print) -> SlurmStrategy:
    """The strategy of the system file; `say` is told what it waits for. ConfigError: it lacks something.

    Without Slurm as launcher there is nobody to tell of devices, which is what `static` does.
    """
    name = system.slurm.strategy if system.launcher == "slurm" else "static"
    return STRATEGIES[name](system, Controller(slurm, say, system.slurm.poll_s))
