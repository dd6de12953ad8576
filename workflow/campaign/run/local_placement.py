"""Placement of ranks on this machine or on its emulated hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from campaign.common.errors import LaunchError
from campaign.common.wording import pluralize
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED, build_emulation_spec, build_link_rates, describe_links
from campaign.emulators.hosts.network import EmulatedHosts, EmulationUnavailable, emulate_hosts
from campaign.emulators.hosts.topology import HOST_INTERFACE
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile
from campaign.workloads.protocol import Step
from campaign.workloads.rank_launchers import find_free_port


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Placement of one process.

    Args:
        environment: environment variables.
        namespaces: paths of the namespaces to enter before it starts.
        prefix: command prefix.
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
        # The first devices of a host are used first, and local devices come before fabric devices.
        self._devices = {
            host.name: range(start, start + count)
            for host, start, count in zip(composition.hosts, accumulate(counts, initial=0), counts, strict=False)
        }

    def place_processes(self, step: Step) -> list[ProcessPlacement]:
        """Return one placement per rank, or a single placement if the step has one process.

        Raises LaunchError if a rank has no device.
        """
        ranks, world_size = step.rank_locations, str(len(step.rank_locations))
        if not step.per_rank:
            environment = {"CAMPAIGN_RANKS": world_size, "CAMPAIGN_HOSTS": ",".join(step.ranks_by_host)}
            return [ProcessPlacement(environment, self._namespace_paths(*ranks[0]))]
        namespaces = [self._namespace_paths(*rank) for rank in ranks]
        # Ranks on one host need no address of another host.
        shares_host = len(set(namespaces)) == 1
        common_environment = {
            "WORLD_SIZE": world_size,
            "MASTER_PORT": str(find_free_port("127.0.0.1")),
            "MASTER_ADDR": "127.0.0.1",
        }
        if self._emulation is not None:
            common_environment |= (
                {} if shares_host else {"MASTER_ADDR": self._emulation.get_rank_address(self._device_index(*ranks[0]))}
            )
            common_environment |= {"GLOO_SOCKET_IFNAME": "lo" if shares_host else HOST_INTERFACE}
        placements = []
        for rank, ((host, local), paths) in enumerate(zip(ranks, namespaces, strict=True)):
            environment = {
                "RANK": str(rank),
                "CAMPAIGN_HOST": host,
                "CAMPAIGN_HOST_RANK": str(local),
                **common_environment,
            }
            # Without emulation, hosts are only names, so devices are numbered across all hosts.
            one_host_variables = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": world_size}
            emulated_host_variables = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(step.ranks_by_host[host])}
            placements.append(
                ProcessPlacement(
                    environment | (emulated_host_variables if self._emulation else one_host_variables), paths
                )
            )
        return placements

    def list_flags(self, step: Step) -> tuple[str, ...]:
        """Return the flags for the record of a step."""
        used_namespaces = {self._namespace_paths(*rank) for rank in step.rank_locations}
        return (NOT_CROSSED,) if not step.per_rank and len(used_namespaces) > 1 else ()

    def is_running(self) -> bool:
        """Return whether the emulated hosts still exist. The result is True if hosts are not emulated."""
        return self._emulation is None or Path(self._emulation.list_namespace_paths(0)[-1]).exists()

    def _namespace_paths(self, host: str, local_rank: int) -> tuple[str, ...]:
        """Return the namespace files of a rank, or an empty tuple if hosts are not emulated."""
        return (
            ()
            if self._emulation is None
            else self._emulation.list_namespace_paths(self._device_index(host, local_rank))
        )

    def _device_index(self, host: str, local_rank: int) -> int:
        """Return the number of a rank's device among all devices of the composition.

        Raises LaunchError if the host has fewer devices.
        """
        devices = self._devices.get(host, range(0))
        if local_rank >= len(devices):
            raise LaunchError(
                f"{host}: the run needs device {local_rank + 1}, but the composition has only "
                f"{pluralize(len(devices), 'device')} on this host"
            )
        return devices[local_rank]


def open_placement(system: SystemFile, composition: Composition) -> LocalPlacement:
    """Create the placement of a composition.

    Hosts are emulated if the system file requests it and this machine can emulate them.
    """
    hosts, emulation, links = ExitStack(), None, None
    if system.emulation is not None:
        rates = build_link_rates(system.emulation, system.links)
        try:
            emulation = hosts.enter_context(
                emulate_hosts(build_emulation_spec(system.emulation, system.links, composition))
            )
            links = describe_links(rates, emulation.mode)
        except EmulationUnavailable as error:
            links = describe_links(rates, None, str(error))
    return LocalPlacement(composition, emulation, links, hosts.close)
