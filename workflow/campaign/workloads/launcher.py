"""Interface of launchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from campaign.workloads.protocol import Step, StepEnd


@dataclass(frozen=True)
class StepLimits:
    """Limits at which a step is stopped.

    Attributes:
        time_limit_s: maximum duration in seconds.
        memory_limit_mib: maximum memory of all processes of the step on one host (MiB); None for no limit.
    """

    time_limit_s: float
    memory_limit_mib: int | None = None


class Launcher(Protocol):
    """Launcher of steps, one at a time, on the composition that it was opened for."""

    @property
    def links(self) -> Mapping[str, Any] | None:
        """Emulation plan of the links (`campaign.emulators.hosts.emulation_plan`), or None if links are not emulated."""

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: StepLimits) -> StepEnd:
        """Run a step to its end or to its limits, and append its output to a log file.

        No process of the step is left after the call, even if it raises. Raises LaunchError if the step cannot be started.

        Args:
            step: the step to start.
            marker: value of CAMPAIGN_RUN in the environment of every process of the step, used to find the processes.
            log: file that the output is appended to.
            directory: working directory of the step.
            limits: limits of time and memory.
        """

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Run one auxiliary process per host of the composition until the context ends; yield the names of these hosts.

        If the hosts are only names of one machine, the first host gets the process. Output goes to `<directory>/<host>.log`.
        The context does not wait for the processes to start. When it ends, they get SIGTERM, and SIGKILL after a grace
        period. A process that cannot be started or ends early raises no error.

        Args:
            argv: command; `{host}` in a word is replaced by the name of the host.
            directory: existing directory that is visible on all hosts.
        """

    def close(self) -> None:
        """End everything that outlives a step, such as a preloaded parent process or emulated hosts."""
