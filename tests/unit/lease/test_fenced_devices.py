"""Fenced devices: leases choose others, for a day or until somebody lifts the fence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.fabrics.errors import Unhealthy
from campaign.lease import fenced_devices
from campaign.lease.fenced_devices import FENCE_LIFETIME_S, Fence, FencedDevices
from campaign.spec.hardware import Device, Inventory
from campaign.spec.launch_prefix import Launch
from tests.contract.fabric_fixtures import configuration
from tests.unit.lease.test_lease import SLOT1, SLOT2, Bench

TWO, FOUR = configuration(devices_per_host=2), configuration(devices_per_host=4)
UUID = "GPU-5F6B2F1C-0e0f-3c1f-8d3e-00000000000f"


def fence(device: str = SLOT1, **changes: Any) -> Fence:
    about = {"model": "a100", "host": "host1", "campaign": "c", "workload": "w", "run": "cell.1"}
    known = {"why": "uncorrectable ECC error", "suspected": False, "time_s": time.time()}
    return Fence.model_validate({"device": device, **about, **known, **changes})


def device(fabric_id: str = "slot", host_id: str | None = None, **changes: Any) -> Device:
    return Device(fabric_id, "gpu", "a100", host_id, "drawer", local=False, **changes)


def fenced(bench: Bench, *fences: Fence) -> FencedDevices:
    found = FencedDevices(bench.directory)
    for each in fences:
        found.add_fence(each)
    return found


def slots(bench: Bench, wanted: Any = TWO) -> set[str]:
    lease = bench.acquire(wanted=wanted)
    bench.release(lease)
    return {each.fabric_id for each in lease.composition.devices}


def test_a_lease_is_composed_of_other_devices(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert SLOT1 in slots(bench)
    fenced(bench, fence())
    assert SLOT1 not in slots(bench)


def test_a_fence_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    fenced(bench, fence(time_s=time.time() - FENCE_LIFETIME_S - 1))
    assert SLOT1 in slots(bench)
    # A clock that was set back is no reason to leave a device out for longer.
    fenced(bench, fence(time_s=time.time() + 3600))
    assert SLOT1 in slots(bench)


def test_without_another_device_the_lease_fails_with_the_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    fenced(bench, fence())
    with pytest.raises(
        Unhealthy, match=r"failed on host1: uncorrectable ECC error \('campaign fabric fences SYSTEM --lift"
    ):
        bench.acquire(wanted=FOUR)
    assert not bench.fabric.list_lease_tags()


def test_a_suspicion_does_not_stop_a_lease_that_has_no_other_device(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    known = fenced(bench, fence(suspected=True))
    assert SLOT1 in slots(bench, FOUR)
    assert [each.lifted for each in known.read_all()] == ["there was no other device to repeat the run on"]
    fenced(bench, fence(SLOT1, suspected=True), fence(SLOT2))
    with pytest.raises(Unhealthy, match="uncorrectable"):  # of the two, one is a fault
        bench.acquire(wanted=FOUR)


def test_a_person_lifts_a_fence_by_either_name(tmp_path: Path) -> None:
    known = fenced(Bench(tmp_path), fence(uuid=UUID), fence(SLOT2))
    with pytest.raises(ConfigError, match=f"slot9 is not fenced; fenced devices: {SLOT1}, {SLOT2}"):
        known.lift_by_name("slot9")
    assert known.lift_by_name(UUID).device == SLOT1
    known.lift_by_name(SLOT2)
    assert known.read_active() == []
    assert [each.lifted for each in known.read_all()] == ["by hand", "by hand"]


def test_a_device_is_known_by_its_uuid_wherever_it_is_now() -> None:
    made = fence("slot", uuid=UUID)
    assert made.applies_to(device("elsewhere", UUID.lower()))
    assert not made.applies_to(device("slot", "GPU-00000000-0000-0000-0000-000000000001")), "another card in its slot"
    assert made.applies_to(device("slot")), "nobody tells which card it is"
    assert not made.applies_to(device("elsewhere"))
    assert made.applies_to(device("slot/part1", launch=Launch(device="slot", fraction="1/2"))), "a part of it"


def test_the_inventory_shows_it_as_failed_and_its_holder(tmp_path: Path) -> None:
    known = FencedDevices(tmp_path)
    held = device("a", holder="lease", state="in_use")
    inventory = Inventory((), (held, device("b"), device("c")))
    assert known.mark_fenced(inventory) is inventory
    known.add_fence(fence("a"))
    known.add_fence(fence("b"))
    shown = [(each.state, each.health, each.holder) for each in known.mark_fenced(inventory).devices]
    assert shown == [("in_use", "critical", "lease"), ("failed", "critical", None), ("free", "ok", None)]


def test_a_later_fence_takes_the_place_of_a_lifted_one(tmp_path: Path) -> None:
    known = FencedDevices(tmp_path)
    known.add_fence(fence())
    known.lift_by_name(SLOT1)
    known.add_fence(fence())
    assert [each.is_active() for each in known.read_all()] == [True]
    assert fenced_devices.FENCE_LIFETIME_S == 86_400
