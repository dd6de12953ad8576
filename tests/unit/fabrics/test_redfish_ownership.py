"""Who holds a block, by both ends and its state; and the rules of whole blocks, zones and limits. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from campaign.fabrics.adapters.redfish.ownership import (
    ServiceView,
    build_banks,
    build_service_view,
    build_system_name,
    find_rule_violation,
)
from campaign.fabrics.adapters.redfish.resources import (
    BlockPart,
    ComputerSystem,
    ResourceBlock,
    ResourceZone,
    ServiceReading,
)
from campaign.fabrics.adapters.redfish.service import RedfishOptions
from campaign.fabrics.control_plane.ownership import merge_duplicate_devices
from campaign.fabrics.control_plane.protocol import LeaseChange
from campaign.fabrics.protocol import Tag
from campaign.fabrics.state_file import ClaimedHost, DeviceSlot, FabricState, LeaseClaim

GPU = BlockPart("gpu", "a100", None, None, "ok")
OURS, THEIRS = build_system_name("one", "host1"), "theirs"


def block(name: str, *, kind: str = "Processor", **changes: Any) -> ResourceBlock:
    plain = ResourceBlock(f"/b/{name}", name, name, (kind,), "Unused", False, True, "ok", (), (), ())
    return replace(plain, **changes)


def system(number: int, name: str, *blocks: str, kind: str = "Composed") -> ComputerSystem:
    return ComputerSystem(f"/s/{number}", str(number), name, "", kind, tuple(f"/b/{one}" for one in blocks), "On")


def seen(
    *blocks: ResourceBlock,
    systems: tuple[ComputerSystem, ...] = (),
    zones: tuple[ResourceZone, ...] = (),
    parts: int = 1,
    state: FabricState | None = None,
    **options: Any,
) -> ServiceView:
    hosts = [block("host1", kind="Compute"), block("host2", kind="Compute")]
    here = {one.uri: one for one in (*hosts, *blocks)}
    reading = ServiceReading(here, {s.uri: s for s in systems}, zones, {one.uri: (GPU,) * parts for one in blocks})
    return build_service_view(
        reading, ["host1", "host2"], RedfishOptions(url="http://x", **options), state or FabricState()
    )


def change(**hosts: tuple[str, ...]) -> LeaseChange:
    return LeaseChange(Tag("one", "c", "o", 0.0, ()), hosts)


@pytest.mark.parametrize(
    ("state", "named", "listed", "expected"),
    [
        ("Unused", (), (), ("free", None, None)),
        (None, (), (), ("free", None, None)),
        ("Composing", (), (), ("composing", None, None)),
        ("Failed", (), (), ("failed", None, None)),
        ("Unavailable", (), (), ("unavailable", None, None)),
        ("Composed", (), (), ("unknown", None, None)),
        ("SomethingNew", (), (), ("unknown", None, None)),
        ("Composed", ("/s/1",), (OURS,), ("in_use", "host1", "one")),
        ("ComposedAndAvailable", ("/s/1",), (OURS,), ("in_use", "host1", "one")),
        ("Composed", ("/s/1",), (THEIRS,), ("in_use", "host1", "system theirs")),
        ("Composing", ("/s/1",), (OURS,), ("composing", None, "one")),
        ("Unused", ("/s/1",), (OURS,), ("unknown", None, "one")),
        ("Unused", (), (OURS,), ("unknown", None, "one")),
        ("Composed", (), (OURS,), ("unknown", None, "one")),
        ("Composed", ("/s/1",), (), ("unknown", None, None)),
        ("Composed", ("/s/1", "/s/2"), (OURS,), ("unknown", None, "one")),
        ("Composed", ("/s/1", "/s/2"), (OURS, THEIRS), ("in_use", "host1", "one")),
        ("Composed", ("/s/1", "/s/2"), (THEIRS, OURS), ("in_use", "host1", "one")),
    ],
)
def test_a_device_is_in_use_only_where_both_ends_and_the_state_agree(
    state: str | None, named: tuple[str, ...], listed: tuple[str, ...], expected: tuple[Any, ...]
) -> None:
    systems = tuple(system(number, name, "host1", "gpu1") for number, name in enumerate(listed, 1))
    device = seen(block("gpu1", state=state, systems=named), systems=systems).view.devices[0]
    assert (device.state, device.attached_to, device.holder) == expected


@pytest.mark.parametrize(
    ("compositions", "others"),
    [
        (0, ("system theirs",)),
        (2, ("system theirs",)),
        (3, ("a system that the service does not list", "system theirs")),
    ],
)
def test_who_else_has_a_block_is_named(compositions: int, others: tuple[str, ...]) -> None:
    systems = (system(1, OURS, "host1", "gpu1"), system(2, THEIRS, "host2", "gpu1"))
    shared = block("gpu1", state="Composed", systems=("/s/1", "/s/2"), composition_count=compositions)
    (device,) = merge_duplicate_devices(seen(shared, systems=systems).view, FabricState()).devices
    assert (device.holder, device.others) == ("one", others)


def test_a_host_of_two_systems_is_shared() -> None:
    view = seen(block("gpu1"), systems=(system(1, THEIRS, "host1"), system(2, OURS, "host1"))).view
    assert (view.holders["host1"], view.shared_hosts) == ("one", {"host1": ("system theirs",)})


def test_a_block_that_is_off_or_reserved_is_not_free() -> None:
    shown = seen(block("gpu1", is_enabled=False), block("gpu2", is_reserved=True)).view.devices
    assert [device.state for device in shown] == ["unavailable", "reserved"]


def test_a_block_of_two_goes_as_one() -> None:
    both = seen(block("gpu1"), parts=2)
    assert [device.fabric_id for device in both.view.devices] == ["gpu1.0", "gpu1.1"]
    assert "one resource block" in str(find_rule_violation(both, change(host1=("gpu1.0",))))
    assert find_rule_violation(both, change(host1=("gpu1.0", "gpu1.1"))) is None


def test_everything_of_a_system_shares_one_zone() -> None:
    zones = (
        ResourceZone("/z/1", "1", "", ("/b/host1", "/b/gpu1")),
        ResourceZone("/z/2", "2", "", ("/b/host1", "/b/host2", "/b/gpu2")),
    )
    shown = seen(block("gpu1"), block("gpu2"), zones=zones)
    reach = {bank.name: bank.hosts for bank in build_banks(shown, shown.view)}
    assert reach == {"1": ("host1",), "2": ("host1", "host2")}
    assert find_rule_violation(shown, change(host1=("gpu1",), host2=("gpu2",))) is None
    assert "not in a common resource zone" in str(find_rule_violation(shown, change(host1=("gpu1", "gpu2"))))


@pytest.mark.parametrize(
    ("limit", "names", "said"),
    [
        (("MaxProcessor", 1), ("gpu2",), None),
        (("MaxProcessor", 1), ("gpu1", "gpu2"), "allows at most 1 blocks of type Processor in a system, not 2"),
        (("MinProcessor", 2), ("gpu1",), "requires at least 2 blocks of type Processor in a system, not 1"),
    ],
)
def test_a_zone_limits_what_one_system_has(limit: tuple[str, int], names: tuple[str, ...], said: str | None) -> None:
    zones = (ResourceZone("/z/1", "1", "", ("/b/host1", "/b/gpu1", "/b/gpu2"), limits=(limit,)),)
    rule = find_rule_violation(seen(block("gpu1"), block("gpu2"), zones=zones), change(host1=names))
    assert (rule is None) if said is None else (said in str(rule))


def test_a_host_that_is_only_a_physical_system_is_composed_for_nobody() -> None:
    physical = system(1, "server7", kind="Physical")
    shown = seen(block("gpu1"), systems=(physical,), hosts={"host1": "server7"})
    assert list(shown.hosts) == ["host2"]
    assert "the service has no compute block for host1 (see `hosts`)" in str(
        find_rule_violation(shown, change(host1=("gpu1",)))
    )
    assert find_rule_violation(shown, change(host1=())) is None


def test_a_block_that_does_not_say_that_it_is_a_host_is_one_where_the_system_file_says_so() -> None:
    odd = [block("cb1", types=()), block("cb2", kind="Expansion"), block("gpu1")]
    assert seen(*odd, hosts={"host1": "cb1", "host2": "cb2"}).hosts["host1"] == odd[0]
    mapped = seen(*odd, hosts={"host1": "cb1", "host2": "cb2"})
    assert {host: block.id for host, block in mapped.hosts.items()} == {"host1": "cb1", "host2": "cb2"}
    assert [device.fabric_id for device in mapped.view.devices] == ["gpu1"]
    assert [device.fabric_id for device in seen(*odd).view.devices] == ["cb1", "cb2", "gpu1"]


def test_what_a_physical_system_has_is_nobodys_and_not_free() -> None:
    physical = system(1, "host1", "host1", "gpu1", kind="Physical")
    view = seen(block("gpu1", state="Composed", systems=("/s/1",)), systems=(physical,)).view
    (device,) = view.devices
    assert (device.state, device.attached_to, device.holder, dict(view.holders)) == ("in_use", "host1", None, {})


def test_a_host_is_held_by_whoever_composed_or_reserved_it() -> None:
    mine = block("host1", kind="Compute", systems=("/s/1",), state="Composed")
    kept = block("host2", kind="Compute", is_reserved=True)
    shown = seen(mine, kept, systems=(system(1, OURS, "host1"),))
    assert dict(shown.view.holders) == {"host1": "one", "host2": "another client, which reserved it"}
    broken = seen(block("host1", kind="Compute", state="Failed"), block("host2", kind="Compute", systems=("/s/9",)))
    assert dict(broken.view.holders) == {"host1": "the fabric, which reports the state Failed", "host2": "system 9"}


@pytest.mark.parametrize(
    ("handle", "blocks", "kind", "ours"),
    [
        ("/s/1\tComposed/", ("host1", "gpu1"), "Composed", True),
        ("/s/1\tComposed/", ("host1",), "Composed", True),
        ("/s/1\tComposed/", (), "Composed", True),
        ("/s/1\tComposed/", ("host2", "gpu2"), "Composed", False),
        ("/s/1\tComposed/u1", ("host1", "gpu1"), "Composed", False),
        ("/s/1\tComposed/", ("host1", "gpu1"), "Virtual", False),
        ("/s/2\tComposed/", ("host1", "gpu1"), "Composed", False),
        ("?", ("host1", "gpu1"), "Composed", True),
        ("?", ("host1", "gpu1", "gpu2"), "Composed", True),
        ("?", ("host1", "gpu2"), "Composed", False),
        ("?", ("host1",), "Composed", False),
        ("", ("host1", "gpu1"), "Composed", False),
    ],
)
def test_an_address_is_ours_while_the_same_system_is_there(
    handle: str, blocks: tuple[str, ...], kind: str, ours: bool
) -> None:
    held = LeaseClaim(
        campaign="c",
        owner="o",
        since_s=1.0,
        hosts=(ClaimedHost(name="host1", devices=("gpu1",)),),
        handles={"system:host1": handle},
    )
    state = FabricState(leases={"one": held}, devices={"gpu1": DeviceSlot(lease="one", host="host1")})
    shown = seen(block("gpu1"), block("gpu2"), systems=(system(1, "My System", *blocks, kind=kind),), state=state)
    assert [leased.tag.owner for leased in shown.leased_systems.values()] == ["o"] * ours
    assert ("one" in shown.view.tags) == ours
