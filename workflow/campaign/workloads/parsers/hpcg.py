"""Parser of the summary of HPCG, which writes it to `HPCG-Benchmark_<version>_<date>.txt` and not to its output.

Only a result that HPCG calls VALID counts. Short runs are VALID, too, but their rating may be too high or too
low: official runs take 1800 s or more. The rating includes the overheads of convergence and optimization; the
raw rating (`HPCG 2.4 rating`) does not. HPCG 3.1 and NVIDIA's version write `section::name=value`. HPCG 3.0
writes a YAML file, in which `name: value` is indented below `section:`.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict

_SECTION = re.compile(r"(\S.{2,120}?)\s*:\s*$")
_BELOW = re.compile(r" {1,12}(\S[^=]{2,120}?): +(\S.{0,60}?)\s*$")
_LINE = re.compile(r"(\S[^=]{2,200}?)\s*::\s*([^=]{2,120}?)=\s*(\S.{0,120}?)\s*$")
_NUMBER = re.compile(F)
_BEGIN = "Machine Summary::Distributed Processes"
_TIME = "Final Summary::Results are valid but execution time (sec) is"
_LEAST = "Final Summary::Official results execution time (sec) must be at least"
_TOTAL = "GFLOP/s Summary::Total with convergence and optimization phase overhead"
_BYTES = "GB/s Summary::Raw Total B/W"
_VALID = "Final Summary::HPCG result is VALID with a GFLOP/s rating of"
_RAW = "Final Summary::HPCG 2.4 rating"
_KEYS = (_BEGIN, _TIME, _LEAST, _TOTAL, _BYTES, _VALID, _RAW)


class Hpcg(LogReader):
    """Reader of one summary of HPCG."""

    def __init__(self) -> None:
        super().__init__()
        self.section = ""
        self.invalid = False
        self.failed: list[str] = []
        self.values: dict[str, float] = {}

    def line(self, line: str) -> None:
        """Store the value of a line, or the section that begins with it."""
        if found := _LINE.match(line):
            return self.take(found[1].strip("_# "), found[2], found[3])
        if found := _SECTION.match(line):
            self.section = found[1].strip("_# ")
        elif self.section and (found := _BELOW.match(line)):
            return self.take(self.section, found[1], found[2])

    def take(self, section: str, name: str, text: str) -> None:
        """Store a value of the summary. A second process count or rating begins the next test.

        Args:
            section: heading of the section.
            name: name of the value.
            text: value as printed.
        """
        key = re.sub(r" \(?for historical (?:value\)?|reasons) is$", "", f"{section}::{name}").replace(
            "Rating", "rating"
        )
        if key in (_BEGIN, _VALID) and key in self.values:
            after = self.fresh(True)
            after.section = section
            after.take(section, name, text)
        elif key in _KEYS:
            if _NUMBER.fullmatch(text):
                self.values[key] = float(text)
            else:
                self.leave_out(name, text)
        elif key.startswith("Final Summary::HPCG result is INVALID"):
            self.invalid = True
        elif name == "Result" and text == "FAILED":
            self.failed.append(section[:60])

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the ratings, the memory bandwidth and the execution time. A result that HPCG calls invalid does not count."""
        gflops = self.values.get(_VALID)
        if self.invalid or self.failed:
            verdict.invalid(f"HPCG calls its result invalid{': ' if self.failed else ''}{', '.join(self.failed)}")
        elif gflops is None:
            verdict.incomplete(
                "no 'HPCG result is VALID' in the output: HPCG writes it to a file of its own ('result')"
            )
        elif not math.isfinite(gflops):
            verdict.nan("the rating is not a number")
        elif gflops <= 0 or (total := self.values.get(_TOTAL, gflops)) != gflops:
            verdict.invalid(f"the rating {gflops:g} is not the total with overheads, {total:g}; lines are torn")
        elif _TIME not in self.values:
            verdict.incomplete("the summary ends before the execution time")
        time_s, least_s = self.values.get(_TIME), self.values.get(_LEAST, 1800.0)
        if time_s is not None and time_s < least_s:
            verdict.flag(f"the run took {time_s:g} s, official results take {least_s:g} s or more")
        verdict.processes("HPCG", self.values.get(_BEGIN), scope)
        verdict.metrics |= {
            "hpcg_gflops": gflops,
            "hpcg_raw_gflops": self.values.get(_RAW),
            "memory_bandwidth_gb_per_s": self.values.get(_BYTES),
            "execution_time_s": time_s,
        }


_SECTIONS = (b"Summary", b"Information", b"Tests", b"epsilon")

FORMAT = Format(
    Hpcg,
    needles=(*_SECTIONS, b"Distributed Processes", b"esult", b"Rating (", b"execution time", b"Total"),
    line_max=1 << 10,
)
