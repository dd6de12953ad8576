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
    """Limits at which a launcher stops a step.

    Attributes:
        time_limit_s: maximum duration in seconds.
        memory_limit_mib: maximum memory (MiB) that all processes of the step together may use on one host; None for no limit.
    """

    time_limit_s: float
    memory_limit_mib: int | None = None


class Launcher(Protocol):
    """Launcher that runs steps, one at a time, on the composition for which it was opened."""

    @property
    def links(self) -> Mapping[str, Any] | None:
        """Plan by which links are emulated (`campaign.emulators.hosts.emulation_plan`), or None if they are not emulated."""

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: StepLimits) -> StepEnd:
        """Run a step until it ends or reaches its limits, and append its output to a log file.

        No process of the step is still running after the call, even if it raises. Raises LaunchError if the step cannot be
        started.

        Args:
            step: the step to start.
            marker: value of CAMPAIGN_RUN in the environment of every process of the step, by which the processes are found.
            log: file to which the output is appended.
            directory: working directory of the step.
            limits: limits on time and memory.
        """

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Run one auxiliary process on each host of the composition until the context ends, and yield the hosts' names.

        If all hosts are only names for one machine, only the first host gets a process. Output goes to `<directory>/<host>.log`.
        The context does not wait for the processes to start. When it ends, they get SIGTERM, and SIGKILL after a grace
        period. A process that cannot be started or ends early raises no error.

        Args:
            argv: command, in which `{host}` is replaced with the name of the host.
            directory: existing directory that is visible on all hosts.
        """

    def close(self) -> None:
        """End everything that outlives single steps, such as a preloaded parent process or emulated hosts."""
