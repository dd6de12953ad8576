"""Counters of devices, against the documented interfaces of NVML, AMD SMI and Sysman; none was seen on hardware here."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from campaign.observe.telemetry.sources import Probe, SamplerOptions
from campaign.observe.telemetry.sources.amd import probes as amd_probes
from campaign.observe.telemetry.sources.intel import probes as intel_probes
from campaign.observe.telemetry.sources.nvidia import probes
from tests.unit.observe.telemetry.fake_nvml import LOST, UNKNOWN, FakeNvml, Gpu

PCIE = {197, 198}


def read(found: list[Probe]) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {}
    for probe in found:
        for part, quantity, value in probe.read():
            values.setdefault(part, {})[quantity] = value
    return values


def opened(nvml: FakeNvml, interval_s: float = 1.0) -> list[Probe]:
    return probes(nvml, SamplerOptions(interval_s))


def test_everything_that_a_device_has() -> None:
    assert read(opened(FakeNvml([Gpu("GPU-a", throttle=0x44)]))) == {
        "gpu:GPU-a": {
            "index": 0,
            "utilisation_pct": 91,
            "memory_access_pct": 33,
            "memory_used_mib": 3072,
            "power_w": 287.5,
            "energy_j": 4000.5,
            "clock_sm_mhz": 1410,
            "clock_memory_mhz": 1215,
            "temperature_c": 61,
            "throttled_power": 1,
            "throttled_thermal": 1,
            "throttled_hardware": 0,
            "ecc_corrected_count": 2,
            "ecc_uncorrected_count": 0,
            "pcie_received_bytes": 7000,
            "pcie_sent_bytes": 5000,
            "nvlink_received_bytes": 4096,
            "nvlink_sent_bytes": 3072,
            "xid_count": 0,
        }
    }


def test_what_is_not_supported_is_absent_and_not_asked_again() -> None:
    missing = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceRegisterEvents"}
    nvml = FakeNvml([Gpu("GPU-a", missing | {(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)})])
    found = opened(nvml)
    first = read(found)["gpu:GPU-a"]
    assert not {name for name in first if name.startswith(("energy", "ecc", "xid", "nvlink"))}
    assert {"power_w", "temperature_c", "pcie_sent_bytes"} <= first.keys()
    for _ in range(3):
        assert read(found)["gpu:GPU-a"] == first
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 1
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 4


def test_being_idle_and_set_clocks_are_no_throttling() -> None:
    found = read(opened(FakeNvml([Gpu("GPU-a", throttle=0x1 | 0x2 | 0x100)])))["gpu:GPU-a"]
    assert [found[f"throttled_{kind}"] for kind in ("power", "thermal", "hardware")] == [0, 0, 0]


def test_a_gpu_that_is_lost_says_so_and_others_go_on() -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    found = opened(nvml)
    read(found)
    nvml.gpus[0].fails = LOST
    told = read(found)
    assert told["gpu:GPU-a"] == {"index": 0, "lost": 1, "xid_count": 0}
    assert told["gpu:GPU-b"]["power_w"] == 287.5
    calls = sum(nvml.calls.values())
    nvml.gpus[1].fails = LOST
    read(found)
    assert sum(nvml.calls.values()) <= calls + 3  # the one that is gone is left alone


def test_a_passing_error_leaves_a_gap_only() -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    found = opened(nvml)
    whole = read(found)
    nvml.gpus[0].fails = UNKNOWN
    assert read(found) == {"gpu:GPU-a": {"index": 0, "xid_count": 0}}
    nvml.gpus[0].fails = 0
    assert read(found) == whole


def test_xid_events_are_counted_and_named() -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b", xid=[79, 79])])
    found = opened(nvml)
    told = read(found)
    assert (told["gpu:GPU-a"]["xid_count"], told["gpu:GPU-b"]["xid_count"], told["gpu:GPU-b"]["xid"]) == (0, 2, 79)
    assert read(found)["gpu:GPU-b"]["xid_count"] == 2
    assert "xid" not in read(found)["gpu:GPU-b"]


@pytest.mark.parametrize(("interval_s", "looks"), [(1.0, True), (0.1, False)])
def test_older_drivers_are_looked_at_where_there_is_time(interval_s: float, looks: bool) -> None:
    nvml = FakeNvml([Gpu("GPU-a", set(PCIE))])
    told = read(opened(nvml, interval_s))["gpu:GPU-a"]
    assert "pcie_received_bytes" not in told
    assert (told.get("pcie_received_gb_per_s"), told.get("pcie_sent_gb_per_s")) == (
        (2.5, 1.5) if looks else (None, None)
    )
    assert ("nvmlDeviceGetPcieThroughput" in nvml.calls) is looks


@pytest.mark.parametrize("nvml", [FakeNvml([]), FakeNvml([Gpu("GPU-a")], init_fails=9)])
def test_a_host_without_devices_or_driver_has_no_probes(nvml: FakeNvml) -> None:
    assert opened(nvml) == []


def test_amd_devices_leave_out_what_is_not_there() -> None:
    class AmdSmiException(Exception):
        pass

    def no_ecc(handle: str) -> Any:
        raise AmdSmiException

    kinds = {"AmdSmiMemoryType": SimpleNamespace(VRAM=0), "AmdSmiClkType": SimpleNamespace(GFX=0, MEM=4)}
    temperatures = {
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
    }
    smi = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a"],
        amdsmi_get_gpu_device_uuid=lambda handle: "u-1",
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 77, "umc_activity": "N/A"},
        amdsmi_get_gpu_memory_usage=lambda handle, kind: 5 << 20,
        amdsmi_get_power_info=lambda handle: {"current_socket_power": "N/A", "average_socket_power": 210},
        amdsmi_get_energy_count=lambda handle: {"energy_accumulator": 10_000_000, "counter_resolution": 15.3},
        amdsmi_get_temp_metric=lambda handle, kind, metric: 55,
        amdsmi_get_clock_info=lambda handle, kind: {"clk": 1700 if kind == 0 else "N/A"},
        amdsmi_get_gpu_total_ecc_count=no_ecc,
        **kinds,
        **temperatures,
    )
    assert read(amd_probes(smi)) == {
        "gpu:u-1": {
            "utilisation_pct": 77,
            "memory_used_mib": 5,
            "power_w": 210,
            "energy_j": pytest.approx(153),
            "temperature_c": 55,
            "clock_sm_mhz": 1700,
        }
    }


def fill(structure: Any, **values: Any) -> int:
    for name, value in values.items():
        setattr(structure._obj, name, value)
    return 0


class FakeSysman(SimpleNamespace):
    """pyzes with one card of two tiles, 40 % and 90 % busy, whose power and temperature need privileges."""

    ZE_RESULT_SUCCESS, ZES_MEM_LOC_DEVICE, ZES_ENGINE_GROUP_ALL = 0, 1, 0
    reads = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("ZES_"):
            return 7
        if name.endswith("_handle_t"):
            return ctypes.c_uint32
        if name.endswith("_t"):
            fields = {"uuid": SimpleNamespace(id=bytes(range(16)))}
            return type(name, (ctypes.Structure,), {"_fields_": [], "core": SimpleNamespace(**fields)})
        counts = {"zesDriverGet": 1, "zesDeviceGet": 1, "zesDeviceEnumMemoryModules": 2, "zesDeviceEnumEngineGroups": 2,
                  "zesDeviceEnumFrequencyDomains": 1, "zesDeviceEnumPowerDomains": 1}  # fmt: skip
        if name in counts:
            return lambda *arguments: self.numbered(counts[name], *arguments[-2:])
        return lambda *_: 0 if name in ("zesInit", "zesDeviceGetProperties") else 1

    @staticmethod
    def numbered(count: int, counter: Any, handles: Any) -> int:
        counter._obj.value = count
        for index in range(count if handles else 0):
            handles[index] = index
        return 0

    def zesMemoryGetProperties(self, handle: int, structure: Any) -> int:
        return fill(structure, location=1)

    def zesMemoryGetState(self, handle: int, structure: Any) -> int:
        return fill(structure, size=64 << 30, free=(64 << 30) - (512 << 20))

    def zesFrequencyGetState(self, handle: int, structure: Any) -> int:
        return fill(structure, actual=1600.0)

    def zesEngineGetProperties(self, handle: int, structure: Any) -> int:
        return fill(structure, type=0)

    def zesEngineGetActivity(self, handle: int, structure: Any) -> int:
        self.reads += 1
        ticks = (self.reads + 1) // 2
        return fill(structure, activeTime=ticks * (900_000 if handle else 400_000), timestamp=ticks * 1_000_000)


def test_intel_cards_are_as_busy_as_their_busiest_tile_and_leave_out_what_is_refused() -> None:
    found = intel_probes(FakeSysman())
    part = "gpu:00010203-0405-0607-0809-0a0b0c0d0e0f"
    first = {"index": 0.0, "memory_used_mib": 1024.0, "clock_sm_mhz": 1600.0}
    assert read(found) == {part: first}, "a share of time needs two looks"
    assert read(found) == {part: {**first, "utilisation_pct": pytest.approx(90)}}


def test_intel_without_privileges_or_devices_gives_nothing() -> None:
    assert intel_probes(SimpleNamespace(ZE_RESULT_SUCCESS=0, zesInit=lambda flags: 0x70010000)) == []
