"""fio with --output-format=json, alone in its output or behind lines such as `job: (g=0): rw=...`.

`bw` is in KiB/s, `bw_bytes` in bytes/s. Without --group_reporting every job has an entry: those of a group ran together and are
added up, groups ran one after another, and the last counts. Latencies of several entries cannot be added up, and are read where
there is one; percentiles are those of `clat`, from submission to completion. Without --direct=1 the page cache of the host is
measured, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from campaign.workloads.parsers.reading import Documents, Format, Reading, Scope, Verdict, number

_DIRECTIONS = ("read", "write", "mixed")
_SHORT_MS = 1_000.0


class Fio:
    def __init__(self) -> None:
        self.documents = Documents()
        self.jobs: list[Mapping[str, Any]] = []
        self.options: Mapping[str, Any] = {}

    def feed(self, line: str) -> None:
        document = self.documents.feed(line)
        if isinstance(document, dict) and "fio version" in document:
            jobs = document.get("jobs")
            self.jobs = [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
            options = document.get("global options")
            self.options = options if isinstance(options, dict) else {}

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if not self.jobs:
            verdict.incomplete("no whole document of fio in the output: run it with --output-format=json")
            return verdict.reading()
        if errors := {f"{job.get('jobname')} ({job.get('error')})" for job in self.jobs if job.get("error") != 0}:
            verdict.invalid(f"jobs ended with an error: {', '.join(sorted(errors))}")
        groups = sorted({number(job.get("groupid")) or 0.0 for job in self.jobs})
        if len(groups) > 1:
            verdict.flag(f"{len(groups)} groups ran one after another: the last counts")
        jobs = [job for job in self.jobs if (number(job.get("groupid")) or 0.0) == groups[-1]]
        self.options_of(verdict, jobs)
        found = [name for name in _DIRECTIONS if self.direction(verdict, name, [job.get(name) for job in jobs])]
        if not found and not errors:
            verdict.incomplete("fio read and wrote nothing")
        return verdict.reading()

    def options_of(self, verdict: Verdict, jobs: Sequence[Mapping[str, Any]]) -> None:
        for job in jobs:
            own = job.get("job options")
            options = {**self.options, **(own if isinstance(own, dict) else {})}
            if str(options.get("direct", "0")) != "1" and options.get("ioengine") != "null":
                verdict.flag("the page cache was not passed over (direct=0)")

    def direction(self, verdict: Verdict, name: str, entries: Sequence[Any]) -> bool:
        """Whether anything was done in it."""
        used = [entry for entry in entries if isinstance(entry, dict) and (number(entry.get("io_bytes")) or 0) != 0]
        if not used:
            return False
        rates = [number(entry.get("bw_bytes")) for entry in used]
        iops = [number(entry.get("iops")) for entry in used]
        if any(value is None or not math.isfinite(value) for value in (*rates, *iops)):
            verdict.nan(f"a rate of {name} is not a number")
            return True
        verdict.metrics[f"{name}_bandwidth_gb_per_s"] = math.fsum(rate or 0.0 for rate in rates) / 1e9
        verdict.metrics[f"{name}_operations_per_s"] = math.fsum(each or 0.0 for each in iops)
        if any((number(entry.get("runtime")) or 0.0) < _SHORT_MS for entry in used):
            verdict.flag("a job ran for less than a second")
        if len(used) == 1:
            total, completion = used[0].get("lat_ns"), used[0].get("clat_ns")
            verdict.metrics[f"{name}_latency_us"] = _us(total, "mean")
            percentiles = completion.get("percentile") if isinstance(completion, dict) else None
            for percent in ("50", "99", "99.9"):
                place = f"{name}_latency_p{percent.replace('.', '')}_us"
                verdict.metrics[place] = _us(percentiles, f"{float(percent):.6f}")
        return True


def _us(values: Any, name: str) -> float | None:
    found = number(values.get(name)) if isinstance(values, dict) else None
    return None if found is None else found / 1e3


FORMAT = Format(Fio, document=b'"fio version"', line_max=64 << 10)
