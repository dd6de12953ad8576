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
}
"""Name of a parser -> what it reads; its module has the same name."""

WITHOUT_RATE = frozenset({"hpl", "nccl_tests", "p2p_bandwidth_latency", "nvbandwidth", "osu", "perftest"})
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


def format_of(name: str) -> Format:
    """How to read the logs of a program in PARSERS."""
    found: Format = import_module(f"{__name__}.{name}").FORMAT
    return found


def read_log(name: str, log: Log, scope: Scope) -> Reading:
    """What the log of a program in PARSERS says. A last line without its end is none: it may be half of one."""
    form = format_of(name)
    reader = form.reader()
    every = form.document is not None and form.document in log.head()
    lines = log.lines(longest=form.line_max) if every else log.lines(form.needles, form.rows, whole=True)
    for line in lines:
        if len(line) <= form.line_max:
            reader.feed(line[label.end() :] if (label := _LABEL.match(line)) else line)
    return reader.reading(scope)
