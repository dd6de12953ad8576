"""Telemetry table: a thinned series per device, host and quantity for one run per cell, as one long table.

Columns: cell_id, repetition, host, part, quantity, time_s, value. part: `gpu:<id>` or `gauge:<id>` for a device, `host` for the
whole host. quantity: a name with its unit (`QUANTITIES`); counters are converted to rates. time_s: seconds since the run began,
when its programs start; the measured window is its later part. Devices that the run did not use are left out, as in `summary`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from campaign.analysis.tables.columns import TELEMETRY, list_column_types
from campaign.analysis.tables.io import NUMBER, build_column
from campaign.common.errors import RecordError
from campaign.common.files import open_regular
from campaign.observe.telemetry.run_metrics import UsedDeviceNames, find_used_devices, parse_reported_uuids
from campaign.observe.telemetry.samples import HostSamples, SampleSeries, sum_counters

if TYPE_CHECKING:
    from campaign.spec.record import Record

TELEMETRY_COLUMNS = list_column_types(TELEMETRY)
MAX_POINTS = 200
MAX_CELLS = 60
"""Maximum number of cells, so that tables of ten thousand cells stay small. More figures would not help readers."""

_GIGA = 1e9
# Sampled values of a device: name in the samples -> quantity in the table.
_DEVICE_VALUES = {
    "utilisation_pct": "utilisation_pct",
    "memory_access_pct": "memory_access_pct",
    "memory_used_mib": "memory_mib",
    "memory_used_with_reserved_mib": "memory_reserved_mib",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
    "clock_sm_mhz": "clock_sm_mhz",
    "pcie_received_gb_per_s": "pcie_rx_gb_per_s",
    "pcie_sent_gb_per_s": "pcie_tx_gb_per_s",
}
# Counters of a device: name in the samples -> rate in the table, divisor.
_DEVICE_COUNTERS = {
    "pcie_received_bytes": ("pcie_rx_gb_per_s", _GIGA),
    "pcie_sent_bytes": ("pcie_tx_gb_per_s", _GIGA),
    "nvlink_received_bytes": ("nvlink_rx_gb_per_s", _GIGA),
    "nvlink_sent_bytes": ("nvlink_tx_gb_per_s", _GIGA),
}
_HOST_COUNTERS = (
    (("nic", "port"), "received_bytes", "network_rx_gb_per_s"),
    (("nic", "port"), "sent_bytes", "network_tx_gb_per_s"),
    (("loopback",), "received_bytes", "loopback_rx_gb_per_s"),
    (("disk",), "disk_read_bytes", "disk_read_gb_per_s"),
    (("disk",), "disk_written_bytes", "disk_written_gb_per_s"),
)
QUANTITIES: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *_DEVICE_VALUES.values(),
            *(name for name, _ in _DEVICE_COUNTERS.values()),
            "cpu_utilisation_pct",
            "host_memory_mib",
            *(name for _, _, name in _HOST_COUNTERS),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """Time series of a quantity of one part: values and their times in seconds since the start of the run."""

    part: str
    quantity: str
    time_s: NDArray[np.float64]
    values: NDArray[np.float64]


def build_telemetry_table(
    records: Iterable[Record],
    results: Path,
    read_composition: Callable[[str], Mapping[str, Any]],
    cells: Sequence[str] = (),
) -> pd.DataFrame:
    """Build the telemetry table of the cells of these records from their sample files; missing files are skipped.

    Raises RecordError if a file is not a table of samples.

    Args:
        records: records of runs.
        results: results directory, which contains the sample files.
        read_composition: returns the composition document of a hash (`shared/`).
        cells: cells in order, which determines the cells that are kept if there are too many.
    """
    keys: list[tuple[str, int, str, str, str]] = []
    times: list[NDArray[np.float64]] = []
    values: list[NDArray[np.float64]] = []
    for record in _select_sampled_runs(records, results, cells):
        hosts = _read_samples(results / record.telemetry)
        devices_by_host = _list_used_devices(
            read_composition(record.composition), record, [host.host for host in hosts]
        )
        for host, series in build_time_series(hosts, devices_by_host, record.started):
            keys.append((record.cell_id, record.repetition, host, series.part, series.quantity))
            times.append(series.time_s)
            values.append(series.values)
    lengths = [len(series) for series in times]
    text_columns = dict(zip(TELEMETRY_COLUMNS, zip(*keys, strict=True), strict=False))
    columns = {
        name: build_column(np.repeat(np.array(column, dtype=object), lengths), TELEMETRY_COLUMNS[name])
        for name, column in text_columns.items()
    }
    numbers = {"time_s": times, "value": values}
    columns |= {name: build_column(np.concatenate(series), NUMBER) for name, series in numbers.items() if series}
    return pd.DataFrame({name: columns.get(name, build_column([], kind)) for name, kind in TELEMETRY_COLUMNS.items()})


def _select_sampled_runs(records: Iterable[Record], results: Path, cells: Sequence[str]) -> list[Record]:
    """Select the first valid sampled run per cell; of too many cells, some per configuration and workload."""
    first: dict[str, Record] = {}
    for record in records:
        if record.status == "ok" and record.telemetry:
            first_record = first.get(record.cell_id)
            if first_record is None or record.repetition < first_record.repetition:
                first[record.cell_id] = record
    place = {cell: position for position, cell in enumerate(cells)}
    sorted_records = sorted(first.values(), key=lambda record: (place.get(record.cell_id, len(place)), record.cell_id))
    turns: defaultdict[tuple[str, str], int] = defaultdict(int)
    ranked_records = []
    for position, record in enumerate(sorted_records):
        kind = (record.cell.configuration, record.cell.workload)
        ranked_records.append((turns[kind], position, record))
        turns[kind] += 1
    existing = (
        entry
        for entry in sorted(ranked_records, key=lambda entry: entry[:2])
        if (results / entry[2].telemetry).is_file()
    )
    selection = [entry for entry, _ in zip(existing, range(MAX_CELLS), strict=False)]
    return [record for _, _, record in sorted(selection, key=lambda entry: entry[1])]


def _read_samples(path: Path) -> list[HostSamples]:
    """Read the samples of one run by host from the file that `run_telemetry.write` wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["time", "host", "part", "quantity", "value"]
    try:
        with open_regular(path) as file:
            if path.suffix == ".gz":
                document = json.loads(gzip.decompress(file.read()))
                table = pa.table({name: document[name] for name in names})
            else:
                table = pq.read_table(file, columns=names)
        columns = {name: table.column(name).to_pandas() for name in table.column_names}
    except (OSError, ValueError, LookupError, TypeError, EOFError, zlib.error, pa.ArrowException) as error:
        raise RecordError(f"{path}: the samples cannot be read ({error}); restore the file or move it away") from error
    groups = pd.DataFrame(columns).groupby(["host", "part", "quantity"], sort=False, observed=True)
    time, value = columns["time"].to_numpy(), columns["value"].to_numpy()
    hosts: defaultdict[str, dict[tuple[str, str], SampleSeries]] = defaultdict(dict)
    indices: Mapping[Any, Any] = groups.indices
    for (host, part, quantity), places in indices.items():
        hosts[host][part, quantity] = SampleSeries(tuple(time[places]), tuple(value[places]))
    return [HostSamples(host, host, 0, 0.0, series) for host, series in hosts.items()]


def _list_used_devices(
    composition: Mapping[str, Any], record: Record, sampled_hosts: Sequence[str]
) -> dict[str, UsedDeviceNames]:
    """Return the devices used by a run, by the host of the sampler; hosts without a sampler belong to the first sampled host."""
    ids_by_host: defaultdict[str, list[str | None]] = defaultdict(list)
    uuids_by_host: defaultdict[str, list[str | None]] = defaultdict(list)
    by_device = dict(zip(record.devices, parse_reported_uuids(record.ran_on), strict=False))
    for host in composition.get("hosts", ()):
        devices = sorted(host.get("devices", ()), key=lambda device: not device.get("local"))
        devices = [device for device in devices if device.get("fabric_id") in record.devices]
        sampler = host["name"] if host["name"] in sampled_hosts else sampled_hosts[0]
        ids_by_host[sampler].extend(device.get("host_id") for device in devices)
        uuids_by_host[sampler].extend(by_device.get(device.get("fabric_id")) for device in devices)
    return {
        host: UsedDeviceNames(
            tuple(names), tuple(uuid for uuid in uuids_by_host[host] if uuid) if all(uuids_by_host[host]) else ()
        )
        for host, names in ids_by_host.items()
    }


def build_time_series(
    hosts: Sequence[HostSamples], devices_by_host: Mapping[str, UsedDeviceNames], start_s: float
) -> Iterator[tuple[str, TimeSeries]]:
    """Yield each time series with the host that it was sampled on.

    Args:
        hosts: samples by host.
        devices_by_host: devices that the run used, by host.
        start_s: Unix seconds at which time_s is 0.
    """
    devices, _ = find_used_devices(hosts, devices_by_host) if hosts else ([], [])
    for device in devices:
        for series in _build_device_series(device.samples, device.part, start_s):
            yield device.samples.host, series
    for host in hosts:
        for series in _build_host_series(host, start_s):
            yield host.host, series


def _build_device_series(host: HostSamples, part: str, start_s: float) -> Iterator[TimeSeries]:
    """Yield the time series of one device."""
    for quantity, name in _DEVICE_VALUES.items():
        if series := host.find_series(part, quantity):
            yield TimeSeries(part, name, *thin_series(series, start_s))
    for quantity, (name, divisor) in _DEVICE_COUNTERS.items():
        if (series := host.find_series(part, quantity)) and len(series.times) > 1:
            time_s, rates = compute_rates(series, start_s)
            yield TimeSeries(part, name, time_s, rates / divisor)


def _build_host_series(host: HostSamples, start_s: float) -> Iterator[TimeSeries]:
    """Yield the time series of a whole host."""
    busy_time, total_time = host.find_series("host", "cpu_busy_s"), host.find_series("host", "cpu_all_s")
    if busy_time and total_time and len(busy_time.times) > 1 and busy_time.times == total_time.times:
        time_s, rates = compute_rates(busy_time, start_s)
        total_rates = compute_rates(total_time, start_s)[1]
        share = np.divide(100 * rates, total_rates, out=np.full_like(rates, np.nan), where=total_rates > 0)
        yield TimeSeries("host", "cpu_utilisation_pct", time_s, np.minimum(share, 100.0))
    if memory := host.find_series("host", "memory_used_mib"):
        yield TimeSeries("host", "host_memory_mib", *thin_series(memory, start_s))
    for kinds, quantity, name in _HOST_COUNTERS:
        total = sum_counters(
            [part_series for part in host.list_parts(*kinds) if (part_series := host.find_series(part, quantity))]
        )
        if total and len(total.times) > 1:
            time_s, rates = compute_rates(total, start_s)
            yield TimeSeries("host", name, time_s, rates / _GIGA)


def thin_series(series: SampleSeries, start_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average neighbouring samples down to at most MAX_POINTS points; return times since the start and values."""
    times, values = np.asarray(series.times) - start_s, np.asarray(series.values)
    step = -(-len(times) // MAX_POINTS)
    starts = np.arange(0, len(times), step)
    counts = np.diff(np.append(starts, len(times)))
    return np.add.reduceat(times, starts) / counts, np.add.reduceat(values, starts) / counts


def compute_rates(counter: SampleSeries, start_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rate of a counter per second at the midpoints between samples, at most MAX_POINTS values.

    The value is nan where the counter decreased.
    """
    times, values = np.asarray(counter.times) - start_s, np.asarray(counter.values)
    step = -(-(len(times) - 1) // MAX_POINTS)
    kept_indices = np.append(np.arange(0, len(times) - 1, step), len(times) - 1)
    elapsed_s, growth = np.diff(times[kept_indices]), np.diff(values[kept_indices])
    return (times[kept_indices][1:] + times[kept_indices][:-1]) / 2, np.where(growth >= 0, growth / elapsed_s, np.nan)
