"""Kinds of devices as named in a system file (`runs_on`), with peak rates and fallbacks to the CPU. One module per vendor.

Peaks are dense TFLOP/s by precision from the vendors, never those with sparsity. The value of fp32 is that of the ordinary
cores; tf32, fp16 and bf16 are those of the tensor or matrix cores if there are any. "Half" marks half of a data sheet's
figure with sparsity. H100 NVL and H200 NVL are left out, because no dense figures were available. The system file may have the
site's own figures (`peak_tflops:`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from campaign.common.accelerators.accelerator import CPU, Accelerator, DetectedDevice
from campaign.common.accelerators.amd import ROCM
from campaign.common.accelerators.intel import XPU
from campaign.common.accelerators.nvidia import CUDA

__all__ = ["ACCELERATORS", "Accelerator", "AcceleratorKind", "DetectedDevice", "get_peak_tflops"]

AcceleratorKind = Literal["cuda", "rocm", "xpu", "cpu"]

ACCELERATORS: Mapping[AcceleratorKind, Accelerator] = {"cuda": CUDA, "rocm": ROCM, "xpu": XPU, "cpu": CPU}


# A name is split into words: nvidia-smi reports "Tesla V100-SXM2-16GB", a system file has v100-16gb-sxm2. The first row whose model
# and form both match is used. A name that fits several forms of a model has no peak.
_PEAK_ROWS = tuple(row for each in ACCELERATORS.values() for row in each.peaks)
_EQUIVALENT_PRECISIONS = {"fp16-o2": "fp16"}
# A part of a device, or a device that a hypervisor divides, has only a part of the peak.
_PARTIAL_DEVICE_PATTERN = re.compile(r"mig|vgpu|\d+g|\d+[abcq]")


def get_peak_tflops(model: str, reported_model: str | None, precision: str) -> float | None:
    """Return the dense peak of a device in TFLOP/s, or None if it is unknown.

    Args:
        model: name of the model in the system file (`a100-40gb`).
        reported_model: name that the host's tools report (`NVIDIA A100-PCIE-40GB`), which takes precedence if it is known.
        precision: name of the precision.
    """
    for name in (reported_model, model):
        peaks = _find_peaks(name) if name else None
        if peaks is not None:
            return peaks.get(_EQUIVALENT_PRECISIONS.get(precision, precision))
    return None


def _find_peaks(name: str) -> Mapping[str, float] | None:
    """Return the peaks by precision of the first row that matches a model name, or None if no row does.

    The result is empty for a part of a device.
    """
    words = set(re.findall(r"[a-z0-9]+", re.sub(r"rtx[ _-]*6000", "rtx6000", name.lower())))
    if any(_PARTIAL_DEVICE_PATTERN.fullmatch(word) for word in words):
        return {}

    def has_word(pattern: str) -> bool:
        """Return True if a word of the name matches a pattern."""
        return any(re.fullmatch(pattern, word) for word in words)

    return next((peaks for model, form, peaks in _PEAK_ROWS if has_word(model) and (not form or has_word(form))), None)


FALLBACK_SIGNS = (
    b"fallback from",
    b"alling back to",
    b"all back to run",
    b"egistering GPU devices",
    b"initialization:",
    b"no usable GPU",
)
"""Byte strings of which every line about a fallback contains at least one."""

_FRAMEWORK_FALLBACKS = (
    # JAX; the case of its word for the processor has changed.
    r"[Ff]alling back to (?:cpu|CPU)\b",
    r"is not currently supported on the \w+ backend and will fall back to run on the CPU",  # torch, MPS and devices of others
    r"Skipping registering GPU devices",  # TensorFlow
    r"UserWarning: (?:CUDA|HIP|XPU) initialization:",  # torch, whose is_available() is then False
    r"no usable GPU found",  # llama.cpp
)
TORCH_WARNINGS = "|".join(pattern for each in ACCELERATORS.values() for pattern in each.fallbacks)
"""Pattern of the warnings by which torch reports a fallback. They must stay enabled if other warnings are silenced."""


def find_fallback(accelerator: Accelerator, find_lines: Callable[[tuple[bytes, ...]], Iterable[str]]) -> str:
    """Return the first line of a log that reports a fallback to the CPU, stripped, or an empty string.

    Args:
        accelerator: kind of the devices.
        find_lines: function that returns the lines of the log that contain at least one of some byte strings.
    """
    if accelerator.torch_type == "cpu":
        return ""
    pattern = re.compile("|".join((*accelerator.fallbacks, *_FRAMEWORK_FALLBACKS)))
    return next((line.strip() for line in find_lines(FALLBACK_SIGNS) if pattern.search(line)), "")
