"""A traditional cluster: hosts with the devices that are built in. Composing selects and locks them; nothing moves.

It is the baseline that composed hardware is compared with, and needs nothing but the system file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from campaign.errors import ConfigError
from campaign.fabrics import placement
from campaign.fabrics.errors import Incompatible
from campaign.fabrics.protocol import (
    Capabilities,
    Composition,
    Host,
    HostSpec,
    Inventory,
    PoolSpec,
    Request,
    Selection,
    Tag,
)
from campaign.fabrics.state_file import StateFile, composition_of, give_up, occupy, own_devices, take

RULE = "static: devices stay in the host that they are built into"


class Options(BaseModel):
    """The static fabric has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def open_fabric(options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path) -> StaticFabric:
    """Raises ConfigError when the system has a pool: nothing could ever attach it."""
    if pool:
        raise ConfigError(
            f"fabric 'static' cannot attach a pool ({pool[0].count} x {pool[0].model!r}); "
            "list the devices under their hosts, or name another fabric"
        )
    return StaticFabric(hosts, state_dir)


class StaticFabric:
    """See `protocol.Fabric`. What a host really has is checked on the host, not here: nothing can be asked from afar."""

    def __init__(self, hosts: Sequence[HostSpec], state_dir: Path) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._devices = tuple(device for host in hosts for device in own_devices(host))
        self._state = StateFile(state_dir / "static.json")

    def capabilities(self) -> Capabilities:
        per_host = [sum(d.computes for d in self._devices if d.attached_to == name) for name in self._hosts]
        return Capabilities(
            attach_mode="hot",
            max_devices_per_host=max(per_host, default=0),
            supports_modify=False,
            exclusive_transaction=False,
            gives_host_id=False,
            verified=True,
            note="devices are those of the system file; the run on the host is what verifies them",
        )

    def inventory(self) -> Inventory:
        state = self._state.read()
        hosts = tuple(
            Host(spec.name, spec.cores, spec.memory_gib, spec.ports, state.holder_of_host(spec.name))
            for spec in self._hosts.values()
        )
        return Inventory(hosts, tuple(occupy(device, state) for device in self._devices))

    def select(self, request: Request, inventory: Inventory) -> Selection:
        asked = request.configuration
        if asked.fabric_devices_per_host or asked.attach != "local":
            raise Incompatible(
                f"{request.lease_id}: configuration {asked.name!r} asks for attach: {asked.attach} with "
                f"{asked.fabric_devices_per_host} pooled devices a host ({RULE}); use attach: local, or a composable fabric",
                RULE,
            )
        if asked.storage == "fabric-nvme":
            raise Incompatible(
                f"{request.lease_id}: configuration {asked.name!r} asks for storage: fabric-nvme ({RULE}); "
                "use local or nvme, or a composable fabric",
                RULE,
            )
        return placement.select(request, inventory)

    def compose(self, selection: Selection) -> None:
        with self._state.change() as state:
            take(state, selection)

    def read_back(self, lease_id: str) -> Composition | None:
        state = self._state.read()
        return composition_of(state, lease_id, self._hosts, (occupy(device, state) for device in self._devices))

    def host_sees(self, composition: Composition) -> frozenset[str]:
        return frozenset(device.fabric_id for device in composition.devices)

    def rescan(self, composition: Composition) -> None:
        """Built-in devices do not come and go; there is nothing to look for."""

    def release(self, lease_id: str) -> tuple[str, ...]:
        with self._state.change() as state:
            give_up(state, lease_id)
        return ()

    def held(self) -> Mapping[str, Tag]:
        return self._state.read().tags()

    def close(self) -> None:
        """Nothing is open between calls."""
