"""Memory to its end, twice: running out of it is told as that, and gives everything back. Needs torch."""

from __future__ import annotations

import gc
import resource
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from campaign.observe.devices.bench import Bench
from campaign.observe.devices.document import StepResult
from campaign.workloads.trainer.rank import describe

_LEAST_BYTES, _WANTED_BYTES, _LIMIT_ON_CPU_BYTES = 2**21, 2**26, 2**31


def measure(bench: Bench) -> StepResult:
    """GiB that could be had, and by how many percent that differs the second time; how running out was classified in each way."""
    told: dict[str, str] = {}
    with _limited(bench.on_cpu):
        blocks = _filled(bench)
        first = sum(block.nbytes for block in blocks)
        for name, way in _WAYS.items():
            if not bench.on_cpu or name == "eager":
                told[name] = _classified(way, bench.device)
        blocks.clear()
        gc.collect()
        if not bench.on_cpu:
            bench.gpus.empty_cache()
        again = sum(block.nbytes for block in _filled(bench))
    allowed = ("enough", "oom_host" if bench.on_cpu else "oom_device")
    wrong = (
        f"running out of memory ({name}) is classified as {how}" for name, how in told.items() if how not in allowed
    )
    values = {"memory_gib": first / 2**30, "memory_again_pct": 100 * (again / first - 1)}
    return StepResult(step="memory full", values=values, facts={"classified": told}, faults=tuple(wrong))


def _filled(bench: Bench) -> list[Tensor]:
    """Blocks of memory until not even a small one can be had."""
    blocks: list[Tensor] = []
    size = _LIMIT_ON_CPU_BYTES // 4 if bench.on_cpu else int(bench.gpus.mem_get_info(bench.device)[0] // 8)
    while size >= _LEAST_BYTES:
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device=bench.device))
        except RuntimeError:  # the class of all that torch raises for a lack of memory
            size //= 2
    return blocks


@contextmanager
def _limited(on_cpu: bool) -> Iterator[None]:
    """On a CPU: this process gets little more than it has, so that nobody else runs out of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if on_cpu:
        resource.setrlimit(resource.RLIMIT_AS, (now + _LIMIT_ON_CPU_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _classified(way: Callable[[torch.device], object], device: torch.device) -> str:
    """The status of a run that ends so; `enough`: it did not run out of memory."""
    try:
        way(device)
    except Exception as error:
        return describe(error, "".join(traceback.format_exception(error)))[0]
    return "enough"


def _eager(device: torch.device) -> object:
    return torch.empty(_WANTED_BYTES, dtype=torch.uint8, device=device)


def _benchmark(device: torch.device) -> object:
    """cuDNN looks for the fastest algorithm, and each may want memory."""
    torch.backends.cudnn.benchmark = True
    image = torch.empty(8, 64, 56, 56, device=device)
    return torch.nn.functional.conv2d(image, torch.empty(64, 64, 3, 3, device=device), padding=1)


def _compiled(device: torch.device) -> object:
    def much(number: Tensor) -> Tensor:
        return number.expand(_WANTED_BYTES // 4) * 2

    return torch.compile(much)(torch.ones(1, device=device))


_WAYS: Mapping[str, Callable[[torch.device], object]] = {
    "eager": _eager,
    "benchmark": _benchmark,
    "compiled": _compiled,
}
