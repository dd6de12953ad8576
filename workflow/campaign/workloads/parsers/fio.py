"""Parser of fio with --output-format=json, alone in its output or after lines such as `job: (g=0): rw=...`.

`bw` is in KiB/s, `bw_bytes` of fio 3 in bytes/s. Latencies of fio 2 are in us, those of fio 3 in ns. Without
--group_reporting, every job has an entry. Jobs of a group ran together, so their rates are added up. Groups ran one
after the other, and each group is a test. With --client, the entries are in `client_stats`: one per job and host,
and their sum, which is left out. Latencies of several entries cannot be combined, and are read only if there is one
entry. Percentiles are those of `clat`, from submission to completion. Without --direct=1, the result includes the
page cache of the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from campaign.workloads.parsers.reading import (
    LogFormat,
    LogReader,
    ReadingBuilder,
    RunContext,
    parse_number,
    parse_size,
)

_DIRECTIONS = ("read", "write", "mixed")
_MIN_RUNTIME_MS = 1_000.0
_SETTINGS = {"bs": "block_size", "iodepth": "queue_depth", "numjobs": "jobs", "rw": "access"}
"""Names of settings by the fio options that hold them."""
_CLIENT_SUM_NAME = "All clients"


class FioReader(LogReader):
    """Reader of one group of fio jobs that ran together."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Mapping[str, Any]] = []
        self.options: Mapping[str, Any] = {}

    def read_document(self, document: Any) -> None:
        """Store the jobs of a JSON document if it is a result of fio, with a separate reader for each group."""
        if not isinstance(document, dict) or "fio version" not in document:
            return
        raw_entries = document.get("jobs", document.get("client_stats"))
        entries = raw_entries if isinstance(raw_entries, list) else []
        jobs = [job for job in entries if isinstance(job, dict)]
        if len(jobs) < len(entries):
            self.note_unreadable("an entry of jobs", next(entry for entry in entries if not isinstance(entry, dict)))
        jobs = [job for job in jobs if job.get("jobname") != _CLIENT_SUM_NAME]
        groups: dict[float, FioReader] = {}
        for job in jobs:
            group = parse_number(job.get("groupid")) or 0.0
            if group not in groups:
                groups[group] = self.select_reader(bool(self.jobs))
                options = document.get("global options")
                groups[group].options = options if isinstance(options, dict) else {}
            groups[group].jobs.append(job)

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add bandwidths, operation rates and latencies for each direction. Jobs with an error make the reading invalid."""
        if not self.jobs:
            builder.mark_incomplete(
                "the output has no complete JSON document of fio; run fio with --output-format=json"
            )
            return
        if errors := {f"{job.get('jobname')} ({job.get('error')})" for job in self.jobs if job.get("error") != 0}:
            builder.mark_invalid(f"jobs failed (error number): {', '.join(sorted(errors))}")
        self.add_settings(builder, self.jobs)
        active_directions = [
            name for name in _DIRECTIONS if self.add_direction(builder, name, [job.get(name) for job in self.jobs])
        ]
        if not active_directions and not errors:
            builder.mark_incomplete("fio transferred no data")
        self.program = ",".join(dict.fromkeys(str(job.get("jobname", "")) for job in self.jobs))

    def add_settings(self, builder: ReadingBuilder, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Add options on which all jobs agree as settings, and a flag if a job used the page cache."""
        values_by_option: dict[str, set[str]] = {}
        for job in jobs:
            job_options = job.get("job options")
            options = {**self.options, **(job_options if isinstance(job_options, dict) else {})}
            for key in _SETTINGS:
                values_by_option.setdefault(key, set()).add(str(options.get(key, "")))
            if str(options.get("direct", "0")) != "1" and options.get("ioengine") != "null":
                builder.add_flag("the page cache was not bypassed (direct=0)")
        for key, name in _SETTINGS.items():
            if len(values_by_option[key]) == 1:  # otherwise the jobs differ
                text = values_by_option[key].pop()
                builder.settings[name] = (
                    text if key == "rw" else parse_size(text) if key == "bs" else parse_number(text)
                )

    def add_direction(self, builder: ReadingBuilder, name: str, entries: Sequence[Any]) -> bool:
        """Add the rates and latencies of one direction to the metrics. Returns False if no job transferred data in it.

        Args:
            builder: builder of the reading.
            name: direction: `read`, `write` or `mixed`.
            entries: entries of the jobs for this direction.
        """
        active_entries = [
            entry for entry in entries if isinstance(entry, dict) and (parse_number(entry.get("io_bytes")) or 0) != 0
        ]
        if not active_entries:
            return False
        rates = [_read_bytes_per_s(entry) for entry in active_entries]
        iops = [parse_number(entry.get("iops")) for entry in active_entries]
        if any(value is None or not math.isfinite(value) for value in (*rates, *iops)):
            builder.mark_nan(f"a rate of {name} is not a number")
            return True
        builder.metrics[f"{name}_bandwidth_gb_per_s"] = math.fsum(rate or 0.0 for rate in rates) / 1e9
        builder.metrics[f"{name}_operations_per_s"] = math.fsum(operations_per_s or 0.0 for operations_per_s in iops)
        if any((parse_number(entry.get("runtime")) or 0.0) < _MIN_RUNTIME_MS for entry in active_entries):
            builder.add_flag("a job ran for less than one second")
        if len(active_entries) == 1:
            unit, units_per_us = ("_ns", 1e3) if "lat_ns" in active_entries[0] else ("", 1.0)
            total_latency, completion_latency = (
                active_entries[0].get(f"lat{unit}"),
                active_entries[0].get(f"clat{unit}"),
            )
            builder.metrics[f"{name}_latency_us"] = _convert_to_us(total_latency, "mean", units_per_us)
            percentiles = completion_latency.get("percentile") if isinstance(completion_latency, dict) else None
            for percent in ("50", "99", "99.9"):
                metric_name = f"{name}_latency_p{percent.replace('.', '')}_us"
                builder.metrics[metric_name] = _convert_to_us(percentiles, f"{float(percent):.6f}", units_per_us)
        return True


def _convert_to_us(statistics: Any, name: str, units_per_us: float) -> float | None:
    """Return one statistic of a latency, converted to microseconds, or None if it is missing."""
    value = parse_number(statistics.get(name)) if isinstance(statistics, dict) else None
    return None if value is None else value / units_per_us


def _read_bytes_per_s(entry: Mapping[str, Any]) -> float | None:
    """Return the bandwidth in the entry of a job, in bytes/s, or None if it is missing."""
    if "bw_bytes" in entry:
        return parse_number(entry["bw_bytes"])
    kib_per_s = parse_number(entry.get("bw"))
    return None if kib_per_s is None else 1024 * kib_per_s


FORMAT = LogFormat(FioReader, document_marker=b'"fio version"', max_line_chars=64 << 10)
