"""Fabric of a traditional cluster, whose hosts have only built-in devices.

Composing selects and locks devices; nothing is moved. This fabric is the baseline for composed hardware and needs only the
system file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from campaign.common.errors import ConfigError
from campaign.fabrics.errors import Incompatible
from campaign.fabrics.protocol import LeaseRequest, Selection
from campaign.fabrics.registry import Example, FabricKind, NoOptions
from campaign.fabrics.simple_fabric import SimpleFabric
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Inventory
from campaign.spec.site_hardware import DeviceSpec, HostSpec, PoolSpec

BUILT_IN_DEVICES_RULE = "static: devices stay in the host into which they are built"


class StaticFabric(SimpleFabric):
    """Fabric of hosts with built-in devices.

    The devices that a host really has are verified on the host, because they cannot be queried remotely.
    """

    kind = "static"
    atomic = True
    note = "the system file lists the devices, and the run on a host verifies them"

    def select_devices(self, request: LeaseRequest, inventory: Inventory) -> Selection:
        """Choose built-in devices for a request.

        Raises Incompatible if the configuration needs pooled devices or pooled storage.
        """
        configuration, pooled_count = request.configuration, request.configuration.fabric_devices_per_host
        invalid_option, allowed_values = f"storage: {configuration.storage}", "local or nvme"
        if pooled_count or configuration.attach != "local":
            invalid_option, allowed_values = (
                f"attach: {configuration.attach} with {pooled_count} pooled devices per host",
                "attach: local",
            )
        elif configuration.storage != "fabric-nvme":
            return super().select_devices(request, inventory)
        subject = f"{request.lease_id}: configuration {configuration.name!r}"
        raise Incompatible(
            f"{subject} requests {invalid_option} ({BUILT_IN_DEVICES_RULE}); use {allowed_values}, or a composable fabric",
            BUILT_IN_DEVICES_RULE,
        )


def open_fabric(
    options: NoOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
) -> StaticFabric:
    """Open a static fabric.

    Raises ConfigError if the system has a pool, because nothing could attach its devices.
    """
    if pool:
        raise ConfigError(
            f"fabric 'static' cannot attach a pool ({pool[0].count} x {pool[0].model!r}); "
            "list the devices under their hosts, or use another fabric"
        )
    return StaticFabric(hosts, (), state_dir)


FABRIC = FabricKind(
    "a traditional cluster of hosts with built-in devices",
    NoOptions,
    open_fabric,
    example=Example(
        hosts=(
            HostSpec(
                name="host1",
                cores=8,
                memory_gib=32.0,
                devices=(DeviceSpec(kind="gpu", model="a100", count=2), DeviceSpec(kind="nvme", model="ssd", count=1)),
            ),
        ),
        pool=(),
        configuration=Configuration("c", 1, 2, 2, 2, "a100", "local", "nvme"),
    ),
)
