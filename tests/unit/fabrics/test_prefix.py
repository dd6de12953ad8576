"""Remote devices and parts of devices: which there are, who may hold what at one time, and what a process is given for them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.fabrics import open_fabric
from campaign.fabrics.errors import Conflict, Incompatible, NoMatch
from campaign.fabrics.prefix import LENDING_RULE
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Composition, Device
from campaign.spec.launch_prefix import (
    DeviceEnvironment,
    Launch,
    build_device_environment,
    format_decimal,
    parse_fraction,
)
from campaign.spec.site_hardware import DeviceSpec, HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import obtained

LEND = {"prefix": ["lend", "{devices}", "{fraction}", "--"]}
VIRTUAL = {"device": "virtual", "of": "native", **LEND}
LENT = {"device": "virtual", "where": "pool", **LEND}
VISIBLE = {"environment": {"CUDA_VISIBLE_DEVICES": "{ids}"}}


def host(name: str, **counts: int) -> HostSpec:
    return HostSpec(
        name=name,
        cores=8,
        memory_gib=32.0,
        devices=tuple(DeviceSpec(kind="gpu", model=model, count=count) for model, count in counts.items()),
    )


def opened(
    directory: Path,
    *launch: dict[str, Any],
    hosts: tuple[HostSpec, ...] = (host("host1"), host("host2")),
    pool: tuple[PoolSpec, ...] = (),
) -> Fabric:
    return open_fabric("prefix", {"launch": list(launch)}, hosts, pool, directory)


def lenders(directory: Path, hosts: int = 3, each: int = 4) -> Fabric:
    """Hosts that lend each other their devices, and can use their own through the same layer."""
    names = [f"host{number}" for number in range(1, hosts + 1)]
    return opened(
        directory,
        {**VIRTUAL, "where": "local"},
        LENT,
        hosts=tuple(host(name, native=each, virtual=each) for name in names),
        pool=tuple(PoolSpec(kind="gpu", model="virtual", count=each, drawer=name) for name in names),
    )


def shape(name: str, local: int, remote: int, model: str = "virtual", hosts: int = 1) -> Configuration:
    attach = "hybrid" if local and remote else "fabric" if remote else "local"
    return configuration(
        name,
        hosts=hosts,
        devices_per_host=local + remote,
        local_devices_per_host=local,
        device=model,
        attach=attach,
    )


def composed(fabric: Fabric, lease: str, wanted: Configuration, **more: Any) -> Composition:
    fabric.compose(fabric.select_devices(LeaseRequest(lease, "demo", "me", wanted, **more), fabric.read_inventory()))
    composition = obtained(fabric, lease)
    assert composition.list_mismatches(wanted) == ()
    return composition


def physical(composition: Composition) -> list[str]:
    return [device.physical_id for device in composition.devices]


def launches(composition: Composition) -> list[Launch | None]:
    return [device.launch for device in composition.devices]


def test_native_virtual_mixed_and_remote_are_configurations_of_one_system(tmp_path: Path) -> None:
    fabric = lenders(tmp_path)
    seen = {}
    for name, local, remote, model in (
        ("N4", 4, 0, "native"),
        ("L4", 4, 0, "virtual"),
        ("L2R2", 2, 2, "virtual"),
        ("R4", 0, 4, "virtual"),
    ):
        composition = composed(fabric, name, shape(name, local, remote, model))
        seen[name] = physical(composition)
        assert all((launch is None) == (name == "N4") for launch in launches(composition))
        fabric.release(name)
    own = [f"host1/gpu{number}" for number in range(4)]
    lent = [f"host2/gpu{number}" for number in range(4)]
    assert seen == {"N4": own, "L4": own, "L2R2": own[:2] + lent[:2], "R4": lent}


def test_a_host_that_lends_is_taken_along_and_one_that_is_used_does_not_lend(tmp_path: Path) -> None:
    fabric = lenders(tmp_path)
    composed(fabric, "one", shape("R1", 0, 1))
    holders = {each.name: each.holder for each in fabric.read_inventory().hosts}
    assert holders == {"host1": "one", "host2": "one", "host3": None}
    composed(fabric, "two", shape("L4", 4, 0), allowed_hosts=("host3",))
    for wanted in (shape("L1", 1, 0), shape("R1", 0, 1)):
        with pytest.raises(Conflict) as caught:
            fabric.select_devices(LeaseRequest("three", "demo", "me", wanted), fabric.read_inventory())
        assert set(caught.value.holders) <= {"one", "two"}
    fabric.release("one")
    # host3 is in use, and would be the first choice of nobody: host1 borrows from host2.
    assert physical(composed(fabric, "three", shape("R2", 0, 2))) == ["host2/gpu0", "host2/gpu1"]


def test_a_host_lends_to_one_lease_and_not_while_it_is_in_use_itself(tmp_path: Path) -> None:
    fabric = lenders(tmp_path, hosts=4)
    composed(fabric, "one", shape("R1", 0, 1))  # host1, of host2
    composed(fabric, "two", shape("L1", 1, 0), allowed_hosts=("host3",))
    with pytest.raises(Conflict):
        composed(fabric, "three", shape("R1", 0, 1), allowed_hosts=("host4",))
    fabric.release("two")
    assert physical(composed(fabric, "three", shape("R1", 0, 1), allowed_hosts=("host4",))) == ["host3/gpu0"]


def test_what_was_lent_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    fabric = lenders(tmp_path, hosts=2)
    stale = fabric.read_inventory()
    composed(fabric, "one", shape("R1", 0, 1))
    late = fabric.select_devices(LeaseRequest("two", "demo", "me", shape("L1", 1, 0), ("host2",)), stale)
    with pytest.raises(Conflict, match="host2 is held by one") as caught:
        fabric.compose(late)
    assert caught.value.holders == ("one",)
    assert list(fabric.list_lease_tags()) == ["one"]
    assert set(fabric.list_lease_tags()["one"].devices) == {"pool/host2/gpu0/virtual"}


def test_no_device_is_used_twice_by_one_lease_and_no_host_borrows_from_itself(tmp_path: Path) -> None:
    fabric = lenders(tmp_path, hosts=3, each=2)
    composition = composed(fabric, "one", shape("L1R1", 1, 1, hosts=2))
    assert len(set(physical(composition))) == 4
    assert [device.location for device in composition.devices if not device.local] == ["host3/slot1", "host3/slot2"]
    assert fabric.release("one") == ()
    with pytest.raises(Incompatible, match="cannot lend") as caught:
        fabric.select_devices(LeaseRequest("two", "demo", "me", shape("R1", 0, 1, hosts=3)), fabric.read_inventory())
    assert caught.value.rule == LENDING_RULE
    with pytest.raises(NoMatch):
        fabric.select_devices(LeaseRequest("two", "demo", "me", shape("R9", 0, 9)), fabric.read_inventory())


def test_parts_of_a_remote_device_keep_it_from_other_leases_in_every_form(tmp_path: Path) -> None:
    fabric = opened(
        tmp_path,
        {"device": "whole", **LEND},
        {"device": "quarter", "of": "whole", "fraction": "5/20", **LEND},
        pool=(
            PoolSpec(kind="gpu", model="whole", count=2, drawer="server1"),
            PoolSpec(kind="gpu", model="quarter", count=2, drawer="server1"),
        ),
    )
    assert sum(device.model == "quarter" for device in fabric.read_inventory().devices) == 8
    one = composed(fabric, "one", shape("1/4", 0, 1, "quarter"))
    assert physical(one) == ["server1/gpu0"]
    assert physical(composed(fabric, "two", shape("R1", 0, 1, "whole"))) == ["server1/gpu1"]
    for model in ("whole", "quarter"):
        with pytest.raises(Conflict):
            fabric.select_devices(LeaseRequest("three", "demo", "me", shape("c", 0, 1, model)), fabric.read_inventory())
    fabric.release("two")
    assert physical(composed(fabric, "two", shape("4/4", 0, 4, "quarter"))) == ["server1/gpu1"] * 4


@pytest.mark.parametrize(("fraction", "shares", "parts"), [("1/7", None, 7), (0.25, None, 4), ("3/4", None, 1),
                                                           ("1/3", 1, 1), ("1/2", 4, 4)])  # fmt: skip
def test_how_many_parts_a_device_gives(tmp_path: Path, fraction: Any, shares: int | None, parts: int) -> None:
    rule = {"device": "part", "fraction": fraction, "shares": shares, **VISIBLE}
    fabric = opened(tmp_path, rule, hosts=(host("host1", part=2),))
    composition = composed(fabric, "one", shape("all", 2 * parts, 0, "part"))
    assert [physical(composition).count(name) for name in ("host1/gpu0", "host1/gpu1")] == [parts, parts]
    assert {launch.fraction for launch in launches(composition) if launch} == {str(Fraction(str(fraction)))}


def test_ids_are_of_parts_or_of_devices_or_numbers(tmp_path: Path) -> None:
    def ids(**given_ids: Any) -> list[str]:
        rule = {"device": "half", "fraction": "1/2", **VISIBLE, **given_ids}
        hosts = (host("host1", other=1, half=2),)
        composition = composed(opened(tmp_path / str(given_ids), rule, hosts=hosts), "one", shape("c", 4, 0, "half"))
        return [launch.id for launch in launches(composition) if launch]

    assert ids() == ["1", "1", "2", "2"]
    assert ids(ids={"host1": ["GPU-a", "GPU-b"]}) == ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]
    assert ids(ids={"host1": ["MIG-a", "MIG-b", "MIG-c", "MIG-d"]}) == ["MIG-a", "MIG-b", "MIG-c", "MIG-d"]
    with pytest.raises(ConfigError, match="there are 3 ids; use 2 for the devices, or 4 for their parts"):
        ids(ids={"host1": ["a", "b", "c"]})


REFUSED: list[tuple[Any, Callable[[Path], Fabric]]] = [
    ("set `prefix` or `environment`", lambda at: opened(at, {"device": "a"}, hosts=(host("h", a=1),))),
    ("not a valid fraction", lambda at: opened(at, {"device": "a", "fraction": "8/7", **VISIBLE}, hosts=(host("h", a=1),))),
    ("not a valid fraction", lambda at: opened(at, {"device": "a", "fraction": "1/0", **VISIBLE}, hosts=(host("h", a=1),))),
    ("'{gpus}' is not a known name; there are: devices", lambda at: opened(at, {"device": "a", "prefix": ["x", "{gpus}"]})),
    ("Single '}'", lambda at: opened(at, {"device": "a", "prefix": ["}"]})),
    ("only plain names", lambda at: opened(at, {"device": "a", "prefix": ["{ids!r}"]})),
    ("set memory_mib", lambda at: opened(at, {"device": "a", "prefix": ["x", "{memory_mib}"]})),
    ("two entries for devices of the pool", lambda at: opened(at, {"device": "a", **VISIBLE}, {**LENT, "device": "a"})),
    ("neither a host nor the pool has 'a'", lambda at: opened(at, {"device": "a", **VISIBLE})),
    ("the pool does not have 'a'", lambda at: opened(at, {"device": "a", "where": "pool", **VISIBLE}, hosts=(host("h", a=1),))),
    ("ids: mars has no such", lambda at: opened(at, {"device": "a", "ids": {"mars": ["1"]}, **VISIBLE}, hosts=(host("h", a=1),))),
    ("'b' cannot be attached", lambda at: opened(at, {"device": "a", **VISIBLE}, hosts=(host("h", a=1),),
                                               pool=(PoolSpec(kind="gpu", model="b", count=1),))),
    ("h has 2 of them, but only 1 'a'", lambda at: opened(at, {"device": "b", "of": "a", **VISIBLE}, hosts=(host("h", a=1, b=2),))),
    ("h has 1 of them, but only 0 'a'", lambda at: opened(at, {"device": "b", "of": "a", **VISIBLE}, hosts=(host("h", b=1),))),
]  # fmt: skip


@pytest.mark.parametrize(("said", "opening"), REFUSED, ids=[said for said, _ in REFUSED])
def test_what_cannot_be_is_refused_in_words(tmp_path: Path, said: str, opening: Callable[[Path], Fabric]) -> None:
    with pytest.raises(ConfigError) as caught:
        opening(tmp_path)
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def launch(number: int = 0, **changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "prefix": ("lend", "-n", "{devices}", "-p", "{fraction}", "-l", "{servers}", "--"),
        "environment": {"VISIBLE": "{host}:{ids}", "PERCENT": "{percent}%{{}}"},
        "fraction": "1/4",
        "device": f"server1/gpu{number}",
        "id": str(number),
        "server": "server1",
    }
    return Launch(**(fields | changes))


def test_a_process_is_given_what_its_devices_need() -> None:
    assert build_device_environment([launch()], "host1") == DeviceEnvironment(
        ("lend", "-n", "1", "-p", "0.25", "-l", "server1", "--"), {"VISIBLE": "host1:0", "PERCENT": "25%{}"}
    )
    several = build_device_environment([launch(0), launch(0), launch(1, server="server2")], "host1")
    assert several.prefix[2::2] == ("3", "0.25", "server1,server2")
    assert several.environment["VISIBLE"] == "host1:0,1"
    assert (
        build_device_environment([None, None], "host1") == build_device_environment([], "host1") == DeviceEnvironment()
    )


@pytest.mark.parametrize("other", [None, launch(prefix=("other",)), launch(fraction="1/2"), launch(environment={})])
def test_one_process_cannot_use_devices_in_two_ways(other: Launch | None) -> None:
    with pytest.raises(ValueError, match="different command prefixes"):
        build_device_environment([launch(), other], "host1")


@any_of(st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000))
def test_a_part_as_a_decimal_number_is_never_more_than_it_is(part: Fraction) -> None:
    assert parse_fraction(str(part)) == part
    written = Fraction(format_decimal(str(part)))
    assert part - Fraction(1, 10**6) < written <= part


def test_a_composition_survives_its_document_and_one_without_launches_is_as_before(tmp_path: Path) -> None:
    composition = composed(lenders(tmp_path), "one", shape("L2R2", 2, 2))
    document = json.loads(json.dumps(composition.document()))
    again = Composition.from_document(document)
    assert [device.launch for device in again.devices] == launches(composition)
    assert document["hosts"][0]["devices"][2]["launch"]["device"] == "host2/gpu0"
    plain = Device("host1/gpu0", "gpu", "a100", None, "host1", local=True)
    assert "launch" not in plain.document()
    assert dataclasses.replace(Device.from_document(plain.document()), state="free") == plain


def test_what_was_never_tried_on_the_real_thing_says_so(tmp_path: Path) -> None:
    able = lenders(tmp_path, hosts=3, each=2).describe_capabilities()
    assert not able.verified
    assert "nothing is attached" in able.note
    # Its own, and what the others lend.
    assert able.max_devices_per_host == 2 + 4
