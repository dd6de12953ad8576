"""State of devices, by the documented interface of NVML; none was seen on hardware here."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from campaign.observe import device_state
from campaign.observe.device_state import list_local_devices, read_local_settings
from tests.unit.observe.telemetry.fake_nvml import LOST, FakeNvml, Gpu

WHOLE, PART = "GPU-3a1b0c7e-0000-4000-8000-00000000000a", "MIG-11111111-0000-4000-8000-00000000000b"


def test_what_changes_a_devices_numbers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_state, "find_pci_node", lambda address: 1 if address == "0000:17:00.0" else None)
    (found,) = read_local_settings(FakeNvml([Gpu(WHOLE)]))
    assert found.to_dict() == {
        "uuid": WHOLE,
        "model": "NVIDIA H200",
        "driver": "580.65.06",
        "address": "0000:17:00.0",
        "numa_node": 1,
        "memory_mib": 81920,
        "power_limit_w": 600,
        "power_limit_default_w": 700,
        "clock_sm_max_mhz": 1980,
        "clock_memory_max_mhz": 3201,
        "clock_sm_application_mhz": 1980,
        "clock_memory_application_mhz": 3201,
        "persistence": True,
        "ecc": True,
        "mig": False,
        "compute_mode": "exclusive_process",
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
    }


def test_parts_of_a_divided_device_have_identities_of_their_own() -> None:
    found = list_local_devices(FakeNvml([Gpu("GPU-a"), Gpu(WHOLE, parts=[Gpu(PART)])]))
    assert {uuid: each.parent_uuid for uuid, each in found.items()} == {"GPU-a": "", WHOLE: "", PART: WHOLE}


def test_a_device_that_is_gone_hides_no_other_and_what_is_not_told_is_absent() -> None:
    missing = {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode"}
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b", missing)])
    by_index = nvml.nvmlDeviceGetHandleByIndex

    def gone(index: int) -> Gpu:
        if index == 0:
            raise nvml.NVMLError(LOST)
        return by_index(index)

    nvml.nvmlDeviceGetHandleByIndex = gone  # type: ignore[method-assign]
    (found,) = read_local_settings(nvml)
    assert found.uuid == "GPU-b"
    assert (found.power_limit_w, found.memory_mib, found.mig) == (None, None, None)
    assert "power_limit_w" not in found.to_dict()


def test_no_driver_is_no_state() -> None:
    assert read_local_settings(FakeNvml([], init_fails=9)) == []


def test_the_package_has_what_the_stand_in_has() -> None:
    """Names, numbers and arguments are those of nvidia-ml-py."""
    fake = FakeNvml([])
    for name, value in vars(FakeNvml).items():
        if name.startswith("NVML_"):
            assert getattr(pynvml, name) == value, name
        if name.startswith("nvml"):
            assert hasattr(pynvml, name), name
    for name in (*fake.plain, *fake.by_argument):
        assert callable(getattr(pynvml, name)), name


def test_the_union_of_a_field_value_is_read_by_its_type() -> None:
    from campaign.observe.nvml import convert_field_value

    value = pynvml.c_nvmlFieldValue_t()
    module: Any = pynvml
    for kind, name, number, bits in (
        (module.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 4_000_000_000, 32),
        (module.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 2**60, 64),
        (module.NVML_VALUE_TYPE_DOUBLE, "dVal", 0.5, 64),
    ):
        value.valueType = kind
        setattr(value.value, name, number)
        assert convert_field_value(module, value) == (number, bits)
    value.valueType = 99
    with pytest.raises(ValueError, match="type 99"):
        convert_field_value(module, value)
