"""What Redfish services were seen to say, read from saved samples: resources, refusals, tasks."""

from __future__ import annotations

import json
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.redfish import resources
from campaign.fabrics.adapters.redfish.answers import (
    build_error,
    check_task,
    choose_poll_interval,
    find_next_page,
    find_task_monitor,
    get_collection_members,
    get_reference_path,
    get_reference_paths,
    needs_login,
    strip_origin,
)
from campaign.fabrics.adapters.redfish.ownership import (
    SystemOwner,
    build_system_name,
    find_lease_by_name,
    parse_system_name,
)
from campaign.fabrics.adapters.redfish.resources import ComputerSystem
from campaign.fabrics.control_plane.lease_tag import encode_tag
from campaign.fabrics.errors import Conflict, ProtocolViolation
from campaign.fabrics.http.client import Answer
from campaign.fabrics.protocol import Tag
from campaign.spec.hardware import Link

DATA = Path(__file__).resolve().parents[2] / "data/fabrics/redfish"
BLOCKS = "/redfish/v1/CompositionService/ResourceBlocks"


def sample(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def answer(status: int, body: Any = None, text: str | None = None, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, headers or {}, body, text if text is not None else "" if body is None else json.dumps(body))


def test_a_block_of_the_specification() -> None:
    block = resources.parse_block(sample("block_specification"))
    assert (block.id, block.types, block.state, block.is_reserved) == ("OffloadBlock9", ("Processor",), "Unused", False)
    assert block.zones == ("/redfish/v1/CompositionService/ResourceZones/2",)
    assert [kind for kind, _ in block.parts] == ["gpu"]
    assert not block.is_host


def test_the_text_false_is_not_true() -> None:
    block = resources.parse_block(sample("block_interface_emulator"))
    assert block.is_reserved is False
    assert (block.uri, block.types) == (f"{BLOCKS}/RB-1", ())
    assert [resources.is_true(value) for value in (True, "true", "True", "false", 1, None, "")] == [True] * 3 + [
        False
    ] * 4


def test_a_block_of_nobody_knows_what() -> None:
    block = resources.parse_block(sample("block_odd"))
    assert (block.id, block.types, block.kind, block.state) == ("X", ("Photonics",), "photonics", None)
    assert block.systems == ("/redfish/v1/Systems/7",)
    assert block.zones == ("/redfish/v1/Z/1",)
    assert len(block.parts) == 1


def test_both_ends_of_a_composed_block() -> None:
    block, system = resources.parse_block(sample("block_composed")), resources.parse_system(sample("system_composed"))
    assert (block.state, block.systems) == ("Composed", (system.uri,))
    assert block.uri in system.blocks
    assert system.type == "Composed"
    found = find_lease_by_name(system)
    assert found is not None
    assert found.tag == Tag("demo.c.1", "demo", "tester", 1700000000.0, ())


def test_a_physical_system_is_never_ours() -> None:
    system = resources.parse_system(sample("system_physical"))
    assert (system.blocks, system.is_physical) == ((), True)
    mine = build_system_name("one", "host1")
    one, other = SystemOwner(Tag("one", "", "", 0.0, ()), "host1"), encode_tag(Tag("two", "c", "o", 1.0, ()))
    assert find_lease_by_name(ComputerSystem("/s", "1", mine, "", "Physical", ("/b",), "On")) is None
    assert find_lease_by_name(ComputerSystem("/s", "1", mine, "", "Composed", ("/b",), "On")) == one
    assert find_lease_by_name(ComputerSystem("/s", mine, "My System", "", "Composed", ("/b",), "On")) == one
    assert find_lease_by_name(ComputerSystem("/s", "1", mine, other, "Composed", (), "On")) == one
    assert find_lease_by_name(ComputerSystem("/s", "1", "theirs", other, "Composed", (), "On")) is None


@pytest.mark.parametrize("lease", ["demo.c.1", "a b", "ü/ö", "host=x lease=y", "100%"])
def test_a_name_says_which_lease_it_is_of(lease: str) -> None:
    name = build_system_name(lease, "host 1")
    assert name.isascii()
    assert parse_system_name(name) == (lease, "host 1")
    assert parse_system_name(name + " and more") is None


def test_parts_are_what_the_host_knows_them_by() -> None:
    gpu = resources.parse_part("gpu", sample("processor"))
    assert (gpu.kind, gpu.model) == ("gpu", "NVIDIA A100-PCIE-40GB")
    assert gpu.host_id == sample("processor")["UUID"]
    assert gpu.link == Link(16, 4, 16, 4)
    drive = resources.parse_part("nvme", sample("drive"))
    assert (drive.model, drive.host_id) == ("PM1733", sample("drive")["SerialNumber"])
    card = resources.parse_part("nic", sample("ethernet_interface"))
    assert card.host_id == sample("ethernet_interface")["MACAddress"]
    assert resources.parse_part("gpu", {"ProcessorType": "FPGA"}).kind == "fpga"
    assert resources.parse_part("gpu", {}) == resources.BlockPart("gpu", None, None, None, "ok")


@pytest.mark.parametrize(
    ("body", "link"),
    [
        ({"PCIeInterface": {"PCIeType": "Gen3", "LanesInUse": 4}}, Link(4, 3, 4, 3)),
        (
            {"SystemInterface": {"PCIeType": "Gen3", "LanesInUse": 8, "MaxLanes": 16, "MaxPCIeType": "Gen5"}},
            Link(8, 3, 16, 5),
        ),
        ({"Controllers": [{"PCIeInterface": {"PCIeType": "Gen4", "LanesInUse": 16}}]}, Link(16, 4, 16, 4)),
        ({"PCIeInterface": {"PCIeType": None, "LanesInUse": 4}}, None),
        ({"PCIeInterface": {"PCIeType": "Gen4", "LanesInUse": True}}, None),
        ({"SystemInterface": "PCIe"}, None),
    ],
)
def test_a_link_is_told_or_it_is_not(body: dict[str, Any], link: Link | None) -> None:
    assert resources.parse_link(body) == link


def test_zones_and_limits() -> None:
    zone = resources.parse_zone(sample("zone"))
    assert (zone.id, zone.use_cases, zone.capability_paths) == (
        "1",
        (resources.SPECIFIC_COMPOSITION,),
        ("/redfish/v1/Systems/Capabilities",),
    )
    assert f"{BLOCKS}/gpu1" in zone.blocks
    assert dict(resources.parse_limits(sample("capabilities"))) == {"MinCompute": 1, "MaxCompute": 1, "MaxProcessor": 8}
    assert resources.parse_limits({}) == ()


def test_collections_as_they_come() -> None:
    members = get_collection_members(sample("blocks_expanded"))
    assert [member["Id"] for member in members] == ["host1", "gpu1", "gpu2", "nvme1", "nic1"]
    assert members[1]["Processors"][0]["Model"] == "NVIDIA A100-PCIE-40GB"
    assert get_collection_members({"Links": {"Members": [{"@odata.id": "/a"}, 3]}}) == [{"@odata.id": "/a"}]
    with pytest.raises(ProtocolViolation, match="no Members"):
        get_collection_members({"Members": 4})
    assert find_next_page({"Members@odata.nextLink": "/a?$skip=2"}) == "/a?$skip=2"
    assert find_next_page({"Links": {"Members@odata.nextLink": {"@odata.id": "https://h/a?$skip=2"}}}) == "/a?$skip=2"
    assert find_next_page({"Members": []}) is None
    assert get_reference_paths([{"@odata.id": "/a"}, {}, None, {"href": "/b"}]) == ("/a", "/b")
    assert get_reference_path("/a") is None
    assert strip_origin("https://10.0.0.1:8443/redfish/v1/x?y=1") == "/redfish/v1/x?y=1"


@pytest.mark.parametrize("case", sample("refusals"), ids=lambda case: f"{case['status']} {case['is']}")
def test_a_refusal_is_what_its_last_word_says(case: dict[str, Any]) -> None:
    error = build_error(answer(case["status"], case.get("body"), case.get("text")), "POST /x")
    assert type(error).__name__ == case["is"]
    assert str(error).startswith(f"POST /x: HTTP {case['status']}")
    if "holders" in case:
        assert isinstance(error, Conflict)
        assert list(error.holders) == case["holders"]


def test_who_has_no_right_is_not_logged_in_again() -> None:
    cases = [(401, None), (403, None), (403, "InsufficientPrivilege"), (404, None)]
    bodies = [(s, {"error": {"code": f"Base.1.0.{word}"}} if word else None) for s, word in cases]
    assert [needs_login(answer(status, body)) for status, body in bodies] == [True, True, False, False]


@pytest.mark.parametrize("case", sample("tasks"), ids=lambda case: f"{case['status']} {case['is']}")
def test_a_task_ends_as_its_operation(case: dict[str, Any]) -> None:
    told = answer(case["status"], case["body"], headers=case["headers"])
    expected = case["is"]
    if expected is None:
        assert check_task(told, "POST /x", "/monitor") is None
    elif expected.startswith("/"):
        done = check_task(told, "POST /x", "/monitor")
        assert done is not None
        assert done.get_header("Location") == expected
    else:
        with pytest.raises(FabricError) as caught:
            check_task(told, "POST /x", "/monitor")
        assert type(caught.value).__name__ == expected


def test_where_a_task_is_and_when_to_ask() -> None:
    assert find_task_monitor(answer(202, headers={"location": "https://bmc/monitor/1?x=y"})) == "/monitor/1?x=y"
    assert find_task_monitor(answer(202, {"TaskMonitor": "/m/1", "@odata.id": "/t/1"})) == "/m/1"
    assert find_task_monitor(answer(202, {"@odata.id": "/t/1"})) == "/t/1"
    assert find_task_monitor(answer(202, "later")) is None
    assert choose_poll_interval(answer(202, headers={"retry-after": "7"}), 1.0) == 7.0
    assert choose_poll_interval(answer(202), 1.0) == 1.0
    assert choose_poll_interval(answer(202, headers={"Retry-After": "soon"}), 1.0) == 1.0
    assert choose_poll_interval(answer(202, headers={"Retry-After": "86400"}), 1.0) == 60.0
    assert (
        3.0
        < choose_poll_interval(answer(202, headers={"Retry-After": formatdate(time() + 5, usegmt=True)}), 1.0)
        <= 5.0
    )
