"""Emulated hosts for ranks: network namespaces that are joined by rate-limited links.

`emulated` keeps the hosts for the length of a block. An ordinary user's namespaces are inside a user namespace, those of root are
not. Nothing is left after a crash: one process holds the namespaces, it ends with its owner, and no name, mount or interface is
visible outside of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

from campaign.errors import LaunchError
from campaign.launch.emulation.namespaces import EmulationUnavailable, Held, Keeper
from campaign.launch.emulation.topology import (
    DevicePlace,
    EmulatedHost,
    EmulationSpec,
    LinkRates,
    layout,
    namespaces,
    places,
)

Mode = Literal["root", "user namespace"]


@dataclass(frozen=True, slots=True)
class Availability:
    """How this process can emulate hosts (mode), or why it cannot (reason)."""

    mode: Mode | None
    reason: str = ""


class Emulation:
    """Emulated hosts that exist now. Ranks are numbered in the order of `places`: host by host, local devices first."""

    def __init__(self, spec: EmulationSpec, held: Held, addresses: Mapping[str, IPv4Address]) -> None:
        self.spec = spec
        self.places: tuple[DevicePlace, ...] = places(spec.hosts)
        self.held = held
        self._addresses = dict(addresses)

    def namespace_paths(self, rank: int) -> tuple[str, ...]:
        """Files of the namespaces to enter for a rank, in this order (see `campaign.processes.namespaces`)."""
        return self.held.namespace_paths(self._place(rank).namespace)

    def address(self, rank: int) -> str:
        """The address under which other ranks reach this one."""
        return str(self._addresses[self._place(rank).namespace])

    @property
    def mode(self) -> Mode:
        return "user namespace" if self.held.user else "root"

    def _place(self, rank: int) -> DevicePlace:
        if not 0 <= rank < len(self.places):
            raise LaunchError(f"rank {rank} has no device: the emulated hosts have {len(self.places)} devices")
        return self.places[rank]


@contextmanager
def emulated(spec: EmulationSpec) -> Iterator[Emulation]:
    """Emulated hosts for the length of the block; processes that still run in them at its end are killed.

    EmulationUnavailable names what this machine lacks.
    """
    plan = layout(spec)
    keeper = Keeper.start([(name, None) for name in namespaces(spec.hosts)], plan.batches)
    try:
        yield Emulation(spec, keeper.held, plan.addresses)
    finally:
        keeper.close()


@functools.cache
def availability() -> Availability:
    """Whether hosts can be emulated here: tried once per process with the smallest example (about 0.1 s)."""
    hosts = (EmulatedHost(name="probe", local_devices=1, fabric_devices=1),)
    try:
        with emulated(
            EmulationSpec(hosts=hosts, rates=LinkRates(fabric_gb_per_s=10, network_gb_per_s=10))
        ) as emulation:
            return Availability(emulation.mode)
    except EmulationUnavailable as error:
        return Availability(None, str(error))
