"""NVIDIA devices and their parts (MIG) through NVML (`observe.nvml`). Unverified on hardware: tested only with a substitute.

Source: NVML API Reference Guide. `utilization.gpu` is the share of NVML's own sample period (1/6 to 1 s) in which any kernel ran,
so waiting in a collective counts as busy. `utilization.memory` is the share in which memory was read or written. Power is a mean
over one second on Ampere and later. NVML stores its own latest samples of utilisation, power and clocks (nvmlDeviceGetSamples).
They are used if they are more frequent than the readings of this process, and if one of them costs less than a single reading.

PCIe traffic is read from the byte counters NVML_FI_DEV_PCIE_COUNT_RX_BYTES and _TX_BYTES if the driver has them. They may wrap at
32 bits, which takes 67 ms at the rate of PCIe 5 x16. Until a counter exceeds 32 bits, it is also read between the samples if that
is cheap enough. Otherwise, and with older drivers, nvmlDeviceGetPcieThroughput is used. It measures for 20 ms and returns KB/s, so
at one sample per second it covers 2 % of the time. As each call takes these 20 ms, it is only used at intervals of at least one
second. Directions are from the device's point of view: received data goes from the host to the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any

from campaign.observe.nvml import (
    CounterSum,
    NvmlDevice,
    call_or_none,
    convert_union_value,
    create_nvlink_counters,
    create_pcie_counters,
    decode_text,
    list_devices,
    load_nvml,
)
from campaign.observe.telemetry.sources import DevicesUnreadableError, Probe, SamplerOptions, SensorReading

_MIB = 2**20
_MIN_SLOW_CALL_INTERVAL_S = 1.0
_MAX_COUNTER_READING_SHARE = 0.02
"""Maximum share of a core that reading a device's counters between samples may take."""
_MAX_CLOCK_OFFSET_S = 10.0
_UNSUPPORTED_ERRORS = (
    *("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT"),
    *("NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"),
)
_LOST_DEVICE_ERRORS = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "UNINITIALIZED")
# These are bits of nvmlClocksEventReasons, which earlier drivers call throttle reasons. The power limit is normal under load. Heat
# and the board's protection (including a power brake) are not. `clocks_set` means that a user has set the clocks.
_CLOCK_REASON_BITS = {
    "capped_power": 0x4,
    "slowed_thermal": 0x20 | 0x40,
    "slowed_hardware": 0x8 | 0x80,
    "clocks_set": 0x2,
}

Values = Iterable[tuple[str, float]]
NvmlCall = Callable[[Any, Any], Values]


def _read_utilisation(nvml: Any, handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    yield "utilisation_pct", rates.gpu
    yield "memory_access_pct", rates.memory


def _read_power(nvml: Any, handle: Any) -> Values:
    yield "power_w", nvml.nvmlDeviceGetPowerUsage(handle) / 1e3


def _read_clocks(nvml: Any, handle: Any) -> Values:
    yield "clock_sm_mhz", nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    yield "clock_memory_mhz", nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)


def _read_clock_reasons(nvml: Any, handle: Any) -> Values:
    """Yield each reason for which a device may limit its clocks, with 1 if it currently applies and 0 otherwise."""
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    read_reasons = getattr(nvml, name, None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    reasons = read_reasons(handle)
    for kind, mask in _CLOCK_REASON_BITS.items():
        yield kind, float(bool(reasons & mask))


def _read_ecc_counts(nvml: Any, handle: Any) -> Values:
    for kind in ("CORRECTED", "UNCORRECTED"):
        error = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        yield f"ecc_{kind.lower()}_count", nvml.nvmlDeviceGetTotalEccErrors(handle, error, nvml.NVML_VOLATILE_ECC)


def _read_processes(nvml: Any, handle: Any) -> Values:
    """Yield the memory (MiB) of each process that computes on a device, by process id. It is 0 if NVML hides the value."""
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        yield f"process_{process.pid}_mib", (process.usedGpuMemory or 0) / _MIB


def _read_pcie_link(nvml: Any, handle: Any) -> Values:
    yield "pcie_generation", nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
    yield "pcie_width", nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)


def _read_pcie_throughput(nvml: Any, handle: Any) -> Values:
    for quantity, name in (("pcie_received_gb_per_s", "RX"), ("pcie_sent_gb_per_s", "TX")):
        counter = getattr(nvml, f"NVML_PCIE_UTIL_{name}_BYTES")
        yield quantity, nvml.nvmlDeviceGetPcieThroughput(handle, counter) / 1e6


def _choose_memory_call(nvml: Any) -> NvmlCall:
    """Return the NVML call that reads used memory, in its second version if available.

    The second version excludes the memory that the driver reserves.
    """
    version, name = {}, "memory_used_with_reserved_mib"
    if hasattr(nvml, "nvmlMemory_v2"):
        version, name = {"version": nvml.nvmlMemory_v2}, "memory_used_mib"
    return lambda nvml, handle: [(name, nvml.nvmlDeviceGetMemoryInfo(handle, **version).used / _MIB)]


_COMMON_CALLS: tuple[NvmlCall, ...] = (
    lambda nvml, handle: [("energy_j", nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)],
    lambda nvml, handle: [("temperature_c", nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))],
    _read_clock_reasons,
    _read_ecc_counts,
    _read_pcie_link,
    _read_processes,
)


@dataclass(frozen=True, slots=True)
class _SampledQuantity:
    """Quantity that NVML itself samples, with its NVML constant and the divisor that converts its values."""

    quantity: str
    constant: str
    divisor: float = 1.0


_SAMPLED_QUANTITIES: Sequence[tuple[NvmlCall, tuple[_SampledQuantity, ...]]] = (
    (
        _read_utilisation,
        (
            _SampledQuantity("utilisation_pct", "NVML_GPU_UTILIZATION_SAMPLES"),
            _SampledQuantity("memory_access_pct", "NVML_MEMORY_UTILIZATION_SAMPLES"),
        ),
    ),
    (_read_power, (_SampledQuantity("power_w", "NVML_TOTAL_POWER_SAMPLES", 1e3),)),
    (
        _read_clocks,
        (
            _SampledQuantity("clock_sm_mhz", "NVML_PROCESSOR_CLK_SAMPLES"),
            _SampledQuantity("clock_memory_mhz", "NVML_MEMORY_CLK_SAMPLES"),
        ),
    ),
)


@dataclass
class _NvmlSamples:
    """Probe of the samples, with their times, that NVML has stored for a device since the last reading."""

    nvml: Any
    handle: Any
    part: str
    kinds: Sequence[_SampledQuantity]
    last_sample_us: dict[str, int] = field(default_factory=dict)

    def read_new(self, kind: _SampledQuantity) -> list[tuple[float, float]]:
        """Return the new samples of a quantity as pairs (Unix time, value). Raises NVMLError if NVML has none."""
        since = self.last_sample_us.get(kind.quantity, 0)
        constant = getattr(self.nvml, kind.constant)
        value_type, samples = self.nvml.nvmlDeviceGetSamples(self.handle, constant, since)
        new = sorted((sample for sample in samples if sample.timeStamp > since), key=lambda sample: sample.timeStamp)
        if new:
            self.last_sample_us[kind.quantity] = new[-1].timeStamp
        values = (convert_union_value(self.nvml, sample.sampleValue, value_type)[0] / kind.divisor for sample in new)
        return [(sample.timeStamp / 1e6, value) for sample, value in zip(new, values, strict=True)]

    def read(self) -> Iterator[SensorReading]:
        for kind in self.kinds:
            for sample_time, value in call_or_none(self.nvml, lambda kind=kind: self.read_new(kind)) or ():  # type: ignore[misc]
                yield self.part, kind.quantity, value, sample_time

    def is_cheaper_than_reading(self, single_s: float, interval_s: float, clock: Callable[[], float]) -> bool:
        """Return whether using NVML's stored samples is better than reading single values.

        For that, their times must agree with this host's clock, and they must be more frequent and cheaper than single readings.

        Args:
            single_s: duration of a single reading in seconds.
            interval_s: sampling interval in seconds.
            clock: monotonic clock in seconds.
        """
        started_s = clock()
        samples_by_kind = [call_or_none(self.nvml, lambda kind=kind: self.read_new(kind)) for kind in self.kinds]  # type: ignore[misc]
        cost_s = clock() - started_s
        if not all(samples_by_kind):
            return False
        spacing_s = max(
            (samples[-1][0] - samples[0][0]) / max(1, len(samples) - 1) for samples in samples_by_kind if samples
        )
        clocks_agree = all(
            samples and abs(samples[-1][0] - time.time()) < _MAX_CLOCK_OFFSET_S for samples in samples_by_kind
        )
        return clocks_agree and 0 < spacing_s < interval_s and cost_s * spacing_s / interval_s < single_s


@dataclass
class _NvidiaDevice:
    """Probe of one NVIDIA device through several calls. Calls that the device does not support are not repeated."""

    nvml: Any
    handle: Any
    part: str
    calls: list[NvmlCall]
    lost: bool = False

    def read(self) -> Iterator[SensorReading]:
        for call in tuple(self.calls):
            if self.lost:
                return
            try:
                yield from [(self.part, quantity, float(value)) for quantity, value in call(self.nvml, self.handle)]
            except self.nvml.NVMLError as error:
                if error.value in _list_error_codes(self.nvml, _LOST_DEVICE_ERRORS):
                    self.lost = True
                    yield self.part, "lost", 1.0
                elif error.value in _list_error_codes(self.nvml, _UNSUPPORTED_ERRORS):
                    self.calls.remove(call)
            except (AttributeError, TypeError, ValueError):
                self.calls.remove(call)  # The package is older than this call.


class _ByteCounters(_NvidiaDevice):
    """Probe of the byte counters of one device, by quantity."""

    def __init__(
        self, nvml: Any, device: NvmlDevice, counters: dict[str, CounterSum], clock: Callable[[], float]
    ) -> None:
        super().__init__(nvml, device.handle, f"gpu:{device.uuid}", [self._read_totals])
        self.counters, self._clock = counters, clock
        self._cost_s = _measure_seconds(lambda: list(self.read()), clock)

    def _read_totals(self, nvml: Any, handle: Any) -> Values:
        for quantity, counters in self.counters.items():
            if (total := counters.read_total(self._clock())) is not None:
                yield quantity, total

    def max_read_interval_s(self) -> float:
        """Return the longest interval (seconds) between readings at which no wrap is missed.

        The result is infinity if such frequent readings would cost too much. Counts then have gaps until the width of the counters
        is known.
        """
        needed_s = min(counter.max_read_interval_s() for counter in self.counters.values())
        return needed_s if self.is_cheap(needed_s) else float("inf")

    def is_cheap(self, interval_s: float) -> bool:
        """Return whether reading the counters at this interval (seconds) takes only an acceptable share of a core."""
        return self._cost_s <= _MAX_COUNTER_READING_SHARE * interval_s


@dataclass
class _XidProbe:
    """Probe that counts the error events (Xid) that the driver reports for devices. It polls without waiting."""

    nvml: Any
    events: Any
    counts: dict[str, int]

    def read(self) -> Iterator[SensorReading]:
        for _ in range(64):  # The number is limited, because an error can repeat faster than it is read.
            try:
                event = self.nvml.nvmlEventSetWait_v2(self.events, 0)
            except self.nvml.NVMLError:
                break  # There is no further event.
            part = f"gpu:{decode_text(self.nvml.nvmlDeviceGetUUID(event.device))}"
            self.counts[part] = self.counts.get(part, 0) + 1
            yield part, "xid", float(event.eventData)
        for part, count in self.counts.items():
            yield part, "xid_count", float(count)


def _list_error_codes(nvml: Any, names: Sequence[str]) -> list[int]:
    """Return the codes of NVML errors by their names. Names that the package does not define are left out."""
    return [getattr(nvml, f"NVML_ERROR_{name}") for name in names if hasattr(nvml, f"NVML_ERROR_{name}")]


def _create_xid_probe(nvml: Any, devices: Sequence[NvmlDevice]) -> _XidProbe | None:
    """Create a probe of all devices that report Xid errors, with counts of 0. Returns None if there are none."""
    try:
        events = nvml.nvmlEventSetCreate()
    except (nvml.NVMLError, AttributeError):
        return None
    counts = {}
    for device in devices:
        try:
            nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            continue
        counts[f"gpu:{device.uuid}"] = 0
    return _XidProbe(nvml, events, counts) if counts else None


def _measure_seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Call a function three times, and return the median duration in seconds."""

    def time_call() -> float:
        started_s = clock()
        call()
        return clock() - started_s

    return median(time_call() for _ in range(3))


def create_probes(
    nvml: ModuleType | Any, options: SamplerOptions, clock: Callable[[], float] = time.monotonic
) -> list[Probe]:
    """Create the probes of all NVIDIA devices and their parts, using a module with NVML's functions.

    Raises DevicesUnreadableError if the driver does not respond.

    Args:
        nvml: module with NVML's functions.
        options: options of the sampler.
        clock: monotonic clock in seconds.
    """
    try:
        devices = list_devices(nvml)
    except nvml.NVMLError as error:
        raise DevicesUnreadableError(f"NVML does not respond on the host: {error}") from error
    # Programs can only use the parts of a divided device.
    divided_uuids = {device.parent_uuid for device in devices}
    devices = [device for device in devices if device.uuid not in divided_uuids]
    all_probes: list[Probe] = []
    for device in devices:
        all_probes += _create_device_probes(nvml, device, options, clock)
    xid = _create_xid_probe(nvml, [device for device in devices if not device.parent_uuid])
    return [*all_probes, *([xid] if xid else [])]


def _read_or_none(nvml: Any, call: NvmlCall, handle: Any) -> Any:
    """Read values from a device by one call. Returns None if the device does not support the call."""
    return call_or_none(nvml, lambda: list(call(nvml, handle)))


def _create_device_probes(
    nvml: Any, device: NvmlDevice, options: SamplerOptions, clock: Callable[[], float]
) -> Iterator[Probe]:
    """Create the probes of one NVIDIA device or part: those of its values, its stored samples and its counters."""
    handle, part = device.handle, f"gpu:{device.uuid}"
    calls: list[NvmlCall] = [_choose_memory_call(nvml), *_COMMON_CALLS]
    for read_single, kinds in _SAMPLED_QUANTITIES:
        samples = _NvmlSamples(nvml, handle, part, kinds)
        read = partial(_read_or_none, nvml, read_single, handle)
        single_s = _measure_seconds(read, clock)
        if samples.is_cheaper_than_reading(single_s, options.interval_s, clock):
            yield samples
        else:
            calls.append(read_single)
    if device.parent_uuid:
        yield _NvidiaDevice(nvml, handle, part, calls)
        return
    counters = create_pcie_counters(nvml, handle)
    pcie = _ByteCounters(nvml, device, counters, clock) if counters else None
    if pcie is not None and pcie.is_cheap(min(counter.max_read_interval_s() for counter in counters.values())):
        yield pcie
    elif options.interval_s >= _MIN_SLOW_CALL_INTERVAL_S:
        calls.append(_read_pcie_throughput)
    if counters := create_nvlink_counters(nvml, handle):
        yield _ByteCounters(nvml, device, counters, clock)
    yield _NvidiaDevice(nvml, handle, part, calls)


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    """Open the probes of this host's NVIDIA devices. Raises DevicesUnreadableError if they cannot be read."""
    nvml, problem = load_nvml()
    if problem:
        raise DevicesUnreadableError(problem)
    return create_probes(nvml, options) if nvml else []
