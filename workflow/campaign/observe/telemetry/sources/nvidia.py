"""NVIDIA devices, through NVML (package nvidia-ml-py). Unverified on hardware: tested against the documented interface only.

Source: NVML API Reference Guide. `utilization.gpu` is the share of NVML's own sample period (1/6 to 1 s) in which any kernel ran,
so waiting in a collective counts as busy; `utilization.memory` is the share in which memory was read or written.

PCIe traffic: the byte counters of the field values NVML_FI_DEV_PCIE_COUNT_RX_BYTES and _TX_BYTES where the driver has them. Older
ones have nvmlDeviceGetPcieThroughput only, which looks for 20 ms and gives KB/s: at one sample a second it sees 2 % of the time,
and each call takes those 20 ms, so that it is asked from one sample a second on only. Directions are as the device sees them:
received is host to device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from campaign.observe.telemetry.sources import Probe, Reading, SamplerOptions

_MIB = 2**20
_ALL_LINKS = 0xFFFFFFFF
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")
_SLOW_CALLS_S = 1.0
_NEVER = (
    *("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT"),
    *("NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"),
)
_VALUE_TYPES = {
    **{"DOUBLE": "dVal", "UNSIGNED_INT": "uiVal", "UNSIGNED_LONG": "ulVal", "UNSIGNED_LONG_LONG": "ullVal"},
    **{"SIGNED_LONG_LONG": "sllVal", "SIGNED_INT": "siVal"},
}
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "UNINITIALIZED")
_POWER = ("SwPowerCap", "HwPowerBrakeSlowdown")
_THERMAL = ("SwThermalSlowdown", "HwThermalSlowdown")
_HARDWARE = ("HwSlowdown",)

Values = Iterable[tuple[str, float]]
Call = Callable[[Any, Any], Values]


def _utilisation(nvml: Any, handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    yield "utilisation_pct", rates.gpu
    yield "memory_access_pct", rates.memory


def _throttled(nvml: Any, handle: Any) -> Values:
    """Idle, and clocks that somebody has set, are no throttling."""
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    for kind, names in {"power": _POWER, "thermal": _THERMAL, "hardware": _HARDWARE}.items():
        mask = sum(getattr(nvml, f"nvmlClocksThrottleReason{name}") for name in names)
        yield f"throttled_{kind}", float(bool(reasons & mask))


def _ecc(nvml: Any, handle: Any) -> Values:
    for kind in ("CORRECTED", "UNCORRECTED"):
        error = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        yield f"ecc_{kind.lower()}_count", nvml.nvmlDeviceGetTotalEccErrors(handle, error, nvml.NVML_VOLATILE_ECC)


def _traffic(nvml: Any, handle: Any) -> Values:
    """Byte counters; each field says for itself whether the device has it."""
    fields = {
        "pcie_received_bytes": (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1),
        "pcie_sent_bytes": (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1),
        "nvlink_received_bytes": ((nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS), 1024),
        "nvlink_sent_bytes": ((nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS), 1024),
    }
    found = nvml.nvmlDeviceGetFieldValues(handle, [number for number, _ in fields.values()])
    for (quantity, (_, factor)), each in zip(fields.items(), found, strict=True):
        if each.nvmlReturn == nvml.NVML_SUCCESS:
            yield quantity, field_value(nvml, each) * factor


def field_value(nvml: Any, found: Any) -> float:
    """The number in the union of a field value, by its type; ValueError: a type that is not known."""
    for kind, name in _VALUE_TYPES.items():
        if found.valueType == getattr(nvml, f"NVML_VALUE_TYPE_{kind}", None):
            return float(getattr(found.value, name))
    raise ValueError(f"a field value of type {found.valueType}")


def _pcie_looks(nvml: Any, handle: Any) -> Values:
    for quantity, name in (("pcie_received_gb_per_s", "RX"), ("pcie_sent_gb_per_s", "TX")):
        counter = getattr(nvml, f"NVML_PCIE_UTIL_{name}_BYTES")
        yield quantity, nvml.nvmlDeviceGetPcieThroughput(handle, counter) / 1e6


_SLOW: tuple[Call, ...] = (
    lambda nvml, handle: [
        (f"clock_{name}_mhz", nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, f"NVML_CLOCK_{clock}")))
        for name, clock in (("sm", "SM"), ("memory", "MEM"))
    ],
    lambda nvml, handle: [("temperature_c", nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))],
    _throttled,
    _ecc,
)


def _fast(nvml: Any) -> list[Call]:
    """What changes fast. The second version of the call for memory does not count what the driver keeps for itself."""
    version, name = {}, "memory_used_with_reserved_mib"
    if hasattr(nvml, "nvmlMemory_v2"):
        version, name = {"version": nvml.nvmlMemory_v2}, "memory_used_mib"
    return [
        _utilisation,
        lambda nvml, handle: [(name, nvml.nvmlDeviceGetMemoryInfo(handle, **version).used / _MIB)],
        lambda nvml, handle: [("power_w", nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)],
        lambda nvml, handle: [("energy_j", nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)],
    ]


@dataclass
class _Device:
    """Some calls for one device; those that it does not know are not made again."""

    nvml: Any
    handle: Any
    part: str
    calls: list[Call]
    lost: bool = False

    def read(self) -> Iterator[Reading]:
        for call in tuple(self.calls):
            if self.lost:
                return
            try:
                yield from [(self.part, quantity, float(value)) for quantity, value in call(self.nvml, self.handle)]
            except self.nvml.NVMLError as error:
                if error.value in _codes(self.nvml, _LOST):
                    self.lost = True
                    yield self.part, "lost", 1.0
                elif error.value in _codes(self.nvml, _NEVER):
                    self.calls.remove(call)
            except (AttributeError, TypeError, ValueError):
                self.calls.remove(call)  # a package that is older than the call


@dataclass
class _Numbers:
    """CUDA's number of each device, where nothing reorders them (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""

    readings: list[Reading]

    def read(self) -> list[Reading]:
        return self.readings


@dataclass
class _Xid:
    """Events with which the driver tells of a device's errors (Xid), counted; asked without waiting."""

    nvml: Any
    events: Any
    counts: dict[str, int]

    def read(self) -> Iterator[Reading]:
        for _ in range(64):  # an error can repeat faster than it is read
            try:
                event = self.nvml.nvmlEventSetWait_v2(self.events, 0)
            except self.nvml.NVMLError:
                break  # there is none
            part = f"gpu:{_text(self.nvml.nvmlDeviceGetUUID(event.device))}"
            self.counts[part] = self.counts.get(part, 0) + 1
            yield part, "xid", float(event.eventData)
        for part, count in self.counts.items():
            yield part, "xid_count", float(count)


def _codes(nvml: Any, names: Sequence[str]) -> list[int]:
    return [getattr(nvml, f"NVML_ERROR_{name}") for name in names if hasattr(nvml, f"NVML_ERROR_{name}")]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _xid(nvml: Any, handles: dict[str, Any]) -> _Xid | None:
    """A probe of devices that tell of errors; a device that has told none has counted 0."""
    try:
        events = nvml.nvmlEventSetCreate()
    except (nvml.NVMLError, AttributeError):
        return None
    counts = {}
    for part, handle in handles.items():
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            continue
        counts[part] = 0
    return _Xid(nvml, events, counts) if counts else None


def probes(nvml: ModuleType | Any, asked: SamplerOptions) -> list[Probe]:
    """Probes through a module with NVML's functions: for each device what changes fast, then what it has besides."""
    try:
        nvml.nvmlInit()
        handles = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            handles[f"gpu:{_text(nvml.nvmlDeviceGetUUID(handle))}"] = handle
    except nvml.NVMLError:
        return []
    found: list[Probe] = [_Numbers([(part, "index", float(index)) for index, part in enumerate(handles)])]
    found += [_Device(nvml, handle, part, _fast(nvml)) for part, handle in handles.items()]
    for part, handle in handles.items():
        traffic = _Device(nvml, handle, part, [_traffic])
        has_counters = any(quantity.startswith("pcie") for _, quantity, _ in traffic.read())
        looks = [] if has_counters or asked.interval_s < _SLOW_CALLS_S else [_pcie_looks]
        found += [traffic, _Device(nvml, handle, part, [*_SLOW, *looks])]
    xid = _xid(nvml, handles)
    return [*found, *([xid] if xid else [])] if handles else []


def open_probes(asked: SamplerOptions, drivers: Sequence[str] = _DRIVERS) -> Sequence[Probe]:
    # Loading the package takes longer than everything else that a sampler does at its start.
    if not any(Path(driver).exists() for driver in drivers):
        return []
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return []
    return probes(pynvml, asked)
