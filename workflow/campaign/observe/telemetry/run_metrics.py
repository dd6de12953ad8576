"""Metrics of a run from its samples: mean and peak of each quantity over a window, for the used devices and hosts.

A mean is per device or per host. A peak is the highest value of any device or host. Energy and events are totals. A quantity gives
no metric unless it was sampled from the window's start to its end. A machine on which several hosts are emulated has one set of
processors, memory and disks, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from campaign.observe.telemetry.samples import HostSamples, SampleSeries, TimeWindow, sum_counters

_UUID_PATTERN = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_GB = 1e9
T = TypeVar("T")
_MIN_SAMPLES = 5
_MIN_BUSY_PCT, _MIN_CONTEXT_MIB = 1.0, 32.0

SHARED_MACHINE_FLAG = "telemetry: emulated hosts share one machine's counters"
WHOLE_RUN_FLAG = "telemetry over the whole run"
SHORT_PCIE_SAMPLES_FLAG = "telemetry: PCIe rates are from looks of 20 ms"
DEVICE_PART_FLAG = (
    "telemetry: NVML reports only the memory of a part of a device (MIG), not its power, clocks and traffic"
)
PART_PREFIX = "gpu:MIG-"

# Names of the mean and the peak by quantity.
_VALUE_METRICS: Mapping[str, tuple[str, str]] = {
    "utilisation_pct": ("device_utilisation_mean_pct", "device_utilisation_peak_pct"),
    "memory_access_pct": ("device_memory_access_mean_pct", "device_memory_access_peak_pct"),
    "memory_used_mib": ("device_memory_mean_mib", "device_memory_peak_mib"),
    "memory_used_with_reserved_mib": ("device_memory_reserved_mean_mib", "device_memory_reserved_peak_mib"),
    "power_w": ("device_power_mean_w", "device_power_peak_w"),
    "temperature_c": ("device_temperature_mean_c", "device_temperature_peak_c"),
    "clock_sm_mhz": ("device_clock_sm_mean_mhz", ""),
    "clock_memory_mhz": ("device_clock_memory_mean_mhz", ""),
    "pcie_received_gb_per_s": ("pcie_rx_mean_gb_per_s", "pcie_rx_peak_gb_per_s"),
    "pcie_sent_gb_per_s": ("pcie_tx_mean_gb_per_s", "pcie_tx_peak_gb_per_s"),
}
_DEVICE_RATE_METRICS: Mapping[str, str] = {
    "pcie_received_bytes": "pcie_rx",
    "pcie_sent_bytes": "pcie_tx",
    "nvlink_received_bytes": "nvlink_rx",
    "nvlink_sent_bytes": "nvlink_tx",
}
_EVENT_METRICS: Mapping[str, str] = {
    "ecc_corrected_count": "ecc_corrected",
    "ecc_uncorrected_count": "ecc_uncorrected",
    "xid_count": "xid_events",
}
# Each entry has the kinds of parts whose counters are summed on a host, the quantity, and the name of the metric.
_MACHINE_RATE_METRICS = ((("disk",), "disk_read_bytes", "disk_read"), (("disk",), "disk_written_bytes", "disk_written"))
_NETWORK_RATE_METRICS = (
    (("nic", "port"), "received_bytes", "network_rx"),
    (("nic", "port"), "sent_bytes", "network_tx"),
    (("loopback",), "received_bytes", "loopback_rx"),
)


@dataclass(frozen=True, slots=True)
class UsedDeviceNames:
    """Names of the devices that a run used on the host of one sampler.

    Attributes:
        host_names: names of the devices according to the host; None for a device without a name.
        reported_uuids: UUIDs reported by the ranks, one per device; empty if none are reported.
    """

    host_names: tuple[str | None, ...] = ()
    reported_uuids: tuple[str, ...] = ()

    def match_names(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return the names by which the used devices appear among the parts of a host, or an empty tuple if unknown.

        For whole NVIDIA devices, the UUIDs reported by ranks take precedence. They do not for parts (MIG), because ranks may
        report the whole device, nor for devices of other vendors, because torch's UUIDs differ from those of the vendors' tools.
        """
        uuids = tuple(name for name in self.host_names if name and _UUID_PATTERN.fullmatch(name))
        has_parts = any(name.startswith("MIG-") for name in uuids)
        if self.reported_uuids and not has_parts and any(part.startswith(("gpu:GPU-", PART_PREFIX)) for part in parts):
            return self.reported_uuids
        return uuids if len(uuids) == len(self.host_names) else ()


def parse_reported_uuids(ran_on: Sequence[str]) -> tuple[str | None, ...]:
    """Extract the UUID at the end of each rank's device description (`Record.ran_on`), or None if there is none."""
    words = (description.rpartition(" ")[2] for description in ran_on)
    return tuple(word if _UUID_PATTERN.fullmatch(word) else None for word in words)


@dataclass(frozen=True)
class _SampledDevice:
    """Device of a host, together with the samples of that host."""

    samples: HostSamples
    part: str

    def find_series(self, quantity: str) -> SampleSeries | None:
        return self.samples.find_series(self.part, quantity)

    def find_covering_series(self, quantity: str, window: TimeWindow) -> SampleSeries | None:
        return _find_covering_series(self.samples, self.part, quantity, window)


def summarize_run(
    hosts: Sequence[HostSamples], window: TimeWindow, used_names: Mapping[str, UsedDeviceNames], samples: float | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Compute the metrics and flags of a run from the telemetry samples of its hosts.

    Args:
        hosts: samples of each host.
        window: window over which metrics are computed.
        used_names: names of the used devices by the host name of their sampler.
        samples: number of training samples that the run processed in the window.
    """
    devices, problems = find_used_devices(hosts, used_names)
    flags = [f"telemetry: {problem}" for problem in problems]
    metrics = {} if problems else dict(_compute_device_metrics(devices, window, samples))
    metrics |= _compute_host_metrics(hosts, window)
    if not problems:
        flags += (
            [SHORT_PCIE_SAMPLES_FLAG] if any(device.find_series("pcie_received_gb_per_s") for device in devices) else []
        )
        flags += [
            f"telemetry: {item.part} on {item.samples.host} was lost" for item in devices if item.find_series("lost")
        ]
        flags += [
            f"telemetry: {item.part} {sparse_samples}"
            for item in devices
            if (sparse_samples := _describe_sparse_samples(item, window))
        ]
        flags += [DEVICE_PART_FLAG] if any(device.part.startswith(PART_PREFIX) for device in devices) else []
    return metrics, tuple(flags)


def find_disturbances(hosts: Sequence[HostSamples], used_names: Mapping[str, UsedDeviceNames]) -> tuple[str, ...]:
    """Describe what disturbed a run from outside: other processes on its devices, and changed clocks of its hosts."""
    devices, _ = find_used_devices(hosts, used_names)
    return (
        *(message for device in devices for message in _describe_other_processes(device)),
        *(
            f"the clock of {item.host} was changed by {item.jumped_s:.1f} s during the run"
            for item in hosts
            if item.jumped_s
        ),
    )


def _describe_sparse_samples(device: _SampledDevice, window: TimeWindow) -> str:
    """Describe how much of the window a device's samples cover. Returns an empty string if it is enough for metrics."""
    series = next(filter(None, map(device.find_series, ("power_w", "memory_used_mib", "utilisation_pct"))), None)
    interval_s = device.samples.interval_s
    if series is None or series.covers(window, interval_s) or device.find_series("lost"):
        return ""
    count, share = len(series.restrict(window).times), series.compute_covered_share(window, interval_s)
    return (
        f"was sampled in only {100 * share:.0f} % of the window ({count} samples in {window.length_s:.3g} s, interval "
        f"{interval_s:.3g} s), which is too little for metrics"
    )


def _describe_other_processes(device: _SampledDevice) -> Iterator[str]:
    """Describe processes that used a device both before and during the run, so that they cannot belong to the run."""
    for quantity in device.samples.earlier.get(device.part, {}):
        process_series = device.find_series(quantity) if quantity.startswith("process_") else None
        if process_series and len(process_series.times) > 1:  # A process of the previous run may still be ending.
            yield f"another process used {device.part} before and during the run: pid {quantity.split('_')[1]}"


def find_used_devices(
    hosts: Sequence[HostSamples], used_names: Mapping[str, UsedDeviceNames]
) -> tuple[list[_SampledDevice], list[str]]:
    """Find the devices that a run used among the sampled ones. Return them, and the reasons why some are unknown.

    If one device is unknown, none is returned, because the values of a different device could be mistaken for its values. If a
    program publishes gauges, they replace the devices. If the names are unknown, a run with as many devices as its host has must
    have used all of them.
    """
    gauges = {part: _SampledDevice(host, part) for host in reversed(hosts) for part in host.list_parts("gauge")}
    if gauges:
        return list(gauges.values()), []
    devices: dict[str, _SampledDevice] = {}
    problems = []
    for host in hosts:
        device_names = used_names.get(host.host, UsedDeviceNames())
        parts_by_uuid = {_strip_prefixes(part): part for part in host.list_parts("gpu")}
        count = len(device_names.host_names)
        names = device_names.match_names(list(parts_by_uuid.values()))
        if not parts_by_uuid and count:
            reason = f" ({'; '.join(host.problems)})" if host.problems else ""
            problems.append(f"no device was found on {host.host}{reason}, but the run used {count} there")
        elif not names and count not in (0, len(parts_by_uuid)):
            problems.append(
                f"it is unknown which {count} of {len(parts_by_uuid)} devices on {host.host} "
                "the run used, because neither the ranks nor the composition report UUIDs"
            )
        else:
            parts = (
                {name: parts_by_uuid.get(_strip_prefixes(f"gpu:{name}")) for name in names}
                if names
                else dict.fromkeys(parts_by_uuid.values())
            )
            problems += [f"{name} was not found" for name, part in parts.items() if names and part is None]
            used_parts = [part for name, part in parts.items() if part] if names else list(parts_by_uuid.values())
            devices |= {part: _SampledDevice(host, part) for part in (used_parts if count else [])}
    return list(devices.values()), problems


def find_unused_devices(
    hosts: Sequence[HostSamples], used_names: Mapping[str, UsedDeviceNames], run: TimeWindow
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find idle devices of a run. Return messages about unused ones, and flags about ones that may have been used.

    An idle device was not busy in any sample. A program that uses a device holds memory there, about a hundred MiB for its context
    alone. If no memory was held, the device was unused. If it was, the device may have been used, because copies run no kernels.
    If the names of the devices are unknown, any of the host's devices may belong to the run.
    """
    unused_messages: list[str] = []
    idle_flags: list[str] = []
    for host in hosts:
        device_names = used_names.get(host.host, UsedDeviceNames())
        parts_by_uuid = {_strip_prefixes(part): part for part in host.list_parts("gpu")}
        names = device_names.match_names(list(parts_by_uuid.values()))
        matched_parts = [parts_by_uuid.get(_strip_prefixes(f"gpu:{name}")) for name in names]
        parts = [part for part in matched_parts if part] if names else list(parts_by_uuid.values())
        idle_devices = [
            idle_device for part in parts if (idle_device := _describe_idle_device(_SampledDevice(host, part), run))
        ]
        missing_devices = idle_devices[: max(0, len(device_names.host_names) - (len(parts) - len(idle_devices)))]
        unused_messages += [message for message, may_be_used in missing_devices if not may_be_used]
        idle_flags += [f"telemetry: {message}" for message, may_be_used in missing_devices if may_be_used]
    return tuple(unused_messages), tuple(idle_flags)


def _describe_idle_device(device: _SampledDevice, run: TimeWindow) -> tuple[str, bool] | None:
    """Describe a device that was idle in a run, and whether a program may have used it. Returns None if it was busy."""
    busy, memory = (device.find_covering_series(name, run) for name in ("utilisation_pct", "memory_used_mib"))
    samples = len(busy.restrict(run).times) if busy else 0
    if busy is None or samples < _MIN_SAMPLES or busy.find_peak(run) >= _MIN_BUSY_PCT:
        return None
    message = f"{device.part} on {device.samples.host} was never busy in {samples} samples"
    if memory is None:
        return message, True
    peak_mib = memory.find_peak(run)
    return f"{message}, with at most {peak_mib:.3g} MiB of its memory in use", peak_mib >= _MIN_CONTEXT_MIB


def _strip_prefixes(part: str) -> str:
    """Normalize the name of a device to its UUID: lower case, without the prefixes `gpu:`, `GPU-` and `MIG-`."""
    return part.partition(":")[2].lower().removeprefix("gpu-").removeprefix("mig-")


def _compute_device_metrics(
    devices: Sequence[_SampledDevice], window: TimeWindow, samples: float | None
) -> Iterator[tuple[str, float]]:
    """Yield name and value of each metric of the used devices over a window."""
    for quantity, names in _VALUE_METRICS.items():
        yield from _compute_mean_and_peak(
            (device.find_covering_series(quantity, window) for device in devices), window, *names
        )
    for quantity, name in _DEVICE_RATE_METRICS.items():
        yield from _compute_rate_metrics(
            [device.find_covering_series(quantity, window) for device in devices], window, name
        )
    yield from _compute_clock_limit_shares(devices, window)
    yield from _compute_pcie_link_metrics(devices, window)
    yield from _compute_sampling_metrics(devices)
    for quantity, name in _EVENT_METRICS.items():
        if event_series := _list_if_complete(device.find_series(quantity) for device in devices):
            yield name, sum(max(0.0, item.values[-1] - item.values[0]) for item in event_series)
    if energy_j := _list_if_complete(_compute_device_energy_j(device, window) for device in devices):
        yield "energy_j", sum(energy_j)
        if samples:
            yield "energy_per_sample_j", sum(energy_j) / samples


def _list_if_complete(values: Iterable[T | None]) -> list[T]:
    """Return all values as a list, or an empty list if one of them is None.

    A mean over only some devices would be mistaken for a mean over all devices.
    """
    items = list(values)
    present = [value for value in items if value is not None]
    return present if len(present) == len(items) else []


def _compute_mean_and_peak(
    series: Iterable[SampleSeries | None], window: TimeWindow, mean: str, peak: str
) -> Iterator[tuple[str, float]]:
    """Yield the mean and the peak of several series as metrics of these names. If `peak` is empty, it is left out."""
    if complete_series := _list_if_complete(series):
        yield mean, sum(item.compute_mean(window) for item in complete_series) / len(complete_series)
        if peak:
            yield peak, max(item.find_peak(window) for item in complete_series)


def _compute_rate_metrics(
    series: Sequence[SampleSeries | None], window: TimeWindow, name: str
) -> Iterator[tuple[str, float]]:
    """Yield the mean and the peak rate (GB/s) of byte counters over a window, as metrics."""
    rates = _list_if_complete(item.compute_growth_rate(window) if item else None for item in series)
    peak_rates = _list_if_complete(item.find_max_growth_rate(window) if item else None for item in series)
    if rates and peak_rates:
        yield f"{name}_mean_gb_per_s", sum(rates) / len(rates) / _GB
        yield f"{name}_peak_gb_per_s", max(peak_rates) / _GB


def _compute_clock_limit_shares(devices: Sequence[_SampledDevice], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield the share of time in which device clocks were limited, one metric per cause.

    The power limit is a normal cause under load. Heat and the board's protection are not. The user may also have set the clocks.
    """
    kinds = {
        kind: _list_if_complete(device.find_covering_series(kind, window) for device in devices)
        for kind in ("capped_power", "slowed_thermal", "slowed_hardware", "clocks_set")
    }
    if not all(kinds.values()):
        return
    pairs = zip(kinds["slowed_thermal"], kinds["slowed_hardware"], strict=True)
    slowed_series = [SampleSeries(a.times, tuple(map(max, a.values, b.values))) for a, b in pairs]
    for name, series in (
        ("device_power_capped_share_pct", kinds["capped_power"]),
        ("device_slowed_share_pct", slowed_series),
        ("throttled_thermal_share_pct", kinds["slowed_thermal"]),
        ("device_clocks_set_share_pct", kinds["clocks_set"]),
    ):
        yield name, 100 * sum(item.compute_mean(window) for item in series) / len(devices)


def _compute_pcie_link_metrics(devices: Sequence[_SampledDevice], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield the PCIe generation and width of the slowest device.

    The best sampled value of each device counts, because links run slower when idle to save power.
    """
    for quantity in ("pcie_generation", "pcie_width"):
        if complete_series := _list_if_complete(device.find_covering_series(quantity, window) for device in devices):
            yield quantity, min(item.find_peak(window) for item in complete_series)


def _compute_sampling_metrics(devices: Sequence[_SampledDevice]) -> Iterator[tuple[str, float]]:
    """Yield the interval at which devices were sampled, and the cost of taking a sample, as metrics."""
    if host_samples := [device.samples for device in devices if device.samples.look_s]:
        yield "telemetry_interval_s", max(item.interval_s for item in host_samples)
        yield "telemetry_look_s", max(item.look_s for item in host_samples)


def _compute_device_energy_j(device: _SampledDevice, window: TimeWindow) -> float | None:
    """Compute the energy (J) used by a device in the window, from its energy counter if it has one, else from its power."""
    counter, power = device.find_covering_series("energy_j", window), device.find_covering_series("power_w", window)
    if counter and (rate_w := counter.compute_growth_rate(window)) is not None:
        return rate_w * window.length_s
    return power.integrate(window) if power else None


def _compute_host_metrics(hosts: Sequence[HostSamples], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield the metrics of the hosts (processors, memory, disks, networks and energy) and of the samplers themselves."""
    machines = list({host.machine: host for host in reversed(hosts)}.values())
    networks = list({(host.machine, host.network): host for host in reversed(hosts)}.values())
    yield from _compute_processor_metrics(machines, window)
    memory = (_find_covering_series(host, "host", "memory_used_mib", window) for host in machines)
    yield from _compute_mean_and_peak(memory, window, "host_memory_used_mean_mib", "host_memory_used_peak_mib")
    for group, rates in ((machines, _MACHINE_RATE_METRICS), (networks, _NETWORK_RATE_METRICS)):
        for kinds, quantity, name in rates:
            yield from _compute_rate_metrics(
                [_sum_covering_series(host, kinds, quantity, window) for host in group], window, name
            )
    packages = [
        series.compute_growth_rate(window)
        for host in machines
        for part in host.list_parts("socket")
        if (series := _find_covering_series(host, part, "package_energy_j", window))
    ]
    if rates_w := _list_if_complete(packages):
        yield "host_energy_j", sum(rates_w) * window.length_s
    sampler_shares = [
        series.compute_growth_rate(window)
        for host in hosts
        if (series := _find_covering_series(host, "sampler", "cpu_used_s", window))
    ]
    if shares := [share for share in sampler_shares if share is not None]:
        yield "telemetry_cpu_mean_pct", 100 * sum(shares) / len(shares)


def _find_covering_series(host: HostSamples, part: str, quantity: str, window: TimeWindow) -> SampleSeries | None:
    """Return the series of a quantity if it was sampled from the start of the window to its end, else None."""
    series = host.find_series(part, quantity)
    return series if series and series.covers(window, host.interval_s) else None


def _sum_covering_series(
    host: HostSamples, kinds: Sequence[str], quantity: str, window: TimeWindow
) -> SampleSeries | None:
    """Sum a counter over all parts of the given kinds. Returns None if the samples do not cover the window."""
    total = sum_counters([series for part in host.list_parts(*kinds) if (series := host.find_series(part, quantity))])
    return total if total and total.covers(window, host.interval_s) else None


def _compute_processor_metrics(machines: Sequence[HostSamples], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield the utilisation of all processors and of the busiest socket, and the share of time taken by other guests."""
    host_shares = _list_if_complete(_compute_busy_share_pct(host, "host", "cpu_busy_s", window) for host in machines)
    if host_shares:
        peaks = [
            _compute_peak_busy_share_pct(host, window) or share
            for host, share in zip(machines, host_shares, strict=True)
        ]
        stolen_shares = [_compute_busy_share_pct(host, "host", "cpu_stolen_s", window) or 0.0 for host in machines]
        yield "cpu_utilisation_mean_pct", sum(host_shares) / len(host_shares)
        yield "cpu_utilisation_peak_pct", max(peaks)
        yield "cpu_stolen_mean_pct", sum(stolen_shares) / len(stolen_shares)
        sockets = [
            _compute_busy_share_pct(host, part, "cpu_busy_s", window)
            for host in machines
            for part in host.list_parts("socket")
        ]
        if known_shares := [share for share in sockets if share is not None]:
            yield "cpu_socket_utilisation_max_pct", max(known_shares)


def _compute_busy_share_pct(host: HostSamples, part: str, quantity: str, window: TimeWindow) -> float | None:
    """Compute the percentage of all processor time that a quantity accounts for, or return None if it is unknown."""
    busy_series, all_series = (
        _find_covering_series(host, part, quantity, window),
        _find_covering_series(host, part, "cpu_all_s", window),
    )
    rates = [series.compute_growth_rate(window) if series else None for series in (busy_series, all_series)]
    return min(100.0, 100 * rates[0] / rates[1]) if rates[0] is not None and rates[1] else None


def _compute_peak_busy_share_pct(host: HostSamples, window: TimeWindow) -> float | None:
    """Return the largest busy share (percent) of the processors between two successive samples in the window."""
    busy_seconds, all_seconds = (
        host.series["host", name].restrict(window).values for name in ("cpu_busy_s", "cpu_all_s")
    )
    pairs = pairwise(zip(busy_seconds, all_seconds, strict=True))
    shares = (
        min(100.0, 100 * (busy_later - busy_before) / (later - before))
        for (busy_before, before), (busy_later, later) in pairs
        if later > before
    )
    return max(shares, default=None)
