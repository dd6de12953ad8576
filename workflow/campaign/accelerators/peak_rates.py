"""What devices can do at most: dense peaks in TFLOP/s by precision, as their vendors give them, never those with sparsity.

fp32 is that of the ordinary cores, tf32, fp16 and bf16 that of the tensor or matrix cores where there are any. "Half" is half of a
data sheet's figures with sparsity. H100 NVL and H200 NVL are left out: no dense figures were at hand. A site's own figures stand in
its system file (`peak_tflops`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from campaign.accelerators import ACCELERATORS

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
