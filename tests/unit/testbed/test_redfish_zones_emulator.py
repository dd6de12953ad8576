"""The emulated chassis: strict where real ones may be, the same from both ends, and understood by a foreign client."""

from __future__ import annotations

import warnings
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.redfish_zones import Chassis, open_dialect
from campaign.testbed.control_planes.server import Asked, Reply, Server

FABRIC = "/redfish/v1/Fabrics/PCIe"
BASIC = {"Authorization": "Basic " + b64encode(b"campaign:learn-2-compose").decode()}
MODES = {"drawer1": "standard_one_host", "drawer2": "standard_two_hosts"}


def opened(hardware: Rack | None = None, **options: Any) -> Chassis:
    return open_dialect(hardware or rack(["host1", "host2"], [("gpu", "a100", 4)]), **options)


def ask(service: Chassis, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
    path, _, query = path.partition("?")
    pairs = dict(pair.split("=") for pair in query.split("&") if pair)
    return service.answer(Asked(method, path, pairs, {**BASIC, **(headers or {})}, body, ""))


def get(service: Chassis, path: str) -> dict[str, Any]:
    reply = ask(service, "GET", path)
    assert reply.status == 200, reply.body
    body: dict[str, Any] = reply.body
    return body


def endpoints(*names: str) -> dict[str, Any]:
    return {"Links": {"Endpoints": [{"@odata.id": f"{FABRIC}/Endpoints/{name}"} for name in names]}}


def token(reply: Reply) -> str:
    """The message id of an error."""
    return str(reply.body["error"]["@Message.ExtendedInfo"][0]["MessageId"]).rpartition(".")[2]


def links(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for name, value in found.items():
            if name == "@odata.id":
                yield value
            else:
                yield from links(value)
    elif isinstance(found, list):
        for one in found:
            yield from links(one)


# -- the tree --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"variant": "gigaio"}, {"modes": MODES}, {"others": ("CXL",)}, {"details": False}]
)
def test_everything_that_is_referred_to_is_there(options: dict[str, Any]) -> None:
    service = opened(rack(["host1", "host2"], [("gpu", "a100", 4), ("nvme", "ssd", 2)]), **options)
    assert ask(service, "PATCH", f"{FABRIC}/Zones/1", {"Description": "mine"}).status == 200
    assert ask(service, "PATCH", f"{FABRIC}/Zones/1", _of(service, "gpu1")).status == 200
    seen, left = set(), ["/redfish/v1"]
    while left:
        path = left.pop().partition("#")[0]
        if path not in seen:
            seen.add(path)
            left.extend(links(get(service, path)))
    assert {f"{FABRIC}/Endpoints/nvme2", f"{FABRIC}/Zones/2"} <= seen
    assert any(path.endswith("/Entries/1") for path in seen)


def _of(service: Chassis, *names: str) -> dict[str, Any]:
    """The body that adds devices to what the first zone lists."""
    listed = get(service, f"{FABRIC}/Zones/1")["Links"]["Endpoints"]
    return {"Links": {"Endpoints": [*listed, *endpoints(*names)["Links"]["Endpoints"]]}}


def test_expanded_collections_have_whole_members_on_pages() -> None:
    service = opened(page=3)
    path, found = f"{FABRIC}/Endpoints?$expand=.", []
    while path:
        page = get(service, path)
        found += page["Members"]
        assert len(page["Members"]) <= 3
        path = page.get("Members@odata.nextLink", "")
    assert found == [get(service, f"{FABRIC}/Endpoints/{one['Id']}") for one in found]
    assert len(found) == 8
    refused = ask(opened(expand=False), "GET", f"{FABRIC}/Endpoints?$expand=.")
    assert (refused.status, token(refused)) == (501, "QueryNotSupported")


# -- who may ask -----------------------------------------------------------------------------------------------------------


def test_nobody_but_the_root_is_told_to_strangers() -> None:
    service = opened()
    for headers in ({}, {"Authorization": "Basic !"}, {"Authorization": "Basic YTpi"}, {"X-Auth-Token": "guess"}):
        asked = Asked("GET", FABRIC, {}, headers, None, "")
        assert service.answer(asked).status == 401
    assert service.answer(Asked("GET", "/redfish/v1/", {}, {}, None, "")).status == 200


def test_sessions_begin_end_and_run_out() -> None:
    service = opened(sessions_max=1)
    sessions = "/redfish/v1/SessionService/Sessions"
    wrong = ask(service, "POST", sessions, {"UserName": "campaign", "Password": "?"})
    assert wrong.status == 401
    right = {"UserName": "campaign", "Password": "learn-2-compose"}
    reply = ask(service, "POST", sessions, right)
    assert reply.status == 201
    mine = {"X-Auth-Token": reply.headers["X-Auth-Token"]}
    assert service.answer(Asked("GET", FABRIC, {}, mine, None, "")).status == 200
    assert token(ask(service, "POST", sessions, right)) == "SessionLimitExceeded"
    assert service.answer(Asked("DELETE", reply.headers["Location"], {}, mine, None, "")).status == 204
    assert service.answer(Asked("GET", FABRIC, {}, mine, None, "")).status == 401


# -- changing --------------------------------------------------------------------------------------------------------------


def test_a_zone_is_made_of_the_list_and_both_ends_tell_it() -> None:
    service = opened()
    reply = ask(service, "PATCH", f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu1", "gpu3"))
    assert reply.status == 200
    assert [path.rpartition("/")[2] for path in links(reply.body["Links"]["Endpoints"])] == [
        "hostport2_H1",
        "gpu1",
        "gpu3",
    ]
    assert list(links(get(service, f"{FABRIC}/Endpoints/gpu3")["Links"]["Zones"])) == [f"{FABRIC}/Zones/1"]
    assert {device.name for device in service.rack.attached("host1")} == {"gpu1", "gpu3"}
    assert ask(service, "PATCH", f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu3")).status == 200
    assert {device.name for device in service.rack.attached("host1")} == {"gpu3"}
    assert get(service, f"{FABRIC}/Endpoints/gpu1")["Links"]["Zones"] == []


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (endpoints("hostport2_H1", "gpu2"), 409, "ResourceInUse"),
        (endpoints("gpu1"), 400, "PropertyValueConflict"),
        (endpoints("hostport2_H1", "hostport3_H2"), 400, "ResourceMissingAtURI"),
        (endpoints("hostport2_H1", "gpu9"), 400, "ResourceMissingAtURI"),
        (endpoints("hostport2_H1", "gpu1", "gpu1"), 400, "PropertyValueConflict"),
        ({"Links": {"Endpoints": "gpu1"}}, 400, "PropertyValueTypeError"),
        ({"Links": {"Endpoints": ["gpu1"]}}, 400, "PropertyValueTypeError"),
        ({"Links": {"InvolvedSwitches": []}}, 400, "PropertyNotWritable"),
        ({"Endpoints": []}, 400, "PropertyUnknown"),
        ({"Id": "7"}, 400, "PropertyNotWritable"),
        ({"Description": None}, 400, "PropertyValueTypeError"),
        ([], 400, "UnrecognizedRequestBody"),
        (None, 400, "UnrecognizedRequestBody"),
    ],
)
def test_wrong_bodies_are_refused_and_change_nothing(body: Any, status: int, message: str) -> None:
    service = opened()
    assert ask(service, "PATCH", f"{FABRIC}/Zones/2", endpoints("hostport3_H2", "gpu2")).status == 200
    before, changes = get(service, f"{FABRIC}/Zones/1"), service.rack.changes
    reply = ask(service, "PATCH", f"{FABRIC}/Zones/1", body)
    assert (reply.status, token(reply)) == (status, message)
    assert (get(service, f"{FABRIC}/Zones/1"), service.rack.changes) == (before, changes)


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "Zones/1"), ("POST", "Zones"), ("PATCH", "Endpoints/gpu1"), ("PUT", "Zones/1")]
)
def test_only_zones_can_be_changed(method: str, path: str) -> None:
    assert ask(opened(), method, f"{FABRIC}/{path}", {}).status == 405
    assert ask(opened(), method, f"{FABRIC}/Zones/9", {}).status == 404


def test_all_of_a_list_or_nothing() -> None:
    hardware = rack({"host1": ("drawer1",), "host2": ("drawer1", "drawer2")}, [("gpu", "a100", 4)])
    service = opened(hardware)
    reply = ask(service, "PATCH", f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu1", "gpu3"))
    assert (reply.status, token(reply)) == (400, "PropertyValueConflict")
    assert hardware.attached("host1") == []


@pytest.mark.parametrize(
    ("zone", "hostport", "device", "allowed"),
    [
        (1, "hostport2_H1", "gpu1", True),
        (2, "hostport3_H2", "gpu1", False),  # drawer1 is the first host's alone
        (3, "hostport4_H3", "gpu12", True),
        (3, "hostport4_H3", "gpu13", False),  # the second half of drawer2
        (4, "hostport5_H4", "gpu13", True),
        (1, "hostport2_H1", "gpu9", False),
    ],
)
def test_modes_say_which_port_reaches_which_slot(zone: int, hostport: str, device: str, allowed: bool) -> None:
    service = opened(rack([f"host{number}" for number in range(1, 5)], [("gpu", "a100", 16)]), modes=MODES)
    reply = ask(service, "PATCH", f"{FABRIC}/Zones/{zone}", endpoints(hostport, device))
    assert (reply.status == 200) == allowed, reply.body
    assert (service.rack.devices[device].attached_to is not None) == allowed


def test_at_most_three_hosts_in_an_advanced_drawer() -> None:
    service = opened(rack([f"host{number}" for number in range(1, 5)], [("gpu", "a100", 8)], drawers=1))
    told = [
        ask(service, "PATCH", f"{FABRIC}/Zones/{n}", endpoints(f"hostport{n + 1}_H{n}", f"gpu{n}")) for n in range(1, 5)
    ]
    assert [reply.status for reply in told] == [200, 200, 200, 400]
    assert "more than 3 hosts" in told[3].body["error"]["message"]


def test_a_port_without_a_host_gets_nothing() -> None:
    reply = ask(opened(), "PATCH", f"{FABRIC}/Zones/3", endpoints("hostport4_H3", "gpu1"))
    assert (reply.status, token(reply)) == (400, "ActionNotSupported")


def test_a_version_that_is_old_changes_nothing() -> None:
    service = opened(etags="required")
    path, body = f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu1")
    assert ask(service, "PATCH", path, body).status == 428
    version = ask(service, "GET", path).headers["ETag"]
    assert get(service, f"{FABRIC}/Zones?$expand=.")["Members"][0]["@odata.etag"] == version
    service.rack.attach("gpu2", "host1")
    assert ask(service, "PATCH", path, body, {"If-Match": version}).status == 412
    version = ask(service, "GET", path).headers["ETag"]
    assert ask(service, "PATCH", path, endpoints("hostport2_H1"), {"if-match": version}).status == 200
    assert service.rack.attached("host1") == []


def test_a_task_is_done_when_it_is_asked_for_twice() -> None:
    service = opened(task_polls=2)
    reply = ask(service, "PATCH", f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu1"))
    monitor = reply.headers["Location"]
    assert reply.status == 202
    assert ask(service, "GET", monitor).status == 202
    assert service.rack.attached("host1") == []
    assert get(service, "/redfish/v1/TaskService/Tasks/1")["TaskState"] == "Running"
    assert ask(service, "GET", monitor).status == 200
    assert ask(service, "GET", monitor).status == 200
    assert [device.name for device in service.rack.attached("host1")] == ["gpu1"]
    assert get(service, "/redfish/v1/TaskService/Tasks/1")["TaskState"] == "Completed"


def test_a_task_meets_what_happened_meanwhile() -> None:
    service = opened(task_polls=2)
    first = ask(service, "PATCH", f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu1"))
    service.rack.attach("gpu1", "host2")
    ask(service, "GET", first.headers["Location"])
    assert ask(service, "GET", first.headers["Location"]).status == 409
    assert get(service, "/redfish/v1/TaskService/Tasks/1")["TaskState"] == "Exception"


# -- what it tells ---------------------------------------------------------------------------------------------------------


def test_links_errors_and_health_are_told() -> None:
    service = opened()
    service.rack.devices["gpu1"].quirks = {"degraded_link", "broken"}
    service.switching.errors["gpu1"] = (5, 2)
    port = f"{FABRIC}/Switches/drawer1/Ports/slot1"
    assert (get(service, port)["ActiveWidth"], get(service, port)["Width"]) == (8, 16)
    assert get(service, f"{port}/Metrics")["PCIeErrors"]["CorrectableErrorCount"] == 5
    assert get(service, f"{FABRIC}/Endpoints/gpu1")["Status"]["Health"] == "Critical"
    assert get(service, "/redfish/v1/Chassis/drawer1")["Oem"]["Composer"]["Mode"] == "advanced"


def test_every_change_is_in_the_log_newest_first() -> None:
    service = opened()
    ask(service, "PATCH", f"{FABRIC}/Zones/1", endpoints("hostport2_H1", "gpu1", "gpu2"))
    ask(service, "PATCH", f"{FABRIC}/Zones/1", {**endpoints("hostport2_H1", "gpu2"), "Description": "mine"})
    log = get(service, "/redfish/v1/Managers/bmc/LogServices/Events/Entries?$expand=.")["Members"]
    assert [entry["Message"] for entry in log] == [
        "zone 1 described anew",
        "gpu1 removed from host port H1",
        "gpu2 assigned to host port H1",
        "gpu1 assigned to host port H1",
    ]


@pytest.mark.parametrize(
    ("devices", "options", "says"),
    [
        (20, {}, "8 slots"),
        (4, {"modes": {"drawer9": "advanced"}}, "no drawer drawer9"),
        (4, {"modes": {"drawer1": "advanced"}, "variant": "gigaio"}, "there are none"),
        (4, {"ports": {"H7": "host1"}}, "H7"),
        (4, {"ports": {"H1": "mars"}}, "H1"),
        (4, {"colour": "blue"}, "colour"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(devices: int, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        opened(rack(["host1"], [("gpu", "a100", devices)]), **options)


# -- a client that somebody else wrote -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "style"), [("2.1.0", "rsd21"), ("2.3.0", "links")])
def test_the_client_of_intels_rsd_changes_a_zone(version: str, style: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses distutils
        rsd_lib = pytest.importorskip(
            "rsd_lib", reason="rsd-lib 1.2.0 is not installed (it is a client to judge by, nothing needs it)"
        )
        service = opened(endpoints=style, rsd_version=version)
        with Server(service, tmp_path) as server:
            client = rsd_lib.RSDLib(server.url, "campaign", "learn-2-compose", verify=str(server.ca_file)).factory()
            (fabric,) = client.get_fabric_collection().get_members()
            zone = fabric.zones.get_members()[0]
            zone.update([*zone.links.endpoints, f"{FABRIC}/Endpoints/gpu1", f"{FABRIC}/Endpoints/gpu3"])
            assert {device.name for device in service.rack.attached("host1")} == {"gpu1", "gpu3"}
            zone.refresh()
            assert len(zone.links.endpoints) == 3
            assert {endpoint.identity for endpoint in fabric.endpoints.get_members()} >= {"gpu1", "hostport2_H1"}
            zone.update(zone.links.endpoints[:1])
            assert service.rack.free() == ["gpu1", "gpu2", "gpu3", "gpu4"]
