"""The Sunfish adapter, against the emulated store and agent: what it makes of the two disagreeing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.server import WireFault
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
from campaign.fabrics.protocol import Request, Tag
from campaign.lease.lifecycle import acquire
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics import bench
from tests.unit.fabrics.bench import Bench

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "sunfish"
AGENT = "/_agent/redfish/v1/Fabrics/CXL/Connections"


opened = partial(bench.opened, "sunfish")


@pytest.mark.parametrize("options", [{}, {"agent_url": "{url}" + AGENT}], ids=["told by Sunfish", "of the system file"])
@pytest.mark.parametrize("quirks", [{}, {"renamed": True}], ids=str)
def test_a_connection_per_device_is_made_seen_and_taken_back(
    quirks: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    with opened(tmp_path, options=options, **quirks) as b:
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


def test_a_deletion_that_was_not_done_is_done_by_the_next_release(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose()
        b.server.faults.add(WireFault("drop_before", method="DELETE", path="*/Connections/*"))
        with pytest.raises(PartialFailure, match=r"gpu1: .*not answered") as caught:
            b.fabric.release("one")
        assert caught.value.failed == ("gpu1",)
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


@pytest.mark.parametrize("again", ["two", "one"])
@pytest.mark.parametrize("quirks", [{"deletions": "dropped"}, {"deletions": "500"}], ids=str)
def test_a_release_is_done_when_the_agent_says_so_and_what_sunfish_keeps_is_told(
    quirks: dict[str, Any], again: str, tmp_path: Path
) -> None:
    """The development branch ends deletions that its agent has carried out in an error of its own, and lists them for good."""
    with opened(tmp_path, **quirks) as b:
        for lease_id in ("one", again):  # the ghost of the first is not in the way of the second, whatever its name
            selection = b.compose(lease_id)
            assert b.ids(lease_id) == set(b.attached()) == set(selection.ids)
            assert b.fabric.release(lease_id) == ()
            assert not b.attached()
        assert b.fabric.held() == {}
        assert {device.state for device in b.fabric.inventory().devices} == {"free"}
        kept = b.server.emulator.store  # type: ignore[attr-defined]
        assert len(kept) == 4
        assert set(b.fabric.capabilities().ghosts) == {f"/redfish/v1/Fabrics/CXL/Connections/{name}" for name in kept}
        deletions = [asked.path for asked in b.server.changing() if asked.method == "DELETE"]
        assert len(deletions) == len(set(deletions)) == 4  # reported, and not tried again


def test_a_connection_says_its_type_and_address(tmp_path: Path) -> None:
    """Without the first the reference server refuses it, without the second it fails when the agent has made it."""
    with opened(tmp_path) as b:
        b.compose(devices=1)
        (made,) = (asked for asked in b.server.changing() if asked.method == "POST")
        assert made.body["@odata.type"] == "#Connection.v1_1_0.Connection"
        assert made.body["@odata.id"] == f"{made.path}/{made.body['Id']}"


def test_a_store_without_endpoints_says_where_it_looked(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.server.emulator._names.clear()  # type: ignore[attr-defined]
        with pytest.raises(FabricError, match=r"no endpoints .*/redfish/v1/Fabrics/CXL/Endpoints.*registered"):
            b.fabric.inventory()


def test_an_agent_without_a_list_has_nothing_to_list(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        assert {device.state for device in b.fabric.inventory().devices} == {"free"}
        assert (AGENT, "GET") in {(asked.path, asked.method) for asked in b.server.log}
        assert all(asked.header("Authorization") is None for asked in b.server.log)


@pytest.mark.parametrize(
    ("options", "quirks", "words"),
    [
        ({"agent_url": "{url}/elsewhere/Fabrics/CXL/Connections"}, {}, r"no such fabric; .*agent_url"),
        ({}, {"down": True}, r"Sunfish's agent; .*agent_url"),
        ({}, {"nameless": True}, r"does not say where the agent of the fabric is; .*agent_url"),
    ],
)
def test_an_agent_that_is_not_there_is_said_with_what_to_set(
    options: dict[str, Any], quirks: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with (
        opened(tmp_path, options=options, **quirks) as b,
        pytest.raises(FabricError, match=words),
    ):
        b.fabric.inventory()


def test_a_creation_that_sunfish_forgot_is_never_a_composition(tmp_path: Path) -> None:
    with opened(tmp_path, unstored=True) as b:
        request = Request("one", "demo", "tester", configuration(devices_per_host=1))
        with pytest.raises(OutcomeUnknown):
            b.compose(devices=1)
        assert b.ids() == set()
        with pytest.raises(PartialFailure, match=r"the agent has connection .* to gpu1, Sunfish does not"):
            b.fabric.release("one")
        assert set(b.attached()) == {"gpu1"}
        (tmp_path / "sunfish.json").unlink()  # the agent's own list carries the mark, too
        assert b.fabric.held()["one"].devices == ("gpu1",)
        with pytest.raises(Conflict, match="held by one"):
            b.selection("two", devices=3)
    with opened(tmp_path / "fabric", unstored=True) as b:
        with pytest.raises(FabricError):
            acquire(b.fabric, request, tmp_path / "leases", wait_s=0, poll_s=0, attempts=1)
        assert "Sunfish does not" in (tmp_path / "leases" / "one.jsonl").read_text()


def test_an_agent_that_is_down_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        quirks = b.server.emulator.quirks  # type: ignore[attr-defined]
        selection = b.selection()

        def goes_down(*change: Any) -> None:
            quirks.down = True
            attach(*change)

        attach, b.fabric.plane.attach = b.fabric.plane.attach, goes_down  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            b.fabric.compose(selection)
        with pytest.raises(FabricError, match="Sunfish's agent"):
            b.fabric.release("one")
        quirks.down = False
        assert b.ids() == set()
        assert b.gave_back()


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
        plane: Any = b.fabric.plane
        (tag,) = b.fabric.held().values()
        look = b.fabric._beside_claims(plane.view())
        tag = replace(tag, since_s=look.state.leases["one"].since_s)
        change = look.change(look.state.leases["one"], tag)
        plane._shown = replace(plane._shown, listed=())
        plane.attach(change, lambda name, handle: None)
        assert b.ids() == set(b.attached())
        store = b.server.emulator.store  # type: ignore[attr-defined]
        next(iter(store.values()))["Name"] = "renamed by somebody"
        plane._shown = replace(plane._shown, listed=())
        with pytest.raises(Conflict, match="another connection"):
            plane.attach(change, lambda name, handle: None)


def test_hosts_that_have_no_endpoint_are_named(tmp_path: Path) -> None:
    with (
        opened(tmp_path, options={"hosts": {"host1": "cn01", "host2": "cn02"}}) as b,
        pytest.raises((Incompatible, FabricError)) as caught,
    ):
        b.selection()
    assert "host1" in str(caught.value) or "cabling" in str(caught.value)


# -- parsing --------------------------------------------------------------------------------------------------------------------


def sample(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def shown(**changes: Any) -> SunfishView:
    saved = sample("cxl.json")
    parts: dict[str, Any] = {
        "endpoints": tuple(endpoint(one) for one in saved["Endpoints"]),
        "listed": tuple(connection(one) for one in saved["Connections"]),
    }
    parts |= {"agent": parts["listed"]} if "agent" not in changes else {}
    return SunfishView(**(parts | changes))


def test_two_ends_that_agree_are_a_use() -> None:
    (target,) = (one for one in shown().targets if one.id == "T1")
    found = use(target, shown())
    assert (found.initiator, found.lease_id, found.words) == ("I1", "demo.c.1", "")


def test_each_way_to_disagree_has_words() -> None:
    everything = shown()
    target = {one.id: one for one in everything.targets}
    assert "connection 12, the agent does not" in use(target["T2"], shown(agent=())).words
    deleted = shown(agent=())  # of a lease, so that it can only be one that the agent has deleted
    assert ([one.id for one in deleted.ghosts], use(target["T1"], deleted)) == (["11"], EndpointUse())
    renamed = shown(agent=tuple(replace(one, id=f"x-{one.id}") for one in everything.listed))
    assert renamed.ghosts == ()  # the agent may have it by another Id
    assert "connection 11, the agent does not" in use(target["T1"], renamed).words
    again = replace(everything.listed[0], id="99")  # composed anew within the second that the name tells
    assert [one.id for one in shown(listed=(*everything.listed, again), agent=(again,)).ghosts] == ["11"]
    tag = Tag("other", "demo", "tester", 1.0, ())
    alone = connection(
        {
            "@odata.id": "/agent/x",
            "Id": connection_id(tag, "T4"),
            "Name": lease_tag.encode(tag),
            "Links": {"InitiatorEndpoints": [{"@odata.id": "/redfish/v1/Fabrics/CXL/Endpoints/I1"}]},
        }
    )
    found = use(target["T4"], shown(agent=(*everything.listed, alone)))
    assert (found.lease_id, found.initiator) == ("other", "I1")
    assert "Sunfish does not" in found.words


def test_what_the_reference_server_lists_after_a_deletion_is_no_connection() -> None:
    after = sample("after_delete.json")
    left = shown(**{end: tuple(map(connection, after[of])) for end, of in (("listed", "sunfish"), ("agent", "agent"))})
    (target,) = (one for one in left.targets if one.id == "T1")
    assert (left.connections, [one.name for one in left.ghosts]) == ((), [after["sunfish"][0]["Name"]])
    assert use(target, left) == EndpointUse()


def test_an_id_belongs_to_one_composition() -> None:
    first, again = (Tag("one", "demo", "tester", since_s, ()) for since_s in (1700000000.0, 1700000000.1))
    assert connection_id(first, "T1") == connection_id(first, "T1")
    assert len({connection_id(tag, name) for tag in (first, again) for name in ("T1", "T2")}) == 4


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
