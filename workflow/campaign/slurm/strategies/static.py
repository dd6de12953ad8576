"""`static`: Slurm's gres.conf knows the devices, and the fabric moves none; nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from campaign.config.system_file import SystemFile
from campaign.fabrics.hardware import Composition
from campaign.slurm.commands import Slurm


class Static:
    """See `protocol.Strategy`. Others' jobs are kept off by the allocation alone."""

    composed_by_slurm = False

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        """Nothing to do."""

    def announce(self, composition: Composition, lease_id: str) -> None:
        """Nothing to do."""

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        """Nothing to do."""

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {}


def open_strategy(system: SystemFile, slurm: Slurm, say: Callable[[str], None]) -> Static:
    return Static()
