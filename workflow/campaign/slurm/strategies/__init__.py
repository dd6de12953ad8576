"""Strategies by which Slurm learns of composed devices. `STRATEGIES` has one row per strategy.

`begin` -> the fabric attaches -> `announce` -> the driver's allocation, with `options` -> `begin` -> the fabric detaches ->
`end`. Every call may be repeated by another process after the first was interrupted: each call reads the state and does what
remains. All raise LaunchError if Slurm refuses or does not answer, and HostFailed if a host is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from campaign.common.errors import HostFailed
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.strategies.controller import Controller, make_reservation_name
from campaign.slurm.strategies.dynamic import DynamicStrategy
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile

__all__ = ["STRATEGIES", "SlurmStrategy", "open_strategy"]


class SlurmStrategy(Protocol):
    """Strategy by which the Slurm of one system learns of composed devices."""

    @property
    def composed_by_slurm(self) -> bool:
        """True if Slurm's own ResumeProgram composes the hosts once the driver's job has them.

        The fabric is then not used before.
        """

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Keep other jobs off hosts whose devices are about to change, and wait until the running ones have ended.

        Jobs of this lease that still run there were started on other devices. They may end by themselves for a moment and are
        then cancelled.
        """

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Make Slurm offer exactly the composed devices to the jobs of this lease.

        Nothing is changed if Slurm offers them already.
        """

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Return the hosts to all users in their state before `begin`.

        Hosts for which `begin` was not called are no error.
        """

    def options(self, lease_id: str) -> Mapping[str, str]:
        """Return additional sbatch options for the jobs of this lease, by long name."""


@dataclass(frozen=True)
class NoSlurmUpdate:
    """Strategy for systems whose Slurm needs no update after a recomposition (`static` and `resume`).

    `static`: gres.conf lists the devices, and only the allocation keeps other jobs off. If the fabric attaches devices before
    there is an allocation, it does so on free hosts (`slurm.free_hosts`).

    `resume`: hosts are CLOUD nodes. slurmctld calls the programs in envs/slurm: `resume` reads from the job's comment what to
    compose, starts the hosts, and lets them go down after that one job; `suspend` and `resume-fail` release. A lease is
    therefore as long as its job, and a campaign that dies leaves nothing composed behind. A job starts up to 30 s after its
    hosts, because slurmctld checks jobs that are CONFIGURING every half minute. A composition that failed powers its hosts
    down, which puts the job back into the queue; `scontrol requeue` would leak its devices (Slurm 22.05).
    """

    composed_by_slurm: bool

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Do nothing."""

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Do nothing."""

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Do nothing."""

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class ReservationStrategy:
    """Strategy that reserves hosts from before their recomposition until their release (`reservation`).

    The gres.conf of Slurm lists the devices. No foreign job starts on a host during a change, or takes it between two
    attempts of the lease's driver.
    """

    controller: Controller
    composed_by_slurm = False

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        if hosts:
            # What is given back is given back whatever state it is in.
            if self.controller.reserve_hosts(lease_id, hosts):
                self._require_usable(hosts)
            self.controller.wait_until_empty(hosts, lease_id)

    def announce(self, composition: Composition, lease_id: str) -> None:
        hosts = [host.name for host in composition.hosts]
        self.controller.reserve_hosts(lease_id, hosts)
        self._require_usable(hosts)

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        self.controller.unreserve(lease_id)

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {"reservation": make_reservation_name(lease_id)}

    def _require_usable(self, hosts: Collection[str]) -> None:
        """Raise HostFailed for hosts on which the driver's job would wait for ever."""
        nodes = self.controller.query_settled_nodes(hosts)
        failures = {name: f"Slurm: {node.description}" for name, node in nodes.items() if node.is_broken}
        failures |= {host: "Slurm does not know it" for host in hosts if host not in nodes}
        if failures:
            failure_text = "; ".join(f"{host} ({reason})" for host, reason in failures.items())
            raise HostFailed(f"no jobs can run on {failure_text}", failures)


STRATEGIES: dict[str, Callable[[SystemFile, Controller], SlurmStrategy]] = {
    "static": lambda system, controller: NoSlurmUpdate(composed_by_slurm=False),
    "dynamic": DynamicStrategy,
    "resume": lambda system, controller: NoSlurmUpdate(composed_by_slurm=True),
    "reservation": lambda system, controller: ReservationStrategy(controller),
}


def open_strategy(system: SystemFile, slurm: SlurmCommands, report: Callable[[str], None] = print) -> SlurmStrategy:
    """Return the Slurm strategy of a system file.

    Without Slurm as launcher, no update is needed, as with `static`. Raises ConfigError if the system file lacks a setting.

    Args:
        system: system file.
        slurm: runner of Slurm commands.
        say: callback for messages on waits.
    """
    name = system.slurm.strategy if system.launcher == "slurm" else "static"
    return STRATEGIES[name](system, Controller(slurm, report, system.slurm.poll_s))
