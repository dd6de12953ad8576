"""A chassis whose zones are its host ports: full lists, marks that are put back, and what is not ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.fabrics.control_plane.lease_tag import decode, encode
from campaign.fabrics.errors import Conflict, ProtocolViolation
from campaign.fabrics.protocol import Tag
from campaign.testbed.control_planes.faults import Fault
from tests.unit.fabrics.zones_chassis import (
    ENDPOINTS,
    FOUR,
    ZONES,
    Build,
    Chassis,
    chassis_in,
    composed,
    names,
    request,
)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    yield from chassis_in(tmp_path)


# -- what is sent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["links", "rsd21"])
def test_the_whole_list_is_sent_with_the_host_port_and_the_mark(build: Build, style: str) -> None:
    chassis = build(endpoints=style, descriptions={"H1": "upper half"}, tls=True)
    fabric = chassis.open(endpoints=style)
    composed(fabric)
    (body,) = chassis.sent()
    described = body.pop("Description")
    tag = decode(described)
    assert tag is not None
    assert (tag.lease_id, tag.campaign, tag.owner) == ("one", "demo", "tester")
    listing = [{"@odata.id": f"{ENDPOINTS}/{name}"} for name in ("hostport2_H1", "gpu1", "gpu2")]
    assert body == ({"Links": {"Endpoints": listing}} if style == "links" else {"Endpoints": listing})
    assert [device.name for device in chassis.rack.attached("host1")] == ["gpu1", "gpu2"]
    assert fabric.release("one") == ()
    assert chassis.listed(1) == ["hostport2_H1"]
    assert chassis.zone(1)["Description"] == "upper half"
    assert chassis.sent()[1]["Description"] == "upper half"


def test_a_second_compose_sends_nothing_and_keeps_what_was_described(build: Build) -> None:
    chassis = build()
    selection = composed(chassis.open())
    chassis.open().compose(selection)
    assert len(chassis.sent()) == 1
    chassis.open().release("one")
    assert chassis.zone(1)["Description"] == "Zone of host port H1"


def test_a_rehearsal_prints_what_is_then_sent(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    composing, releasing = fabric.rehearse(selection)
    assert chassis.sent() == []
    assert not fabric.held()
    fabric.compose(selection)
    fabric.release("one")
    first, second = chassis.sent()
    assert [sent.body["Links"] for sent in (*composing, *releasing)] == [first["Links"], second["Links"]]
    assert [sent.url for sent in (*composing, *releasing)] == [f"{chassis.server.url}{ZONES}/1"] * 2
    assert releasing[0].body["Description"] == second["Description"] == "Zone of host port H1"


def test_a_lease_takes_few_requests(build: Build) -> None:
    chassis = build(devices=(("gpu", "a100", 8),))
    fabric = chassis.open()
    inventory = fabric.inventory()
    before = len(chassis.server.log)
    fabric.compose(fabric.select(request(devices=8), inventory))
    fabric.read_back("one")
    fabric.release("one")
    # Four looks of zones and endpoints, one of two switches' ports, and two changes, each after one look at its zone.
    assert len(chassis.server.log) - before == 4 * 2 + 2 + 2 * 2


def test_a_big_fabric_is_read_with_few_requests(build: Build) -> None:
    chassis = build(devices=(("gpu", "a100", 500),), variant="gigaio")
    assert len(chassis.open().inventory().devices) == 500
    assert len(chassis.server.log) < 15


@pytest.mark.parametrize(
    "options", [{"expand": False}, {"page": 3}, {"expand": False, "page": 1}, {"answers": "nothing"}]
)
def test_collections_and_answers_of_other_services_are_the_same(build: Build, options: dict[str, Any]) -> None:
    plain, other = build(), build(**options)
    assert other.open("other").inventory() == plain.open("plain").inventory()
    fabric = other.open("other")
    composed(fabric)
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    assert fabric.release("one") == ()


def test_devices_are_read_one_by_one_where_what_is_above_them_is_no_collection(build: Build) -> None:
    plain, odd = build(devices=(("gpu", "a100", 10),)), build(devices=(("gpu", "a100", 10),))
    odd.server.faults.add(Fault("status", "GET", "*/PCIeDevices", times=-1, status=404))
    assert odd.open("odd").inventory() == plain.open("plain").inventory()


def changed(chassis: Chassis, path: str, **properties: Any) -> None:
    """Let a resource be told otherwise, once, where collections are not expanded."""
    found = chassis.server.dialect.resources.find(path)  # type: ignore[attr-defined]
    chassis.server.faults.add(Fault("status", "GET", path, status=200, body=json.dumps({**found, **properties})))


def test_a_port_of_an_endpoint_that_is_not_there_is_passed_over(build: Build) -> None:
    chassis = build(expand=False)
    port = "/redfish/v1/Fabrics/PCIe/Switches/drawer1/Ports/slot1"
    changed(chassis, port, Links={"AssociatedEndpoints": [{"@odata.id": f"{ENDPOINTS}/gone"}]})
    fabric = chassis.open()
    assert composed(fabric).ids == ("gpu1", "gpu2")
    assert ("gpu1", "link_up") in {(reading.part, reading.quantity) for reading in fabric.plane.readings()}


def test_two_endpoints_of_one_name_are_a_violation(build: Build) -> None:
    chassis = build(expand=False)
    changed(chassis, f"{ENDPOINTS}/gpu2", Id="gpu1")
    with pytest.raises(ProtocolViolation, match="several endpoints are named gpu1"):
        chassis.open().inventory()


# -- marks -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", ["unknown", "read_only"])
def test_a_refused_description_leaves_the_state_file_as_the_only_mark(build: Build, refusal: str) -> None:
    chassis = build(description=refusal)
    fabric = chassis.open()
    assert "not marked" not in fabric.capabilities().note
    composed(fabric)
    assert "Description" in chassis.sent()[0]
    assert set(chassis.sent()[1]) == {"Links"}
    assert "not marked" in fabric.capabilities().note
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    assert list(chassis.open().held()) == ["one"]
    assert chassis.open().release("one") == ()
    assert chassis.rack.free() == ["gpu1", "gpu2", "gpu3", "gpu4"]


@pytest.mark.parametrize(("emulated", "options"), [({"description": "ignored"}, {}), ({}, {"tag": "none"})])
def test_without_a_mark_our_claims_say_whose_devices_are(
    build: Build, emulated: dict[str, Any], options: dict[str, Any]
) -> None:
    chassis = build(**emulated)
    fabric = chassis.open(**options)
    selection = composed(fabric)
    fabric.compose(selection)
    assert {device.holder for device in fabric.inventory().devices[:2]} == {"one"}
    # To whoever does not have our state file they are somebody's, and so is the host.
    stranger = chassis.open("stranger", **options).inventory()
    assert [device.holder for device in stranger.devices] == ["host port H1", "host port H1", None, None]
    assert [host.holder for host in stranger.hosts] == ["host port H1", None]
    assert fabric.release("one") == ()
    assert chassis.zone(1)["Description"] == "Zone of host port H1"
    assert len(chassis.rack.free()) == 4


def test_a_lease_is_known_and_released_by_its_mark_alone(build: Build) -> None:
    chassis = build()
    composed(chassis.open("lost"))
    fabric = chassis.open("other")
    assert fabric.held()["one"].devices == ("gpu1", "gpu2")
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    assert fabric.release("one") == ()
    assert len(chassis.rack.free()) == 4
    assert decode(chassis.zone(1).get("Description")) is None


def test_a_mark_without_devices_holds_its_host_and_is_taken_away(build: Build) -> None:
    chassis = build()
    composed(chassis.open())
    for name in ("gpu1", "gpu2"):
        chassis.rack.detach(name)
    fabric = chassis.open()
    assert chassis.open("other").inventory().hosts[0].holder == "one"
    assert fabric.release("one") == ()
    assert chassis.zone(1)["Description"] == "Zone of host port H1"
    assert set(chassis.sent()[-1]) == {"Description"}


# -- what is not ours ------------------------------------------------------------------------------------------------------


def test_devices_in_an_unmarked_zone_are_held_by_their_host_port(build: Build) -> None:
    chassis = build(FOUR[:3])
    chassis.rack.attach("gpu1", "host3")
    chassis.rack.attach("gpu2", "host1")
    fabric = chassis.open(known=("host1", "host2"))  # nobody told it of host3
    inventory = fabric.inventory()
    devices = {device.fabric_id: (device.attached_to, device.holder) for device in inventory.devices}
    assert devices["gpu1"] == ("host port H3", "host port H3")
    assert devices["gpu2"] == ("host1", "host port H1")
    assert inventory.hosts[0].holder == "host port H1"
    selection = composed(fabric)
    assert [host.host for host in selection.hosts] == ["host2"]
    with pytest.raises(Conflict, match="host port H1"):
        fabric.select(request("two", devices=1, allowed=("host1",)), fabric.inventory())
    assert not fabric.held().keys() - {"one"}


def test_a_zone_that_was_filled_meanwhile_is_refused_before_anything_is_changed(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = fabric.select(request(devices=1, hosts=2), fabric.inventory())
    chassis.before("GET", lambda: chassis.rack.attach("gpu4", "host2"))
    with pytest.raises(Conflict, match="host port H2") as caught:
        fabric.compose(selection)
    assert caught.value.holders == ("host port H2",)
    assert chassis.sent() == []
    assert not fabric.held()


def test_a_zone_that_was_marked_meanwhile_is_refused(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    rival = encode(Tag("rival", "theirs", "somebody", 1.0, ()))
    chassis.before("GET", lambda: chassis.describe("H1", rival))
    with pytest.raises(Conflict, match="held by rival") as caught:
        fabric.compose(selection)
    assert caught.value.holders == ("rival",)
    assert chassis.sent() == []


def test_what_others_put_into_our_zone_stays_when_we_add_to_it(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = composed(fabric)
    chassis.rack.attach("gpu4", "host1")
    chassis.rack.detach("gpu2")
    fabric.compose(selection)
    assert chassis.listed(1) == ["hostport2_H1", "gpu1", "gpu2", "gpu4"]


def test_the_host_port_is_in_every_list_even_if_the_zone_does_not_show_it(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    bare = {**chassis.zone(1), "Links": {"Endpoints": []}}
    chassis.server.faults.add(Fault("status", "GET", f"{ZONES}/1", status=200, body=json.dumps(bare)))
    fabric.compose(selection)
    assert chassis.listed(1) == ["hostport2_H1", "gpu1", "gpu2"]


def test_what_others_put_into_our_zone_stays_there_and_is_not_ours(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    composed(fabric)
    chassis.rack.attach("gpu4", "host1")
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    assert fabric.inventory().device("gpu4").holder == "host port H1"
    assert fabric.release("one") == ()
    assert chassis.listed(1) == ["hostport2_H1", "gpu4"]
    assert decode(chassis.zone(1)["Description"]) is None


def test_a_zone_that_another_lease_has_by_now_is_left_alone(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    composed(fabric)
    chassis.describe("H1", chassis.zone(1)["Description"].replace("lease=one", "lease=rival"))
    assert fabric.release("one") == ()
    assert chassis.listed(1) == ["hostport2_H1", "gpu1", "gpu2"]
    assert len(chassis.sent()) == 1


@pytest.mark.parametrize("end", [ENDPOINTS, ZONES])
def test_a_device_whose_ends_disagree_is_unknown_and_never_free(build: Build, end: str) -> None:
    chassis = build()
    fabric = chassis.open()
    fabric.inventory()
    chassis.server.faults.add(Fault("stale", "GET", end, times=2, after=1))
    composed(fabric)
    assert fabric.read_back("one").devices == ()
    device = fabric.inventory().device("gpu1")
    assert (device.state, device.attached_to) == ("unknown", "host1")
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]


def test_a_service_that_tells_one_end_only_is_believed(build: Build) -> None:
    chassis = build(both_ends=False, details=False)
    fabric = chassis.open()
    composed(fabric)
    composition = fabric.read_back("one")
    assert names(composition) == ["gpu1", "gpu2"]
    assert composition.devices[0].location == "falcon/drawer1/slot1"  # by its port of the switch
