"""Metrics of a run from its samples: mean and peak of each quantity over a window, for the devices and hosts used. Pure.

A mean is that of one device or one host, a peak the highest of any; energy and events are of all together. What was not sampled
from the window's start to its end gives no metric. A machine on which several hosts are emulated has one set of processors, memory
and disks, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from campaign.observe.telemetry import window_statistics
from campaign.observe.telemetry.samples import HostSamples, Series
from campaign.observe.telemetry.window_statistics import Window

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_GB = 1e9

ONE_MACHINE = "telemetry: emulated hosts share one machine's counters"
WHOLE_RUN = "telemetry over the whole run"
LOOKS = "telemetry: PCIe rates are from looks of 20 ms"

# Quantity -> names of its mean and its peak.
_VALUES: Mapping[str, tuple[str, str]] = {
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
_DEVICE_RATES: Mapping[str, str] = {
    "pcie_received_bytes": "pcie_rx",
    "pcie_sent_bytes": "pcie_tx",
    "nvlink_received_bytes": "nvlink_rx",
    "nvlink_sent_bytes": "nvlink_tx",
}
_EVENTS: Mapping[str, str] = {
    "ecc_corrected_count": "ecc_corrected",
    "ecc_uncorrected_count": "ecc_uncorrected",
    "xid_count": "xid_events",
}
# Kinds of parts whose counters are summed on a host, quantity, name.
_HOST_RATES: Sequence[tuple[tuple[str, ...], str, str]] = (
    (("disk",), "disk_read_bytes", "disk_read"),
    (("disk",), "disk_written_bytes", "disk_written"),
)
_NETWORK_RATES: Sequence[tuple[tuple[str, ...], str, str]] = (
    (("nic", "port"), "received_bytes", "network_rx"),
    (("nic", "port"), "sent_bytes", "network_tx"),
    (("loopback",), "received_bytes", "loopback_rx"),
)


@dataclass(frozen=True, slots=True)
class Used:
    """Devices of a run on a sampler's host. named: by the host's names, None for a device without one."""

    named: tuple[str | None, ...] = ()

    @property
    def by_name(self) -> bool:
        return bool(self.named) and all(name and _UUID.fullmatch(name) for name in self.named)


@dataclass(frozen=True)
class _Device:
    """One device, and the sampler that saw it."""

    seen_by: HostSamples
    part: str

    def series(self, quantity: str) -> Series | None:
        return self.seen_by.of(self.part, quantity)


def summary(
    hosts: Sequence[HostSamples], window: Window, used: Mapping[str, Used], samples: float | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Metrics and flags. used: devices by sampler (its host's name); samples: that the run worked through in the window."""
    devices, missing = used_devices(hosts, used)
    flags = [f"telemetry: {name} was not seen" for name in missing]
    metrics: dict[str, float] = {}
    if not missing:
        metrics |= _of_devices(devices, window, samples, flags)
    metrics |= _of_hosts(hosts, window)
    for each in hosts:
        if each.jumped_s:
            flags.append(f"telemetry: the clock of {each.host} was set by {each.jumped_s:.1f} s while the run was on")
    return metrics, tuple(flags)


def used_devices(hosts: Sequence[HostSamples], used: Mapping[str, Used]) -> tuple[list[_Device], list[str]]:
    """Devices that the run used, and names of those that no sampler saw.

    Gauges that a program publishes take the place of devices. Devices are found by name, or by number if they have none.
    """
    gauges = {part: _Device(host, part) for host in reversed(hosts) for part in host.parts("gauge")}
    if gauges:
        return list(gauges.values()), []
    found: dict[str, _Device] = {}
    missing = []
    for host in hosts:
        wanted = used.get(host.host, Used())
        there = host.parts("gpu")
        if wanted.by_name:
            by_name = {_bare(part): part for part in there}
            parts = [by_name.get(_bare(f"gpu:{name}")) for name in wanted.named]
            missing += [str(name) for name, part in zip(wanted.named, parts, strict=True) if part is None and there]
            chosen = [part for part in parts if part]
        else:
            chosen = sorted(there, key=lambda part: _number(host, part))[: len(wanted.named)]
        found |= {part: _Device(host, part) for part in chosen}
    return list(found.values()), missing


def _bare(part: str) -> str:
    return part.partition(":")[2].lower().removeprefix("gpu-")


def _number(host: HostSamples, part: str) -> float:
    index = host.of(part, "index")
    return index.values[-1] if index else float("inf")


def _of_devices(
    devices: Sequence[_Device], window: Window, samples: float | None, flags: list[str]
) -> Iterator[tuple[str, float]]:
    for quantity, (mean_name, peak_name) in _VALUES.items():
        yield from _means(_covering(devices, quantity, window), len(devices), window, mean_name, peak_name)
    if any(device.series("pcie_received_gb_per_s") for device in devices):
        flags.append(LOOKS)
    for quantity, name in _DEVICE_RATES.items():
        yield from _rates(_covering(devices, quantity, window), len(devices), window, name)
    yield from _throttled(devices, window)
    for quantity, name in _EVENTS.items():
        counted = [each for device in devices if (each := device.series(quantity))]
        if counted and len(counted) == len(devices):
            yield name, sum(max(0.0, each.values[-1] - each.values[0]) for each in counted)
    for device in devices:
        if device.series("lost"):
            flags.append(f"telemetry: {device.part} on {device.seen_by.host} was lost")
    energy_j = [_energy_j(device, window) for device in devices]
    if energy_j and None not in energy_j:
        total_j = sum(each for each in energy_j if each is not None)
        yield "energy_j", total_j
        if samples:
            yield "energy_per_sample_j", total_j / samples


def _covering(devices: Iterable[_Device], quantity: str, window: Window) -> list[Series]:
    found = ((device, device.series(quantity)) for device in devices)
    return [
        series
        for device, series in found
        if series and window_statistics.covers(series, window, device.seen_by.interval_s)
    ]


def _means(series: Sequence[Series], count: int, window: Window, mean: str, peak: str) -> Iterator[tuple[str, float]]:
    """Of all devices or of none: a mean over some of them would pass for one of all."""
    if series and len(series) == count:
        yield mean, sum(window_statistics.mean(each, window) for each in series) / count
        if peak:
            yield peak, max(window_statistics.peak(each, window) for each in series)


def _rates(series: Sequence[Series], count: int, window: Window, name: str) -> Iterator[tuple[str, float]]:
    rates = [window_statistics.rate(each, window) for each in series]
    fastest = [window_statistics.fastest(each, window) for each in series]
    if rates and len(rates) == count and None not in rates and None not in fastest:
        yield f"{name}_mean_gb_per_s", sum(each or 0.0 for each in rates) / count / _GB
        yield f"{name}_peak_gb_per_s", max(each or 0.0 for each in fastest) / _GB


def _throttled(devices: Sequence[_Device], window: Window) -> Iterator[tuple[str, float]]:
    kinds = [_covering(devices, f"throttled_{kind}", window) for kind in ("power", "thermal", "hardware")]
    if not devices or any(len(kind) != len(devices) for kind in kinds):
        return
    any_kind = [
        Series(each[0].times, tuple(float(any(values)) for values in zip(*(one.values for one in each), strict=True)))
        for each in zip(*kinds, strict=True)
    ]
    yield "throttled_share_pct", 100 * sum(window_statistics.mean(each, window) for each in any_kind) / len(devices)
    yield "throttled_thermal_share_pct", 100 * sum(window_statistics.mean(e, window) for e in kinds[1]) / len(devices)


def _energy_j(device: _Device, window: Window) -> float | None:
    """By the device's own counter where it has one, otherwise by its power."""
    interval_s = device.seen_by.interval_s
    counter, power = device.series("energy_j"), device.series("power_w")
    if counter and window_statistics.covers(counter, window, interval_s):
        rate_w = window_statistics.rate(counter, window)
        if rate_w is not None:
            return rate_w * window.length_s
    if power and window_statistics.covers(power, window, interval_s):
        return window_statistics.integral(power, window)
    return None


def _of_hosts(hosts: Sequence[HostSamples], window: Window) -> Iterator[tuple[str, float]]:
    machines = list({host.machine: host for host in reversed(hosts)}.values())
    networks = list({(host.machine, host.network): host for host in reversed(hosts)}.values())
    yield from _processors(machines, window)
    memory = [_covered(host, "host", "memory_used_mib", window) for host in machines]
    yield from _means(
        [m for m in memory if m], len(machines), window, "host_memory_used_mean_mib", "host_memory_used_peak_mib"
    )
    for group, rates in ((machines, _HOST_RATES), (networks, _NETWORK_RATES)):
        for kinds, quantity, name in rates:
            sums = [_summed(host, kinds, quantity, window) for host in group]
            yield from _rates([each for each in sums if each], len(group), window, name)
    packages = [
        window_statistics.rate(series, window)
        for host in machines
        for part in host.parts("socket")
        if (series := _covered(host, part, "package_energy_j", window))
    ]
    if packages and None not in packages:
        yield "host_energy_j", sum(each or 0.0 for each in packages) * window.length_s
    own = [series for host in hosts if (series := _covered(host, "sampler", "cpu_used_s", window))]
    shares = [share for each in own if (share := window_statistics.rate(each, window)) is not None]
    if shares:
        yield "telemetry_cpu_mean_pct", 100 * sum(shares) / len(shares)


def _covered(host: HostSamples, part: str, quantity: str, window: Window) -> Series | None:
    series = host.of(part, quantity)
    return series if series and window_statistics.covers(series, window, host.interval_s) else None


def _summed(host: HostSamples, kinds: Sequence[str], quantity: str, window: Window) -> Series | None:
    parts = [part for kind in kinds for part in host.parts(kind)]
    together = window_statistics.together([each for part in parts if (each := host.of(part, quantity))])
    return together if together and window_statistics.covers(together, window, host.interval_s) else None


def _processors(machines: Sequence[HostSamples], window: Window) -> Iterator[tuple[str, float]]:
    """Utilisation of all processors of a host, of its busiest socket where it has several, and what other guests took."""
    whole, stolen, sockets, fastest = [], [], [], []
    for host in machines:
        share = _share(host, "host", "cpu_busy_s", window)
        if share is None:
            return
        whole.append(share)
        fastest.append(_peak_share(host, window) or share)
        stolen.append(_share(host, "host", "cpu_stolen_s", window) or 0.0)
        sockets += [
            each for part in host.parts("socket") if (each := _share(host, part, "cpu_busy_s", window)) is not None
        ]
    if whole:
        yield "cpu_utilisation_mean_pct", sum(whole) / len(whole)
        yield "cpu_utilisation_peak_pct", max(fastest)
        yield "cpu_stolen_mean_pct", sum(stolen) / len(stolen)
    if sockets:
        yield "cpu_socket_utilisation_max_pct", max(sockets)


def _share(host: HostSamples, part: str, quantity: str, window: Window) -> float | None:
    busy, every = _covered(host, part, quantity, window), _covered(host, part, "cpu_all_s", window)
    rates = [window_statistics.rate(each, window) if each else None for each in (busy, every)]
    return min(100.0, 100 * rates[0] / rates[1]) if rates[0] is not None and rates[1] else None


def _peak_share(host: HostSamples, window: Window) -> float | None:
    """Between two samples of the window."""
    busy, every = host.series["host", "cpu_busy_s"], host.series["host", "cpu_all_s"]
    inside = [i for i, time in enumerate(busy.times) if window.start <= time <= window.end]
    shares = (
        min(100.0, 100 * (busy.values[i] - busy.values[i - 1]) / (every.values[i] - every.values[i - 1]))
        for i in inside[1:]
        if every.values[i] > every.values[i - 1]
    )
    return max(shares, default=None)
