"""The Sunfish adapter, against the emulated store and agent: what it makes of the two disagreeing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.catalog import open_emulator
from campaign.emulators.control_planes.hardware import rack
from campaign.emulators.control_planes.server import Server, WireFault
from campaign.errors import FabricError
from campaign.fabrics.adapters.sunfish import (
    EndpointUse,
    SunfishView,
    connection,
    connection_id,
    endpoint,
    reach,
    the_fabric,
    use,
)
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import PoolSpec
from campaign.fabrics.protocol import Request, Tag
from campaign.lease.lifecycle import acquire, release
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import Bench

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "sunfish"
AGENT = "/_agent/redfish/v1/Fabrics/CXL/Connections"


@contextmanager
def opened(
    tmp_path: Path, *, asks_agent: bool = False, gpus: int = 3, options: dict[str, Any] | None = None, **quirks: Any
) -> Iterator[Bench]:
    hardware = rack(["host1", "host2"], [("gpu", "a100", gpus), ("nvme", "ssd", 1)])
    with Server(open_emulator("sunfish", hardware, **quirks), tls=False) as server:
        told: dict[str, Any] = {"ask_agent": asks_agent, "agent_url": "{url}" + AGENT if asks_agent else None}
        told |= options or {}
        told["agent_url"] = told["agent_url"] and told["agent_url"].replace("{url}", server.url)
        with Bench("sunfish", server, hardware, told, tmp_path, [PoolSpec("gpu", "a100", gpus)]) as b:
            yield b


@pytest.mark.parametrize(
    ("quirks", "asks_agent"),
    [
        ({}, False),
        ({}, True),
        ({"release": "0.3"}, True),
        ({"release": "0.3", "links": "agent", "login": True}, False),
        ({"links": "stale"}, True),
        ({"renamed": True}, True),
        ({"expands": True}, True),
        ({"links": "store", "login": True}, False),
    ],
    ids=str,
)
def test_a_connection_per_device_is_made_seen_and_taken_back(
    quirks: dict[str, Any], asks_agent: bool, tmp_path: Path
) -> None:
    with opened(tmp_path, asks_agent=asks_agent, **quirks) as b:
        before = b.fabric.inventory()
        selection = b.compose(storage="fabric-nvme")
        assert set(b.attached()) == set(selection.ids)
        composition = b.obtained()
        assert composition.mismatches(selection.request.configuration) == ()
        assert {device.host_id for device in composition.hosts[0].devices} == {
            b.rack.devices[name].uuid for name in selection.hosts[0].fabric
        }
        made = [asked.body for asked in b.server.changing() if asked.path.endswith("/Connections")]
        assert [body["ConnectionType"] for body in made] == ["Memory", "Memory", "Storage"]
        assert b.fabric.held()["one"].devices == selection.ids
        assert b.gave_back()
        assert b.fabric.inventory() == before


def test_a_lease_is_found_by_its_name_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose()
        (tmp_path / "sunfish.json").unlink()  # whoever composed it has lost everything
        assert b.ids() == set(b.attached())
        assert b.gave_back()


def connect_by_hand(b: Bench, host: str, device: str) -> None:
    ends = ("InitiatorEndpoints", host), ("TargetEndpoints", device)
    links = {end: [{"@odata.id": f"/redfish/v1/Fabrics/CXL/Endpoints/{name}"}] for end, name in ends}
    body = {
        "@odata.type": "#Connection.v1_1_0.Connection",
        "Name": "by hand",
        "ConnectionType": "Memory",
        "Links": links,
    }
    assert b.fabric.plane.client.change("POST", "/redfish/v1/Fabrics/CXL/Connections", body).ok


def test_what_was_claimed_and_then_connected_by_others_is_theirs(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.server.faults.add(WireFault("drop_before", method="POST", path="*/Connections"))
        with pytest.raises(OutcomeUnknown):
            b.compose(devices=1)
        connect_by_hand(b, "host1", "gpu1")
        assert b.ids() == set()
        assert b.fabric.release("one") == ()
        assert b.fabric.held() == {}
        assert set(b.attached()) == {"gpu1"}


def test_a_deletion_that_was_done_at_last_leaves_no_doubt(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose()
        b.server.faults.add(WireFault("drop_before", method="DELETE", path="*/Connections/*"))
        with pytest.raises(PartialFailure, match="whose deletion it did not answer"):
            b.fabric.release("one")
        assert b.fabric.release("one") == ()
        b.compose()
        assert b.ids() == set(b.attached()) == {"gpu1", "gpu2"}
        assert b.fabric.release("one") == ()


def test_connections_of_others_are_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.fabric.inventory()
        connect_by_hand(b, "host1", "gpu1")
        assert {device.holder for device in b.fabric.inventory().devices} == {None, "somebody, on host1"}
        b.compose()
        assert b.fabric.release("one") == ()
        assert set(b.attached()) == {"gpu1"}
        assert len(b.server.emulator.store) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("links", "who"),
    [
        ("agent", "endpoint gpu1 does not"),
        ("store", "whose deletion it did not answer"),  # nobody else tells: Sunfish lists it, and every DELETE ends so
        ("copy", "whose deletion it did not answer"),
    ],
)
def test_a_release_that_splits_sunfish_from_its_agent_is_said_and_kept_where_the_agent_is_not_asked(
    links: str, who: str, tmp_path: Path
) -> None:
    with opened(tmp_path, links=links, drops=1) as b:
        b.compose()
        for _ in range(2):  # every retry fails the same way
            with pytest.raises(PartialFailure, match=who) as caught:
                b.fabric.release("one")
            assert caught.value.failed == ("gpu1",)
        assert not b.attached()
        assert b.fabric.held()["one"].devices == ("gpu1",)
        (split,) = (device for device in b.fabric.inventory().devices if device.fabric_id == "gpu1")
        assert split.holder == "one"
        assert split.state == "unknown"
        assert b.ids() == set()
        with pytest.raises(Conflict, match="held by one"):
            b.selection("two", devices=3)


@pytest.mark.parametrize(
    "quirks",
    [{"drops": 1}, {"drops": 1, "links": "store"}, {"aliases": "agent"}],
    ids=["no answer", "its endpoints list it", "answered 500"],
)
def test_a_release_is_done_when_the_agent_says_so_and_what_sunfish_keeps_is_told(
    quirks: dict[str, Any], tmp_path: Path
) -> None:
    """The development branch answers 500 to deletions that its agent has carried out, and lists them for good."""
    with opened(tmp_path, asks_agent=True, options={"agent_url": None}, **quirks) as b:
        for lease_id in ("one", "two"):  # the ghost of the first is not in the way of the second
            selection = b.compose(lease_id)
            assert b.ids(lease_id) == set(b.attached()) == set(selection.ids)
            assert b.fabric.release(lease_id) == ()
            assert not b.attached()
        assert b.fabric.held() == {}
        assert {device.state for device in b.fabric.inventory().devices} == {"free"}
        kept = b.server.emulator.store  # type: ignore[attr-defined]
        assert kept
        assert all(f"/redfish/v1/Fabrics/CXL/Connections/{name}" in b.fabric.capabilities().note for name in kept)
        deletions = [asked.path for asked in b.server.changing() if asked.method == "DELETE"]
        assert len(deletions) == len(set(deletions)) == 4  # reported, and not tried again


def test_a_creation_that_sunfish_does_not_store_is_no_composition(tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=True, aliases="other") as b:
        with pytest.raises(OutcomeUnknown):
            b.compose(devices=1)
        assert b.ids() == set()
        with pytest.raises(PartialFailure, match="Sunfish does not"):
            b.fabric.release("one")
        assert set(b.attached()) == {"gpu1"}


def test_a_connection_says_its_type_and_address(tmp_path: Path) -> None:
    """Without the first the reference server refuses it, without the second it fails when the agent has made it."""
    with opened(tmp_path) as b:
        b.compose(devices=1)
        (made,) = (asked for asked in b.server.changing() if asked.method == "POST")
        assert made.body["@odata.type"] == "#Connection.v1_1_0.Connection"
        assert made.body["@odata.id"] == f"{made.path}/{made.body['Id']}"


def test_collections_are_found_again_below_the_fabric(tmp_path: Path) -> None:
    """Links that lead nowhere are followed once."""
    with opened(tmp_path, gpus=2) as b:
        b.fabric.inventory()
        seen = [asked.path for asked in b.server.log]
        assert {"/redfish/v1/Endpoints", "/redfish/v1/Zones", "/redfish/v1/Fabrics/CXL/Endpoints"} <= set(seen)
        b.compose(devices=1)
        b.fabric.inventory()
        assert [asked.path for asked in b.server.log].count("/redfish/v1/Endpoints") == 1


def test_a_store_without_endpoints_says_where_it_looked(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.server.emulator._names.clear()  # type: ignore[attr-defined]
        with pytest.raises(FabricError, match=r"no endpoints .*/redfish/v1/Fabrics/CXL/Endpoints.*registered"):
            b.fabric.inventory()


def test_an_agent_without_a_list_has_nothing_to_list(tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=True) as b:
        assert {device.state for device in b.fabric.inventory().devices} == {"free"}
        assert (AGENT, "GET") in {(asked.path, asked.method) for asked in b.server.log}
        asked = next(asked for asked in b.server.log if asked.path == AGENT)
        assert asked.header("Authorization") is None
        assert asked.header("X-Auth-Token") is None


@pytest.mark.parametrize(
    ("options", "quirks", "words"),
    [
        (
            {"agent_url": "{url}/elsewhere/Fabrics/CXL/Connections"},
            {},
            r"no such fabric; .*agent_url.*ask_agent: false",
        ),
        ({"agent_url": None}, {"down": "drop"}, r"Sunfish's agent; .*agent_url.*ask_agent: false"),
    ],
)
def test_an_agent_that_is_not_there_is_said_with_what_to_set(
    options: dict[str, Any], quirks: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with (
        opened(tmp_path, asks_agent=True, options=options, **quirks) as b,
        pytest.raises(FabricError, match=words),
    ):
        b.fabric.inventory()


def test_a_leaked_lease_has_the_words_in_its_journal(tmp_path: Path) -> None:
    with opened(tmp_path / "fabric", links="agent", drops=1) as b:
        request = Request("one", "demo", "tester", configuration(devices_per_host=2))
        lease = acquire(b.fabric, request, tmp_path / "leases", wait_s=0, poll_s=0)
        document = release(b.fabric, lease, poll_s=0)
        assert (document["state"], document["leaked"]) == ("LEAKED", ["gpu1"])
        assert "endpoint gpu1 does not" in (tmp_path / "leases" / "one.jsonl").read_text()


@pytest.mark.parametrize(("links", "asks_agent"), [("agent", False), ("copy", True), ("agent", True)])
def test_a_creation_that_sunfish_forgot_is_never_a_composition(links: str, asks_agent: bool, tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=asks_agent, links=links, half_made=1) as b:
        with pytest.raises(OutcomeUnknown):
            b.compose(devices=1)
        assert b.ids() == set()
        with pytest.raises(PartialFailure, match=r"which Sunfish does not connect|Sunfish does not"):
            b.fabric.release("one")
        assert set(b.attached()) == {"gpu1"}
        assert list(b.fabric.held()) == ["one"]
        if asks_agent:
            (tmp_path / "sunfish.json").unlink()  # the agent's own list carries the mark, too
            assert b.fabric.held()["one"].devices == ("gpu1",)


@pytest.mark.parametrize("down", ["html", "drop"])
def test_an_agent_that_is_down_leaves_the_outcome_unknown(down: str, tmp_path: Path) -> None:
    with opened(tmp_path, down=down) as b:
        with pytest.raises(OutcomeUnknown):
            b.compose()
        assert b.ids() == set()
        assert b.fabric.release("one") == ()
        b.server.emulator.quirks.down = ""  # type: ignore[attr-defined]
        b.compose()
        b.server.emulator.quirks.down = down  # type: ignore[attr-defined]
        with pytest.raises(PartialFailure, match="gpu1, gpu2"):
            b.fabric.release("one")
        b.server.emulator.quirks.down = ""  # type: ignore[attr-defined]
        assert b.gave_back()


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "status", "lie", "garbage", "html"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_no_fault_on_the_wire_leaves_a_device_behind(kind: Any, after: int, method: str, tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=True) as b:
        selection = b.selection()
        b.server.faults.add(
            WireFault(kind, method=method, path="*/Connections*", after=after, body="{}" if kind == "lie" else "")
        )
        try:
            b.fabric.compose(selection)
        except OutcomeUnknown:
            assert method == "POST"
        assert b.ids() == set(b.attached())
        for _ in range(2):
            try:
                left = b.fabric.release("one")
            except PartialFailure as error:
                left = error.failed
            assert set(left) == set(b.attached())
        assert not b.attached()
        assert b.fabric.held() == {}


def test_a_lost_answer_is_made_up_for_by_composing_again(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        selection = b.selection()
        b.server.faults.add(WireFault("drop_after", method="POST", path="*/Connections"))
        with pytest.raises(OutcomeUnknown):
            b.fabric.compose(selection)
        b.fabric.compose(selection)
        assert b.ids() == set(b.attached()) == set(selection.ids)
        assert len([asked for asked in b.server.changing() if asked.path.endswith("/Connections")]) == 2


def test_a_connection_that_appeared_since_the_look_is_told_by_the_409(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose(devices=1)
        plane = b.fabric.plane
        (tag,) = b.fabric.held().values()
        look = b.fabric._beside_claims(plane.view())
        change = look.change(look.state.leases["one"], tag)
        plane._shown = SunfishView(plane._shown.endpoints, (), (), None, plane._shown.entities)  # type: ignore[attr-defined]
        plane.attach(change, lambda name, handle: None)
        assert b.ids() == set(b.attached())
        store = b.server.emulator.store  # type: ignore[attr-defined]
        next(iter(store.values()))["Name"] = "renamed by somebody"
        plane._shown = SunfishView(plane._shown.endpoints, (), (), None, plane._shown.entities)  # type: ignore[attr-defined]
        with pytest.raises(Conflict, match="another connection"):
            plane.attach(change, lambda name, handle: None)


def test_hosts_that_have_no_endpoint_are_named(tmp_path: Path) -> None:
    with (
        opened(tmp_path, options={"hosts": {"host1": "cn01", "host2": "cn02"}}) as b,
        pytest.raises((Incompatible, FabricError)) as caught,
    ):
        b.selection()
    assert "host1" in str(caught.value) or "cabling" in str(caught.value)


def test_devices_and_their_ends_are_read_in_three_lists_where_the_store_expands(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=8, expands=True, release="0.3") as b:
        b.fabric.inventory()
        before = len(b.server.log)
        b.fabric.inventory()
        assert len(b.server.log) - before == 3


# -- parsing --------------------------------------------------------------------------------------------------------------------


def sample(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def shown(**changes: Any) -> SunfishView:
    saved = sample("cxl.json")
    parts: dict[str, Any] = {
        "endpoints": tuple(endpoint(one) for one in saved["Endpoints"]),
        "connections": tuple(connection(one) for one in saved["Connections"]),
    }
    return SunfishView(**(parts | changes))


def test_two_ends_that_agree_are_a_use() -> None:
    (target,) = (one for one in shown().targets if one.id == "T1")
    assert use(target, shown()) == use(target, shown(agent=shown().connections))
    found = use(target, shown())
    assert (found.initiator, found.lease_id, found.words) == ("I1", "demo.c.1", "")


def test_each_way_to_disagree_has_words() -> None:
    everything = shown()
    target = {one.id: one for one in everything.targets}
    assert "Sunfish lists connection 12, endpoint T2 does not" in use(target["T2"], everything).words
    assert "which Sunfish does not connect to it" in use(target["T3"], everything).words
    assert use(target["T3"], shown(endpoints=everything.endpoints[::-1])).initiator == "I1"
    assert "connection 12, the agent does not" in use(target["T2"], shown(agent=())).words
    deleted = shown(agent=())  # of a lease, so that it can only be one that the agent has deleted
    assert ([one.id for one in deleted.ghosts], use(target["T1"], deleted)) == (["11"], EndpointUse())
    renamed = shown(agent=tuple(replace(one, id=f"x-{one.id}") for one in everything.connections))
    assert renamed.ghosts == ()  # the agent may have it by another Id
    assert "connection 11, the agent does not" in use(target["T1"], renamed).words
    assert use(target["T4"], everything) == use(
        target["T4"], shown(connections=())
    )  # free, and says nothing of connections
    tag = Tag("other", "demo", "tester", 1.0, ())
    alone = connection(
        {
            "@odata.id": "/agent/x",
            "Id": connection_id("other", "T4"),
            "Name": lease_tag.encode(tag),
            "Links": {"InitiatorEndpoints": [{"@odata.id": "/redfish/v1/Fabrics/CXL/Endpoints/I1"}]},
        }
    )
    found = use(target["T4"], shown(agent=(*everything.connections, alone)))
    assert (found.lease_id, found.initiator) == ("other", "I1")
    assert "Sunfish does not" in found.words


def test_zones_say_who_reaches_what() -> None:
    everything = shown()
    paths = {one.id: one.path for one in everything.endpoints}
    assert set(reach(everything).values()) == {("I1",)}
    assert reach(shown(zones=((paths["I1"], paths["T1"]), (paths["T2"],))))["T1"] == ("I1",)
    assert reach(shown(zones=((paths["I1"], paths["T1"]), (paths["T2"],))))["T2"] == ()


def test_the_fabric_is_named_where_there_are_several() -> None:
    assert the_fabric([{"Id": "CXL"}], None) == {"Id": "CXL"}
    assert the_fabric([{"Id": "CXL"}, {"Id": "PCIe"}], "PCIe") == {"Id": "PCIe"}
    for fabrics, wanted in (([{"Id": "CXL"}, {"Id": "PCIe"}], None), ([{"Id": "CXL"}], "NVMe"), ([], None)):
        with pytest.raises(FabricError, match=r"name one in `fabric`"):
            the_fabric(fabrics, wanted)
