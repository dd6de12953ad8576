"""Answers of a Matrix, as they were recorded, understood."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from campaign.fabrics.adapters.liqid import snapshot as parse
from campaign.fabrics.adapters.liqid.attach import plan_assignments
from campaign.fabrics.adapters.liqid.control_plane import build_view
from campaign.fabrics.adapters.liqid.snapshot import MatrixSnapshot, build_snapshot
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.ownership import merge_duplicate_devices
from campaign.fabrics.control_plane.protocol import LeaseChange
from campaign.fabrics.errors import Conflict, NoMatch, ProtocolViolation
from campaign.fabrics.protocol import Tag
from campaign.fabrics.state_file import FabricState
from tests.unit.fabrics import liqid_sdk

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "liqid"
LEASE = "demo.c.1"
HOSTS = {"pcpu0": "host1", "pcpu1": "host2"}
TAG = Tag(LEASE, "demo", "tester", 1700000000.0, ())


def sample(name: str) -> parse.Envelope:
    found = parse.parse_envelope(json.loads((DATA / f"{name}.json").read_text()))
    assert found is not None
    return found


def snapshot(details: dict[str, Any] | None = None, listed: Sequence[Any] | None = None) -> MatrixSnapshot:
    infos = {
        path: sample(f"device_info_{parse.INFO_PATH_BY_PATH[path]}").data for path in ("compute", "gpu", "storage")
    }
    machines = {raw["mach_id"]: raw for raw in sample("machine").data}
    told = {1: details or sample("machine_details").data[0]} if listed is None else {}
    return build_snapshot(sample("group").data, machines, listed or sample("predevice").data, infos, told, HOSTS)


# -- envelope and members -----------------------------------------------------------------------------------------------------


def test_an_error_is_one_whatever_the_status() -> None:
    found = sample("error_with_http_200")
    assert not found.is_success
    assert found.message == "Machine 0x0005 is already being edited"
    assert parse.is_busy_message(found.message)
    assert parse.find_numbers(found.message) == (5,)


@pytest.mark.parametrize(
    ("response", "ok"),
    [
        ({"code": 0, "errors": None, "data": []}, True),
        ({"code": 0, "errors": [], "data": None}, True),
        ({"code": 0, "errors": [{"code": 3}], "data": []}, False),
        ({"code": 3, "errors": None, "data": []}, False),
        ({"code": "4", "data": []}, False),
    ],
)
def test_it_is_an_error_when_the_code_or_the_errors_say_so(response: dict[str, Any], ok: bool) -> None:
    found = parse.parse_envelope({"response": response})
    assert found is not None
    assert found.is_success == ok


@pytest.mark.parametrize("body", [None, 500, "ok", [], {}, {"response": 5}, {"response": []}, {"data": []}])
def test_what_is_no_envelope_says_nothing(body: object) -> None:
    assert parse.parse_envelope(body) is None


@pytest.mark.parametrize("message", ["Device gpu1 belongs to group 2 already", "Not authorized", "edition 5"])
def test_other_refusals_are_not_busy(message: str) -> None:
    assert not parse.is_busy_message(message)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        ("3", 3),
        ("0x3f", 63),
        (" 0X10 ", 16),
        ("n/a", None),
        (None, None),
        (True, None),
        (1.5, None),
        ("", None),
    ],
)
def test_numbers_are_written_in_several_ways(value: object, number: int | None) -> None:
    assert parse.parse_number(value) == number


@pytest.mark.parametrize("data", [[7], ["0x7"], [{"mach_id": "7"}], [{"name": "n/a", "id": 7}], [None, 7]])
def test_the_next_id_is_a_number_or_an_object_with_one(data: list[Any]) -> None:
    assert parse.find_first_number(data) == 7
    assert parse.find_first_number([{}, "none"]) is None


def test_what_is_done_by_and_by_says_where_to_ask() -> None:
    data = sample("accepted").data
    assert (parse.find_execution_state(data), parse.find_status_link(data)) == (
        "Pending",
        "https://director:8443/liqid/api/v2/async/7",
    )
    assert (parse.find_execution_state([{}, 5]), parse.find_status_link([{"links": None}])) == ("", None)


# -- devices ------------------------------------------------------------------------------------------------------------------


def test_devices_are_shown_with_who_has_them() -> None:
    view = build_view(snapshot())
    told = {d.fabric_id: (d.kind, d.model, d.attached_to, d.holder, d.state, d.location) for d in view.devices}
    assert told == {
        "gpu1": ("gpu", "NVIDIA A100-PCIE-40GB", "host1", LEASE, "in_use", "rack0-shelf1/slot1"),
        "gpu2": ("gpu", "NVIDIA A100-PCIE-40GB", "host2", "machine prod1", "in_use", "rack0-shelf1/slot2"),
        "gpu3": ("gpu", "NVIDIA A100-PCIE-40GB", None, None, "free", "rack0-shelf2/slot1"),
        "nvme1": ("nvme", "HoneyBadger 4TB", None, None, "free", "rack0-shelf1/slot3"),
    }
    assert view.holders == {"host1": LEASE, "host2": "machine prod1"}
    assert view.tags == {LEASE: Tag(LEASE, "demo", "tester", 1700000000.0, ("gpu1",))}


def test_gpus_have_no_identity_on_the_host_and_drives_their_serial() -> None:
    ids = {device.fabric_id: device.host_id for device in build_view(snapshot()).devices}
    assert ids["gpu1"] is None
    assert ids["nvme1"] == sample("device_info_ssd").data[0]["serial_num"]


@pytest.mark.parametrize("change", [{"gpu-count": 0}, {"gpu-count": "2"}])
def test_a_machine_that_counts_otherwise_makes_its_devices_unknown(change: dict[str, Any]) -> None:
    view = build_view(snapshot(details=dict(sample("machine_details").data[0]) | change))
    gpu1 = view.find_device("gpu1")
    assert gpu1 is not None
    assert (gpu1.state, gpu1.attached_to, gpu1.holder) == ("unknown", None, LEASE)


def test_a_machine_that_counts_nothing_is_believed() -> None:
    view = build_view(snapshot(details={"mach_id": 1}))
    assert view.devices[0].state == "in_use"


@pytest.mark.parametrize(
    "change", [{"mach_id": "77"}, {"mname": "other"}, {"grp_id": 1}], ids=["no such machine", "its name", "its group"]
)
def test_a_device_that_names_a_machine_otherwise_than_the_machine_is_unknown(change: dict[str, Any]) -> None:
    listed = [dict(each) for each in sample("predevice").data]
    next(each for each in listed if each["name"] == "gpu2").update(change)
    view = build_view(snapshot(listed=listed))
    gpu2 = view.find_device("gpu2")
    assert gpu2 is not None
    assert (gpu2.state, gpu2.attached_to) == ("unknown", None)


def test_a_machine_of_two_hosts_is_shown_at_both() -> None:
    listed = [dict(each) for each in sample("predevice").data]
    next(each for each in listed if each["name"] == "pcpu1").update(grp_id=1, mach_id="1", mname=listed[0]["mname"])
    view = build_view(snapshot(listed=listed))
    assert [(d.attached_to, d.holder) for d in view.devices if d.fabric_id == "gpu1"] == [
        ("host1", LEASE),
        ("host2", LEASE),
    ]
    (gpu1,) = (device for device in merge_duplicate_devices(view, FabricState()).devices if device.fabric_id == "gpu1")
    assert gpu1.others == ("an unknown user on host2",)


def test_a_device_that_only_one_list_has_is_unknown() -> None:
    view = build_view(build_snapshot((), {}, sample("predevice").data[-2:], {"storage": ()}, {}, HOSTS))
    assert [(device.fabric_id, device.state) for device in view.devices] == [("nvme1", "unknown")]


def test_two_devices_of_one_name_are_not_guessed_at() -> None:
    listed = sample("predevice").data
    with pytest.raises(ProtocolViolation, match="two devices named gpu1"):
        build_snapshot((), {}, (*listed, listed[2]), {}, {}, HOSTS)


@pytest.mark.parametrize("dev_id", [None, "", "0x00000000", "n/a", "gpu one"])
def test_a_device_without_a_number_is_unknown(dev_id: str | None) -> None:
    """The SDKs read what is no hexadecimal number as 0, which is no id: nobody could be asked to mark it."""
    infos = {"gpu": [dict(each) | {"dev_id": dev_id} for each in sample("device_info_gpu").data]}
    view = build_view(build_snapshot((), {}, [sample("predevice").data[4]], infos, {}, HOSTS))
    assert [(device.fabric_id, device.state) for device in view.devices] == [("gpu3", "unknown")]


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("device_info_cpu", "ComputeInfo"),
        ("device_info_gpu", "GPUInfo"),
        ("device_info_ssd", "StorageInfo"),
        ("group", "Group"),
        ("machine", "Machine"),
        ("machine_details", "MachineDetails"),
        ("predevice", "PreDevice"),
    ],
)
def test_samples_are_what_the_vendors_client_understands(name: str, record: str) -> None:
    assert liqid_sdk.answered(json.loads((DATA / f"{name}.json").read_text()), record, name)


def test_broken_devices_are_not_free() -> None:
    infos = {"gpu": [dict(each) | {"device_state": "FAILED"} for each in sample("device_info_gpu").data]}
    view = build_view(build_snapshot((), {}, [sample("predevice").data[4]], infos, {}, HOSTS))
    assert [(d.fabric_id, d.health, d.state) for d in view.devices] == [("gpu3", "critical", "failed")]


# -- marks --------------------------------------------------------------------------------------------------------------------


def test_machines_are_named_with_letters_and_digits_by_lease_and_host() -> None:
    names = {parse.make_machine_name(lease, host) for lease in ("a.b/c", "a") for host in ("h-1", "h-2")}
    assert len(names) == 4
    assert all(name.isalnum() and name.isascii() and len(name) == 16 for name in names)
    assert all(parse.is_machine_name(name) for name in names)
    assert not any(parse.is_machine_name(name) for name in ("production", "cc12", None, 7))


@pytest.mark.parametrize("own", ["", "reseat me", "a | b", " padded "])
def test_what_somebody_wrote_is_kept_in_front_of_the_mark(own: str) -> None:
    text = parse.add_mark(own, TAG)
    assert parse.split_mark(text) == (own, TAG)
    assert parse.add_mark(text, TAG) == text


@pytest.mark.parametrize("text", ["", "reseat me", "a | b", "lease=demo", lease_tag.encode_tag(TAG) + " and more"])
def test_other_text_is_no_mark(text: str) -> None:
    assert parse.split_mark(text) == (text, None)


# -- what is to be done -------------------------------------------------------------------------------------------------------


def changed(lease_id: str, **hosts: tuple[str, ...]) -> LeaseChange:
    return LeaseChange(Tag(lease_id, "demo", "tester", 1.0, ()), hosts)


def test_a_lease_goes_on_from_what_is_there() -> None:
    found = snapshot()
    (part,) = plan_assignments(changed(LEASE, host1=("gpu1", "gpu3")), found, found.find_group("campaign"))
    assert part.machine is not None
    assert part.machine["mach_id"] == 1
    assert [device.name for device in part.devices] == ["pcpu0", "gpu1", "gpu3"]
    assert [device.name for device in part.missing_devices] == ["gpu3"]


@pytest.mark.parametrize(
    ("change", "holder"),
    [
        (changed("other", host1=("gpu3",)), LEASE),
        (changed(LEASE, host2=("gpu3",)), "machine prod1"),
        (changed(LEASE, host1=("gpu1", "gpu2")), "machine prod1"),
    ],
)
def test_what_others_have_is_a_conflict_that_names_them(change: LeaseChange, holder: str) -> None:
    found = snapshot()
    with pytest.raises(Conflict) as caught:
        plan_assignments(change, found, found.find_group("campaign"))
    assert caught.value.holders == (holder,)


def test_what_is_not_there_is_no_match() -> None:
    found = snapshot()
    with pytest.raises(NoMatch, match="gpu9"):
        plan_assignments(changed(LEASE, host1=("gpu9",)), found, found.find_group("campaign"))
