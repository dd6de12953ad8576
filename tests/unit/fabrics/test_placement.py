"""Which hosts and devices are chosen, and why nothing is when nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.fabrics.banks import CABLING_RULE, MODE_RULES
from campaign.fabrics.errors import Conflict, Incompatible, NoMatch, Unhealthy
from campaign.fabrics.protocol import LeaseRequest, Selection
from campaign.fabrics.simulated import SimulatedFabric, SimulatedOptions
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Device, Inventory
from campaign.spec.site_hardware import DeviceSpec, HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration


def system(
    tmp_path: Path, hosts: int, *pool: PoolSpec, own: int = 0, drawers: list[dict[str, Any]] | None = None
) -> SimulatedFabric:
    devices = (
        (DeviceSpec(kind="gpu", model="a100", count=own), DeviceSpec(kind="nvme", model="ssd", count=1)) if own else ()
    )
    specs = [
        HostSpec(name=f"host{number}", cores=4, memory_gib=16.0, devices=devices) for number in range(1, hosts + 1)
    ]
    options = {"chassis": [{"name": "f", "drawers": drawers}]} if drawers else {}
    return SimulatedFabric(SimulatedOptions.model_validate(options), specs, pool, tmp_path)


def select(
    fabric: SimulatedFabric, wanted: Configuration, inventory: Inventory | None = None, **request: Any
) -> Selection:
    return fabric.select_devices(
        LeaseRequest("lease", "demo", "me", wanted, **request), inventory or fabric.read_inventory()
    )


def drawers_of(selection: Selection) -> list[list[str]]:
    return [sorted({name.split("/")[1] for name in host.fabric}) for host in selection.hosts]


A100 = PoolSpec(kind="gpu", model="a100", count=8)
BOTH = (
    PoolSpec(kind="gpu", model="a100", count=2, drawer="drawer1"),
    PoolSpec(kind="gpu", model="a100", count=2, drawer="drawer2"),
)


def changed(inventory: Inventory, fabric_id: str, **changes: Any) -> Inventory:
    devices = (replace(d, **changes) if d.fabric_id == fabric_id else d for d in inventory.devices)
    return Inventory(inventory.hosts, tuple(devices))


def test_devices_of_one_host_come_from_one_drawer_when_they_can(tmp_path: Path) -> None:
    fabric = system(
        tmp_path,
        2,
        PoolSpec(kind="gpu", model="a100", count=1, drawer="drawer1"),
        PoolSpec(kind="gpu", model="a100", count=2, drawer="drawer2"),
    )
    assert drawers_of(select(fabric, configuration(devices_per_host=2))) == [["drawer2"]]


def test_hosts_are_given_equal_spreads(tmp_path: Path) -> None:
    # 3 + 3 devices for two hosts of three: (3) and (3) is even, though (2, 1) and (2, 1) would also do.
    fabric = system(
        tmp_path,
        2,
        PoolSpec(kind="gpu", model="a100", count=4, drawer="drawer1"),
        PoolSpec(kind="gpu", model="a100", count=3, drawer="drawer2"),
    )
    assert drawers_of(select(fabric, configuration(hosts=2, devices_per_host=3))) == [["drawer1"], ["drawer2"]]
    # 5 in one drawer and 1 in the other for two hosts of three: only an uneven choice is left.
    uneven = system(
        tmp_path / "u",
        2,
        PoolSpec(kind="gpu", model="a100", count=5, drawer="drawer1"),
        PoolSpec(kind="gpu", model="a100", count=1, drawer="drawer2"),
    )
    assert sorted(map(len, drawers_of(select(uneven, configuration(hosts=2, devices_per_host=3))))) == [1, 2]


def test_one_host_takes_all_sixteen_slots(tmp_path: Path) -> None:
    modes = [{"name": "d1", "mode": "standard_one_host"}, {"name": "d2", "mode": "standard_one_host"}]
    fabric = system(tmp_path, 1, PoolSpec(kind="gpu", model="a100", count=16), drawers=modes)
    assert fabric.describe_capabilities().max_devices_per_host == 16
    assert len(select(fabric, configuration(devices_per_host=16)).fabric_ids) == 16


def test_a_fourth_host_is_served_from_the_other_drawer(tmp_path: Path) -> None:
    selection = select(system(tmp_path, 4, *BOTH), configuration(hosts=4))
    assert sorted(drawers_of(selection)) == [["drawer1"], ["drawer1"], ["drawer2"], ["drawer2"]]


@pytest.mark.parametrize(
    ("hosts", "drawers", "wanted", "rule"),
    [
        (4, None, {"hosts": 4}, MODE_RULES["advanced"]),
        (
            2,
            [{"name": f"d{n}", "mode": "standard_one_host"} for n in (1, 2)],
            {"hosts": 2},
            MODE_RULES["standard_one_host"],
        ),
        (2, [{"name": "d", "mode": "standard_two_hosts"}], {"devices_per_host": 5}, MODE_RULES["standard_two_hosts"]),
        (2, [{"name": "d", "ports": ["H1"]}], {"hosts": 2}, CABLING_RULE),
    ],
)
def test_the_rule_that_forbids_is_named(
    tmp_path: Path, hosts: int, drawers: list[dict[str, Any]] | None, wanted: dict[str, Any], rule: str
) -> None:
    fabric = system(tmp_path, hosts, A100, drawers=drawers)
    with pytest.raises(Incompatible) as caught:
        select(fabric, configuration(**wanted))
    assert caught.value.rule == rule
    assert rule in str(caught.value)


def test_local_hybrid_and_fabric_devices(tmp_path: Path) -> None:
    fabric = system(tmp_path, 2, A100, own=2)
    local = select(fabric, configuration(devices_per_host=2, local_devices_per_host=2, attach="local"))
    assert local.hosts[0].local == ("host1/gpu0", "host1/gpu1")
    assert local.hosts[0].fabric == ()
    hybrid = select(fabric, configuration(devices_per_host=3, local_devices_per_host=1, attach="hybrid")).hosts[0]
    assert (len(hybrid.local), len(hybrid.fabric)) == (1, 2)


def test_storage_is_the_hosts_own_or_the_pools(tmp_path: Path) -> None:
    fabric = system(tmp_path, 2, A100, PoolSpec(kind="nvme", model="ssd", count=2), own=1)
    assert select(fabric, configuration(storage="local")).hosts[0].storage == ()
    assert select(fabric, configuration(storage="nvme")).hosts[0].storage == ("host1/nvme0",)
    pooled = select(fabric, configuration(hosts=2, storage="fabric-nvme"))
    assert {host.storage for host in pooled.hosts} == {("falcon1/drawer2/slot1",), ("falcon1/drawer2/slot2",)}
    with pytest.raises(NoMatch):
        select(system(tmp_path / "bare", 1, A100), configuration(storage="nvme"))


def test_a_drive_or_network_card_never_stands_in_for_a_device(tmp_path: Path) -> None:
    fabric = system(
        tmp_path, 1, PoolSpec(kind="nvme", model="a100", count=1), PoolSpec(kind="nic", model="a100", count=1)
    )
    with pytest.raises(NoMatch, match="1 host with 1 pooled 'a100': the system has only"):
        select(fabric, configuration())


def test_too_little_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(NoMatch, match=r"2 hosts \(host1, host2\).*8 x 'a100' in the pool"):
        select(system(tmp_path, 2, A100), configuration(devices_per_host=9))


def test_held_devices_are_a_conflict_with_all_their_holders(tmp_path: Path) -> None:
    fabric = system(
        tmp_path, 2, PoolSpec(kind="gpu", model="a100", count=2), PoolSpec(kind="gpu", model="h100", count=1)
    )
    inventory = changed(fabric.read_inventory(), "falcon1/drawer1/slot1", holder="x", state="in_use")
    inventory = changed(inventory, "falcon1/drawer1/slot3", holder="irrelevant", state="in_use")
    with pytest.raises(Conflict) as caught:
        select(fabric, configuration(devices_per_host=2), inventory)
    assert caught.value.holders == ("x",)


def test_broken_devices_are_passed_over_or_named(tmp_path: Path) -> None:
    fabric = system(tmp_path, 1, PoolSpec(kind="gpu", model="a100", count=2))
    inventory = changed(fabric.read_inventory(), "falcon1/drawer1/slot1", health="critical", state="failed")
    assert select(fabric, configuration(), inventory).fabric_ids == ("falcon1/drawer1/slot2",)
    with pytest.raises(Unhealthy) as caught:
        select(fabric, configuration(devices_per_host=2), inventory)
    assert caught.value.devices == ("falcon1/drawer1/slot1",)
    worn = changed(fabric.read_inventory(), "falcon1/drawer1/slot1", health="warning")
    assert select(fabric, configuration(), worn).fabric_ids == ("falcon1/drawer1/slot1",)


def test_what_could_ever_fit_is_told_by_the_freed_inventory(tmp_path: Path) -> None:
    fabric = system(tmp_path, 1, PoolSpec(kind="gpu", model="a100", count=1))
    held = changed(fabric.read_inventory(), "falcon1/drawer1/slot1", holder="x", state="in_use", attached_to="host1")
    assert select(fabric, configuration(), held.release_all()).fabric_ids == ("falcon1/drawer1/slot1",)


def test_a_large_system_is_refused_quickly(tmp_path: Path) -> None:
    hosts = [HostSpec(name=f"host{number}", cores=4, memory_gib=16.0) for number in range(32)]
    options = SimulatedOptions.model_validate({"chassis": [{"name": f"f{number}"} for number in range(8)]})
    fabric = SimulatedFabric(options, hosts, [PoolSpec(kind="gpu", model="a100", count=64)], tmp_path)
    # 64 devices in 4 of 8 chassis: 16 hosts reach them, which an exhaustive search over 32 hosts would not find out.
    assert len(select(fabric, configuration(hosts=16, devices_per_host=4)).fabric_ids) == 64
    with pytest.raises(Incompatible) as caught:
        select(fabric, configuration(hosts=20, devices_per_host=3))
    assert caught.value.rule == CABLING_RULE


def solvable(wanted: Configuration, first: int, second: int) -> bool:
    """By brute force: can `hosts` hosts take devices_per_host each from two drawers, at most three hosts a drawer?"""

    def serve(missing: int, left: tuple[int, int], serving: tuple[int, int]) -> bool:
        if not missing:
            return True
        for taken in range(wanted.devices_per_host + 1):
            take = (taken, wanted.devices_per_host - taken)
            after = tuple(a - b for a, b in zip(left, take, strict=True))
            hosts = tuple(a + (b > 0) for a, b in zip(serving, take, strict=True))
            if min(after) >= 0 and max(hosts) <= 3 and serve(missing - 1, (after[0], after[1]), (hosts[0], hosts[1])):
                return True
        return False

    return serve(wanted.hosts, (first, second), (0, 0))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 8), st.integers(0, 8))
def test_a_placement_is_found_exactly_when_there_is_one(hosts: int, per_host: int, first: int, second: int) -> None:
    pool = [
        PoolSpec(kind="gpu", model="a100", count=count, drawer=f"drawer{n}")
        for n, count in ((1, first), (2, second))
        if count
    ]
    specs = [HostSpec(name=f"host{number}", cores=4, memory_gib=16.0) for number in range(1, 5)]
    fabric = SimulatedFabric(SimulatedOptions(), specs, pool, Path("/nowhere"))
    wanted = configuration(hosts=hosts, devices_per_host=per_host)
    try:
        selection = select(fabric, wanted)
    except (Incompatible, NoMatch):
        assert not solvable(wanted, first, second)
        return
    assert solvable(wanted, first, second)
    assert [len(host.fabric) for host in selection.hosts] == [per_host] * hosts
    assert len(set(selection.fabric_ids)) == hosts * per_host
    assert len({host.host for host in selection.hosts}) == hosts
    serving: dict[str, set[str]] = {}
    for host in selection.hosts:
        for name in host.fabric:
            serving.setdefault(name.rpartition("/")[0], set()).add(host.host)
    assert max(map(len, serving.values())) <= 3


def test_devices_report_only_what_lasts() -> None:
    device = Device("x", "gpu", "a100", "GPU-1", "x", local=False, holder="lease", state="in_use", attached_to="host1")
    assert {"holder", "state", "attached_to"}.isdisjoint(device.document())
    assert device.document()["host_id"] == "GPU-1"
