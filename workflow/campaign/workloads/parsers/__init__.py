"""Parsers of foreign programs' logs, one module a program. Each knows what its program's numbers mean, and where they mislead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated

from pydantic import AfterValidator, Field

from campaign.errors import nearest
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers.reading import Curve, Format, Matrix, Reader, Reading, Scope

__all__ = [
    "PARSERS",
    "WITHOUT_RATE",
    "Curve",
    "Format",
    "Matrix",
    "ParserName",
    "Reader",
    "Reading",
    "Scope",
    "format_of",
    "read_log",
    "without_label",
]

PARSERS: Mapping[str, str] = {
    "tf_cnn_benchmarks": "TensorFlow's CNN benchmarks, alone or with Horovod",
    "horovod_synthetic": "Horovod's synthetic benchmarks (PyTorch, TensorFlow, Keras)",
    "nvidia_bert": "NVIDIA's BERT fine-tuning: printed log, or dllogger.json",
    "yolov5": "YOLOv5 training: printed log, or results.csv",
    "mlperf": "MLPerf training logs (:::MLLOG)",
    "hpl": "High-Performance Linpack, also NVIDIA's and HPL-MxP",
    "nccl_tests": "nccl-tests and rccl-tests: printed log, or the file of -J",
    "p2p_bandwidth_latency": "CUDA's p2pBandwidthLatencyTest and bandwidthTest",
    "nvbandwidth": "nvbandwidth: printed log, or JSON of -j",
    "osu": "OSU micro-benchmarks: bandwidth, latency, collectives",
    "perftest": "perftest: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests",
    "vllm": "vLLM's `vllm bench serve`: file of --save-result, or printed log",
    "sglang": "SGLang's `bench_serving`: file of --output-file, or printed log",
    "trtllm_bench": "TensorRT-LLM's `trtllm-bench throughput` and `latency`: file of --report_json, or printed log",
    "mlperf_inference": "MLPerf Inference's LoadGen: mlperf_log_summary.txt, or mlperf_log_detail.txt",
    "gpu_copy": "gpu_copy of SuperBench: copies between host and devices, and between devices",
    "stream": "STREAM: bandwidth of memory",
    "mlc": "Intel's Memory Latency Checker: latencies and bandwidths between NUMA nodes",
    "hpcg": "HPCG: the summary file",
    "graph500": "Graph500's reference code: BFS and SSSP",
    "gromacs": "GROMACS: md.log, or what mdrun prints",
    "lammps": "LAMMPS: log.lammps, or what it prints",
    "megatron": "Megatron-LM's training log, also Primus",
    "fio": "fio: JSON of --output-format=json",
    "ior": "IOR: printed table, or JSON",
    "dlio": "DLIO and MLPerf Storage: summary.json",
}
"""Name of a parser -> what it reads; its module has the same name."""

_WITH_RATE = {
    *("tf_cnn_benchmarks", "horovod_synthetic", "nvidia_bert", "yolov5", "mlperf", "megatron", "dlio"),
    *("vllm", "sglang", "trtllm_bench", "mlperf_inference"),
}

WITHOUT_RATE = frozenset(PARSERS) - _WITH_RATE
"""Parsers of programs that process no samples, so that another metric than throughput leads."""


def _known(name: str) -> str:
    if name not in PARSERS:
        raise ValueError(f"'{name}' is not a parser; {nearest(name, PARSERS)}")
    return name


ParserName = Annotated[str, AfterValidator(_known), Field(json_schema_extra={"enum": list(PARSERS)})]
"""A key that names one of them."""

# srun --label, mpirun --tag-output (Open MPI 4 and 5), horovodrun, torchrun.
_LABEL = re.compile(
    r" *\d{1,6}: (?!\d+%)|\[(?:[\w.@-]*@)?\d{1,6}(?:,\d{1,6})?\]<std(?:out|err)>: ?|\[(?:default|rank)\d{1,6}\]: ?"
)


def without_label(line: str) -> str:
    """A line without the label of its rank, which launchers put before it."""
    return line[label.end() :] if (label := _LABEL.match(line)) else line


def format_of(name: str) -> Format:
    """How to read the logs of a program in PARSERS."""
    found: Format = import_module(f"{__name__}.{name}").FORMAT
    return found


def read_log(name: str, log: Log, scope: Scope) -> Reading:
    """What the log of a program in PARSERS says. A last line without its end is none: it may be half of one."""
    form = format_of(name)
    reader = form.reader()
    every = form.document is not None and any(form.document in end for end in (log.head(), log.end()))
    lines = log.lines(longest=form.line_max) if every else log.lines(form.needles, form.rows, whole=True)
    for line in lines:
        if len(line) <= form.line_max:
            reader.feed(without_label(line))
    return reader.reading(scope)
