"""Parser of fio with --output-format=json, alone in its output or after lines such as `job: (g=0): rw=...`.

`bw` is in KiB/s, `bw_bytes` of fio 3 in bytes/s. Latencies of fio 2 are in us, those of fio 3 in ns. Without
--group_reporting every job has an entry. Jobs of a group ran together and are added up; groups ran one after
the other, and each is a test. With --client, the entries are in `client_stats`: one per job and host, and their
sum, which is left out. Latencies of several entries cannot be added up, and are read only if there is one
entry. Percentiles are those of `clat`, from submission to completion. Without --direct=1, the result includes
the page cache of the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from campaign.workloads.parsers.reading import Format, LogReader, Scope, Verdict, number, size_bytes

_DIRECTIONS = ("read", "write", "mixed")
_SHORT_MS = 1_000.0
_SETTINGS = {"bs": "block_size", "iodepth": "queue_depth", "numjobs": "jobs", "rw": "access"}
"""Option of a job -> name of the setting."""
_SUM_OF_CLIENTS = "All clients"


class Fio(LogReader):
    """Reader of one group of fio jobs that ran together."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Mapping[str, Any]] = []
        self.options: Mapping[str, Any] = {}

    def document(self, document: Any) -> None:
        """Store the jobs of a JSON document if it is a result of fio, each group in its own reader."""
        if not isinstance(document, dict) or "fio version" not in document:
            return
        found = document.get("jobs", document.get("client_stats"))
        entries = found if isinstance(found, list) else []
        jobs = [job for job in entries if isinstance(job, dict)]
        if len(jobs) < len(entries):
            self.leave_out("an entry of jobs", next(entry for entry in entries if not isinstance(entry, dict)))
        jobs = [job for job in jobs if job.get("jobname") != _SUM_OF_CLIENTS]
        groups: dict[float, Fio] = {}
        for job in jobs:
            group = number(job.get("groupid")) or 0.0
            if group not in groups:
                groups[group] = self.fresh(bool(self.jobs))
                options = document.get("global options")
                groups[group].options = options if isinstance(options, dict) else {}
            groups[group].jobs.append(job)

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add bandwidths, operation rates and latencies per direction. Jobs with an error make the reading invalid."""
        if not self.jobs:
            verdict.incomplete("no whole document of fio in the output: run it with --output-format=json")
            return
        if errors := {f"{job.get('jobname')} ({job.get('error')})" for job in self.jobs if job.get("error") != 0}:
            verdict.invalid(f"jobs ended with an error: {', '.join(sorted(errors))}")
        self.options_of(verdict, self.jobs)
        found = [name for name in _DIRECTIONS if self.direction(verdict, name, [job.get(name) for job in self.jobs])]
        if not found and not errors:
            verdict.incomplete("fio read and wrote nothing")
        self.program = ",".join(dict.fromkeys(str(job.get("jobname", "")) for job in self.jobs))

    def options_of(self, verdict: Verdict, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Add the options that all jobs have in common as settings, and a flag if a job used the page cache."""
        stated: dict[str, set[str]] = {}
        for job in jobs:
            own = job.get("job options")
            options = {**self.options, **(own if isinstance(own, dict) else {})}
            for key in _SETTINGS:
                stated.setdefault(key, set()).add(str(options.get(key, "")))
            if str(options.get("direct", "0")) != "1" and options.get("ioengine") != "null":
                verdict.flag("the page cache was not passed over (direct=0)")
        for key, name in _SETTINGS.items():
            if len(stated[key]) == 1:  # otherwise the jobs differ
                text = stated[key].pop()
                verdict.settings[name] = text if key == "rw" else size_bytes(text) if key == "bs" else number(text)

    def direction(self, verdict: Verdict, name: str, entries: Sequence[Any]) -> bool:
        """Add the rates and latencies of one direction to the metrics. Return False if no job transferred data in it.

        Args:
            builder: builder of the reading.
            name: direction: `read`, `write` or `mixed`.
            entries: entries of the jobs for this direction.
        """
        used = [entry for entry in entries if isinstance(entry, dict) and (number(entry.get("io_bytes")) or 0) != 0]
        if not used:
            return False
        rates = [_bytes_per_s(entry) for entry in used]
        iops = [number(entry.get("iops")) for entry in used]
        if any(value is None or not math.isfinite(value) for value in (*rates, *iops)):
            verdict.nan(f"a rate of {name} is not a number")
            return True
        verdict.metrics[f"{name}_bandwidth_gb_per_s"] = math.fsum(rate or 0.0 for rate in rates) / 1e9
        verdict.metrics[f"{name}_operations_per_s"] = math.fsum(each or 0.0 for each in iops)
        if any((number(entry.get("runtime")) or 0.0) < _SHORT_MS for entry in used):
            verdict.flag("a job ran for less than a second")
        if len(used) == 1:
            unit, per_us = ("_ns", 1e3) if "lat_ns" in used[0] else ("", 1.0)
            total, completion = used[0].get(f"lat{unit}"), used[0].get(f"clat{unit}")
            verdict.metrics[f"{name}_latency_us"] = _us(total, "mean", per_us)
            percentiles = completion.get("percentile") if isinstance(completion, dict) else None
            for percent in ("50", "99", "99.9"):
                place = f"{name}_latency_p{percent.replace('.', '')}_us"
                verdict.metrics[place] = _us(percentiles, f"{float(percent):.6f}", per_us)
        return True


def _us(values: Any, name: str, per_us: float) -> float | None:
    """Return a latency in microseconds, or None if it is missing.

    Args:
        statistics: statistics or percentiles by name.
        name: key of the latency.
        units_per_us: units of the latency per microsecond.
    """
    found = number(values.get(name)) if isinstance(values, dict) else None
    return None if found is None else found / per_us


def _bytes_per_s(entry: Mapping[str, Any]) -> float | None:
    """Return the bandwidth of an entry in bytes/s, or None if it is missing."""
    if "bw_bytes" in entry:
        return number(entry["bw_bytes"])
    kib_per_s = number(entry.get("bw"))
    return None if kib_per_s is None else 1024 * kib_per_s


FORMAT = Format(Fio, document=b'"fio version"', line_max=64 << 10)
