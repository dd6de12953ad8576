"""Access to the fabric that a system file names, and requests to it."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from campaign.common.errors import ConfigError, FabricError
from campaign.fabrics import open_fabric
from campaign.fabrics.errors import Incompatible
from campaign.fabrics.operations import OperationCounts, count_operations
from campaign.fabrics.placement.quotas import QuotaFabric, limit_request
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.fabrics.registry import list_kinds_offering, load_fabric_kind
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import Configuration
from campaign.spec.operation_times import OperationTimes, read_published_times, read_times
from campaign.spec.system_file import SystemFile


@contextmanager
def open_system_fabric(system: SystemFile, state: Path, where: str = "") -> Iterator[Fabric]:
    """Open the system's fabric for the duration of the context.

    Args:
        system: the system file.
        state: directory that the campaigns on this system share.
        where: location of the fabric in its file, for messages.
    """
    options = {key: value for key, value in system.fabric.items() if key != "kind"}
    hosts = [host for spec in system.hosts for host in spec.split_hosts()]
    try:
        fabric = open_fabric(system.fabric["kind"], options, hosts, system.pool, state)
    except ConfigError as error:
        raise ConfigError(
            f"{where or f'system {system.name}'}: {error}; correct the fabric, or hosts and pool"
        ) from error
    try:
        yield QuotaFabric(fabric, system.tenancy.quota) if system.tenancy.quota else fabric
    finally:
        fabric.close()


def current_owner() -> str:
    """Return the name of the user who holds the leases of this process, or 'unknown'."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        return "unknown"


def find_recorded_times(system: SystemFile, path: Path) -> OperationTimes | None:
    """Return recorded times of the fabric's operations, or None if there are none.

    Times that the system file names take precedence over the times in this package.

    Args:
        system: the system file.
        path: path of the system file.
    """
    if system.times:
        return read_times(path.parent / system.times).scale_times(system.times_factor)
    if source := str(system.fabric.get("times", "")):  # a simulated fabric uses them for devices of every kind
        return (
            read_published_times(source).scale_times(float(system.fabric.get("times_factor", 1.0))).drop_device_kinds()
        )
    name = load_fabric_kind(str(system.fabric["kind"])).times
    return read_published_times(name).scale_times(system.times_factor) if name else None


def build_request(
    system: SystemFile, name: str, campaign: str, configuration: Configuration, allowed_hosts: tuple[str, ...] = ()
) -> LeaseRequest:
    """Build the request for composing a configuration.

    Raises Incompatible if the fabric cannot set peer-to-peer.
    """
    kind = system.fabric["kind"]
    if configuration.p2p and "p2p" not in load_fabric_kind(kind).offers:
        rule = f"a fabric of kind {kind} cannot set peer-to-peer; use attach: {configuration.attach.partition('-')[0]}"
        raise Incompatible(f"{name}: {rule}, or a fabric of kind {', '.join(list_kinds_offering('p2p'))}", rule)
    links = {model: (device.pcie.width, device.pcie.gen) for model, device in system.devices.items() if device.pcie}
    request = LeaseRequest(name, campaign, system.tenancy.owner or current_owner(), configuration, allowed_hosts, links)
    return limit_request(request, system.tenancy.quota, system.list_allowed_hosts())


@dataclass(frozen=True)
class PlannedPlacement:
    """Placement of a configuration on its otherwise unused system, and the operations that compose it."""

    unfit: str | None = None
    """Reason why the configuration does not fit the system; None if it fits."""
    hosts: tuple[str, ...] = ()
    operations: OperationCounts | None = None
    """Operations of the fabric that compose it; None if they are unknown beforehand."""


PlacementFunction = Callable[[Configuration], PlannedPlacement]


def make_placement_function(fabric: Fabric, campaign: Campaign) -> PlacementFunction:
    """Return a function that places configurations on an open fabric, as if the fabric were unused."""
    steps = load_fabric_kind(str(campaign.system.fabric["kind"])).steps
    devices = {device.fabric_id: device for device in fabric.build_planned_inventory().devices if not device.local}

    @cache
    def place_configuration(configuration: Configuration) -> PlannedPlacement:
        try:
            selection = fabric.select_planned_devices(
                build_request(campaign.system, "plan", campaign.name, configuration)
            )
        except FabricError as error:
            return PlannedPlacement(unfit=str(error).removeprefix("plan: "))
        attached_devices = (devices[name] for name in selection.fabric_ids if name in devices)
        hosts = tuple(host.host for host in selection.hosts)
        return PlannedPlacement(hosts=hosts, operations=count_operations(attached_devices, steps) if steps else None)

    return place_configuration
