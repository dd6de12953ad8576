"""`reservation`: Slurm's gres.conf knows the devices; hosts are reserved from before they are recomposed until they are released.

So no job of others starts on a host in change, nor takes it away between two attempts of the lease's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from campaign.config.system_file import SystemFile
from campaign.errors import HostFailed
from campaign.fabrics.hardware import Composition
from campaign.slurm.commands import Slurm
from campaign.slurm.strategies.controller import Controller, reservation_name


class Reserved:
    """See `protocol.Strategy`."""

    composed_by_slurm = False

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

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
            raise HostFailed(
                f"no jobs can run on {'; '.join(f'{host} ({why})' for host, why in failed.items())}", failed
            )


def open_strategy(system: SystemFile, slurm: Slurm, say: Callable[[str], None]) -> Reserved:
    return Reserved(Controller(slurm, say, system.slurm.poll_s))
