"""The fabric that a system file names, opened, and what is requested of it."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from campaign.config.resolve import Campaign
from campaign.config.system_file import SystemFile
from campaign.documents.cell import Configuration
from campaign.errors import ConfigError, FabricError
from campaign.fabrics import open_fabric
from campaign.fabrics.errors import Incompatible
from campaign.fabrics.hardware import DeviceSpec, HostSpec, PoolSpec
from campaign.fabrics.placement.tenancy import Tenant, admitted
from campaign.fabrics.protocol import Fabric, Request
from campaign.fabrics.registry import fabric_kind, offering

_Told = TypeVar("_Told")


@contextmanager
def fabric_of(system: SystemFile, state: Path, where: str = "") -> Iterator[Fabric]:
    """The system's fabric, open; `state` is the directory that campaigns on this system share; where: its place, for messages."""
    options = {key: value for key, value in system.fabric.items() if key != "kind"}
    hosts = [
        HostSpec(
            name, group.cores, group.memory_gib, tuple(DeviceSpec(d.kind, d.model, d.count) for d in group.devices)
        )
        for group in system.hosts
        for name in group.names()
    ]
    pool = [PoolSpec(entry.kind, entry.model, entry.count, entry.drawer) for entry in system.pool]
    try:
        fabric = open_fabric(system.fabric["kind"], options, hosts, pool, state)
    except ConfigError as error:
        raise ConfigError(f"{where or f'system {system.name}'}: {error}; correct it, or hosts and pool") from error
    try:
        yield Tenant(fabric, system.tenancy.quota) if system.tenancy.quota else fabric
    finally:
        fabric.close()


def owner() -> str:
    """Who holds leases in this process's name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return "unknown"


def request_of(
    system: SystemFile, name: str, campaign: str, configuration: Configuration, allowed_hosts: tuple[str, ...] = ()
) -> Request:
    kind = system.fabric["kind"]
    if configuration.p2p and "p2p" not in fabric_kind(kind).offers:
        rule = f"nothing sets peer-to-peer on a fabric of kind {kind}; use attach: {configuration.attach.partition('-')[0]}"
        raise Incompatible(f"{name}: {rule}, or one of kind {', '.join(offering('p2p'))}", rule)
    links = {model: (device.pcie.width, device.pcie.gen) for model, device in system.devices.items() if device.pcie}
    asked = Request(name, campaign, system.tenancy.owner or owner(), configuration, allowed_hosts, links)
    return admitted(asked, system.tenancy.quota, system.allowed_hosts())


def of_each(of_system: Mapping[str, Callable[[Configuration], _Told]]) -> Callable[[Configuration], _Told]:
    """A function of configurations of several systems, from one for each."""
    return lambda configuration: of_system[configuration.system](configuration)


def unfit(fabric: Fabric, campaign: Campaign) -> Callable[[Configuration], str | None]:
    """A function that says why a configuration does not fit the system even when nobody else uses it, or None."""

    def reason(configuration: Configuration) -> str | None:
        try:
            fabric.select_planned(request_of(campaign.system, "plan", campaign.name, configuration))
        except FabricError as error:
            return str(error)
        return None

    return reason


def hosts_taken(fabric: Fabric, campaign: Campaign) -> Callable[[Configuration], tuple[str, ...]]:
    """A function that gives the hosts that a configuration takes where nobody else uses the system; none where it does not fit."""

    def hosts(configuration: Configuration) -> tuple[str, ...]:
        try:
            selection = fabric.select_planned(request_of(campaign.system, "plan", campaign.name, configuration))
        except FabricError:
            return ()
        return tuple(host.host for host in selection.hosts)

    return hosts
