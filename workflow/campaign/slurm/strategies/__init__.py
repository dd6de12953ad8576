"""Strategies by which Slurm learns of composed devices. `STRATEGIES` has one row per strategy.

Order of the calls: `begin`, the fabric attaches devices, `announce`, the driver's allocation with `options`, `begin`, the fabric
detaches devices, `end`. Another process may repeat a call after an interruption. Each call reads the state and does the
remaining work. All calls raise LaunchError if Slurm refuses or does not answer, and HostFailed if a host is at fault.
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
        """True if Slurm's ResumeProgram composes the hosts after it has allocated them to the driver's job.

        The fabric is then not used before the job starts.
        """

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Keep other jobs off hosts whose devices are about to change, and wait until the running jobs have ended.

        Jobs of this lease that still run there use the previous devices. They get a short time to end and are then cancelled.
        """

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Make Slurm offer exactly the composed devices to the jobs of this lease.

        Nothing is changed if Slurm offers them already.
        """

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Restore the state of the hosts before `begin`, so that all users can use them.

        Hosts for which `begin` was not called are also accepted.
        """

    def options(self, lease_id: str) -> Mapping[str, str]:
        """Return additional sbatch options for the jobs of this lease, by long name."""


@dataclass(frozen=True)
class NoSlurmUpdate:
    """Strategy for systems whose Slurm needs no update after a recomposition (`static` and `resume`).

    With `static`, gres.conf lists the devices, and only the allocation keeps other jobs off the hosts. If the fabric attaches
    devices before there is an allocation, it uses free hosts (`slurm.free_hosts`).

    With `resume`, hosts are CLOUD nodes, and slurmctld calls the programs in envs/slurm. `resume` reads the composition from
    the job's comment and starts the hosts, which power down after that job. `suspend` and `resume-fail` release the devices. A
    lease is therefore as long as its job, and a campaign that dies leaves no composition behind. A job starts up to 30 s after
    its hosts, because slurmctld checks CONFIGURING jobs every half minute. If a composition fails, its hosts are powered down,
    which puts the job back into the queue. `scontrol requeue` would leak the devices instead (Slurm 22.05).
    """

    composed_by_slurm: bool

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Do nothing, because Slurm needs no update."""

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Do nothing, because Slurm needs no update."""

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Do nothing, because Slurm needs no update."""

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True)
class ReservationStrategy:
    """Strategy that reserves hosts from before their recomposition until their release (`reservation`).

    The gres.conf of Slurm lists the devices. No other job can start on a host during a change, or between two attempts of the
    lease's driver.
    """

    controller: Controller
    composed_by_slurm = False

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        if hosts:
            # Only newly reserved hosts must be usable. Hosts that are about to be released may be in any state.
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
        """Raise HostFailed if the driver's job would wait forever for one of the hosts."""
        nodes = self.controller.query_settled_nodes(hosts)
        failures = {name: f"Slurm: {node.description}" for name, node in nodes.items() if node.is_broken}
        failures |= {host: "unknown to Slurm" for host in hosts if host not in nodes}
        if failures:
            failure_text = "; ".join(f"{host} ({reason})" for host, reason in failures.items())
            raise HostFailed(f"jobs cannot run on {failure_text}", failures)


STRATEGIES: dict[str, Callable[[SystemFile, Controller], SlurmStrategy]] = {
    "static": lambda system, controller: NoSlurmUpdate(composed_by_slurm=False),
    "dynamic": DynamicStrategy,
    "resume": lambda system, controller: NoSlurmUpdate(composed_by_slurm=True),
    "reservation": lambda system, controller: ReservationStrategy(controller),
}


def open_strategy(system: SystemFile, slurm: SlurmCommands, report: Callable[[str], None] = print) -> SlurmStrategy:
    """Return the Slurm strategy of a system file.

    Without Slurm as launcher, no update is needed, as with `static`. Raises ConfigError if a setting is missing from the system
    file.

    Args:
        system: system file.
        slurm: runner of Slurm commands.
        report: callback for messages about waiting.
    """
    name = system.slurm.strategy if system.launcher == "slurm" else "static"
    return STRATEGIES[name](system, Controller(slurm, report, system.slurm.poll_s))
