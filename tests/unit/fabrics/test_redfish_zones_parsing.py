"""What the resources of a chassis mean, on saved samples: as documented, as other vendors have them, and half of them missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.fabrics.dialects.redfish_zones import resources
from campaign.fabrics.dialects.redfish_zones.resources import Place
from campaign.fabrics.dialects.redfish_zones.telemetry import celsius, counters, merged
from campaign.fabrics.hardware import Link

DATA = Path(__file__).resolve().parents[2] / "data" / "fabrics" / "redfish-zones"


def sample(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def test_a_zone_lists_its_endpoints_wherever_they_stand() -> None:
    zone = resources.zone(sample("zone"))
    assert (zone.id, zone.description) == ("1", "rack 4, upper half")
    assert [path.rpartition("/")[2] for path in zone.endpoints] == ["hostport2_H1", "gpu3"]
    old = {**sample("zone"), "Links": {}, "Endpoints": sample("zone")["Links"]["Endpoints"]}
    assert resources.zone(old).endpoints == zone.endpoints
    assert resources.zone({"@odata.id": "/z"}).endpoints == ()


def test_a_host_port_is_known_by_its_id_alone() -> None:
    port = resources.endpoint(sample("endpoint_hostport"))
    assert port.host_port
    assert port.labels == ("H1", "hostport2_H1", "Host Port H1")
    assert port.zones is None


@pytest.mark.parametrize(
    "entity", [{"EntityType": "RootComplex"}, {"EntityType": "Processor", "EntityRole": "Initiator"}]
)
def test_a_host_port_is_known_by_its_entity(entity: dict[str, str]) -> None:
    assert resources.endpoint({"@odata.id": "/e/a", "ConnectedEntities": [entity]}).host_port


def test_a_device_has_its_uuid_and_the_worse_health() -> None:
    gpu = resources.endpoint(sample("endpoint_gpu"))
    assert (gpu.id, gpu.kind, gpu.identity) == ("gpu3", "gpu", "6b1f7e14-0000-11ee-8f5c-0242ac130003")
    assert (gpu.state, gpu.health) == ("free", "warning")
    assert gpu.zones == ("/redfish/v1/Fabrics/PCIe/Zones/1",)


def test_a_device_without_a_known_type_is_known_by_its_pci_class_and_its_place_by_the_vendor() -> None:
    drive = resources.endpoint(sample("endpoint_oem"))
    assert (drive.kind, drive.state, drive.health, drive.host_port) == ("nvme", "unavailable", "critical", False)
    assert drive.place == Place("drawer2", 5)


def test_a_degraded_link_tells_lanes_and_generation() -> None:
    assert resources.port(sample("port_degraded"), "drawer1").link == Link(8, 3, 16, 5)
    assert resources.port({**sample("port_degraded"), "CurrentWidth": 0}, "drawer1").link is None


@pytest.mark.parametrize(
    ("speed", "lanes", "gen"), [(256, 16, 4), (16, 16, 4), (32, 16, 1), (512, 16, 5), (63, 8, 3), (1024, 16, 6)]
)
def test_the_generation_of_a_link_is_told_by_its_speed(speed: float, lanes: float, gen: int) -> None:
    assert resources.generation(speed, lanes) == gen


def test_a_card_tells_model_slot_and_link() -> None:
    card = resources.card(sample("card"))
    assert (card.model, card.serial) == ("NVIDIA A100-PCIE-40GB", "1321021035717")
    assert (card.place, card.link) == (Place("drawer1", 3), Link(8, 3, 16, 4))
    assert resources.card({}) == resources.Card()


def test_a_mode_is_read_from_whatever_property_names_one() -> None:
    drawer = resources.enclosure(sample("chassis_mode"))
    assert (drawer.id, drawer.within, drawer.mode) == ("drawer1", "/redfish/v1/Chassis/falcon", "standard_two_hosts")
    assert resources.enclosure({"@odata.id": "/c", "Oem": {"V": {"Mode": "turbo"}}}).mode is None


def test_counters_that_are_not_numbers_are_left_out() -> None:
    found = {reading.quantity: reading.value for reading in counters("gpu3", sample("metrics"))}
    assert found == {"correctable_errors": 7.0, "uncorrectable_errors": 1.0, "rx_bytes": 1000.0}


def test_temperatures_of_the_newer_resource() -> None:
    (reading,) = celsius("c1", [{"DeviceName": "Exhaust", "Reading": 41.5}, {"Reading": None}, "?"], "Reading")
    assert (reading.part, reading.quantity, reading.value) == ("c1/Exhaust", "temperature_c", 41.5)


def test_a_log_is_read_in_order_and_on_from_a_cursor() -> None:
    logs = {"bmc/SEL": sample("log")}
    events = merged(logs, None)
    assert [event.message for event in events] == ["gpu3 assigned", "link of slot 3 retrained", "gpu3 removed"]
    assert events[1].part == "gpu3"
    assert merged(logs, events[1].cursor) == events[2:]
    assert merged(logs, events[2].cursor) == ()


def test_a_log_that_was_cleared_goes_on_with_small_numbers() -> None:
    cursor = merged({"bmc/SEL": sample("log")}, None)[-1].cursor
    cleared = {"bmc/SEL": [{"Id": "1", "Created": "2024-05-03T00:00:00Z", "Message": "log cleared"}]}
    assert [event.message for event in merged(cleared, cursor)] == ["log cleared"]


def test_the_cursor_of_one_log_hides_nothing_of_another() -> None:
    cursor = merged({"bmc/SEL": sample("log")}, None)[-1].cursor
    both = {
        "bmc/SEL": sample("log"),
        "falcon/my log": [{"Id": "1", "Created": "2024-01-01T00:00:00Z", "Message": "early"}],
    }
    (event,) = merged(both, cursor)
    assert event.message == "early"
    assert merged(both, event.cursor) == ()


@pytest.mark.parametrize(
    "junk", [{}, {"Links": [], "Status": 3, "ConnectedEntities": {}, "Oem": []}, {"ConnectedEntities": [7]}]
)
def test_junk_is_no_reason_to_stop(junk: dict[str, Any]) -> None:
    assert resources.endpoint(junk).identity is None
    assert resources.zone(junk).endpoints == ()
    assert resources.port(junk, "s").link is None
    assert resources.card(junk).place == Place()
    assert resources.enclosure(junk).mode is None
