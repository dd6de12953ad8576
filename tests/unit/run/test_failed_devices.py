"""Whose failure a failed run is: the device's, the program's, or nobody's that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.lease.fenced_devices import FencedDevices
from campaign.run import failed_devices
from campaign.run.failed_devices import DeviceFaultHandler
from campaign.slurm.verify_devices import DeviceMismatchError
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.record import Failure, Status
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Step, StepEnd
from tests.campaign_files import one_cell, one_run
from tests.unit.run.launch.compositions import system

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"


def composed(*names: str) -> Composition:
    devices = tuple(Device(name, "gpu", "a100", f"GPU-{name}", "", local=False) for name in names)
    return Composition((ComposedHost("host1", 4, 8.0, devices),))


@dataclass
class Driver:
    """Judges runs of two ranks on the devices that it is given."""

    directory: Path
    looked: int = 0

    def judge(
        self,
        log: str,
        names: tuple[str, ...] = ("a", "b"),
        *,
        repetition: int = 1,
        status: Status = "crashed",
        **changes: Any,
    ) -> Outcome:
        run = one_run(self.directory / "run", one_cell(devices=len(names), workload="w"))
        run = replace(run, composition=composed(*names), runs_on="cuda", repetition=repetition)
        devices = DeviceFaultHandler(
            system(devices={"a100": {"runs_on": "cuda"}}), run.composition, self.fenced, "c", self.directory
        )
        step = replace(Step(("true",), {}, {"host1": len(names)}), **changes)
        ended = StepEnd((1,) * step.process_count, 0.0, 1.0)
        outcome = Outcome(status, Failure(reason="as it was"))
        return devices.judge_outcome(run, step, ended, outcome, Log.from_text(log))

    @property
    def fenced(self) -> FencedDevices:
        return FencedDevices(self.directory / "state")

    def names(self) -> list[str]:
        return [each.device for each in self.fenced.read_active()]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(tmp_path)

    def look(*_: object) -> None:
        made.looked += 1

    monkeypatch.setattr(failed_devices, "verify_local_devices", look)
    return made


def test_a_device_that_fails_is_fenced_by_its_uuid_and_the_run_has_no_record(driver: Driver) -> None:
    with pytest.raises(
        LaunchError, match=r"b \(a100, GPU-b\) failed on host1: .*ECC.*; the device is fenced, and the run is repeated"
    ):
        driver.judge(f"[rank1]: {ECC}")
    (fence,) = driver.fenced.read_active()
    assert (fence.device, fence.uuid, fence.suspected, fence.host) == ("b", "GPU-b", False, "host1")


@pytest.mark.parametrize(
    ("log", "changes"),
    [(ECC, {}), (f"[rank0]: {ECC}", {"per_rank": False, "preload": "trainer"}), (f"[rank7]: {ECC}", {})],
    ids=["no rank", "one process for both", "a rank that there is not"],
)
def test_where_the_device_is_not_known_none_is_fenced(driver: Driver, log: str, changes: dict[str, Any]) -> None:
    with pytest.raises(LaunchError, match="it is unknown which one"):
        driver.judge(log, **changes)
    assert driver.names() == []


def test_the_only_device_of_a_run_is_known_without_a_rank(driver: Driver) -> None:
    with pytest.raises(LaunchError, match=r"a \(a100, GPU-a\) failed"):
        driver.judge(ECC, ("a",))
    assert driver.names() == ["a"]


def test_devices_that_cannot_be_used_are_no_subjects_failure_and_are_not_fenced(driver: Driver) -> None:
    with pytest.raises(LaunchError, match=r"could not be used: .*busy or unavailable; the run has no record"):
        driver.judge("[rank0]: CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    assert driver.names() == []


def test_an_illegal_access_that_another_device_does_not_have_is_the_devices(driver: Driver) -> None:
    with pytest.raises(LaunchError, match=r"suspected of a fault .* repeated on another device"):
        driver.judge(f"[rank0]: {ILLEGAL}")
    assert driver.judge("", ("c", "b"), status="ok").status == "ok"
    assert driver.names() == ["a"]


def test_an_illegal_access_on_two_devices_is_the_programs(driver: Driver) -> None:
    with pytest.raises(LaunchError, match="suspected"):
        driver.judge(f"[rank0]: {ILLEGAL}")
    found = driver.judge(f"[rank0]: {ILLEGAL}", ("c", "b"), status="comm_error")
    assert found.failure is not None
    assert (found.status, found.failure.evidence, found.failure.rank) == ("crashed", f"[rank0]: {ILLEGAL}", 0)
    assert found.flags == ("failed alike on a",)
    assert driver.names() == [], "the first device is used again"
    # What was found out holds for the other runs of the workload.
    assert driver.judge(f"[rank1]: {ILLEGAL}", repetition=2).status == "crashed"
    assert driver.names() == []


def test_one_whose_device_is_the_only_one_is_the_programs_when_it_comes_again(driver: Driver) -> None:
    with pytest.raises(LaunchError, match="suspected"):
        driver.judge(ILLEGAL, ("a",))
    found = driver.judge(ILLEGAL, ("a",))
    assert (found.status, found.flags) == ("crashed", ())


def test_an_illegal_access_of_an_unknown_device_stays_the_programs(driver: Driver) -> None:
    assert driver.judge(ILLEGAL).status == "crashed"
    assert driver.names() == []


def test_after_a_crash_without_a_word_the_devices_are_listed_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = driver.judge("Segmentation fault")
    assert found.failure == Failure(reason="as it was")
    assert driver.looked == 1
    for status in ("ok", "oom_device", "nan"):
        driver.judge("Segmentation fault", status=status)
    assert driver.looked == 1

    def lost(*_: object) -> None:
        raise DeviceMismatchError("devices differ", missing_devices=composed("b").devices)

    monkeypatch.setattr(failed_devices, "verify_local_devices", lost)
    with pytest.raises(DeviceMismatchError):
        driver.judge("Segmentation fault")
    assert driver.names() == ["b"]
    assert driver.fenced.read_active()[0].why == "its host no longer lists it"
