"""What every launcher offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from campaign.workloads.protocol import Ended, Step


@dataclass(frozen=True)
class Limits:
    """When a step is stopped. memory_limit_mib: over all processes of the step on a host."""

    time_limit_s: float
    memory_limit_mib: int | None = None


class Launcher(Protocol):
    """Starts steps one at a time, on the composition that it was opened for."""

    @property
    def links(self) -> Mapping[str, Any] | None:
        """What became of the emulation of links (`campaign.launch.emulated_links`); None where the system emulates nothing."""

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: Limits) -> Ended:
        """Start a step, wait for its end, and stop it at its limits; its output goes to `log`.

        marker: put into every process's environment as CAMPAIGN_RUN, so that nothing started can be lost.
        Whatever ends this call (also an exception), no process of the step is left. Raises LaunchError when the step
        cannot be started.
        """

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Until the end of the context, one process on every host of the composition, in the place where its first rank stands.

        Gives the hosts that have one: where hosts are only names of one machine, that is the first of them. argv: `{host}` in a
        word is filled in with the host's name. Output goes to `<directory>/<host>.log`; the directory is there, and seen by all
        hosts. Nobody waits for the processes to start. They get SIGTERM at the end, and SIGKILL where that is not enough; none is
        left. One that cannot be started, or that ends by itself, disturbs nothing: what it was to leave is then missing.
        """

    def close(self) -> None:
        """End everything that outlives a step."""
