"""Auxiliary processes next to the runs of this machine, until the end of a context (see `Launcher.sidecar`)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from campaign.common.errors import CampaignError
from campaign.common.processes.child import end_processes, start_process
from campaign.run.local_placement import LocalPlacement, ProcessPlace
from campaign.workloads.protocol import Step

_HOST = "{host}"


@contextmanager
def local_sidecar(
    argv: Sequence[str], hosts: Sequence[str], places: LocalPlacement, environment: Mapping[str, str], directory: Path
) -> Iterator[tuple[str, ...]]:
    """Run an auxiliary process until the end of the context, one per emulated host or one for all hosts that share this
    machine.

    Args:
        argv: command; `{host}` stands for the host name.
        hosts: names of the hosts.
        places: placement of processes on the hosts.
        environment: environment of the processes.
        directory: directory of the logs.

    Returns:
        Names of the hosts on which a process was started.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host, place in _apart(argv, hosts, places).items():
            words = [*place.prefix, *(word.replace(_HOST, host) for word in argv)]
            log = directory / f"{host}.log"
            with suppress(OSError, subprocess.SubprocessError), log.open("wb") as output:
                running[host] = start_process(words, environment, output, place.namespaces, ends_with_parent=True)
        yield tuple(running)
    finally:
        end_processes(list(running.values()))


def _apart(argv: Sequence[str], hosts: Sequence[str], places: LocalPlacement) -> dict[str, ProcessPlace]:
    """Return the placement of a process on each host that is distinct from the hosts before it."""
    found: dict[tuple[str, ...], tuple[str, ProcessPlace]] = {}
    try:
        each = places.of(Step(tuple(argv), {}, dict.fromkeys(hosts, 1), takes_devices=False))
    except CampaignError:
        return {}
    for host, place in zip(hosts, each, strict=True):
        found.setdefault(place.namespaces, (host, place))
    return dict(found.values())
