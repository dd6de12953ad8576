"""Which device of a host is which of the fabric, where the fabric tells no identity and hosts have devices of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.emulators.control_planes.hardware import build_rack
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.control_plane.protocol import FabricView
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice
from campaign.fabrics.protocol import LeaseRequest
from campaign.spec.hardware import Composition
from campaign.spec.site_hardware import DeviceSpec, HostSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import obtained
from tests.unit.fabrics.memory_plane import MemoryPlane, RackAgent

BUILT_IN = ("GPU-aaaa", "GPU-bbbb")
HOSTS = (HostSpec(name="host1", cores=8, memory_gib=32.0, devices=(DeviceSpec(kind="gpu", model="a100", count=2),)),)


class Silent(MemoryPlane):
    """Tells no identities."""

    def read_view(self) -> FabricView:
        view = super().read_view()
        return replace(view, devices=tuple(replace(device, host_id=None) for device in view.devices))


class FullAgent(RackAgent):
    """Sees what is built in first, as hosts do."""

    def list_devices(self, host: str) -> tuple[HostDevice, ...]:
        return (*(HostDevice(name) for name in BUILT_IN), *super().list_devices(host))


@pytest.fixture
def plane() -> Silent:
    return Silent(build_rack(["host1"], [("gpu", "a100", 3)]))


@pytest.fixture
def fabric(plane: Silent, tmp_path: Path) -> ControlledFabric:
    return ControlledFabric(plane, HOSTS, tmp_path / "memory.json", FullAgent(plane))


def composed(fabric: ControlledFabric, *, local: int = 1) -> Composition:
    hybrid = configuration(devices_per_host=2 + local, local_devices_per_host=local, attach="hybrid")
    fabric.compose(fabric.select_devices(LeaseRequest("one", "demo", "tester", hybrid), fabric.read_inventory()))
    found = obtained(fabric)
    return found


def test_devices_of_the_fabric_are_those_that_the_host_did_not_have_before(
    fabric: ControlledFabric, plane: Silent
) -> None:
    (host,) = composed(fabric).hosts
    attached = {f"GPU-{device.uuid}" for device in plane.rack.list_attached_devices("host1")}
    assert {device.host_id for device in host.devices if not device.local} == attached
    assert {device.host_id for device in host.devices if device.local} == {None}
    assert fabric.find_visible_devices(Composition((host,))) == {device.fabric_id for device in host.devices}
    assert all(device.link is not None for device in host.devices if not device.local)


def test_a_built_in_device_is_not_taken_for_one_that_the_host_does_not_see(
    fabric: ControlledFabric, plane: Silent
) -> None:
    plane.rack.devices["gpu1"].quirks.add("never_visible")
    composition = composed(fabric)
    unseen = {device.fabric_id for device in composition.devices} - fabric.find_visible_devices(composition)
    assert len(unseen) == 1


def test_only_what_the_fabric_attached_is_taken_out_of_use(fabric: ControlledFabric, plane: Silent) -> None:
    composed(fabric)
    uuids = {f"GPU-{device.uuid}" for device in plane.rack.list_attached_devices("host1")}
    assert fabric.release("one") == ()
    drained = {line.removeprefix("drain ") for line in plane.log if line.startswith("drain")}
    assert drained == uuids


def test_what_cannot_be_told_apart_is_not_taken_out_of_use(
    fabric: ControlledFabric, plane: Silent, tmp_path: Path
) -> None:
    composed(fabric)
    (tmp_path / "memory.json").unlink()
    with pytest.raises(HostBusy, match="gpu1, gpu2 cannot be identified"):
        fabric.release("one")
    assert not [line for line in plane.log if line.startswith(("drain", "detach"))]


def test_this_machine_cannot_stand_for_several_hosts(tmp_path: Path) -> None:
    options = {"url": "http://127.0.0.1:1", "agent": {"kind": "local"}}
    with pytest.raises(ConfigError, match="the system has 2 hosts; use kind ssh"):
        open_fabric("redfish", options, (*HOSTS, HostSpec(name="host2", cores=8, memory_gib=32.0)), (), tmp_path)
    open_fabric("redfish", options, HOSTS, (), tmp_path).close()
