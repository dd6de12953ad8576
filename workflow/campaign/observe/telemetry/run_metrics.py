"""Metrics of a run from its samples: mean and peak of each quantity over a window, for the devices and hosts used. Pure.

A mean is that of one device or one host, a peak the highest of any; energy and events are of all together. What was not sampled
from the window's start to its end gives no metric. A machine on which several hosts are emulated has one set of processors, memory
and disks, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from campaign.observe.telemetry.samples import HostSamples, Series, TimeWindow, together

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_GB = 1e9
T = TypeVar("T")
_FEWEST_LOOKS = 5
_BUSY_PCT, _CONTEXT_MIB = 1.0, 32.0

ONE_MACHINE = "telemetry: emulated hosts share one machine's counters"
WHOLE_RUN = "telemetry over the whole run"
LOOKS = "telemetry: PCIe rates are from looks of 20 ms"
PART_OF_A_DEVICE = (
    "telemetry: NVML tells only the memory of a part of a device (MIG), not its power, clocks and traffic"
)
PARTS = "gpu:MIG-"

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
_MACHINE_RATES = ((("disk",), "disk_read_bytes", "disk_read"), (("disk",), "disk_written_bytes", "disk_written"))
_NETWORK_RATES = (
    (("nic", "port"), "received_bytes", "network_rx"),
    (("nic", "port"), "sent_bytes", "network_tx"),
    (("loopback",), "received_bytes", "loopback_rx"),
)


@dataclass(frozen=True, slots=True)
class Used:
    """Names of the devices of a run on a sampler's host.

    Args:
        named: names by the host, None for a device without one.
        reported: UUIDs that ranks report, one per device, or empty.
    """

    named: tuple[str | None, ...] = ()
    reported: tuple[str, ...] = ()

    def names(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the used devices among the parts of a host, or () if they are unknown.

        A rank's report on an NVIDIA device takes precedence, except for parts (MIG), which may report the whole device. torch's
        UUIDs of
        other vendors' devices differ from those of the vendors' tools.
        """
        named = tuple(name for name in self.named if name and _UUID.fullmatch(name))
        of_parts = any(name.startswith("MIG-") for name in named)
        if self.reported and not of_parts and any(part.startswith(("gpu:GPU-", PARTS)) for part in there):
            return self.reported
        return named if len(named) == len(self.named) else ()


def reported(ran_on: Sequence[str]) -> tuple[str | None, ...]:
    """Return the UUID at the end of each rank's description of its device (`Record.ran_on`), or None."""
    words = (said.rpartition(" ")[2] for said in ran_on)
    return tuple(word if _UUID.fullmatch(word) else None for word in words)


@dataclass(frozen=True)
class _SampledDevice:
    """Device and the samples that contain it."""

    seen_by: HostSamples
    part: str

    def series(self, quantity: str) -> Series | None:
        return self.seen_by.of(self.part, quantity)

    def covered(self, quantity: str, window: TimeWindow) -> Series | None:
        return _covered(self.seen_by, self.part, quantity, window)


def summary(
    hosts: Sequence[HostSamples], window: TimeWindow, used: Mapping[str, Used], samples: float | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Compute the metrics and flags of a run from its samples.

    Args:
        hosts: samples of each host.
        window: window over which metrics are computed.
        used: names of used devices by sampler (its host's name).
        samples: number of samples that the run worked through in the window.
    """
    devices, problems = used_devices(hosts, used)
    flags = [f"telemetry: {problem}" for problem in problems]
    metrics = {} if problems else dict(_of_devices(devices, window, samples))
    metrics |= _of_hosts(hosts, window)
    if not problems:
        flags += [LOOKS] if any(device.series("pcie_received_gb_per_s") for device in devices) else []
        flags += [f"telemetry: {each.part} on {each.seen_by.host} was lost" for each in devices if each.series("lost")]
        flags += [f"telemetry: {each.part} {thin}" for each in devices if (thin := _thin(each, window))]
        flags += [PART_OF_A_DEVICE] if any(device.part.startswith(PARTS) for device in devices) else []
        flags += [f"telemetry: {said}" for device in devices for said in _others(device)]
    flags += [
        f"telemetry: the clock of {each.host} was set by {each.jumped_s:.1f} s while the run was on"
        for each in hosts
        if each.jumped_s
    ]
    return metrics, tuple(flags)


def _thin(device: _SampledDevice, window: TimeWindow) -> str:
    """Describe how little of the window a device was sampled in, or return '' if that is enough for metrics."""
    series = next(filter(None, map(device.series, ("power_w", "memory_used_mib", "utilisation_pct"))), None)
    interval_s = device.seen_by.interval_s
    if series is None or series.covers(window, interval_s) or device.series("lost"):
        return ""
    count, share = len(series.inside(window).times), series.covered_share(window, interval_s)
    return (
        f"was sampled in {100 * share:.0f} % of the window ({count} samples in {window.length_s:.3g} s, one each "
        f"{interval_s:.3g} s), too little for metrics"
    )


def _others(device: _SampledDevice) -> Iterator[str]:
    """Describe the processes that were on a device before and during the run; the run starts its own processes."""
    for quantity, memory_mib in device.seen_by.earlier.get(device.part, {}).items():
        still = device.series(quantity) if quantity.startswith("process_") else None
        if still and len(still.times) > 1:  # one of the run before may be ending yet
            pid = quantity.split("_")[1]
            yield f"{device.part} had another process before and in the run: pid {pid}, {memory_mib:,.0f} MiB"


def used_devices(hosts: Sequence[HostSamples], used: Mapping[str, Used]) -> tuple[list[_SampledDevice], list[str]]:
    """Return the devices that the run used, and the reasons why some are unknown.

    No device counts if one is unknown, because another device's figures would pass for its own. Gauges that a program publishes
    take
    the place of devices. Without names, a run that used as many devices as its host has used all of them.
    """
    gauges = {part: _SampledDevice(host, part) for host in reversed(hosts) for part in host.parts("gauge")}
    if gauges:
        return list(gauges.values()), []
    found: dict[str, _SampledDevice] = {}
    problems = []
    for host in hosts:
        wanted = used.get(host.host, Used())
        there = {_bare(part): part for part in host.parts("gpu")}
        count = len(wanted.named)
        names = wanted.names(list(there.values()))
        if not there and count:
            why = f" ({'; '.join(host.problems)})" if host.problems else ""
            problems.append(f"no device was seen on {host.host}{why}, and the run used {count} there")
        elif not names and count not in (0, len(there)):
            problems.append(
                f"which {count} of {len(there)} devices on {host.host} the run used is not known: no rank reports UUIDs, and "
                "the composition has no UUIDs as the host's names"
            )
        else:
            parts = (
                {name: there.get(_bare(f"gpu:{name}")) for name in names} if names else dict.fromkeys(there.values())
            )
            problems += [f"{name} was not seen" for name, part in parts.items() if names and part is None]
            chosen = [part for name, part in parts.items() if part] if names else list(there.values())
            found |= {part: _SampledDevice(host, part) for part in (chosen if count else [])}
    return list(found.values()), problems


def unused_devices(
    hosts: Sequence[HostSamples], used: Mapping[str, Used], run: TimeWindow
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return messages on devices that did nothing in a run, and flags of devices that computed nothing.

    Neither was busy in any sample. A program that uses a device holds memory there, a hundred MiB for its context alone; without
    such
    memory, nothing ran. Copies need no kernels, so memory on a device that was not busy is no proof. For devices without a name,
    any
    of the host's devices may be the run's.
    """
    unused: list[str] = []
    idle: list[str] = []
    for host in hosts:
        wanted = used.get(host.host, Used())
        there = {_bare(part): part for part in host.parts("gpu")}
        names = wanted.names(list(there.values()))
        named = [there.get(_bare(f"gpu:{name}")) for name in names]
        parts = [part for part in named if part] if names else list(there.values())
        still = [found for part in parts if (found := _still(_SampledDevice(host, part), run))]
        lacking = still[: max(0, len(wanted.named) - (len(parts) - len(still)))]
        unused += [said for said, in_use in lacking if not in_use]
        idle += [f"telemetry: {said}" for said, in_use in lacking if in_use]
    return tuple(unused), tuple(idle)


def _still(device: _SampledDevice, run: TimeWindow) -> tuple[str, bool] | None:
    """Return a message on an idle device and whether a program may have used it, or None if the device was busy."""
    busy, memory = (device.covered(name, run) for name in ("utilisation_pct", "memory_used_mib"))
    samples = len(busy.inside(run).times) if busy else 0
    if busy is None or samples < _FEWEST_LOOKS or busy.peak(run) >= _BUSY_PCT:
        return None
    said = f"{device.part} on {device.seen_by.host} was never busy in {samples} samples"
    if memory is None:
        return said, True
    return f"{said}, and had {memory.peak(run):.3g} MiB of its memory in use", memory.peak(run) >= _CONTEXT_MIB


def _bare(part: str) -> str:
    return part.partition(":")[2].lower().removeprefix("gpu-").removeprefix("mig-")


def _of_devices(
    devices: Sequence[_SampledDevice], window: TimeWindow, samples: float | None
) -> Iterator[tuple[str, float]]:
    """Yield the metrics of all used devices over a window."""
    for quantity, names in _VALUES.items():
        yield from _means((device.covered(quantity, window) for device in devices), window, *names)
    for quantity, name in _DEVICE_RATES.items():
        yield from _rates([device.covered(quantity, window) for device in devices], window, name)
    yield from _held_back(devices, window)
    yield from _pcie_link(devices, window)
    yield from _sampling(devices)
    for quantity, name in _EVENTS.items():
        if counted := _all(device.series(quantity) for device in devices):
            yield name, sum(max(0.0, each.values[-1] - each.values[0]) for each in counted)
    if energy_j := _all(_energy_j(device, window) for device in devices):
        yield "energy_j", sum(energy_j)
        if samples:
            yield "energy_per_sample_j", sum(energy_j) / samples


def _all(values: Iterable[T | None]) -> list[T]:
    """Return all values, or nothing if one is missing, because a mean over some devices would pass for one over all."""
    found = list(values)
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else []


def _means(series: Iterable[Series | None], window: TimeWindow, mean: str, peak: str) -> Iterator[tuple[str, float]]:
    if known := _all(series):
        yield mean, sum(each.mean(window) for each in known) / len(known)
        if peak:
            yield peak, max(each.peak(window) for each in known)


def _rates(series: Sequence[Series | None], window: TimeWindow, name: str) -> Iterator[tuple[str, float]]:
    rates = _all(each.rate(window) if each else None for each in series)
    fastest = _all(each.fastest(window) if each else None for each in series)
    if rates and fastest:
        yield f"{name}_mean_gb_per_s", sum(rates) / len(rates) / _GB
        yield f"{name}_peak_gb_per_s", max(fastest) / _GB


def _held_back(devices: Sequence[_SampledDevice], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield the shares of time in which clocks were limited.

    The power limit is normal under load; heat and the board's protection are not; a user may have set the clocks.
    """
    kinds = {
        kind: _all(device.covered(kind, window) for device in devices)
        for kind in ("capped_power", "slowed_thermal", "slowed_hardware", "clocks_set")
    }
    if not all(kinds.values()):
        return
    pairs = zip(kinds["slowed_thermal"], kinds["slowed_hardware"], strict=True)
    slowed = [Series(a.times, tuple(map(max, a.values, b.values))) for a, b in pairs]
    for name, series in (
        ("device_power_capped_share_pct", kinds["capped_power"]),
        ("device_slowed_share_pct", slowed),
        ("throttled_thermal_share_pct", kinds["slowed_thermal"]),
        ("device_clocks_set_share_pct", kinds["clocks_set"]),
    ):
        yield name, 100 * sum(each.mean(window) for each in series) / len(devices)


def _pcie_link(devices: Sequence[_SampledDevice], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield PCIe generation and width of the slowest device, each at its best, because idle links save power."""
    for quantity in ("pcie_generation", "pcie_width"):
        if known := _all(device.covered(quantity, window) for device in devices):
            yield quantity, min(each.peak(window) for each in known)


def _sampling(devices: Sequence[_SampledDevice]) -> Iterator[tuple[str, float]]:
    if known := [device.seen_by for device in devices if device.seen_by.look_s]:
        yield "telemetry_interval_s", max(each.interval_s for each in known)
        yield "telemetry_look_s", max(each.look_s for each in known)


def _energy_j(device: _SampledDevice, window: TimeWindow) -> float | None:
    """Return the energy of a device over the window (J), by its own counter if it has one, otherwise by its power."""
    counter, power = device.covered("energy_j", window), device.covered("power_w", window)
    if counter and (rate_w := counter.rate(window)) is not None:
        return rate_w * window.length_s
    return power.integral(window) if power else None


def _of_hosts(hosts: Sequence[HostSamples], window: TimeWindow) -> Iterator[tuple[str, float]]:
    machines = list({host.machine: host for host in reversed(hosts)}.values())
    networks = list({(host.machine, host.network): host for host in reversed(hosts)}.values())
    yield from _processors(machines, window)
    memory = (_covered(host, "host", "memory_used_mib", window) for host in machines)
    yield from _means(memory, window, "host_memory_used_mean_mib", "host_memory_used_peak_mib")
    for group, rates in ((machines, _MACHINE_RATES), (networks, _NETWORK_RATES)):
        for kinds, quantity, name in rates:
            yield from _rates([_summed(host, kinds, quantity, window) for host in group], window, name)
    packages = [
        series.rate(window)
        for host in machines
        for part in host.parts("socket")
        if (series := _covered(host, part, "package_energy_j", window))
    ]
    if rates_w := _all(packages):
        yield "host_energy_j", sum(rates_w) * window.length_s
    own = [series.rate(window) for host in hosts if (series := _covered(host, "sampler", "cpu_used_s", window))]
    if shares := [share for share in own if share is not None]:
        yield "telemetry_cpu_mean_pct", 100 * sum(shares) / len(shares)


def _covered(host: HostSamples, part: str, quantity: str, window: TimeWindow) -> Series | None:
    """Return the series of a quantity that was sampled from the window's start to its end, or None."""
    series = host.of(part, quantity)
    return series if series and series.covers(window, host.interval_s) else None


def _summed(host: HostSamples, kinds: Sequence[str], quantity: str, window: TimeWindow) -> Series | None:
    summed = together([each for part in host.parts(*kinds) if (each := host.of(part, quantity))])
    return summed if summed and summed.covers(window, host.interval_s) else None


def _processors(machines: Sequence[HostSamples], window: TimeWindow) -> Iterator[tuple[str, float]]:
    """Yield the utilisation of all processors, of the busiest socket, and the share taken by other guests."""
    whole = _all(_share(host, "host", "cpu_busy_s", window) for host in machines)
    if whole:
        peaks = [_peak_share(host, window) or share for host, share in zip(machines, whole, strict=True)]
        stolen = [_share(host, "host", "cpu_stolen_s", window) or 0.0 for host in machines]
        yield "cpu_utilisation_mean_pct", sum(whole) / len(whole)
        yield "cpu_utilisation_peak_pct", max(peaks)
        yield "cpu_stolen_mean_pct", sum(stolen) / len(stolen)
        sockets = [_share(host, part, "cpu_busy_s", window) for host in machines for part in host.parts("socket")]
        if known := [share for share in sockets if share is not None]:
            yield "cpu_socket_utilisation_max_pct", max(known)


def _share(host: HostSamples, part: str, quantity: str, window: TimeWindow) -> float | None:
    busy, every = _covered(host, part, quantity, window), _covered(host, part, "cpu_all_s", window)
    rates = [each.rate(window) if each else None for each in (busy, every)]
    return min(100.0, 100 * rates[0] / rates[1]) if rates[0] is not None and rates[1] else None


def _peak_share(host: HostSamples, window: TimeWindow) -> float | None:
    """Return the largest busy share between two samples of the window (percent)."""
    busy, every = (host.series["host", name].inside(window).values for name in ("cpu_busy_s", "cpu_all_s"))
    pairs = pairwise(zip(busy, every, strict=True))
    shares = (
        min(100.0, 100 * (busy_later - busy_before) / (later - before))
        for (busy_before, before), (busy_later, later) in pairs
        if later > before
    )
    return max(shares, default=None)
