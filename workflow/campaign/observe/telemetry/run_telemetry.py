"""Telemetry of a driver: one sampler per host, and the samples of each run as a file and as metrics."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from campaign.common.accelerators.nvidia import get_visible_uuids
from campaign.common.files import make_directory, write_atomic
from campaign.observe.telemetry.host_load import list_load_flags, measure_host_loads
from campaign.observe.telemetry.run_metrics import (
    SHARED_MACHINE_FLAG,
    WHOLE_RUN_FLAG,
    UsedDeviceNames,
    find_disturbances,
    find_unused_devices,
    parse_reported_uuids,
    summarize_run,
)
from campaign.observe.telemetry.samples import HostSamples, SampleFile, TimeWindow, build_columns
from campaign.plan.used_devices import UsedDevices

if TYPE_CHECKING:
    import pyarrow as pa

    from campaign.spec.hardware import Composition
    from campaign.spec.host_load import HostLoad
    from campaign.workloads.launcher import Launcher

GAUGES_VARIABLE = "CAMPAIGN_GAUGES"
"""Environment variable for the directory in which programs publish their own values (`sources.program_gauges`)."""
NO_SAMPLES_FLAG = (
    "telemetry: no samples in the window of {:.3g} s at an interval of {:g} s; measure for longer, or lower telemetry_s"
)
_LOAD_INTERVAL_S = 1.0  # sampling interval if only the load of the hosts is sampled
_START_TIMEOUT_S = 10.0
"""Time in seconds after which samplers must have started. A Slurm step on many hosts starts within seconds."""


@dataclass(frozen=True)
class TelemetrySummary:
    """Results of the telemetry of one run.

    Attributes:
        metrics: metrics by name.
        flags: flags for the record.
        written: file with the samples; None if none was written.
        unused: messages about unused devices (see `run_metrics.find_unused_devices`).
        loads: load of each host.
        disturbances: descriptions of what disturbed the run from outside (see `run_metrics.find_disturbances`).
    """

    metrics: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    samples_file: Path | None = None
    unused_device_messages: tuple[str, ...] = ()
    loads: tuple[HostLoad, ...] = ()
    disturbances: tuple[str, ...] = ()


class Telemetry:
    """Telemetry of all runs of a launcher, as a context in which the samplers run.

    Args:
        launcher: launcher that starts the samplers.
        composition: composition of the runs.
        interval_s: sampling interval in seconds; None to sample only the load of the hosts.
        directory: directory for the files of samplers and gauges, visible on all hosts. It is emptied at the start and removed at
            the end.
        mark: beginning of the mark of the campaign's processes.
    """

    def __init__(
        self, launcher: Launcher, composition: Composition, interval_s: float | None, directory: Path, mark: str = ""
    ) -> None:
        self._launcher, self._composition = launcher, composition
        self._interval_s, self._directory = interval_s or _LOAD_INTERVAL_S, directory
        self._is_load_only = interval_s is None
        self._mark = mark
        self._sidecars = ExitStack()
        self._started_s = 0.0
        self._files: dict[str, SampleFile] = {}

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that every step needs, so that programs can publish their own values."""
        return {} if self._is_load_only else {GAUGES_VARIABLE: str(self._directory / "gauges")}

    def __enter__(self) -> Telemetry:
        shutil.rmtree(self._directory, ignore_errors=True)
        with suppress(OSError):  # If this fails, samples are missing, which a flag reports.
            (self._directory / "gauges").mkdir(parents=True)
        argv = [sys.executable, "-m", "campaign.observe.telemetry.sampler", "--host", "{host}"]
        argv += ["--interval", f"{self._interval_s:g}", "--gauges", str(self._directory / "gauges")]
        argv += ["--out", str(self._directory / "{host}.jsonl"), "--mark", self._mark]
        argv += ["--load-only"] if self._is_load_only else []
        hosts = self._sidecars.enter_context(self._launcher.sidecar(argv, self._directory))
        self._files = {host: SampleFile(self._directory / f"{host}.jsonl") for host in hosts}
        self._started_s = time.time()
        return self

    def __exit__(self, *_: object) -> None:
        self._sidecars.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def store_run(
        self,
        started_s: float,
        ended_s: float,
        steady_window: tuple[float, float] | None,
        sample_count: float | None,
        out: Path,
        devices: Mapping[str, int] | None = None,
        ran_on: Sequence[str] = (),
    ) -> TelemetrySummary:
        """Write the samples of a run to a file, and compute metrics over its steady window or the whole run. Never raises.

        Args:
            started_s: start of the run, in Unix seconds.
            ended_s: end of the run, in Unix seconds.
            steady_window: start and end of the window in which steps were measured; None for a run without such a window.
            sample_count: number of training samples that the run processed in that window.
            out: path of the Parquet file (see `write_samples`).
            devices: number of devices that the run used, by host; `{}` if it used none that a sampler can see; None for all
                devices.
            ran_on: descriptions of devices as reported by ranks (`Record.ran_on`).
        """
        window, run = TimeWindow(*(steady_window or (started_s, ended_s))), TimeWindow(started_s, ended_s)
        hosts, silent_hosts = self._collect_samples(min(started_s, window.start), max(ended_s, window.end))
        loads = measure_host_loads(hosts, window)
        if self._is_load_only:
            return TelemetrySummary(flags=tuple(list_load_flags(loads)), loads=loads)
        used_names = self._group_used_names(devices, ran_on)
        is_expected = self._expects_samples(window)
        flags = [f"telemetry: no samples of {host}" for host in silent_hosts if is_expected or hosts]
        if not any(len(series.times) > 1 for host in hosts for series in host.series.values()):
            names_devices = devices is not None and any(host_devices.host_names for host_devices in used_names.values())
            flags += [NO_SAMPLES_FLAG.format(window.length_s, self._interval_s)] if names_devices else []
            return TelemetrySummary({}, tuple(flags) if is_expected or names_devices else ())
        metrics, flags_of_metrics = summarize_run(hosts, window, used_names, sample_count)
        unused_device_messages, flags_of_unused = find_unused_devices(hosts, used_names, run)
        disturbances = find_disturbances(hosts, used_names)
        flags += [*flags_of_metrics, *(f"telemetry: {text}" for text in disturbances), *flags_of_unused]
        if metrics and steady_window is None:
            flags.append(WHOLE_RUN_FLAG)
        if not metrics and is_expected and not flags_of_metrics:
            flags.append("telemetry: fewer than 2 samples in the window")
        if metrics and len({host.machine for host in hosts}) < len(self._composition.hosts) - len(silent_hosts):
            flags.append(SHARED_MACHINE_FLAG)
        flags += list_load_flags(loads)
        samples_file, problem = _try_to_write_samples(out, hosts)
        if problem:
            flags.append(f"telemetry: the samples could not be written ({problem})")
        return TelemetrySummary(metrics, tuple(flags), samples_file, unused_device_messages, loads, disturbances)

    def _expects_samples(self, window: TimeWindow) -> bool:
        """Return whether at least two samples in the window are expected from working samplers.

        They are expected if the window is long enough and the samplers had time to start before it.
        """
        return window.length_s > 2 * self._interval_s and window.start > self._started_s + _START_TIMEOUT_S

    def _collect_samples(self, first: float, last: float) -> tuple[list[HostSamples], list[str]]:
        """Return the samples of all hosts in a period, and the names of hosts without samples. No sample is returned twice."""
        host_samples, silent_hosts = [], []
        for host, file in self._files.items():
            file.read_new_lines()
            if (samples := file.collect_samples(first, last)) and samples.series:
                host_samples.append(samples)
            else:
                silent_hosts.append(host)
            file.drop_before(last)
        return host_samples, silent_hosts

    def _group_used_names(self, counts: Mapping[str, int] | None, ran_on: Sequence[str]) -> dict[str, UsedDeviceNames]:
        """Group the names of the used devices by the host name of their sampler.

        Hosts that have no sampler are emulated on the machine of the first sampler, and belong to it.
        """
        names: dict[str, list[str | None]] = {}
        uuids: dict[str, list[str | None]] = {}
        first, by_rank = next(iter(self._files), ""), iter(parse_reported_uuids(ran_on))
        for host, devices in UsedDevices(self._composition).by_host.items():
            used_devices = devices if counts is None else devices[: counts.get(host, 0)]
            sampler = host if host in self._files else first
            names.setdefault(sampler, []).extend(device.host_id for device in used_devices)
            uuids.setdefault(sampler, []).extend(next(by_rank, None) for _ in used_devices)
        visible = get_visible_uuids(os.environ) if len(names) == 1 else ()
        return {
            sampler: UsedDeviceNames(
                # Without names, a program that reports no devices uses those that the mask of this process shows it.
                tuple(sampler_names)
                if any(sampler_names)
                else (*visible[: len(sampler_names)], *sampler_names[len(visible) :]),
                tuple(uuid for uuid in uuids[sampler] if uuid) if all(uuids[sampler]) else (),
            )
            for sampler, sampler_names in names.items()
        }


def _try_to_write_samples(out: Path, hosts: Sequence[HostSamples]) -> tuple[Path | None, str]:
    """Write a run's samples. Return the path of the file and an empty string, or None and a description of the problem.

    All exceptions are caught, because the record of a finished run matters more than its samples.
    """
    try:
        return write_samples(out, hosts), ""
    except Exception as error:
        return None, getattr(error, "strerror", None) or str(error) or type(error).__name__


def write_samples(out: Path, hosts: Sequence[HostSamples]) -> Path:
    """Write the samples of a run atomically, and return the path of the file.

    The format is Parquet or, if pyarrow is not installed, `.json.gz` with the same columns. Tables read both formats.
    """
    columns = build_columns(hosts)
    make_directory(out.parent)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        out = out.with_suffix(".json.gz")
        write_atomic(out, gzip.compress(json.dumps(columns).encode(), mtime=0))
        return out
    # Only buffers are passed, because pyarrow imports pandas to convert lists, which takes longer than a short run.
    arrays = {
        name: pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(array("d", values))])
        if name in ("time", "value")
        else _build_dictionary_array(values)
        for name, values in columns.items()
    }
    table = pa.Table.from_arrays(list(arrays.values()), names=list(arrays))
    partial = out.with_name(f".{out.name}.partial")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return out


def _build_dictionary_array(values: Sequence[str]) -> pa.DictionaryArray:
    """Build the column of a table from texts, of which each distinct one is stored once."""
    import pyarrow as pa

    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    texts = [value.encode() for value in codes]
    indices, offsets = (
        array("i", [codes[value] for value in values]),
        array("i", accumulate(map(len, texts), initial=0)),
    )
    return pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(indices), [None, pa.py_buffer(indices)]),
        pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]),
    )
