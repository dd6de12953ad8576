"""Kinds of devices, as a system file names them (`runs_on`): one table, one module a vendor; peak rates; fallbacks to the CPU.

Peaks are dense, in TFLOP/s by precision, as vendors give them, never those with sparsity: fp32 is that of the ordinary cores, tf32,
fp16 and bf16 that of the tensor or matrix cores where there are any. "Half" is half of a data sheet's figures with sparsity.
H100 NVL and H200 NVL are left out: no dense figures were at hand. A site's own figures stand in its system file (`peak_tflops`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from campaign.common.accelerators.accelerator import CPU, Accelerator, Seen
from campaign.common.accelerators.amd import ROCM
from campaign.common.accelerators.intel import XPU
from campaign.common.accelerators.nvidia import CUDA

__all__ = ["ACCELERATORS", "Accelerator", "Kind", "Seen", "peak_tflops"]

Kind = Literal["cuda", "rocm", "xpu", "cpu"]

ACCELERATORS: Mapping[Kind, Accelerator] = {"cuda": CUDA, "rocm": ROCM, "xpu": XPU, "cpu": CPU}


# A name is cut into words: nvidia-smi says "Tesla V100-SXM2-16GB", a system file v100-16gb-sxm2. The first row that has one of the
# models and one of the forms holds; a name that leaves open which of several forms it means has no peak.
_TABLE = tuple(row for each in ACCELERATORS.values() for row in each.peaks)
_SAME_AS = {"fp16-o2": "fp16"}
# Part of a device, or one that a hypervisor divides, has only part of its peak.
_PART = re.compile(r"mig|vgpu|\d+g|\d+[abcq]")


def peak_tflops(model: str, reported: str | None, precision: str) -> float | None:
    """Dense peak of a device in TFLOP/s, or None where it is not known.

    model: its name in the system file (`a100-40gb`); reported: what the host's tools call it (`NVIDIA A100-PCIE-40GB`), which
    decides where it is known.
    """
    for name in (reported, model):
        row = _row(name) if name else None
        if row is not None:
            return row.get(_SAME_AS.get(precision, precision))
    return None


def _row(name: str) -> Mapping[str, float] | None:
    words = set(re.findall(r"[a-z0-9]+", re.sub(r"rtx[ _-]*6000", "rtx6000", name.lower())))
    if any(_PART.fullmatch(word) for word in words):
        return {}

    def has(pattern: str) -> bool:
        return any(re.fullmatch(pattern, word) for word in words)

    return next((peaks for model, form, peaks in _TABLE if has(model) and (not form or has(form))), None)


SIGNS = (
    b"fallback from",
    b"alling back to",
    b"all back to run",
    b"egistering GPU devices",
    b"initialization:",
    b"no usable GPU",
)
"""Bytes of which every such line holds at least one."""

_FRAMEWORKS = (
    # JAX; its word for the processor changed its case.
    r"[Ff]alling back to (?:cpu|CPU)\b",
    r"is not currently supported on the \w+ backend and will fall back to run on the CPU",  # torch, MPS and devices of others
    r"Skipping registering GPU devices",  # TensorFlow
    r"UserWarning: (?:CUDA|HIP|XPU) initialization:",  # torch, whose is_available() is then False
    r"no usable GPU found",  # llama.cpp
)
TORCH_WARNINGS = "|".join(pattern for each in ACCELERATORS.values() for pattern in each.fallbacks)
"""What torch warns of; one who silences its warnings has to leave these."""


def fallback_in(accelerator: Accelerator, lines_with: Callable[[tuple[bytes, ...]], Iterable[str]]) -> str:
    """The first line that reports a fallback, stripped; empty for none. lines_with: lines of a log that hold one of some bytes."""
    if accelerator.torch_type == "cpu":
        return ""
    pattern = re.compile("|".join((*accelerator.fallbacks, *_FRAMEWORKS)))
    return next((line.strip() for line in lines_with(SIGNS) if pattern.search(line)), "")
