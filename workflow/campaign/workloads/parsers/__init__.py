"""Parsers of the logs of other programs, one module per program.

The module of each parser documents the meaning of the numbers that its program prints, and which of them are misleading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from campaign.common.errors import suggest_name
from campaign.common.wording import pluralize
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers.reading import (
    NO_END_MARK,
    Curve,
    LogFormat,
    LogReader,
    LogReading,
    PairMatrix,
    RunContext,
    describe_unended_line,
)

__all__ = [
    "PARSERS",
    "PARSERS_WITHOUT_RATE",
    "SERVICE_PARSERS",
    "Curve",
    "LogFormat",
    "LogReader",
    "LogReading",
    "PairMatrix",
    "ParserName",
    "RunContext",
    "describe_tests",
    "has_timestamps",
    "have_equal_numbers",
    "load_format",
    "read_log",
    "read_tests",
    "select_tests",
    "strip_line_prefix",
]

PARSERS: Mapping[str, str] = {
    "tf_cnn_benchmarks": "TensorFlow's CNN benchmarks, with or without Horovod",
    "horovod_synthetic": "Horovod's synthetic benchmarks (PyTorch, TensorFlow, Keras)",
    "nvidia_bert": "NVIDIA's BERT fine-tuning: printed log or dllogger.json",
    "yolov5": "YOLOv5 training: printed log or results.csv",
    "mlperf": "MLPerf training logs (:::MLLOG)",
    "hpl": "High-Performance Linpack, including NVIDIA's version and HPL-MxP",
    "nccl_tests": "nccl-tests and rccl-tests: printed log, or the JSON file of -J",
    "p2p_bandwidth_latency": "CUDA's p2pBandwidthLatencyTest and bandwidthTest",
    "nvbandwidth": "nvbandwidth: printed log, or the JSON output of -j",
    "osu": "OSU micro-benchmarks: bandwidth, latency, collectives",
    "perftest": "perftest: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests",
    "vllm": "vLLM's `vllm bench serve` and TensorRT-LLM's benchmark_serving: the file of --save-result, or the printed log",
    "sglang": "SGLang's `bench_serving`: the file of --output-file, or the printed log",
    "aiperf": "NVIDIA's AIPerf and GenAI-Perf: profile_export_aiperf.json or profile_export_genai_perf.json",
    "trtllm_bench": "TensorRT-LLM's `trtllm-bench throughput` and `latency`: the file of --report_json, or the printed log",
    "mlperf_inference": "MLPerf Inference's LoadGen: mlperf_log_summary.txt or mlperf_log_detail.txt",
    "gpu_copy": "SuperBench's gpu_copy: copies between host and devices, and between devices",
    "stream": "STREAM: memory bandwidth",
    "mlc": "Intel's Memory Latency Checker: latencies and bandwidths between NUMA nodes",
    "hpcg": "HPCG: the summary file",
    "graph500": "Graph500's reference code: BFS and SSSP",
    "gromacs": "GROMACS: md.log, or the output of mdrun",
    "lammps": "LAMMPS: log.lammps, or the output of the program",
    "megatron": "Training logs of Megatron-LM and Primus",
    "fio": "fio: the output of --output-format=json",
    "ior": "IOR: printed table or JSON",
    "dlio": "DLIO and MLPerf Storage: summary.json",
}
"""Description of the logs that each parser reads, by the parser's name, which is also the name of its module."""

_PARSERS_WITH_RATE = {
    *("tf_cnn_benchmarks", "horovod_synthetic", "nvidia_bert", "yolov5", "mlperf", "megatron", "dlio"),
    *("vllm", "sglang", "aiperf", "trtllm_bench", "mlperf_inference"),
}

SERVICE_PARSERS = frozenset({"vllm", "sglang", "aiperf"})
"""Parsers of benchmark clients that send requests to a server."""

PARSERS_WITHOUT_RATE = frozenset(PARSERS) - _PARSERS_WITH_RATE
"""Parsers of programs that process no samples. Their primary metric is not throughput."""


def _check_parser_name(name: str) -> str:
    """Return the name of a parser unchanged. Raises ValueError if there is no such parser."""
    if name not in PARSERS:
        raise ValueError(f"'{name}' is not a parser; {suggest_name(name, PARSERS)}")
    return name


ParserName = Annotated[str, AfterValidator(_check_parser_name), Field(json_schema_extra={"enum": list(PARSERS)})]
"""Type of a key whose value is the name of a parser."""

_MAX_TESTS_LISTED = 12

# Prefixes of a line: the time of `kubectl logs --timestamps`, then the label of srun --label, mpirun --tag-output (Open MPI 4
# and 5), horovodrun or torchrun.
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z ")
_RANK_LABEL = re.compile(
    r" *\d{1,6}: (?!\d+%)|\[(?:[\w.@-]*@)?\d{1,6}(?:,\d{1,6})?\]<std(?:out|err)>: ?|\[(?:default|rank)\d{1,6}\]: ?"
)


def has_timestamps(log: Log) -> bool:
    """Return True if a log has timestamps of `kubectl logs --timestamps`, judging by its first line."""
    return _TIMESTAMP.match(next(iter(log.read_lines()), "")) is not None


def strip_line_prefix(line: str) -> str:
    """Remove the prefix that launchers add to a line: kubectl's timestamp and the label of the rank."""
    if timestamp := _TIMESTAMP.match(line):
        line = line[timestamp.end() :]
    return line[label.end() :] if (label := _RANK_LABEL.match(line)) else line


def load_format(name: str) -> LogFormat:
    """Import the module of a built-in parser by its name in PARSERS, and return the log format that it defines."""
    log_format: LogFormat = import_module(f"{__name__}.{name}").FORMAT
    return log_format


def read_log(name: str, log: Log, context: RunContext) -> LogReading:
    """Parse a log with a built-in parser (a name in PARSERS), and return the reading of the one test that counts.

    That is the only test of the log, or the one that `context.test` selects. If a log has several tests and none is selected, the
    reading is `invalid`: it lists the tests and has no numbers, because no single test represents the log. If all tests have the
    same numbers, the first one is returned.
    """
    tests = read_tests(name, log, context)
    chosen_tests = select_tests(tests, context.test)
    if not chosen_tests:
        return LogReading(
            "incomplete",
            f"the log has no test {context.test}, only {pluralize(len(tests), 'test')}{_format_test_list(tests)}",
        )
    if len(tests) == 1 or (context.test is None and have_equal_numbers(tests)):
        return tests[0]
    if context.test is None:
        return LogReading(
            "invalid", f"{describe_tests(tests)}; select one with the workload's key 'test', such as 'test: last'"
        )
    (reading,) = chosen_tests
    test_number = len(tests) if context.test == "last" else context.test
    return replace(reading, flags=(*reading.flags, f"test {test_number} of the {len(tests)} tests in the log counts"))


def select_tests(tests: Sequence[LogReading], test: int | Literal["last"] | None) -> Sequence[LogReading]:
    """Select the one test of a log that counts, by its number from 1 or as the last one.

    Returns all tests if `test` is None, and none if the log has too few tests.
    """
    if test is None:
        return tests
    return tests[-1:] if test == "last" else tests[test - 1 : test]


def read_tests(name: str, log: Log, context: RunContext) -> list[LogReading]:
    """Parse a log with a built-in parser (a name in PARSERS), and return one reading for each test in the log.

    A test that is present in both its printed and its file form is returned only once.

    A last line without a line feed may be cut off. It is used if the program ended normally, if the line itself shows that it is
    complete, or if no number is read from it (as from an end mark). Otherwise the line is left out, and the last test has a flag
    or a problem that says so.
    """
    if problem := log.find_encoding_problem():
        return [LogReading("incomplete", problem)]
    log_format = load_format(name)
    last_line = "" if context.ended_normally else log.read_unended_line()
    if not last_line.strip() or log_format.is_line_complete(last_line):
        return _parse_tests(log_format, log, context, whole_lines=False)
    tests, all_lines = (
        _parse_tests(log_format, log, context, whole_lines=whole_lines) for whole_lines in (True, False)
    )
    is_unchanged = len(tests) == len(all_lines) and all(map(LogReading.matches_full_log, tests, all_lines))
    if is_unchanged and all_lines[-1].status == "ok" and NO_END_MARK not in all_lines[-1].flags:
        return all_lines
    last_test = all_lines[-1]
    if last_test.status == "incomplete" and (not last_test.has_numbers or last_test.matches_full_log(tests[-1])):
        tests = all_lines  # The last line begins a document or a test that is incomplete.
    problem, last_test = describe_unended_line(last_line), tests[-1]
    if last_test.status == "ok":
        return [*tests[:-1], replace(last_test, flags=(*last_test.flags, problem))]
    return [*tests[:-1], replace(last_test, problem=f"{last_test.problem}; {problem}")]


def _parse_tests(log_format: LogFormat, log: Log, context: RunContext, *, whole_lines: bool) -> list[LogReading]:
    """Parse all tests in a log in one pass, and merge those that are present in both printed and file form.

    Args:
        log_format: format of the parser.
        log: log to read.
        context: facts about the run.
        whole_lines: True to leave out a last line without a line feed.
    """
    readers = [log_format.reader()]
    reads_every_line = log_format.document_marker is not None and any(
        log_format.document_marker in excerpt for excerpt in (log.read_head(), log.read_end())
    )
    lines = (
        log.read_lines(only_ended=whole_lines, max_line_bytes=log_format.max_line_chars)
        if reads_every_line
        else log.read_lines(log_format.needles, log_format.row_pattern, only_ended=whole_lines)
    )
    for line in lines:
        if len(line) <= log_format.max_line_chars:
            readers += readers[-1].feed(strip_line_prefix(line))
    tests: list[LogReading] = []
    for reader in readers:
        reading = reader.build_reading(context)
        test_index = next((index for index, test in enumerate(tests) if test.is_same_test(reading)), None)
        if test_index is None:
            tests.append(reading)
        elif tests[test_index].rounded:
            tests[test_index] = reading
    return tests


def have_equal_numbers(tests: Sequence[LogReading]) -> bool:
    """Return True if all tests have the same numbers, for instance because one log was copied into another twice."""
    return all(test.has_equal_numbers(tests[0]) for test in tests)


def describe_tests(tests: Sequence[LogReading]) -> str:
    """Describe in a sentence which tests a log contains, with the likely reason if one of them is incomplete."""
    has_incomplete_test = any(test.status == "incomplete" for test in tests[:-1])
    explanation = (
        "; an incomplete test was cut off, or several processes ran at once because the program was built without MPI"
    )
    return f"the log has {len(tests)} tests{_format_test_list(tests)}{explanation if has_incomplete_test else ''}"


def _format_test_list(tests: Sequence[LogReading]) -> str:
    """Format summaries of the first few tests of a log, numbered, as a list in parentheses."""
    summaries = [f"{index}: {_summarize_test(test)}" for index, test in enumerate(tests[:_MAX_TESTS_LISTED], 1)]
    remainder = [f"and {len(tests) - _MAX_TESTS_LISTED} more"] if len(tests) > _MAX_TESTS_LISTED else []
    return f" ({', '.join([*summaries, *remainder])})"


def _summarize_test(test: LogReading) -> str:
    """Summarize a test in a few words: its program, its first number and, unless it is `ok`, its status."""
    numbers = {} if test.throughput_per_s is None else {"throughput_per_s": test.throughput_per_s}
    numbers |= test.metrics
    first_number = next((f"{name} {value:.5g}" for name, value in numbers.items()), "no number")
    return " ".join(filter(None, (test.program, first_number, "" if test.status == "ok" else f"[{test.status}]")))
