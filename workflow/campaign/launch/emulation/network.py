"""Emulated hosts for ranks: what a composition's links stand for, made of network namespaces and rate-shaped links.

`emulated` holds the hosts open for as long as the block lasts. As root it makes plain namespaces, as an ordinary user namespaces
inside a user namespace of their own. There is nothing to sweep after a crash: the namespaces belong to one process that ends with
its owner, whatever ended that, and neither a name, a mount nor an interface is ever visible outside.
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
    INTERFACE,
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
    """Whether this process can emulate hosts: how (mode), or why not (reason; empty when it can)."""

    mode: Mode | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EmulatedRates:
    """What a report has to say of emulated links. Rates are of one direction; None: not shaped.

    fabric_gb_per_s, network_gb_per_s: the real links that are stood for; *_gbit_per_s: what the emulated ones carry.
    """

    mode: Mode
    scale: float
    fabric_gb_per_s: float | None
    network_gb_per_s: float | None
    fabric_gbit_per_s: float | None
    network_gbit_per_s: float | None

    def text(self) -> str:
        """One sentence for people."""
        fabric = _of(self.fabric_gbit_per_s, self.fabric_gb_per_s)
        network = _of(self.network_gbit_per_s, self.network_gb_per_s)
        return (
            f"Links are emulated (network namespaces, {self.mode}) at {self.scale:g} of the real rates, per direction: "
            f"between a fabric device and its host {fabric}; between hosts {network}; between devices of a host not shaped."
        )


def _of(emulated_gbit_per_s: float | None, real_gb_per_s: float | None) -> str:
    return (
        "not shaped" if emulated_gbit_per_s is None else f"{emulated_gbit_per_s:.3g} Gbit/s for {real_gb_per_s:g} GB/s"
    )


class Emulation:
    """Emulated hosts that stand now. Ranks are numbered as `places` gives them: host by host, local devices first."""

    def __init__(self, spec: EmulationSpec, held: Held, addresses: Mapping[str, IPv4Address]) -> None:
        self.spec = spec
        self.places: tuple[DevicePlace, ...] = places(spec.hosts)
        self._held = held
        self._addresses = dict(addresses)

    def prefix(self, rank: int) -> tuple[str, ...]:
        """The argv to put before a rank's command. The process that is started becomes the rank: signals reach it."""
        return self._held.prefix(self._place(rank).namespace)

    def namespace_paths(self, rank: int) -> tuple[str, ...]:
        """The same without a program between: files to be opened and entered in this order (`campaign.processes.namespaces`)."""
        return self._held.namespace_paths(self._place(rank).namespace)

    def address(self, rank: int) -> str:
        """The address under which other ranks reach this one."""
        return str(self._addresses[self._place(rank).namespace])

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank has to know of its place: LOCAL_RANK, MASTER_ADDR and GLOO_SOCKET_IFNAME."""
        place = self._place(rank)
        alone = len({other.namespace for other in self.places}) == 1
        return {
            "LOCAL_RANK": str(place.device),
            # Ranks that share all they have need no address, and a program may ask whether it is alone.
            "MASTER_ADDR": "127.0.0.1" if alone else self.address(0),
            "GLOO_SOCKET_IFNAME": "lo" if alone else INTERFACE,
        }

    def rates(self) -> EmulatedRates:
        rates = self.spec.rates
        return EmulatedRates(
            mode="user namespace" if self._held.user else "root",
            scale=rates.scale,
            fabric_gb_per_s=rates.fabric_gb_per_s,
            network_gb_per_s=rates.network_gb_per_s,
            fabric_gbit_per_s=rates.gbit_per_s("fabric"),
            network_gbit_per_s=rates.gbit_per_s("network"),
        )

    def _place(self, rank: int) -> DevicePlace:
        if not 0 <= rank < len(self.places):
            raise LaunchError(f"rank {rank} has no place: the emulated hosts have {len(self.places)} devices")
        return self.places[rank]


@contextmanager
def emulated(spec: EmulationSpec) -> Iterator[Emulation]:
    """Emulated hosts for as long as the block lasts; what still runs in them at its end is killed.

    EmulationUnavailable: this machine cannot, and the message says what is missing. Nothing is left in any case.
    """
    plan = layout(spec)
    keeper = Keeper.start([(name, None) for name in namespaces(spec.hosts)], plan.batches)
    try:
        yield Emulation(spec, keeper.held, plan.addresses)
    finally:
        keeper.close()


@functools.cache
def availability() -> Availability:
    """Whether hosts can be emulated here, found by emulating the smallest that has every part (about 0.1 s, asked once)."""
    hosts = (EmulatedHost(name="probe", local_devices=1, fabric_devices=1),)
    try:
        with emulated(
            EmulationSpec(hosts=hosts, rates=LinkRates(fabric_gb_per_s=10, network_gb_per_s=10))
        ) as emulation:
            return Availability(emulation.rates().mode)
    except EmulationUnavailable as error:
        return Availability(None, str(error))
