"""What a static cluster cannot do, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.fabrics.errors import Incompatible
from campaign.fabrics.protocol import LeaseRequest
from campaign.fabrics.registry import NoOptions
from campaign.fabrics.static import BUILT_IN_DEVICES_RULE, open_fabric
from campaign.spec.site_hardware import DeviceSpec, HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration

HOST = HostSpec(
    name="host1",
    cores=8,
    memory_gib=32.0,
    devices=(
        DeviceSpec(kind="gpu", model="a100", count=2),
        DeviceSpec(kind="gpu", model="h100", count=1),
        DeviceSpec(kind="nvme", model="ssd", count=1),
    ),
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attach": "fabric"}, "attach: fabric with 1 pooled"),
        ({"attach": "hybrid", "devices_per_host": 2, "local_devices_per_host": 1}, "attach: hybrid with 1 pooled"),
        ({"attach": "local", "local_devices_per_host": 1, "storage": "fabric-nvme"}, "storage: fabric-nvme"),
    ],
)
def test_only_local_is_possible(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    fabric = open_fabric(NoOptions(), [HOST], [], tmp_path)
    with pytest.raises(Incompatible, match=says) as caught:
        fabric.select_devices(LeaseRequest("one", "demo", "me", configuration(**changes)), fabric.read_inventory())
    assert caught.value.rule == BUILT_IN_DEVICES_RULE


def test_a_pool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="4 x 'a100'"):
        open_fabric(NoOptions(), [HOST], [PoolSpec(kind="gpu", model="a100", count=4)], tmp_path)


def test_devices_are_numbered_per_kind(tmp_path: Path) -> None:
    fabric = open_fabric(NoOptions(), [HOST], [], tmp_path)
    names = [(device.fabric_id, device.model) for device in fabric.read_inventory().devices]
    assert names == [
        ("host1/gpu0", "a100"),
        ("host1/gpu1", "a100"),
        ("host1/gpu2", "h100"),
        ("host1/nvme0", "ssd"),
    ]
    assert fabric.describe_capabilities().max_devices_per_host == 3


def test_opening_writes_nothing(tmp_path: Path) -> None:
    open_fabric(NoOptions(), [HOST], [], tmp_path / "state").read_inventory()
    assert not (tmp_path / "state").exists()
