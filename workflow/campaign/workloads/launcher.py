"""The interface of launchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from campaign.workloads.protocol import Ended, Step


@dataclass(frozen=True)
class Limits:
    """Limits at which a step is stopped. memory_limit_mib: sum over all processes of the step on a host."""

    time_limit_s: float
    memory_limit_mib: int | None = None


class Launcher(Protocol):
    """Starts steps, one at a time, on the composition that it was opened for."""

    @property
    def links(self) -> Mapping[str, Any] | None:
        """The document of `campaign.emulators.hosts.emulation_plan`; None where the system emulates no links."""

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: Limits) -> Ended:
        """Run a step to its end or to its limits, and append its output to `log`. LaunchError: it could not be started.

        marker: value of CAMPAIGN_RUN in the environment of every process of the step, by which processes are found again.
        No process of the step is left after this call, also when it raises.
        """

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Run one auxiliary process on every host of the composition until the end of the context; gives these hosts.

        Where hosts are only names of one machine, the first of them has the process. argv: `{host}` in a word is replaced by the
        name of the host. Output goes to `<directory>/<host>.log`; the directory exists and is visible on all hosts. The context
        does not wait for the processes to start. At its end they get SIGTERM, and SIGKILL after a while. A process that cannot be
        started, or that ends early, raises no error.
        """

    def close(self) -> None:
        """End everything that outlives a step, such as a preloaded parent or emulated hosts."""
