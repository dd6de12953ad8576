"""An emulated control plane with its adapter, as tests open and close it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.server import ControlPlaneServer
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.errors import Busy, OutcomeUnknown, PartialFailure
from campaign.fabrics.protocol import Fabric, LeaseRequest, Selection
from campaign.spec.hardware import Composition
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.contract.fabric_fixtures import CREDENTIALS, configuration


def obtained(fabric: Fabric, lease_id: str = "one") -> Composition:
    """What a lease has, which must be there."""
    found = fabric.read_back(lease_id)
    assert found is not None
    return found


@dataclass
class Bench:
    """One control plane with one adapter; the system has all hosts of the rack."""

    kind: str
    server: ControlPlaneServer
    rack: Rack
    options: dict[str, Any]
    state_dir: Path
    pool: Sequence[PoolSpec] = ()
    fabric: ControlledFabric = field(init=False)

    def __post_init__(self) -> None:
        self.fabric = self.again()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.fabric.close()

    def again(self, state_dir: Path | None = None, **options: Any) -> ControlledFabric:
        """Another adapter on the same state, as another process has it."""
        hosts = tuple(HostSpec(name=name, cores=8, memory_gib=32.0) for name in self.rack.hosts)
        told = {"url": self.server.url, "credentials": CREDENTIALS, **self.options, **options}
        return cast(ControlledFabric, open_fabric(self.kind, told, hosts, self.pool, state_dir or self.state_dir))

    def selection(self, lease_id: str = "one", devices: int = 2, **changes: Any) -> Selection:
        request = LeaseRequest(lease_id, "demo", "tester", configuration(devices_per_host=devices, **changes))
        return self.fabric.select_devices(request, self.fabric.read_inventory())

    def compose(self, lease_id: str = "one", devices: int = 2, **changes: Any) -> Selection:
        selection = self.selection(lease_id, devices, **changes)
        self.fabric.compose(selection)
        return selection

    def obtained(self, lease_id: str = "one") -> Composition:
        return obtained(self.fabric, lease_id)

    def ids(self, lease_id: str = "one", fabric: ControlledFabric | None = None) -> set[str]:
        """Devices that are read back; none where there is no lease."""
        composition = (fabric or self.fabric).read_back(lease_id)
        return set() if composition is None else {device.fabric_id for device in composition.devices}

    def attached(self) -> dict[str, str]:
        """Host by device, as the hardware has it."""
        devices = self.rack.devices.values()
        return {one.name: one.attached_to for one in devices if one.attached_to}

    def gave_back(self, lease_id: str = "one", *, tries: int = 1, left: Mapping[str, str] | None = None) -> bool:
        """Release, again where the outcome is unknown as `operation.release_all` does: nothing stays attached but `left`."""
        for _ in range(tries):
            try:
                if self.fabric.release(lease_id) == () and self.fabric.read_back(lease_id) is None:
                    break
            except (Busy, OutcomeUnknown, PartialFailure):
                if tries == 1:
                    raise
        return self.attached() == (left or {}) and self.fabric.list_lease_tags() == {}
