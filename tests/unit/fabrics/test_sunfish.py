"""The Sunfish adapter, against the emulated store and agent: what it makes of the two disagreeing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.errors import FabricError
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.dialects.sunfish import Options, open_fabric
from campaign.fabrics.dialects.sunfish.connections import (
    Shown,
    Use,
    connection,
    connection_id,
    endpoint,
    reach,
    the_fabric,
    use,
)
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.protocol import Request, Selection, Tag
from campaign.lease.lifecycle import acquire, release
from campaign.testbed.control_planes.faults import Fault
from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.server import Server
from campaign.testbed.emulators import open_dialect
from tests.contract.fabric_fixtures import configuration

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "sunfish"
HOSTS = (HostSpec("host1", 8, 32.0), HostSpec("host2", 8, 32.0))
AGENT = "/_agent/redfish/v1/Fabrics/CXL/Connections"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUNFISH_USER", "campaign")
    monkeypatch.setenv("SUNFISH_PASSWORD", "learn-2-compose")


@contextmanager
def opened(
    tmp_path: Path, *, asks_agent: bool = False, gpus: int = 3, options: dict[str, Any] | None = None, **quirks: Any
) -> Iterator[tuple[ControlledFabric, Rack, Server]]:
    dialect = open_dialect("sunfish", rack(["host1", "host2"], [("gpu", "a100", gpus), ("nvme", "ssd", 1)]), **quirks)
    with Server(dialect, tls=False) as server:
        told: dict[str, Any] = {"url": server.url, "ask_agent": asks_agent, **(options or {})}
        told["credentials"] = {"user_env": "SUNFISH_USER", "password_env": "SUNFISH_PASSWORD"}
        if asks_agent and "agent_url" not in told:
            told["agent_url"] = server.url + AGENT
        told = {name: v.replace("{url}", server.url) if name == "agent_url" and v else v for name, v in told.items()}
        fabric = open_fabric(Options.model_validate(told), HOSTS, (PoolSpec("gpu", "a100", gpus),), tmp_path)
        yield fabric, dialect.rack, server
        fabric.close()


def selected(fabric: ControlledFabric, lease_id: str = "one", devices: int = 2, **changes: Any) -> Selection:
    request = Request(lease_id, "demo", "tester", configuration(devices_per_host=devices, **changes))
    return fabric.select(request, fabric.inventory())


def attached(hardware: Rack) -> set[str]:
    return {device.name for device in hardware.devices.values() if device.attached_to}


def ids(fabric: ControlledFabric, lease_id: str = "one") -> set[str]:
    composition = fabric.read_back(lease_id)
    return set() if composition is None else {device.fabric_id for device in composition.devices}


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
    with opened(tmp_path, asks_agent=asks_agent, **quirks) as (fabric, hardware, server):
        before = fabric.inventory()
        selection = selected(fabric, storage="fabric-nvme")
        fabric.compose(selection)
        assert attached(hardware) == set(selection.ids)
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.mismatches(selection.request.configuration) == ()
        assert {device.host_id for device in composition.hosts[0].devices} == {
            hardware.devices[name].uuid for name in selection.hosts[0].fabric
        }
        made = [asked.body for asked in server.changing() if asked.path.endswith("/Connections")]
        assert [body["ConnectionType"] for body in made] == ["Memory", "Memory", "Storage"]
        assert fabric.held()["one"].devices == selection.ids
        assert fabric.release("one") == ()
        assert not attached(hardware)
        assert fabric.inventory() == before


def test_a_lease_is_found_by_its_name_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, _):
        fabric.compose(selected(fabric))
        (tmp_path / "sunfish.json").unlink()  # whoever composed it has lost everything
        assert ids(fabric) == attached(hardware)
        assert fabric.release("one") == ()
        assert not attached(hardware)


def connect_by_hand(fabric: ControlledFabric, host: str, device: str) -> None:
    ends = ("InitiatorEndpoints", host), ("TargetEndpoints", device)
    links = {end: [{"@odata.id": f"/redfish/v1/Fabrics/CXL/Endpoints/{name}"}] for end, name in ends}
    body = {
        "@odata.type": "#Connection.v1_1_0.Connection",
        "Name": "by hand",
        "ConnectionType": "Memory",
        "Links": links,
    }
    assert fabric.plane.client.change("POST", "/redfish/v1/Fabrics/CXL/Connections", body).ok


def test_what_was_claimed_and_then_connected_by_others_is_theirs(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        server.faults.add(Fault("drop_before", method="POST", path="*/Connections"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric, devices=1))
        connect_by_hand(fabric, "host1", "gpu1")
        assert ids(fabric) == set()
        assert fabric.release("one") == ()
        assert fabric.held() == {}
        assert attached(hardware) == {"gpu1"}


def test_a_deletion_that_was_done_at_last_leaves_no_doubt(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        fabric.compose(selected(fabric))
        server.faults.add(Fault("drop_before", method="DELETE", path="*/Connections/*"))
        with pytest.raises(PartialFailure, match="whose deletion it did not answer"):
            fabric.release("one")
        assert fabric.release("one") == ()
        fabric.compose(selected(fabric))
        assert ids(fabric) == attached(hardware) == {"gpu1", "gpu2"}
        assert fabric.release("one") == ()


def test_connections_of_others_are_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        fabric.inventory()
        connect_by_hand(fabric, "host1", "gpu1")
        assert {device.holder for device in fabric.inventory().devices} == {None, "somebody, on host1"}
        fabric.compose(selected(fabric))
        assert fabric.release("one") == ()
        assert attached(hardware) == {"gpu1"}
        assert len(server.dialect.store) == 1  # type: ignore[attr-defined]


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
    with opened(tmp_path, links=links, drops=1) as (fabric, hardware, _):
        fabric.compose(selected(fabric))
        for _ in range(2):  # every retry fails the same way
            with pytest.raises(PartialFailure, match=who) as caught:
                fabric.release("one")
            assert caught.value.failed == ("gpu1",)
        assert not attached(hardware)
        assert fabric.held()["one"].devices == ("gpu1",)
        (split,) = (device for device in fabric.inventory().devices if device.fabric_id == "gpu1")
        assert split.holder == "one"
        assert split.state == "unknown"
        assert ids(fabric) == set()
        with pytest.raises(Conflict, match="held by one"):
            selected(fabric, "two", devices=3)


@pytest.mark.parametrize(
    "quirks",
    [{"drops": 1}, {"drops": 1, "links": "store"}, {"aliases": "agent"}],
    ids=["no answer", "its endpoints list it", "answered 500"],
)
def test_a_release_is_done_when_the_agent_says_so_and_what_sunfish_keeps_is_told(
    quirks: dict[str, Any], tmp_path: Path
) -> None:
    """The development branch answers 500 to deletions that its agent has carried out, and lists them for good."""
    with opened(tmp_path, asks_agent=True, options={"agent_url": None}, **quirks) as (fabric, hardware, server):
        for lease_id in ("one", "two"):  # the ghost of the first is not in the way of the second
            selection = selected(fabric, lease_id)
            fabric.compose(selection)
            assert ids(fabric, lease_id) == attached(hardware) == set(selection.ids)
            assert fabric.release(lease_id) == ()
            assert not attached(hardware)
        assert fabric.held() == {}
        assert {device.state for device in fabric.inventory().devices} == {"free"}
        kept = server.dialect.store  # type: ignore[attr-defined]
        assert kept
        assert all(f"/redfish/v1/Fabrics/CXL/Connections/{name}" in fabric.capabilities().note for name in kept)
        deletions = [asked.path for asked in server.changing() if asked.method == "DELETE"]
        assert len(deletions) == len(set(deletions)) == 4  # reported, and not tried again


def test_a_creation_that_sunfish_does_not_store_is_no_composition(tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=True, aliases="other") as (fabric, hardware, _):
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric, devices=1))
        assert ids(fabric) == set()
        with pytest.raises(PartialFailure, match="Sunfish does not"):
            fabric.release("one")
        assert attached(hardware) == {"gpu1"}


def test_a_connection_says_its_type_and_address(tmp_path: Path) -> None:
    """Without the first the reference server refuses it, without the second it fails when the agent has made it."""
    with opened(tmp_path) as (fabric, _, server):
        fabric.compose(selected(fabric, devices=1))
        (made,) = (asked for asked in server.changing() if asked.method == "POST")
        assert made.body["@odata.type"] == "#Connection.v1_1_0.Connection"
        assert made.body["@odata.id"] == f"{made.path}/{made.body['Id']}"


def test_collections_are_found_again_below_the_fabric(tmp_path: Path) -> None:
    """Links that lead nowhere are followed once."""
    with opened(tmp_path, gpus=2) as (fabric, _, server):
        fabric.inventory()
        seen = [asked.path for asked in server.log]
        assert {"/redfish/v1/Endpoints", "/redfish/v1/Zones", "/redfish/v1/Fabrics/CXL/Endpoints"} <= set(seen)
        fabric.compose(selected(fabric, devices=1))
        fabric.inventory()
        assert [asked.path for asked in server.log].count("/redfish/v1/Endpoints") == 1


def test_a_store_without_endpoints_says_where_it_looked(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, _, server):
        server.dialect._names.clear()  # type: ignore[attr-defined]
        with pytest.raises(FabricError, match=r"no endpoints .*/redfish/v1/Fabrics/CXL/Endpoints.*registered"):
            fabric.inventory()


def test_an_agent_without_a_list_has_nothing_to_list(tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=True) as (fabric, _, server):
        assert {device.state for device in fabric.inventory().devices} == {"free"}
        assert (AGENT, "GET") in {(asked.path, asked.method) for asked in server.log}
        asked = next(asked for asked in server.log if asked.path == AGENT)
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
        opened(tmp_path, asks_agent=True, options=options, **quirks) as (fabric, _, _server),
        pytest.raises(FabricError, match=words),
    ):
        fabric.inventory()


def test_a_leaked_lease_has_the_words_in_its_journal(tmp_path: Path) -> None:
    with opened(tmp_path / "fabric", links="agent", drops=1) as (fabric, _, _server):
        request = Request("one", "demo", "tester", configuration(devices_per_host=2))
        lease = acquire(fabric, request, tmp_path / "leases", wait_s=0, poll_s=0)
        document = release(fabric, lease, poll_s=0)
        assert (document["state"], document["leaked"]) == ("LEAKED", ["gpu1"])
        assert "endpoint gpu1 does not" in (tmp_path / "leases" / "one.jsonl").read_text()


@pytest.mark.parametrize(("links", "asks_agent"), [("agent", False), ("copy", True), ("agent", True)])
def test_a_creation_that_sunfish_forgot_is_never_a_composition(links: str, asks_agent: bool, tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=asks_agent, links=links, half_made=1) as (fabric, hardware, _):
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric, devices=1))
        assert ids(fabric) == set()
        with pytest.raises(PartialFailure, match=r"which Sunfish does not connect|Sunfish does not"):
            fabric.release("one")
        assert attached(hardware) == {"gpu1"}
        assert list(fabric.held()) == ["one"]
        if asks_agent:
            (tmp_path / "sunfish.json").unlink()  # the agent's own list carries the mark, too
            assert fabric.held()["one"].devices == ("gpu1",)


@pytest.mark.parametrize("down", ["html", "drop"])
def test_an_agent_that_is_down_leaves_the_outcome_unknown(down: str, tmp_path: Path) -> None:
    with opened(tmp_path, down=down) as (fabric, hardware, server):
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric))
        assert ids(fabric) == set()
        assert fabric.release("one") == ()
        server.dialect.quirks.down = ""  # type: ignore[attr-defined]
        fabric.compose(selected(fabric))
        server.dialect.quirks.down = down  # type: ignore[attr-defined]
        with pytest.raises(PartialFailure, match="gpu1, gpu2"):
            fabric.release("one")
        server.dialect.quirks.down = ""  # type: ignore[attr-defined]
        assert fabric.release("one") == ()
        assert not attached(hardware)


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "status", "lie", "garbage", "html"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_no_fault_on_the_wire_leaves_a_device_behind(kind: Any, after: int, method: str, tmp_path: Path) -> None:
    with opened(tmp_path, asks_agent=True) as (fabric, hardware, server):
        selection = selected(fabric)
        server.faults.add(
            Fault(kind, method=method, path="*/Connections*", after=after, body="{}" if kind == "lie" else "")
        )
        try:
            fabric.compose(selection)
        except OutcomeUnknown:
            assert method == "POST"
        assert ids(fabric) == attached(hardware)
        for _ in range(2):
            try:
                left = fabric.release("one")
            except PartialFailure as error:
                left = error.failed
            assert set(left) == attached(hardware)
        assert not attached(hardware)
        assert fabric.held() == {}


def test_a_lost_answer_is_made_up_for_by_composing_again(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        selection = selected(fabric)
        server.faults.add(Fault("drop_after", method="POST", path="*/Connections"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selection)
        fabric.compose(selection)
        assert ids(fabric) == attached(hardware) == set(selection.ids)
        assert len([asked for asked in server.changing() if asked.path.endswith("/Connections")]) == 2


def test_a_connection_that_appeared_since_the_look_is_told_by_the_409(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        selection = selected(fabric, devices=1)
        fabric.compose(selection)
        plane = fabric.plane
        (tag,) = fabric.held().values()
        look = fabric._beside_claims(plane.view())
        change = look.change(look.state.leases["one"], tag)
        plane._shown = Shown(plane._shown.endpoints, (), (), None, plane._shown.entities)  # type: ignore[attr-defined]
        plane.attach(change, lambda name, handle: None)
        assert ids(fabric) == attached(hardware)
        store = server.dialect.store  # type: ignore[attr-defined]
        next(iter(store.values()))["Name"] = "renamed by somebody"
        plane._shown = Shown(plane._shown.endpoints, (), (), None, plane._shown.entities)  # type: ignore[attr-defined]
        with pytest.raises(Conflict, match="another connection"):
            plane.attach(change, lambda name, handle: None)


def test_hosts_that_have_no_endpoint_are_named(tmp_path: Path) -> None:
    with (
        opened(tmp_path, options={"hosts": {"host1": "cn01", "host2": "cn02"}}) as (fabric, _, _server),
        pytest.raises((Incompatible, FabricError)) as caught,
    ):
        selected(fabric)
    assert "host1" in str(caught.value) or "cabling" in str(caught.value)


def test_a_rehearsal_sends_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, _, server):
        composing, releasing = fabric.rehearse(selected(fabric, devices=1))
        assert [sent.method for sent in (*composing, *releasing)] == ["POST", "DELETE"]
        assert releasing[0].url.endswith(composing[0].body["Id"])
        assert server.changing() == []


def test_devices_and_their_ends_are_read_in_three_lists_where_the_store_expands(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=8, expands=True, release="0.3") as (fabric, _, server):
        fabric.inventory()
        before = len(server.log)
        fabric.inventory()
        assert len(server.log) - before == 3


# -- parsing --------------------------------------------------------------------------------------------------------------------


def sample(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def shown(**changes: Any) -> Shown:
    saved = sample("cxl.json")
    parts: dict[str, Any] = {
        "endpoints": tuple(endpoint(one) for one in saved["Endpoints"]),
        "connections": tuple(connection(one) for one in saved["Connections"]),
    }
    return Shown(**(parts | changes))


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
    assert ([one.id for one in deleted.ghosts], use(target["T1"], deleted)) == (["11"], Use())
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
