"""Placement of ranks on this machine: all on its loopback, or each on its emulated host."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from campaign.config.system_file import SystemFile
from campaign.errors import LaunchError
from campaign.fabrics.hardware import Composition
from campaign.launch.emulation.namespaces import EmulationUnavailable
from campaign.launch.emulation.network import Emulation, emulated
from campaign.launch.emulation.topology import INTERFACE
from campaign.launch.emulation_plan import NOT_CROSSED, emulation_of, links_document, rates_of
from campaign.workloads.protocol import Step


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Environment of one process, the namespaces to enter before it starts, and the words before its command."""

    environment: Mapping[str, str]
    namespaces: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


class LocalPlacement(Protocol):
    """The hosts of one composition on this machine."""

    @property
    def links(self) -> Mapping[str, Any] | None:
        """See `Launcher.links`."""

    def of(self, step: Step) -> list[RankPlace]:
        """One place per rank, or one for a step of a single process. LaunchError: a rank has no device."""

    def flags(self, step: Step) -> tuple[str, ...]:
        """Flags for the record of a step."""

    def stand(self) -> bool:
        """False when the emulated hosts have ended."""

    def close(self) -> None: ...


def open_placement(system: SystemFile, composition: Composition) -> LocalPlacement:
    """The hosts of a composition, emulated if the system file asks for it and this machine is able to."""
    if system.emulation is None:
        return OneLoopback(None)
    hosts = ExitStack()
    try:
        emulation = hosts.enter_context(emulated(emulation_of(system.emulation, system.links, composition)))
    except EmulationUnavailable as error:
        return OneLoopback(links_document(rates_of(system.emulation, system.links), None, str(error)))
    return OnEmulatedHosts(emulation, composition, hosts)


@dataclass(frozen=True)
class OneLoopback:
    """All hosts of a composition are this machine, and share its loopback."""

    links: Mapping[str, Any] | None

    def of(self, step: Step) -> list[RankPlace]:
        if not step.per_rank:
            return [RankPlace(_for_all_ranks(step))]
        world = str(sum(step.ranks_by_host.values()))
        shared = {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
        # On one machine a rank's device is numbered through; hosts are only names here.
        return [RankPlace({**rank, "LOCAL_RANK": rank["RANK"], **shared}) for _, _, rank in _ranks(step)]

    def flags(self, step: Step) -> tuple[str, ...]:
        return ()

    def stand(self) -> bool:
        return True

    def close(self) -> None:
        pass


class OnEmulatedHosts:
    """Every host is emulated, and each of its fabric devices has a link of its own."""

    def __init__(self, emulation: Emulation, composition: Composition, hosts: ExitStack) -> None:
        self.links: Mapping[str, Any] | None = links_document(emulation.spec.rates, emulation.mode)
        self._emulation = emulation
        self._hosts = hosts
        counts = [len(host.devices) for host in composition.hosts]
        starts = accumulate(counts, initial=0)
        # The first devices of a host are used first, and local ones come before those on the fabric.
        self._devices = {
            host.name: range(start, start + count)
            for host, start, count in zip(composition.hosts, starts, counts, strict=False)
        }

    def of(self, step: Step) -> list[RankPlace]:
        if not step.per_rank:
            return [
                RankPlace(
                    _for_all_ranks(step),
                    self._emulation.namespace_paths(self._device(next(iter(step.ranks_by_host)), 0)),
                )
            ]
        ranks = [(self._device(host, local), host, words) for host, local, words in _ranks(step)]
        namespaces = [self._emulation.namespace_paths(device) for device, _, _ in ranks]
        # Ranks that share all they have need no address, and a program may ask whether it is alone.
        alone = len(set(namespaces)) == 1
        address = "127.0.0.1" if alone else self._emulation.address(ranks[0][0])
        meeting = {"MASTER_ADDR": address, "GLOO_SOCKET_IFNAME": "lo" if alone else INTERFACE}
        return [
            RankPlace(
                {
                    **words,
                    "LOCAL_RANK": words["CAMPAIGN_HOST_RANK"],
                    "LOCAL_WORLD_SIZE": str(step.ranks_by_host[host]),
                    **meeting,
                },
                paths,
            )
            for (_, host, words), paths in zip(ranks, namespaces, strict=True)
        ]

    def flags(self, step: Step) -> tuple[str, ...]:
        used = {
            self._emulation.namespace_paths(self._device(host, local))
            for host, count in step.ranks_by_host.items()
            for local in range(count)
        }
        return (NOT_CROSSED,) if not step.per_rank and len(used) > 1 else ()

    def stand(self) -> bool:
        return Path(self._emulation.namespace_paths(0)[-1]).exists()

    def close(self) -> None:
        self._hosts.close()

    def _device(self, host: str, local: int) -> int:
        devices = self._devices.get(host, range(0))
        if local >= len(devices):
            raise LaunchError(f"{host}: the run needs device {local + 1}, but the composition has {len(devices)} there")
        return devices[local]


def _for_all_ranks(step: Step) -> dict[str, str]:
    return {"CAMPAIGN_RANKS": str(sum(step.ranks_by_host.values())), "CAMPAIGN_HOSTS": ",".join(step.ranks_by_host)}


def _ranks(step: Step) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Of each rank: its host, its number there, and the part of its environment that does not depend on its place."""
    world, port, rank = sum(step.ranks_by_host.values()), str(free_port()), 0
    for host, count in step.ranks_by_host.items():
        for local in range(count):
            yield (
                host,
                local,
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "MASTER_PORT": port,
                    "CAMPAIGN_HOST": host,
                    "CAMPAIGN_HOST_RANK": str(local),
                },
            )
            rank += 1


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that is free now; address: an empty one means every interface."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
