"""What a healthy device reaches at least, by model and form factor: the thresholds of `campaign check --devices`, beside the peaks.

A rate below `least` is low, and below `fails` a failure. A model or a form that is not here has rates without a verdict. Sources:
  MAMF      bf16 and fp8 products as mamf-finder found them, of the best shape (S. Bekman, Machine Learning Engineering,
            compute/accelerator, "Maximum Achievable Matmul FLOPS"). 8192 cubed is one shape of many: 88 % are good, less than 79 %
            fail. One H200 that was tried had 769 to 798 TFLOP/s.
  Azure     Azure/azurehpc-health-checks, conf/<machine>.conf: `check_gpu_bw` and `check_nccl_allreduce` (16 GB). The limits are
            those of nvbandwidth and nccl-tests. Pinned copies are the same here; between devices, torch's messages of up to 1 GiB
            are not, so that less is low down to three quarters.
  sheet     bandwidth of the vendor's data sheet: 5/6 of it in a copy (read and written) are good, less than 3/4 fail. An H200 had
            4.3 of 4.8 TB/s.
MI300X: what its memory gives a copy is not public. V100: no table of products was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Least:
    """What is good (from `least` on), what fails (below `fails`), in the unit of the quantity, and who says so."""

    least: float
    fails: float
    source: str


def _products(precision: str, most: float) -> dict[str, Least]:
    return {f"{precision}_tflops": Least(0.88 * most, 0.79 * most, f"MAMF {most:g}")}


def _memory(gb_per_s: float) -> dict[str, Least]:
    return {"memory_gb_per_s": Least(gb_per_s * 5 / 6, gb_per_s * 3 / 4, f"data sheet {gb_per_s:g} GB/s")}


def _azure(machine: str, host: float, pair: float | None = None, all_reduce: float | None = None) -> dict[str, Least]:
    found = {f"{way}_gb_per_s": Least(host, host, f"Azure {machine}") for way in ("h2d", "d2h")}
    for name, rate in {"pair": pair, "allreduce": all_reduce}.items():
        if rate is not None:
            found[f"{name}_gb_per_s"] = Least(rate, 0.75 * rate, f"Azure {machine}")
    return found


_HOPPER = {**_products("bf16", 794.5), **_products("fp8", 1402.6)}
_TABLE: tuple[tuple[tuple[str, ...], Mapping[str, Least]], ...] = (
    (("v100", "sxm[23]?"), {**_memory(900), **_azure("nd40rs_v2", 10)}),
    (("v100", "pcie"), {**_memory(900), **_azure("nc6s_v3", 10)}),
    (("a100", "sxm4?", "40gb"), {**_products("bf16", 271.2), **_memory(1555), **_azure("nd96asr_v4", 24, None, 228)}),
    (("a100", "sxm4?", "80gb"), {**_products("bf16", 271.2), **_memory(2039), **_azure("nd96amsr_a100_v4", 24, None, 228)}),
    (("a100", "pcie", "40gb"), {**_products("bf16", 252.9), **_memory(1555)}),
    (("a100", "pcie", "80gb"), {**_products("bf16", 252.9), **_memory(1935), **_azure("nc24ads_a100_v4", 23)}),
    (("h100", "nvl"), {**_memory(3900), **_azure("nc40ads_h100_v5", 52)}),
    (("h100", "pcie"), _memory(2000)),
    (("h100", "sxm5?|hbm3"), {**_HOPPER, **_memory(3350), **_azure("nd96isr_h100_v5", 48, 335, 460)}),
    (("h200", "nvl"), _memory(4800)),
    # Other H200 are SXM; they compute as an H100 SXM.
    (("h200",), {**_HOPPER, **_memory(4800), **_azure("nd96isr_h200_v5", 48, 335, 431)}),
    (("mi300x",), {**_products("bf16", 668.4), **_azure("nd96isr_mi300x_v5", 48, 44, 314)}),
)  # fmt: skip
# A part of a device has a part of its rates.
_PART = re.compile(r"mig|vgpu|\d+g|\d+[abcq]")


def least_rates(model: str, reported: str = "") -> Mapping[str, Least]:
    """By quantity, for the device that its host's tools call `reported`, else that the system file calls `model`; {}: not known."""
    words = set(re.findall(r"[a-z0-9]+", (reported or model).lower()))
    if any(map(_PART.fullmatch, words)):
        return {}

    def has(pattern: str) -> bool:
        return any(re.fullmatch(pattern, word) for word in words)

    return next((rates for patterns, rates in _TABLE if all(map(has, patterns))), {})
