"""Auxiliary processes on this machine, next to the runs, until the end of a context (see `Launcher.sidecar`)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from campaign.common.errors import CampaignError
from campaign.common.processes.child import end_processes, start_process
from campaign.run.local_placement import LocalPlacement, ProcessPlacement
from campaign.workloads.protocol import Step

_HOST = "{host}"


@contextmanager
def run_local_sidecar(
    argv: Sequence[str],
    hosts: Sequence[str],
    placement: LocalPlacement,
    environment: Mapping[str, str],
    directory: Path,
) -> Iterator[tuple[str, ...]]:
    """Run one auxiliary process per emulated host, or one for all hosts that share this machine, until the context ends.

    Args:
        argv: command; `{host}` is replaced by the host name.
        hosts: names of the hosts.
        placement: placement of processes on the hosts.
        environment: environment of the processes.
        directory: directory of the logs.

    Returns:
        Names of the hosts on which a process was started.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host, place in _place_on_distinct_hosts(argv, hosts, placement).items():
            command = [*place.prefix, *(word.replace(_HOST, host) for word in argv)]
            log = directory / f"{host}.log"
            with suppress(OSError, subprocess.SubprocessError), log.open("wb") as output:
                processes[host] = start_process(command, environment, output, place.namespaces, ends_with_parent=True)
        yield tuple(processes)
    finally:
        end_processes(list(processes.values()))


def _place_on_distinct_hosts(
    argv: Sequence[str], hosts: Sequence[str], placement: LocalPlacement
) -> dict[str, ProcessPlacement]:
    """Return the placement of a process on each host that is distinct from the hosts before it."""
    distinct_hosts: dict[tuple[str, ...], tuple[str, ProcessPlacement]] = {}
    try:
        placements = placement.place_processes(Step(tuple(argv), {}, dict.fromkeys(hosts, 1), takes_devices=False))
    except CampaignError:
        return {}
    for host, place in zip(hosts, placements, strict=True):
        distinct_hosts.setdefault(place.namespaces, (host, place))
    return dict(distinct_hosts.values())
