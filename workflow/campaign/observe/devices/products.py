"""Matrix products by precision, of random numbers: of zeros, a GPU at its power limit is an eighth faster. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from campaign.documents.fields import Precision
from campaign.observe.devices.bench import Bench, middle
from campaign.observe.devices.document import StepResult
from campaign.workloads.trainer import precision
from campaign.workloads.trainer.paced_modules import Pacer

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
_SIZE, _SIZE_ON_CPU = 8192, 384
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_FP8_CAPABILITY = (8, 9)
_PACED_S, _PACED_WINDOWS = 0.03, 5  # of one product; windows whose median counts


def measure(bench: Bench) -> StepResult:
    """TFLOP/s by precision; of an emulated device at its pace, GFLOP/s by the wall clock."""
    if bench.own.pace:
        return _paced(bench)
    found, left_out, size = {}, {}, _SIZE_ON_CPU if bench.on_cpu else _SIZE
    for name in PRECISIONS:
        if reason := precision.unsupported_reason(name, bench.device, allow_emulation=False):
            left_out[name] = reason
            continue
        precision.switch_on(name)
        found[f"{name}_tflops"] = bench.rate(product(bench, size, name), 2e-12 * size**3)
    precision.switch_on("fp32")
    if bench.own.kind == "cuda" and torch.cuda.get_device_capability() >= _FP8_CAPABILITY:
        found["fp8_tflops"] = bench.rate(_fp8(bench.device), 2e-12 * size**3)
    return StepResult(
        step="products",
        values={name: rate for name, (rate, _) in found.items()},
        spread_pct={name: spread for name, (_, spread) in found.items()},
        facts={"size": size, "left out": left_out},
    )


def product(bench: Bench, size: int, name: str) -> Callable[[], object]:
    """One product of two square matrices of random numbers."""
    kind = _TYPES.get(name, torch.float32)
    left, right = (torch.randn(size, size, device=bench.device).to(kind) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _fp8(device: torch.device) -> Callable[[], object]:
    left, right = (torch.randn(_SIZE, _SIZE, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _paced(bench: Bench) -> StepResult:
    """The products are real, and take as long as on the device (`paced_modules`). late_pct: what the machine could not hold."""
    values, spreads, late_s = {}, {}, 0.0
    for name, gflops in bench.own.pace.items():
        size = max(64, int((gflops * 1e9 * _PACED_S / 2) ** (1 / 3)) // 32 * 32)
        work, pacer, seconds = product(bench, size, name), Pacer(), 2e-9 * size**3 / gflops
        count, rates = max(1, round(bench.spec.seconds / _PACED_WINDOWS / seconds)), []
        work()  # what a first product does once is no work of the device
        pacer.begin()
        for _ in range(_PACED_WINDOWS):
            started_s = time.perf_counter()
            for _ in range(count):
                work()
                pacer.advance(seconds)
            rates.append(count * seconds * gflops / (time.perf_counter() - started_s))
        values[f"{name}_gflops"], spreads[f"{name}_gflops"] = middle(rates)
        late_s = max(late_s, pacer.late_s)
    facts = {"late_pct": round(100 * late_s / bench.spec.seconds, 2)}
    return StepResult(step="products", values=values, spread_pct=spreads, facts=facts)
