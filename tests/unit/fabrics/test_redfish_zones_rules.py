"""A chassis with zones: modes, cabling and names, what devices are, and what it tells besides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.errors import ConfigError
from campaign.fabrics import open_fabric
from campaign.fabrics.banks import UNLIMITED
from campaign.fabrics.errors import Conflict, Incompatible, NoMatch
from campaign.fabrics.hardware import HostSpec, Link, PoolSpec
from tests.unit.fabrics.zones_chassis import FOUR, Build, chassis_in, composed, names, request


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    yield from chassis_in(tmp_path)


# -- modes and cabling -----------------------------------------------------------------------------------------------------


def test_modes_are_read_from_the_chassis_and_obeyed(build: Build) -> None:
    modes = {"drawer1": "standard_one_host", "drawer2": "standard_two_hosts"}
    chassis = build(FOUR, (("gpu", "a100", 16),), modes=modes)
    fabric = chassis.open()
    banks = {
        bank.name: (bank.hosts, min(bank.slots), max(bank.slots)) for bank in fabric.plane.banks(fabric.plane.view())
    }
    assert banks == {
        "falcon/drawer1": (("host1",), 1, 8),
        "falcon/drawer2/connection1": (("host3",), 1, 4),
        "falcon/drawer2/connection2": (("host4",), 5, 8),
    }
    with pytest.raises(Incompatible):
        fabric.select(request(devices=4, hosts=4), fabric.inventory())
    selection = composed(fabric, devices=4, hosts=3)
    assert {host.host: host.fabric[0] for host in selection.hosts} == {
        "host1": "gpu1",
        "host3": "gpu9",
        "host4": "gpu13",
    }
    assert len(names(fabric.read_back("one"))) == 12


def test_a_fourth_host_in_an_advanced_drawer_is_refused(build: Build) -> None:
    chassis = build(FOUR, (("gpu", "a100", 8),), drawers=1)
    fabric = chassis.open()
    with pytest.raises(Incompatible, match="at most three hosts"):
        fabric.select(request(devices=1, hosts=4), fabric.inventory())
    composed(fabric, devices=1, hosts=3)


def test_hosts_that_nobody_told_of_count_in_an_advanced_drawer(build: Build) -> None:
    chassis = build(FOUR, (("gpu", "a100", 8),), drawers=1)
    for name, host in (("gpu1", "host2"), ("gpu2", "host3"), ("gpu3", "host4")):
        chassis.rack.attach(name, host)
    fabric = chassis.open(known=("host1",))
    with pytest.raises(Conflict, match="host port H2"):
        fabric.select(request(devices=1), fabric.inventory())


def test_a_chassis_that_does_not_tell_its_mode_is_told_by_the_system_file(build: Build) -> None:
    chassis = build(FOUR, (("gpu", "a100", 8),), drawers=1, modes={"drawer1": "standard_two_hosts"}, tells_modes=False)
    fabric = chassis.open(modes={"drawer1": "standard_two_hosts"})
    told, view = fabric.select(request(devices=1, allowed=("host2",)), fabric.inventory()), fabric.plane.view()
    assert told.ids == ("gpu5",)
    assert chassis.open("long", modes={"falcon1/drawer1": "standard_two_hosts"}).plane.banks(
        view
    ) == fabric.plane.banks(view)
    naive = chassis.open("naive")
    selection = naive.select(request(devices=1, allowed=("host2",)), naive.inventory())
    with pytest.raises(Incompatible, match="does not reach"):
        naive.compose(selection)
    assert naive.release("one") == ()


def test_plans_know_the_modes_of_the_system_file(tmp_path: Path) -> None:
    pool = [PoolSpec("gpu", "a100", 8, f"falcon1/drawer{number}") for number in (1, 2)]
    hosts = [HostSpec(name, 8, 32.0) for name in FOUR]

    def opened(modes: dict[str, str], **options: Any) -> Any:
        told = {"url": "https://falcon1.example", "modes": modes, **options}
        return open_fabric("redfish-zones", told, hosts, pool, tmp_path)

    opened({}).select_planned(request(devices=3, hosts=4))
    one_host = opened({"falcon1/drawer1": "standard_one_host", "drawer2": "standard_one_host"})
    one_host.select_planned(request(devices=8, hosts=2))
    with pytest.raises(Incompatible, match="standard_one_host"):
        one_host.select_planned(request(devices=3, hosts=4))
    halves = dict.fromkeys(("drawer1", "drawer2"), "standard_two_hosts")
    opened(halves).select_planned(request(devices=8, hosts=1))
    one_port = {"ports": {name: [f"H{number}"] for number, name in enumerate(FOUR, 1)}}
    opened(halves, **one_port).select_planned(request(devices=4, hosts=4))
    with pytest.raises(
        ConfigError, match=r"modes: no drawer 'falcon1/drawer9'; there are: falcon1/drawer1, falcon1/drawer2"
    ):
        opened({"falcon1/drawer9": "advanced"})


def test_a_mode_that_was_changed_meanwhile_is_read_again_after_the_refusal(build: Build) -> None:
    chassis = build(devices=(("gpu", "a100", 8),), drawers=1)
    fabric = chassis.open()
    selection = fabric.select(request(devices=1, allowed=("host2",)), fabric.inventory())
    chassis.server.dialect.switching.modes["drawer1"] = "standard_one_host"  # type: ignore[attr-defined]
    with pytest.raises(Incompatible, match="standard_one_host"):
        fabric.compose(selection)
    fabric.release("one")
    with pytest.raises(Incompatible):
        fabric.select(request("two", devices=1, allowed=("host2",)), fabric.inventory())


def test_a_host_with_several_ports_uses_the_one_that_reaches(build: Build) -> None:
    modes = {"drawer1": "standard_one_host", "drawer2": "standard_one_host"}
    chassis = build(
        ("host1", "host2"), (("gpu", "a100", 16),), modes=modes, ports={"H1": "host1", "H3": "host1", "H4": "host2"}
    )
    fabric = chassis.open(ports={"host1": ["H1", "hostport4_H3"]})
    composed(fabric, devices=16)
    assert len(chassis.listed(1)) == len(chassis.listed(3)) == 9
    assert len(names(fabric.read_back("one"))) == 16
    assert fabric.release("one") == ()
    assert len(chassis.rack.free()) == 16
    assert not fabric.held()


def test_a_host_may_have_both_connections_of_a_drawer(build: Build) -> None:
    modes = {"drawer1": "standard_two_hosts"}
    chassis = build(("host1",), (("gpu", "a100", 8),), drawers=1, modes=modes, ports={"H1": "host1", "H2": "host1"})
    fabric = chassis.open(ports={"host1": ["H1", "H2"]})
    composed(fabric, devices=8)
    assert chassis.listed(1)[1:] == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert chassis.listed(2)[1:] == ["gpu5", "gpu6", "gpu7", "gpu8"]
    assert fabric.release("one") == ()
    assert len(chassis.rack.free()) == 8


@pytest.mark.parametrize(
    "options", [{"hosts": {"alpha": "H2"}}, {"hosts": {"alpha": "hostport3_H2"}}, {"ports": {"alpha": ["H2"]}}]
)
def test_the_port_of_a_host_is_named_as_a_person_would(build: Build, options: dict[str, Any]) -> None:
    chassis = build()
    fabric = chassis.open(known=("alpha",), **options)
    composed(fabric)
    assert {device.attached_to for device in chassis.rack.devices.values()} == {"host2", None}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hosts": {"host1": "H7"}}, "no host port H7 .* there are: H1, H2"),
        ({"ports": {"host1": ["H1"], "host2": ["H1"]}}, "H1 is assigned to host1 and to host2"),
        ({"fabric": "CXL"}, "no fabric CXL; there are: PCIe"),
    ],
)
def test_names_that_the_chassis_does_not_have_are_refused(build: Build, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build().open(**options).inventory()


def test_several_fabrics_need_a_name(build: Build) -> None:
    chassis = build(others=("CXL",))
    with pytest.raises(ConfigError, match="several fabrics; there are: PCIe, CXL"):
        chassis.open().inventory()
    assert chassis.open(fabric="PCIe").inventory().devices


def test_a_host_that_no_port_is_connected_to_reaches_nothing(build: Build) -> None:
    chassis = build(tells_hosts=False)
    fabric = chassis.open(known=("host1", "host2"))
    with pytest.raises(Incompatible, match="cabling"):
        fabric.select(request(), fabric.inventory())


def test_a_fabric_without_drawers_is_one_bank(build: Build) -> None:
    hosts = tuple(f"host{number}" for number in range(1, 7))
    chassis = build(hosts, (("gpu", "a100", 24), ("nic", "cx6", 2)), variant="gigaio")
    fabric = chassis.open()
    (bank,) = fabric.plane.banks(fabric.plane.view())
    assert (bank.drawer, bank.hosts, bank.hosts_max) == ("pcie", hosts, UNLIMITED)
    composed(fabric, devices=4, hosts=6)
    assert len(names(fabric.read_back("one"))) == 24
    assert fabric.release("one") == ()


# -- what devices are ------------------------------------------------------------------------------------------------------


def test_devices_are_told_with_their_links_health_and_models(build: Build) -> None:
    chassis = build(devices=(("gpu", "NVIDIA A100 PCIe", 2), ("nvme", "PM1733", 1)))
    chassis.rack.devices["gpu1"].quirks = {"degraded_link"}
    chassis.rack.devices["gpu2"].quirks = {"broken"}
    devices = {device.fabric_id: device for device in chassis.open(models={"PM1733": "ssd"}).inventory().devices}
    assert devices["gpu1"].model == "nvidia-a100-pcie"
    assert devices["gpu1"].link == Link(8, 4, 16, 4)
    assert devices["gpu1"].host_id == chassis.rack.devices["gpu1"].uuid
    assert (devices["gpu2"].health, devices["gpu2"].state) == ("critical", "failed")
    assert (devices["nvme1"].kind, devices["nvme1"].model, devices["nvme1"].location) == (
        "nvme",
        "ssd",
        "falcon/drawer1/slot2",
    )
    assert devices["nvme1"].host_id == chassis.rack.devices["nvme1"].serial


def test_a_capability_says_that_nothing_was_verified(build: Build) -> None:
    told = build().open().capabilities()
    assert not told.verified
    assert "never run against a real" in told.note


# -- besides ---------------------------------------------------------------------------------------------------------------


def test_readings_tell_links_errors_traffic_and_temperatures(build: Build) -> None:
    chassis = build()
    chassis.rack.devices["gpu1"].quirks = {"degraded_link"}
    chassis.server.dialect.switching.errors["gpu1"] = (7, 1)  # type: ignore[attr-defined]
    readings = {(reading.part, reading.quantity): reading.value for reading in chassis.open().plane.readings()}
    assert readings["gpu1", "link_lanes"] == 8
    assert readings["gpu1", "link_lanes_max"] == 16
    assert (readings["gpu1", "correctable_errors"], readings["gpu1", "uncorrectable_errors"]) == (7, 1)
    assert readings["gpu2", "link_up"] == 1
    assert readings["gpu2", "rx_bytes"] > 0
    assert readings["drawer1/H1", "link_up"] == 1
    assert readings["drawer2/Inlet", "temperature_c"] > 0


def test_events_go_on_after_a_cursor(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    assert fabric.plane.events() == ()
    composed(fabric, devices=1)
    first = fabric.plane.events()
    assert [event.message for event in first] == ["gpu1 assigned to host port H1", "zone 1 described anew"]
    fabric.release("one")
    (event, _) = fabric.plane.events(first[-1].cursor)
    assert (event.message, event.part, event.severity) == ("gpu1 removed from host port H1", "gpu1", "OK")


def test_an_allocation_is_saved_and_restored(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    empty = fabric.plane.export()
    composed(fabric, devices=2)
    full = fabric.plane.export()
    assert full["schema_version"] == 1
    assert full["modes"] == {"drawer1": "advanced", "drawer2": "advanced"}
    assert full["zones"]["H1"]["devices"] == ["gpu1", "gpu2"]
    assert fabric.plane.restore(full) == ()
    assert fabric.plane.restore(empty) == ("H1: detached gpu1, gpu2", "H1: described anew")
    assert len(chassis.rack.free()) == 4
    assert chassis.zone(1)["Description"] == "Zone of host port H1"
    assert fabric.plane.restore(full) == ("H1: attached gpu1, gpu2",)
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]


def test_devices_move_between_zones_in_a_restored_allocation(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    composed(fabric, "one", devices=2, allowed=("host1",))
    document = fabric.plane.export()
    fabric.release("one")
    composed(fabric, "two", devices=2, allowed=("host2",))
    changed = fabric.plane.restore(document)
    assert changed == ("H2: detached gpu1, gpu2", "H1: attached gpu1, gpu2", "H2: described anew")
    assert list(chassis.open("fresh").held()) == ["one"]


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        ({"zones": {"H1": {"devices": ["gpu1"]}, "H2": {"devices": []}}}, Conflict, r"host port H2 \(gpu4\)"),
        ({"zones": {"H1": {"devices": ["gpu4"]}}}, Conflict, r"host port H2 \(gpu4\)"),
        (
            {"modes": {"drawer1": "standard_one_host"}},
            Incompatible,
            "drawer1 was in mode standard_one_host and is in advanced",
        ),
        ({"zones": {"H1": {"devices": ["gpu9"]}, "H8": {"devices": []}}}, NoMatch, "host port H8, gpu9"),
        ({"fabric": "cxl"}, NoMatch, "fabric cxl"),
        ({"zones": {"H1": {"devices": ["gpu1"]}, "H3": {"devices": ["gpu1"]}}}, Incompatible, "two zones"),
        ({"zones": {"H3": {"devices": ["gpu1"]}}}, Incompatible, "cannot be attached to host port H3"),
        ({"schema_version": 2}, ConfigError, "schema_version"),
        ({"colour": "blue"}, ConfigError, "colour"),
    ],
)
def test_a_document_that_does_not_fit_changes_nothing(
    build: Build, spoil: dict[str, Any], error: type[Exception], says: str
) -> None:
    chassis = build()
    fabric = chassis.open()
    chassis.rack.attach("gpu4", "host2")  # somebody's
    document = fabric.plane.export() | spoil
    with pytest.raises(error, match=says):
        fabric.plane.restore(document)
    assert chassis.sent() == []


def test_a_foreign_zone_that_agrees_with_the_document_is_no_objection(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    chassis.rack.attach("gpu4", "host2")
    composed(fabric, devices=1)
    document = fabric.plane.export()
    fabric.release("one")
    assert fabric.plane.restore(document) == ("H1: attached gpu1",)
    assert chassis.listed(2) == ["hostport3_H2", "gpu4"]
