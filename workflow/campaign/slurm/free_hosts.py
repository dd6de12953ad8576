"""Hosts on which a job could start now, so that nothing is composed for a job that then waits in the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from campaign.common import files
from campaign.common.errors import HostFailed, LaunchError
from campaign.slurm.commands import Slurm
from campaign.slurm.excluded_hosts import outage
from campaign.slurm.strategies.controller import Controller, Node
from campaign.spec.system_file import SystemFile

_KEPT = frozenset({"reserved", "maint", "maintenance"})
_LOOK_S = 1.0
_OUTAGE_S = 600.0  # a maintenance takes longer: the same command goes on after it


@dataclass(frozen=True)
class FreeHosts:
    """Hosts of one system on which a job could start now.

    Args:
        system: system file with the hosts.
        slurm: runner of Slurm commands.
        directory: directory that the processes of a campaign share; one of them queries Slurm per poll interval.
        say: callback for messages.
    """

    system: SystemFile
    slurm: Slurm
    directory: Path
    say: Callable[[str], None]

    @property
    def matter(self) -> bool:
        """True if devices are attached before the job is submitted, to hosts that nothing else reserves for the job."""
        settings = self.system.slurm
        return self.system.launcher == "slurm" and settings.strategy == "static" and self.system.pins_hosts

    def wait(
        self, hosts: Collection[str], count: int, able: Callable[[tuple[str, ...]], bool] = lambda _: True
    ) -> tuple[str, ...]:
        """Wait until enough hosts are free for a job and return the free hosts.

        Hosts that are unknown to Slurm count as free, because Slurm refuses a job for them with its own message. Raises
        HostFailed
        if there can never be enough because hosts are down or drained. If all hosts of the system are, no host is at fault;
        LaunchError
        is then raised after ten minutes.

        Args:
            hosts: names of the hosts to choose from; empty means all hosts of the system.
            count: number of hosts needed.
            able: predicate that accepts or rejects the free hosts, which differ in the devices they have and can get.
        """
        until_s = time.monotonic() + _OUTAGE_S
        names = tuple(hosts) or tuple(name for group in self.system.hosts for name in group.names())
        told = ""
        looked_at: tuple[str, ...] = ()
        while True:
            nodes = self._nodes(names)
            free = tuple(name for name in names if name not in nodes or self._free(nodes[name]))
            if free == names:
                return free
            if len(free) >= count and free != looked_at:
                if able(free):
                    return free
                looked_at = free
            failed = {name: f"Slurm: {node.words}" for name, node in nodes.items() if node.broken}
            busy = [name for name in names if name not in free and name not in failed]
            if not busy or len(free) + len(busy) < count:
                said = "; ".join(f"{name} ({why})" for name, why in failed.items())
                if not outage(self.system, failed):
                    raise HostFailed(f"no jobs can run on {said}", failed)
                if time.monotonic() >= until_s:
                    raise LaunchError(f"no jobs can run on any host of {self.system.name}, for {_OUTAGE_S:g} s: {said}")
            words = ", ".join(f"{name} ({'+'.join(sorted(nodes[name].state))})" for name in busy or failed)
            if words != told:
                told = words
                self.say(f"nothing is composed until {count} fitting hosts are free; not free: {words}")
            time.sleep(min(_LOOK_S, self.system.slurm.poll_s))

    def _free(self, node: Node) -> bool:
        settings = self.system.slurm
        usable = {"idle"} if settings.exclusive else {"idle", "mixed"}
        away = {"completing", "planned"} | (set() if "reservation" in settings.additional else _KEPT)
        return bool(node.state & usable) and not node.broken and not node.state & away

    def _nodes(self, names: Collection[str]) -> dict[str, Node]:
        """Return the nodes by name as Slurm reported them within the current poll interval."""
        path = self.directory / "hosts.json"
        with files.hold_lock(path.with_suffix(".lock")):
            said = files.read_json(path)
            if not 0 <= time.time() - said.get("asked_s", 0.0) < self.system.slurm.poll_s or said["names"] != [*names]:
                nodes = Controller(self.slurm, self.say, self.system.slurm.poll_s).nodes_heard(names)
                said = {"asked_s": time.time(), "names": [*names], "nodes": [*_documents(nodes.values())]}
                files.write_json(path, said)
        found = (Node(each["name"], frozenset(each["state"]), "", each["reason"]) for each in said["nodes"])
        return {node.name: node for node in found}


def _documents(nodes: Collection[Node]) -> Iterator[dict[str, object]]:
    for node in nodes:
        yield {"name": node.name, "state": sorted(node.state), "reason": node.reason}
