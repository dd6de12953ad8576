"""Which device of a host is which of the fabric."""

from __future__ import annotations

import pytest

from campaign.fabrics.host_agents.protocol import HostDevice, match_devices
from campaign.spec.hardware import Device, normalize_identity


def device(name: str, host_id: str | None = None, kind: str = "gpu") -> Device:
    return Device(name, kind, "a100", host_id, "drawer1/slot1", local=False)


def named(found: dict[str, HostDevice]) -> dict[str, str]:
    return {name: one.identity or one.address for name, one in found.items()}


@pytest.mark.parametrize(
    ("fabric", "host"),
    [
        ("5E2C1A7B-93D4", "GPU-5e2c1a7b-93d4"),
        ("uuid:5e2c1a7b-93d4", "GPU-5e2c1a7b-93d4"),
        ("0C42A1000001", "0c:42:a1:00:00:01"),
        ("0c-42-a1-00-00-01", "0c:42:a1:00:00:01"),
        ("S64ANE0R500123 ", "S64ANE0R500123"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
    ],
)
def test_the_same_identity_in_other_words(fabric: str, host: str) -> None:
    assert normalize_identity(fabric) == normalize_identity(host)
    assert named(match_devices([device("a", fabric)], [HostDevice("other"), HostDevice(host)])) == {"a": host}


def test_other_identities_are_others() -> None:
    assert match_devices([device("a", "GPU-1")], [HostDevice("GPU-11"), HostDevice("GPU-2")]) == {}
    assert normalize_identity("0001:3b:00.0") != normalize_identity("0000:3b:00.0")


def test_a_pci_address_is_an_identity_as_well() -> None:
    seen = [HostDevice("GPU-1", "0000:3b:00.0"), HostDevice("GPU-2", "0000:3c:00.0")]
    assert named(match_devices([device("a", "00000000:3C:00.0")], seen)) == {"a": "GPU-2"}


def test_what_the_fabric_does_not_name_is_taken_in_order_from_what_is_left_of_its_kind() -> None:
    seen = [HostDevice("GPU-1"), HostDevice("S1", kind="nvme"), HostDevice("GPU-2"), HostDevice("GPU-3")]
    devices = [
        device("a"),
        device("b", "GPU-1"),
        device("c", ""),
        device("d", kind="nvme"),
        device("e"),
        device("f", kind="nic"),
    ]
    assert named(match_devices(devices, seen)) == {"b": "GPU-1", "a": "GPU-2", "c": "GPU-3", "d": "S1"}


def test_no_device_is_paired_twice() -> None:
    assert named(match_devices([device("a", "GPU-1"), device("b", "GPU-1"), device("c")], [HostDevice("GPU-1")])) == {
        "a": "GPU-1"
    }


def test_a_gpu_that_lost_its_driver_stands_for_one_that_is_missed() -> None:
    bare = HostDevice("", "0000:3b:00.0", ready=False)
    assert match_devices([device("a", "GPU-1"), device("b", "GPU-2")], [HostDevice("GPU-2"), bare]) == {
        "b": HostDevice("GPU-2"),
        "a": bare,
    }
    more = [bare, HostDevice("", "0000:3c:00.0", ready=False)]
    assert match_devices([device("a", "GPU-1")], more) == {}, "which of them cannot be told"
    assert match_devices([device("a", "S1", "nvme")], [bare]) == {}
    assert match_devices([device("a", "GPU-1")], [HostDevice("", "0000:3b:00.0")]) == {}
