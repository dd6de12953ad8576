"""Cabling, modes and slots of a chassis."""

from __future__ import annotations

from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.fabrics.banks import CABLING_RULE, MODE_RULES, Bank, find_violation
from campaign.fabrics.simulated import ChassisOptions, build_banks, find_host_ports, place_devices
from campaign.spec.site_hardware import HostSpec, PoolSpec


def hosts(count: int) -> list[HostSpec]:
    return [HostSpec(name=f"host{number}", cores=4, memory_gib=16.0) for number in range(1, count + 1)]


def chassis(*drawers: dict[str, Any], **options: Any) -> ChassisOptions:
    named = [{"name": f"drawer{number}"} | drawer for number, drawer in enumerate(drawers, start=1)]
    return ChassisOptions.model_validate({"name": "falcon1"} | ({"drawers": named} if drawers else {}) | options)


def reach(found: tuple[Bank, ...]) -> dict[str, tuple[str, ...]]:
    return {bank.name: bank.hosts for bank in found}


ONE, TWO, ADVANCED = {"mode": "standard_one_host"}, {"mode": "standard_two_hosts"}, {"mode": "advanced"}


def test_by_default_every_host_reaches_both_drawers() -> None:
    assert reach(build_banks([chassis()], hosts(3))) == {
        "falcon1/drawer1": ("host1", "host2", "host3"),
        "falcon1/drawer2": ("host1", "host2", "host3"),
    }


def test_standard_modes_give_each_drawer_its_own_pair_of_ports() -> None:
    assert reach(build_banks([chassis(ONE, ONE)], hosts(4))) == {
        "falcon1/drawer1": ("host1",),
        "falcon1/drawer2": ("host3",),
    }
    assert reach(build_banks([chassis(TWO, TWO)], hosts(4))) == {
        "falcon1/drawer1/connection1": ("host1",),
        "falcon1/drawer1/connection2": ("host2",),
        "falcon1/drawer2/connection1": ("host3",),
        "falcon1/drawer2/connection2": ("host4",),
    }


def test_both_drawers_may_serve_one_host() -> None:
    found = build_banks([chassis(ONE, ONE)], hosts(1))
    assert reach(found) == {"falcon1/drawer1": ("host1",), "falcon1/drawer2": ("host1",)}
    assert sum(len(bank.slots) for bank in found) == 16


def test_a_drawer_without_ports_of_its_own_takes_the_next_host() -> None:
    assert reach(build_banks([chassis(ONE, ONE)], hosts(2))) == {
        "falcon1/drawer1": ("host1",),
        "falcon1/drawer2": ("host2",),
    }
    assert reach(build_banks([chassis(ONE, ONE)], [])) == {"falcon1/drawer1": (), "falcon1/drawer2": ()}


def test_hosts_are_cabled_in_order_over_several_chassis() -> None:
    second = ChassisOptions(name="falcon2")
    assert find_host_ports([chassis(), second], hosts(6)) == {
        "host1": ("falcon1/H1",),
        "host2": ("falcon1/H2",),
        "host3": ("falcon1/H3",),
        "host4": ("falcon1/H4",),
        "host5": ("falcon2/H1",),
        "host6": ("falcon2/H2",),
    }


def test_one_host_may_take_both_connections_of_a_drawer() -> None:
    found = build_banks([chassis(TWO | {"ports": ["H1", "H2"]}, ports={"H1": "host1", "H2": "host1"})], hosts(1))
    assert reach(found) == {"falcon1/drawer1/connection1": ("host1",), "falcon1/drawer1/connection2": ("host1",)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (chassis(ONE | {"ports": ["H1", "H2"]}), MODE_RULES["standard_one_host"]),
        (chassis(TWO | {"ports": ["H1", "H2", "H3"]}), MODE_RULES["standard_two_hosts"]),
        (chassis(ADVANCED | {"ports": ["H4"]}, ports={"H1": "host1"}), "H4 is not cabled"),
        (chassis(ports={"H1": "mars"}), "mars"),
        (chassis({"name": "d"}, {"name": "d"}), "is used twice"),
    ],
)
def test_impossible_cabling_is_refused(options: ChassisOptions, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_banks([options], hosts(4))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("drawer", "attached", "rule"),
    [
        (ONE, {1: "host1", 8: "host1"}, None),
        (ONE, {1: "host2"}, MODE_RULES["standard_one_host"]),
        (TWO, {4: "host1", 5: "host2"}, None),
        (TWO, {5: "host1"}, MODE_RULES["standard_two_hosts"]),
        (TWO, {4: "host2"}, MODE_RULES["standard_two_hosts"]),
        (ADVANCED, {1: "host1", 2: "host2", 3: "host3", 4: "host3"}, None),
        (ADVANCED, {1: "host1", 2: "host2", 3: "host3", 4: "host4"}, MODE_RULES["advanced"]),
        (ADVANCED, {1: "elsewhere"}, CABLING_RULE),
    ],
)
def test_mode_rules(drawer: dict[str, Any], attached: dict[int, str], rule: str | None) -> None:
    found = build_banks([chassis(drawer)], hosts(4))
    broken = find_violation(found, {f"falcon1/drawer1/slot{slot}": host for slot, host in attached.items()})
    assert (broken is None) if rule is None else (broken is not None and rule in broken)


def test_the_limit_of_hosts_is_per_drawer() -> None:
    found = build_banks([chassis(ADVANCED, ADVANCED)], hosts(4))
    spread = {f"falcon1/drawer{1 + number // 2}/slot{number + 1}": f"host{number + 1}" for number in range(4)}
    assert find_violation(found, spread) is None


def test_a_hosts_own_devices_break_no_rule() -> None:
    assert find_violation(build_banks([chassis(ONE)], hosts(2)), {"host2": "host2"}) is None


def test_the_pool_fills_slots_in_order_after_the_drawers_it_names() -> None:
    pool = [
        PoolSpec(kind="gpu", model="a100", count=7),
        PoolSpec(kind="nvme", model="ssd", count=2, drawer="drawer1"),
        PoolSpec(kind="nic", model="cx6", count=1, drawer="falcon1/drawer2"),
    ]
    placed = {slotted.location: slotted.model for slotted in place_devices([chassis()], pool)}
    assert [placed[f"falcon1/drawer1/slot{slot}"] for slot in range(1, 9)] == ["ssd"] * 2 + ["a100"] * 6
    assert [placed[f"falcon1/drawer2/slot{slot}"] for slot in range(1, 3)] == ["cx6", "a100"]
    assert len(placed) == 10


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        (PoolSpec(kind="gpu", model="a100", count=17), "the chassis has too few free slots for 17 x 'a100'"),
        (PoolSpec(kind="gpu", model="a100", count=9, drawer="drawer2"), "drawer2 has too few free slots"),
        (PoolSpec(kind="gpu", model="a100", count=1, drawer="drawer3"), "use one of: falcon1/drawer1, falcon1/drawer2"),
    ],
)
def test_a_pool_that_does_not_fit_is_refused(pool: PoolSpec, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        place_devices([chassis()], [pool])
