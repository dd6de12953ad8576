"""Parser of the summary of HPCG, which writes it to `HPCG-Benchmark_<version>_<date>.txt` and not to its output.

Only a result that HPCG reports as VALID counts. Short runs are VALID, too, but their rating may be too high or too
low; official runs take 1800 s or more. The rating includes the overheads of convergence and optimization; the
raw rating (`HPCG 2.4 rating`) does not. HPCG 3.1 and NVIDIA's version write `section::name=value`. HPCG 3.0
writes a YAML file, in which `name: value` is indented below `section:`.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, LogFormat, LogReader, ReadingBuilder, RunContext

_SECTION = re.compile(r"(\S.{2,120}?)\s*:\s*$")
_INDENTED_VALUE = re.compile(r" {1,12}(\S[^=]{2,120}?): +(\S.{0,60}?)\s*$")
_LINE = re.compile(r"(\S[^=]{2,200}?)\s*::\s*([^=]{2,120}?)=\s*(\S.{0,120}?)\s*$")
_NUMBER = re.compile(F)
_PROCESS_COUNT = "Machine Summary::Distributed Processes"
_EXECUTION_TIME = "Final Summary::Results are valid but execution time (sec) is"
_MIN_OFFICIAL_TIME = "Final Summary::Official results execution time (sec) must be at least"
_TOTAL_RATING = "GFLOP/s Summary::Total with convergence and optimization phase overhead"
_BANDWIDTH = "GB/s Summary::Raw Total B/W"
_VALID_RATING = "Final Summary::HPCG result is VALID with a GFLOP/s rating of"
_RAW_RATING = "Final Summary::HPCG 2.4 rating"
_KEYS = (_PROCESS_COUNT, _EXECUTION_TIME, _MIN_OFFICIAL_TIME, _TOTAL_RATING, _BANDWIDTH, _VALID_RATING, _RAW_RATING)


class HpcgReader(LogReader):
    """Reader of one summary file of HPCG."""

    def __init__(self) -> None:
        super().__init__()
        self.section = ""
        self.is_invalid = False
        self.failed_tests: list[str] = []
        self.values: dict[str, float] = {}

    def read_line(self, line: str) -> None:
        """Store the value in a line, or the section that the line begins."""
        if match := _LINE.match(line):
            return self.store_value(match[1].strip("_# "), match[2], match[3])
        if match := _SECTION.match(line):
            self.section = match[1].strip("_# ")
        elif self.section and (match := _INDENTED_VALUE.match(line)):
            return self.store_value(self.section, match[1], match[2])

    def store_value(self, section: str, name: str, text: str) -> None:
        """Store one value of the summary. A second process count or a second rating begins the next test."""
        key = re.sub(r" \(?for historical (?:value\)?|reasons) is$", "", f"{section}::{name}").replace(
            "Rating", "rating"
        )
        if key in (_PROCESS_COUNT, _VALID_RATING) and key in self.values:
            reader = self.select_reader(True)
            reader.section = section
            reader.store_value(section, name, text)
        elif key in _KEYS:
            if _NUMBER.fullmatch(text):
                self.values[key] = float(text)
            else:
                self.note_unreadable(name, text)
        elif key.startswith("Final Summary::HPCG result is INVALID"):
            self.is_invalid = True
        elif name == "Result" and text == "FAILED":
            self.failed_tests.append(section[:60])

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the ratings, the memory bandwidth and the execution time. Results that HPCG reports as invalid do not count."""
        gflops = self.values.get(_VALID_RATING)
        if self.is_invalid or self.failed_tests:
            builder.mark_invalid(
                f"HPCG reports an invalid result{': ' if self.failed_tests else ''}{', '.join(self.failed_tests)}"
            )
        elif gflops is None:
            builder.mark_incomplete(
                "the output has no line 'HPCG result is VALID'; HPCG writes it to a file, so set the workload's key 'result'"
            )
        elif not math.isfinite(gflops):
            builder.mark_nan("the rating is not a number")
        elif gflops <= 0 or (total := self.values.get(_TOTAL_RATING, gflops)) != gflops:
            builder.mark_invalid(
                f"the rating {gflops:g} differs from the total with overheads, {total:g}, so a line is damaged"
            )
        elif _EXECUTION_TIME not in self.values:
            builder.mark_incomplete("the summary ends before the execution time")
        time_s, min_official_s = self.values.get(_EXECUTION_TIME), self.values.get(_MIN_OFFICIAL_TIME, 1800.0)
        if time_s is not None and time_s < min_official_s:
            builder.add_flag(f"the run took {time_s:g} s, but official results need at least {min_official_s:g} s")
        builder.check_process_count("HPCG", self.values.get(_PROCESS_COUNT), context)
        builder.metrics |= {
            "hpcg_gflops": gflops,
            "hpcg_raw_gflops": self.values.get(_RAW_RATING),
            "memory_bandwidth_gb_per_s": self.values.get(_BANDWIDTH),
            "execution_time_s": time_s,
        }


_SECTIONS = (b"Summary", b"Information", b"Tests", b"epsilon")

FORMAT = LogFormat(
    HpcgReader,
    needles=(*_SECTIONS, b"Distributed Processes", b"esult", b"Rating (", b"execution time", b"Total"),
    max_line_chars=1 << 10,
)
