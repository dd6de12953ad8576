"""How long a gigabyte of a program's output takes to read, and with how much memory: everyday logs, and progress bars only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from campaign.workloads.parsers import PARSERS
from tests.benchmarks.figure import Figure

if TYPE_CHECKING:
    from tests.benchmarks.project import Project

_ROOT = Path(__file__).parents[2]
_LOGS = _ROOT / "tests" / "data" / "logs"
_BYTES = 256 << 20
_BLOCK = 4 << 20
_S_PER_GB = 10.0  # 100 MB/s
_MIB = 150
_READ = """
import sys, time
from pathlib import Path
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import RunContext, read_log
from campaign.workloads.parsers.expressions import run_parsers
from campaign.workloads.parsers.expressions import Parser
name, path = sys.argv[1:]
regex = [Parser(metric="throughput_per_s", regex=r"rate: (\\S+) samples/s", required=False)]
started = time.process_time()
run_parsers(regex, Log(Path(path)), 1) if name == "regex" else read_log(name, Log(Path(path)), RunContext())
print(time.process_time() - started)
"""
_LINES = (
    "host1:3442:3442 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "2026-11-21 22:20:59,123 - train - INFO - epoch 3 iteration 1200 lr 3.97e-06 loss 0.2235 data 0.004 s",
    "[1732227659.123456] [host1:4711 :0]  ucp_worker.c:1855 UCX  INFO  ep_cfg[1]: tag(cuda_ipc/cuda)",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600",
    "/opt/conda/lib/python3.11/site-packages/torch/optim/lr_scheduler.py:138: UserWarning: Detected call of `lr_scheduler.step()`",
    "  warnings.warn(",
    "",
)


def parsing(project: Project) -> Iterable[Figure]:
    """Parsers of foreign programs, and a workload file's own: a core's seconds a gigabyte, and memory."""
    peak_mib = 0.0
    for name in (*PARSERS, "regex"):
        for kind, block in (("log", everyday(name)), ("progress bars", bars())):
            path = project.directory / "parsed.log"
            written = write(path, block)
            took = project.run(sys.executable, "-c", _READ, name, str(path))
            seconds = float((project.directory / "output.txt").read_text())
            peak_mib = max(peak_mib, took.peak_mib)
            yield Figure(f"parsing, {name}, {kind}", seconds / written * 1e9, "s/GB", _S_PER_GB)
            path.unlink()
    yield Figure("parsing, memory", peak_mib, "MiB", _MIB)


def everyday(name: str) -> bytes:
    """Lines that say nothing, and among them every few hundred kilobytes what the program prints."""
    samples = [path.read_bytes() for path in sorted((_LOGS / name).glob("*.log"))]
    plain = [sample for sample in samples if not sample.lstrip().startswith((b"{", b"epoch"))]
    noise = "".join(f"{line}\n" for line in _LINES).encode()
    parts, size = [], 0
    while size < _BLOCK:
        parts += [noise * 1000, plain[len(parts) // 2 % len(plain)] if plain else b"rate: 12.5 samples/s\n"]
        size += len(parts[-1]) + len(parts[-2])
    return b"".join(parts)


def bars() -> bytes:
    """The carriage returns of an epoch."""
    lines = (
        f"Epoch 3:{number * 100 // 9999:4d}%|{'#' * (number // 1000):<10}| {number}/9999 [02:51<02:58,  7.97it/s, loss=0.0253]\r"
        for number in range(9999)
    )
    return "".join(lines).encode() + b"\n"


def write(path: Path, block: bytes) -> int:
    """Write the block as often as it takes; gives the bytes."""
    times = _BYTES // len(block) + 1
    with path.open("wb") as file:
        for _ in range(times):
            file.write(block)
    return times * len(block)
