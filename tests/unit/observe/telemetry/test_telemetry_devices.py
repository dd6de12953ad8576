"""Counters of devices, against the documented interfaces of NVML, AMD SMI and Sysman; none was seen on hardware here."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.observe.telemetry.samples import SampleSeries, TimeWindow
from campaign.observe.telemetry.sources import DevicesUnreadableError, Probe, SamplerOptions
from campaign.observe.telemetry.sources.amd import create_probes as amd_probes
from campaign.observe.telemetry.sources.intel import create_probes as intel_probes
from campaign.observe.telemetry.sources.nvidia import _ByteCounters, create_probes
from tests.unit.observe.telemetry.fake_nvml import LOST, UNKNOWN, FakeNvml, Gpu

PCIE = {197, 198}


def read(found: list[Probe]) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {}
    for probe in found:
        for part, quantity, value, *_ in probe.read():
            values.setdefault(part, {})[quantity] = value
    return values


def opened(nvml: FakeNvml, interval_s: float = 1.0) -> list[Probe]:
    return create_probes(nvml, SamplerOptions(interval_s))


def test_everything_that_a_device_has() -> None:
    assert read(opened(FakeNvml([Gpu("GPU-a", throttle=0x44)]))) == {
        "gpu:GPU-a": {
            "utilisation_pct": 91,
            "memory_access_pct": 33,
            "memory_used_mib": 3072,
            "power_w": 287.5,
            "energy_j": 4000.5,
            "clock_sm_mhz": 1410,
            "clock_memory_mhz": 1215,
            "temperature_c": 61,
            "capped_power": 1,
            "slowed_thermal": 1,
            "slowed_hardware": 0,
            "clocks_set": 0,
            "pcie_generation": 1,
            "pcie_width": 8,
            "ecc_corrected_count": 2,
            "ecc_uncorrected_count": 0,
            "pcie_received_bytes": 0,
            "pcie_sent_bytes": 0,
            "nvlink_received_bytes": 0,
            "nvlink_sent_bytes": 0,
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
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 3 + 4  # at first its cost is measured


def test_being_idle_and_set_clocks_are_no_throttling() -> None:
    found = read(opened(FakeNvml([Gpu("GPU-a", throttle=0x1 | 0x2 | 0x100)])))["gpu:GPU-a"]
    kinds = ("capped_power", "slowed_thermal", "slowed_hardware", "clocks_set")
    assert [found[kind] for kind in kinds] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("bit", "kind"),
    [
        (0x4, "capped_power"),
        (0x20, "slowed_thermal"),
        (0x40, "slowed_thermal"),
        (0x8, "slowed_hardware"),
        (0x80, "slowed_hardware"),
    ],
)
def test_the_power_limit_is_normal_and_heat_is_not(bit: int, kind: str) -> None:
    found = read(opened(FakeNvml([Gpu("GPU-a", throttle=bit)])))["gpu:GPU-a"]
    kinds = ("capped_power", "slowed_thermal", "slowed_hardware", "clocks_set")
    assert [each for each in kinds if found[each]] == [kind]


def test_a_gpu_that_is_lost_says_so_and_others_go_on() -> None:
    nvml = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    found = opened(nvml)
    read(found)
    nvml.gpus[0].fails = LOST
    told = read(found)
    assert told["gpu:GPU-a"] == {"lost": 1, "xid_count": 0}
    assert told["gpu:GPU-b"]["power_w"] == 287.5
    calls = sum(nvml.calls.values())
    nvml.gpus[1].fails = LOST
    read(found)
    assert sum(nvml.calls.values()) <= calls + 5  # the one that is gone is left alone


def test_a_passing_error_leaves_a_gap_only() -> None:
    nvml = FakeNvml([Gpu("GPU-a")])
    found = opened(nvml)
    whole = read(found)
    nvml.gpus[0].fails = UNKNOWN
    assert read(found) == {"gpu:GPU-a": {"xid_count": 0}}
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


def test_a_host_without_devices_has_no_probes_and_one_whose_driver_fails_says_so() -> None:
    assert opened(FakeNvml([])) == []
    with pytest.raises(DevicesUnreadableError, match="NVML does not respond on the host"):
        opened(FakeNvml([Gpu("GPU-a")], init_fails=9))


def test_parts_of_a_device_are_sampled_by_their_own_identity() -> None:
    """NVML gives a part its memory; the rest is of the whole device."""
    whole_only = {
        *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"),
        *("nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetTotalEccErrors"),
        *("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrPcieLinkGeneration"),
    }
    parts = [Gpu(f"MIG-{n}", whole_only, processes=[(40 + n, 5 << 20)]) for n in range(2)]
    told = read(opened(FakeNvml([Gpu("GPU-a", parts=parts), Gpu("GPU-b")])))
    assert list(told) == ["gpu:MIG-0", "gpu:MIG-1", "gpu:GPU-b"], "no program can use the divided one as a whole"
    assert told["gpu:MIG-1"] == {"memory_used_mib": 3072, "process_41_mib": 5}
    assert told["gpu:GPU-b"]["power_w"] == 287.5


GIGA = 1e9


class Link:
    """A device whose link moves a known number of bytes, by the clock of the test. bits: of the type; width: of the counter."""

    def __init__(self, bits: int, start: int, width: int = 64) -> None:
        self.now, self.moved, self.start, self.width = 0.0, 0, start, width
        self.gpu = Gpu("GPU-a", bits=bits)
        self.nvml = FakeNvml([self.gpu])
        self.move(0.0, 0)

    def move(self, seconds: float, count: int) -> None:
        self.now += seconds
        self.moved += count
        self.gpu.fields |= {197: (self.start + self.moved) % 2**self.width, 198: 0}

    def opened(self, interval_s: float = 1.0) -> list[Probe]:
        return create_probes(self.nvml, SamplerOptions(interval_s), clock=lambda: self.now)


# Seconds and bytes a second between looks; the link is PCIe 5 x16.
_MOVES = st.lists(
    st.tuples(st.floats(1e-3, 3.0), st.one_of(st.floats(0.0, 64 * GIGA), st.sampled_from([13.2 * GIGA, 22 * GIGA]))),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([(32, 32), (64, 64), (64, 32)]), st.integers(0, 2**34), _MOVES)
def test_traffic_is_the_true_one_or_none(bits: tuple[int, int], start: int, moves: list[tuple[float, float]]) -> None:
    """The type of a value may be wider than its counter."""
    link = Link(bits[0], start, bits[1])
    probe: Any = next(
        each for each in link.opened() if isinstance(each, _ByteCounters) and "pcie_sent_bytes" in each.counters
    )
    times, values = [0.0], [read([probe])["gpu:GPU-a"]["pcie_sent_bytes"]]
    for seconds, rate in moves:
        link.move(seconds, int(seconds * rate))
        times.append(link.now)
        values.append(read([probe])["gpu:GPU-a"]["pcie_sent_bytes"])
    told = SampleSeries(tuple(times), tuple(values)).compute_growth_rate(TimeWindow(0.0, link.now))
    assert told is None or told == pytest.approx(link.moved / link.now, rel=1e-6, abs=1.0)
    if all(seconds < probe.max_read_interval_s() for seconds, _ in moves):
        assert told is not None, "read often enough"


@pytest.mark.parametrize("rate", [13.2 * GIGA, 22 * GIGA])
def test_a_counter_of_32_bits_at_one_look_a_second_gives_no_figure(rate: float) -> None:
    """13.2 GB/s came out as 0.32, and 22 as 0.53."""
    link = Link(32, 0)
    values = []
    found = link.opened()
    for second in range(12):
        values.append((float(second), read(found)["gpu:GPU-a"]["pcie_sent_bytes"]))
        link.move(1.0, int(rate))
    series = SampleSeries(*zip(*values, strict=True))
    assert series.compute_growth_rate(TimeWindow(1.0, 10.0)) is None
    assert series.find_max_growth_rate(TimeWindow(1.0, 10.0)) is None


def test_counters_that_cost_too_much_between_samples_are_looked_at_instead() -> None:
    link = Link(32, 0)
    ask = link.nvml.nvmlDeviceGetFieldValues

    def slow(gpu: Gpu, numbers: list[Any]) -> list[Any]:
        link.now += 0.004
        return ask(gpu, numbers)

    link.nvml.nvmlDeviceGetFieldValues = slow  # type: ignore[method-assign]
    told = read(link.opened())["gpu:GPU-a"]
    assert "pcie_sent_bytes" not in told
    assert told["pcie_sent_gb_per_s"] == 1.5


def test_newer_devices_count_the_traffic_of_each_nvlink() -> None:
    data = {(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)}
    links = {(number, link): 2**40 for number in (202, 204) for link in range(3)}
    gpu = Gpu("GPU-a", data, fields=links)
    nvml = FakeNvml([gpu])
    found = create_probes(nvml, SamplerOptions(1.0), clock=iter(float(n) for n in range(1000)).__next__)
    assert read(found)["gpu:GPU-a"]["nvlink_sent_bytes"] == 0
    gpu.fields |= {(202, link): 2**40 + 10**9 for link in range(3)}
    told = read(found)["gpu:GPU-a"]
    assert (told["nvlink_sent_bytes"], told["nvlink_received_bytes"]) == (3e9, 0)


def test_a_counter_whose_width_is_not_known_is_not_read_without_end() -> None:
    """A link of NVLink could pass 2^32 bytes within 4 ms."""
    data = {(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)}
    gpu = Gpu("GPU-a", data, fields={(202, 0): 5, (204, 0): 5})
    nvml, now = FakeNvml([gpu]), {"s": 0.0}
    ask = nvml.nvmlDeviceGetFieldValues

    def timed(gpu: Gpu, numbers: list[Any]) -> list[Any]:
        now["s"] += 2e-4
        return ask(gpu, numbers)

    nvml.nvmlDeviceGetFieldValues = timed  # type: ignore[method-assign]
    (probe,) = [
        each for each in create_probes(nvml, SamplerOptions(1.0), lambda: now["s"]) if isinstance(each, _ByteCounters)
    ]
    assert probe.max_read_interval_s() == float("inf")
    gpu.fields |= {(202, 0): 2**33, (204, 0): 2**33}
    read([probe])
    assert 1.0 < probe.max_read_interval_s() < float("inf"), "64 bits"


def kept(spacing_s: float, count: int, end: float) -> list[tuple[int, int]]:
    return [(int(1e6 * (end - spacing_s * (count - 1 - n))), 1000 * n) for n in range(count)]


@pytest.mark.parametrize(
    ("spacing_s", "set_by_s", "costs_s", "taken"),
    [
        (0.02, 0.0, 1e-4, True),
        (2.0, 0.0, 1e-4, False),  # they come more seldom than looks
        (0.02, 1e6, 1e-4, False),  # by another clock
        (0.02, 0.0, 0.5, False),  # each costs more than a single read
    ],
)
def test_samples_of_the_driver_are_taken_where_they_are_finer_and_cheaper(
    spacing_s: float, set_by_s: float, costs_s: float, taken: bool
) -> None:
    gpu, now = Gpu("GPU-a"), {"s": 0.0}
    nvml = FakeNvml([gpu])
    gpu.samples = {0: kept(spacing_s, 50, time.time() - set_by_s)}
    ask = nvml.nvmlDeviceGetSamples

    def costly(gpu: Gpu, kind: int, since_us: int) -> Any:
        now["s"] += costs_s
        return ask(gpu, kind, since_us)

    def single(gpu: Gpu) -> int:
        now["s"] += 1e-4
        return 287_500

    nvml.nvmlDeviceGetSamples = costly  # type: ignore[method-assign]
    nvml.nvmlDeviceGetPowerUsage = single  # type: ignore[method-assign, attr-defined]
    found = create_probes(nvml, SamplerOptions(1.0), clock=lambda: now["s"])
    gpu.samples = {0: [*gpu.samples[0], *kept(spacing_s, 3, time.time() - set_by_s + 1)]}
    readings = [each for probe in found for each in probe.read() if each[1] == "power_w"]
    assert [each[2] for each in readings] == ([0.0, 1.0, 2.0] if taken else [287.5])
    assert all(len(each) == (4 if taken else 3) for each in readings)


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
    first = {"memory_used_mib": 1024.0, "clock_sm_mhz": 1600.0}
    assert read(found) == {part: first}, "a share of time needs two looks"
    assert read(found) == {part: {**first, "utilisation_pct": pytest.approx(90)}}


def test_intel_without_privileges_or_devices_gives_nothing() -> None:
    assert intel_probes(SimpleNamespace(ZE_RESULT_SUCCESS=0, zesInit=lambda flags: 0x70010000)) == []
