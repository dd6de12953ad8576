"""The interface of strategies: the order in which Slurm and the fabric learn that a host's devices change.

`begin` -> the fabric attaches -> `announce` -> the driver's allocation, with `options` -> `begin` -> the fabric detaches -> `end`.
Every call may come again, from another process, whatever a dead one left half done: each looks what is there and does the rest.
All raise LaunchError when Slurm refuses or does not answer, and HostFailed where a host is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from campaign.fabrics.hardware import Composition


class Strategy(Protocol):
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
