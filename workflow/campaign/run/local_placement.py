"""Placement of ranks on this machine or on its emulated hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from campaign.common.errors import LaunchError
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED, emulation_of, links_document, rates_of
from campaign.emulators.hosts.network import EmulatedHosts, EmulationUnavailable, emulated
from campaign.emulators.hosts.topology import INTERFACE
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile
from campaign.workloads.protocol import Step
from campaign.workloads.rank_launchers import free_port


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Placement of one process.

    Args:
        environment: environment variables.
        namespaces: paths of the namespaces to enter before it starts.
        prefix: words before its command.
    """

    environment: Mapping[str, str]
    namespaces: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


class LocalPlacement:
    """Hosts of one composition on this machine: names that share its loopback, or emulated hosts with a link per device.

    Args:
        composition: hosts and devices.
        emulation: emulated hosts; None if hosts are only names.
        links: description of the links (see `Launcher.links`).
        close: ends the emulated hosts.
    """

    def __init__(
        self,
        composition: Composition,
        emulation: EmulatedHosts | None,
        links: Mapping[str, Any] | None,
        close: Callable[[], None],
    ) -> None:
        self.links = links
        self.close = close
        self._emulation = emulation
        counts = [len(host.devices) for host in composition.hosts]
        # The first devices of a host are used first, and local ones come before those on the fabric.
        self._devices = {
            host.name: range(start, start + count)
            for host, start, count in zip(composition.hosts, accumulate(counts, initial=0), counts, strict=False)
        }

    def of(self, step: Step) -> list[ProcessPlace]:
        """Return one placement per rank, or a single placement if the step has one process.

        Raises LaunchError if a rank has no device.
        """
        ranks, world = step.ranks, str(len(step.ranks))
        if not step.per_rank:
            environment = {"CAMPAIGN_RANKS": world, "CAMPAIGN_HOSTS": ",".join(step.ranks_by_host)}
            return [ProcessPlace(environment, self._namespaces(*ranks[0]))]
        namespaces = [self._namespaces(*rank) for rank in ranks]
        # Ranks that share all they have need no address, and a program may ask whether it is alone.
        alone = len(set(namespaces)) == 1
        shared = {"WORLD_SIZE": world, "MASTER_PORT": str(free_port("127.0.0.1")), "MASTER_ADDR": "127.0.0.1"}
        if self._emulation is not None:
            shared |= {} if alone else {"MASTER_ADDR": self._emulation.address(self._device(*ranks[0]))}
            shared |= {"GLOO_SOCKET_IFNAME": "lo" if alone else INTERFACE}
        found = []
        for rank, ((host, local), paths) in enumerate(zip(ranks, namespaces, strict=True)):
            environment = {"RANK": str(rank), "CAMPAIGN_HOST": host, "CAMPAIGN_HOST_RANK": str(local), **shared}
            # On one machine a rank's device is numbered through; hosts are only names here.
            one_host = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": world}
            emulated_host = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(step.ranks_by_host[host])}
            found.append(ProcessPlace(environment | (emulated_host if self._emulation else one_host), paths))
        return found

    def flags(self, step: Step) -> tuple[str, ...]:
        """Return the flags for the record of a step."""
        used = {self._namespaces(*rank) for rank in step.ranks}
        return (NOT_CROSSED,) if not step.per_rank and len(used) > 1 else ()

    def stand(self) -> bool:
        """Return whether the emulated hosts still exist; true if hosts are not emulated."""
        return self._emulation is None or Path(self._emulation.namespace_paths(0)[-1]).exists()

    def _namespaces(self, host: str, local: int) -> tuple[str, ...]:
        """Return the namespace files of a rank, empty if hosts are not emulated."""
        return () if self._emulation is None else self._emulation.namespace_paths(self._device(host, local))

    def _device(self, host: str, local: int) -> int:
        """Return the number of a rank's device among all devices of the composition.

        Raises LaunchError if the host has fewer devices.
        """
        devices = self._devices.get(host, range(0))
        if local >= len(devices):
            raise LaunchError(f"{host}: the run needs device {local + 1}, but the composition has {len(devices)} there")
        return devices[local]


def open_placement(system: SystemFile, composition: Composition) -> LocalPlacement:
    """Create the placement of a composition, with emulated hosts if the system file requests them and this machine can emulate
    them.
    """
    hosts, emulation, links = ExitStack(), None, None
    if system.emulation is not None:
        rates = rates_of(system.emulation, system.links)
        try:
            emulation = hosts.enter_context(emulated(emulation_of(system.emulation, system.links, composition)))
            links = links_document(rates, emulation.mode)
        except EmulationUnavailable as error:
            links = links_document(rates, None, str(error))
    return LocalPlacement(composition, emulation, links, hosts.close)
