"""An emulated control plane with its adapter, as tests open and close it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from campaign.emulators.catalog import emulator_module, open_emulator
from campaign.emulators.control_planes.hardware import Rack, rack
from campaign.emulators.control_planes.server import Server
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.errors import Busy, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import Composition, HostSpec, PoolSpec
from campaign.fabrics.protocol import Fabric, Request, Selection
from tests.contract.fabric_fixtures import CREDENTIALS, configuration


def obtained(fabric: Fabric, lease_id: str = "one") -> Composition:
    """What a lease has, which must be there."""
    found = fabric.read_back(lease_id)
    assert found is not None
    return found


@dataclass
class Bench:
    """One control plane with one adapter. hosts: of the system; default: all. key: attribute by which the fabric calls a device."""

    kind: str
    server: Server
    rack: Rack
    options: dict[str, Any]
    state_dir: Path
    pool: Sequence[PoolSpec] = ()
    key: str = "name"
    hosts: Sequence[str] = ()
    fabric: ControlledFabric = field(init=False)

    def __post_init__(self) -> None:
        self.fabric = self.again()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.fabric.close()

    def again(self, state_dir: Path | None = None, **options: Any) -> ControlledFabric:
        """Another adapter on the same state, as another process has it."""
        hosts = tuple(HostSpec(name, 8, 32.0) for name in self.hosts or self.rack.hosts)
        told = {"url": self.server.url, "credentials": CREDENTIALS, **self.options, **options}
        return cast(ControlledFabric, open_fabric(self.kind, told, hosts, self.pool, state_dir or self.state_dir))

    def selection(self, lease_id: str = "one", devices: int = 2, **changes: Any) -> Selection:
        request = Request(lease_id, "demo", "tester", configuration(devices_per_host=devices, **changes))
        return self.fabric.select(request, self.fabric.inventory())

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
        return {getattr(one, self.key): one.attached_to for one in devices if one.attached_to}

    def gave_back(self, lease_id: str = "one", *, tries: int = 1, left: Mapping[str, str] | None = None) -> bool:
        """Release, again where the outcome is unknown as `operation.give_back` does: nothing stays attached but `left`."""
        for _ in range(tries):
            try:
                if self.fabric.release(lease_id) == () and self.fabric.read_back(lease_id) is None:
                    break
            except (Busy, OutcomeUnknown, PartialFailure):
                if tries == 1:
                    raise
        return self.attached() == (left or {}) and self.fabric.held() == {}


def tried(call: Any) -> bool:
    """False where a call of a fabric did not do all of it, or nobody knows."""
    try:
        return call() in (None, ())
    except (OutcomeUnknown, Busy, PartialFailure):
        return False


NODES = {"host1": "b477ea1c-db3d-48b3-9725-b0ce6e25ef01", "host2": "b9a1e642-da2e-403a-88f5-fa0eca0d9c52"}
"""CDIM's ids of hosts."""
TENANT = "b3b65e79-ad41-4367-89d6-e4e7315141ef"
DRIVE = ("nvme", "ssd", 1)
MORE: dict[str, list[tuple[str, str, int]]] = {"cdi": [("gpu", "l4", 1), DRIVE], "nec": [], "sunfish": [DRIVE]}
"""Devices beside a100, by kind of fabric."""
OPTIONS: dict[str, dict[str, Any]] = {
    "cdi": {"tenant": TENANT, "realm": "cdi", "client_id": "campaign", "settle_s": 0.1},
    "nec": {"credentials": {}, "hosts": NODES, "poll_s": 0.01, "settle_s": 0},
    "sunfish": {"credentials": {}},
}


@contextmanager
def opened(
    kind: str,
    tmp_path: Path,
    *,
    gpus: int = 3,
    hosts: Sequence[str] = ("host1", "host2"),
    options: dict[str, Any] | None = None,
    **emulated: Any,
) -> Iterator[Bench]:
    """An emulated control plane of a kind without a public server; the system has host1 and host2."""
    models = [("gpu", "a100", gpus), *MORE[kind]]
    hardware = rack(hosts, models)
    nodes = {"nodes": NODES} if kind == "nec" else {}
    with Server(open_emulator(kind, hardware, **nodes, **emulated), tls=False) as server:
        address = getattr(emulator_module(kind), "address", lambda server: {})
        given = dict(options or {})
        if "agent_url" in given:
            given["agent_url"] = given["agent_url"].format(url=server.url)
        told = {**OPTIONS[kind], **address(server), **given}
        pool, key = [PoolSpec(*each) for each in models], "uuid" if kind == "nec" else "name"
        with Bench(kind, server, hardware, told, tmp_path, pool, key, ("host1", "host2")) as b:
            yield b
