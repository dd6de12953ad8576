"""Search for hosts on which a job could start now, so that nothing is composed for a job that would wait in the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from campaign.common import files
from campaign.common.errors import HostFailed, LaunchError
from campaign.common.wording import pluralize
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.excluded_hosts import is_outage
from campaign.slurm.strategies.controller import Controller, Node
from campaign.spec.system_file import SystemFile

_RESERVED_STATES = frozenset({"reserved", "maint", "maintenance"})
_POLL_INTERVAL_S = 1.0
_OUTAGE_TIMEOUT_S = 600.0  # Maintenance takes longer. The user then repeats the command after it.


@dataclass(frozen=True)
class FreeHosts:
    """Hosts of one system on which a job could start now.

    Args:
        system: system file with the hosts.
        slurm: runner of Slurm commands.
        directory: directory that the processes of a campaign share; one of them queries Slurm per poll interval.
        report: callback for messages.
    """

    system: SystemFile
    slurm: SlurmCommands
    directory: Path
    report: Callable[[str], None]

    @property
    def is_needed(self) -> bool:
        """True if devices are attached before the job is submitted, and nothing else reserves the hosts for the job."""
        settings = self.system.slurm
        return self.system.launcher == "slurm" and settings.strategy == "static" and self.system.are_hosts_pinned

    def wait_until_free(
        self, hosts: Collection[str], count: int, is_acceptable: Callable[[tuple[str, ...]], bool] = lambda _: True
    ) -> tuple[str, ...]:
        """Wait until enough hosts are free for a job and return the free hosts.

        Hosts that are unknown to Slurm count as free, because Slurm refuses a job for them with its own message.

        Args:
            hosts: names of the hosts to choose from; empty means all hosts of the system.
            count: number of hosts needed.
            is_acceptable: function that decides whether these free hosts will do, because hosts differ in the devices that they
                have and can get.

        Raises:
            HostFailed: Too many hosts are down or drained.
            LaunchError: All hosts of the system have been down or drained for ten minutes, so no single host is at fault.
        """
        until_s = time.monotonic() + _OUTAGE_TIMEOUT_S
        names = tuple(hosts) or tuple(name for group in self.system.hosts for name in group.list_names())
        last_message = ""
        rejected_hosts: tuple[str, ...] = ()
        while True:
            nodes = self._read_nodes(names)
            free = tuple(name for name in names if name not in nodes or self._is_free(nodes[name]))
            if free == names:
                return free
            if len(free) >= count and free != rejected_hosts:
                if is_acceptable(free):
                    return free
                rejected_hosts = free
            failures = {name: f"Slurm: {node.description}" for name, node in nodes.items() if node.is_broken}
            busy_hosts = [name for name in names if name not in free and name not in failures]
            if not busy_hosts or len(free) + len(busy_hosts) < count:
                failure_text = "; ".join(f"{name} ({reason})" for name, reason in failures.items())
                if not is_outage(self.system, failures):
                    raise HostFailed(f"jobs cannot run on {failure_text}", failures)
                if time.monotonic() >= until_s:
                    raise LaunchError(
                        f"no host of system {self.system.name} could run jobs for {_OUTAGE_TIMEOUT_S:g} s: {failure_text}"
                    )
            message = ", ".join(f"{name} ({'+'.join(sorted(nodes[name].state))})" for name in busy_hosts or failures)
            if message != last_message:
                last_message = message
                self.report(f"composition waits for {pluralize(count, 'suitable free host')}; not free: {message}")
            time.sleep(min(_POLL_INTERVAL_S, self.system.slurm.poll_s))

    def _is_free(self, node: Node) -> bool:
        settings = self.system.slurm
        usable = {"idle"} if settings.exclusive else {"idle", "mixed"}
        unusable = {"completing", "planned"} | (set() if "reservation" in settings.additional else _RESERVED_STATES)
        return bool(node.state & usable) and not node.is_broken and not node.state & unusable

    def _read_nodes(self, names: Collection[str]) -> dict[str, Node]:
        """Return the nodes by name as Slurm reported them within the current poll interval."""
        path = self.directory / "hosts.json"
        with files.hold_lock(path.with_suffix(".lock")):
            document = files.read_json(path)
            if not 0 <= time.time() - document.get("asked_s", 0.0) < self.system.slurm.poll_s or document["names"] != [
                *names
            ]:
                nodes = Controller(self.slurm, self.report, self.system.slurm.poll_s).query_settled_nodes(names)
                document = {"asked_s": time.time(), "names": [*names], "nodes": [*_node_documents(nodes.values())]}
                files.write_json(path, document)
        nodes_read = (
            Node(entry["name"], frozenset(entry["state"]), "", entry["reason"]) for entry in document["nodes"]
        )
        return {node.name: node for node in nodes_read}


def _node_documents(nodes: Collection[Node]) -> Iterator[dict[str, object]]:
    for node in nodes:
        yield {"name": node.name, "state": sorted(node.state), "reason": node.reason}
