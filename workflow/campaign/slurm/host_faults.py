"""Faults of hosts that Slurm reports, and their consequences for a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from campaign.slurm.commands import SlurmCommands
from campaign.slurm.excluded_hosts import is_outage
from campaign.slurm.job_state import JobState
from campaign.slurm.strategies.controller import NODES_COMMAND, Node, parse_nodes
from campaign.spec.system_file import SystemFile


@dataclass(frozen=True)
class HostFaults:
    """Faults of a system's hosts. Every method queries Slurm."""

    system: SystemFile
    slurm: SlurmCommands

    def is_outage(self) -> bool:
        """Return whether all hosts have faults, so that another job could not start either."""
        return is_outage(self.system, self._read_faults())

    def select_failed(self, hosts: Collection[str]) -> dict[str, str]:
        """Return the fault of each of these hosts that has one, or an empty dict if all hosts of the system have faults."""
        faults = self._read_faults() if hosts else {}
        # If all hosts have faults, the cause is something that they share.
        return {} if is_outage(self.system, faults) else {host: faults[host] for host in hosts if host in faults}

    def find_missing(self, state: JobState, pinned_hosts: Sequence[str]) -> list[str]:
        """Return the hosts that a pending job needs in order to start but that are down or drained."""
        broken_hosts = {name for name, node in self._read_nodes().items() if node.is_broken}
        if pinned_hosts:
            return [host for host in pinned_hosts if host in broken_hosts]
        # Slurm could use any of the hosts that the reason lists, so the job is blocked only if all of them are broken.
        return list(state.hosts) if {*state.hosts} <= broken_hosts else []

    def _read_nodes(self) -> dict[str, Node]:
        return parse_nodes(self.slurm(*NODES_COMMAND).out)

    def _read_faults(self) -> dict[str, str]:
        """Return the fault of every host that has one. Hosts that a newly started controller is still waiting for have none."""
        return {
            name: f"Slurm reports {', '.join(sorted(node.state))}{node.reason and f': {node.reason}'}"
            for name, node in self._read_nodes().items()
            if node.is_broken or any("reboot" in word for word in node.state)
        }
