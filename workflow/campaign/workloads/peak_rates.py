"""What devices can do at most: dense peaks in TFLOP/s by precision, as their vendors give them, never those with sparsity.

fp32 is that of the ordinary cores, tf32, fp16 and bf16 that of the tensor or matrix cores where there are any. Sources, by device:
  P100                NVIDIA Tesla P100 data sheet (PCIe; NVLink/SXM2)
  V100, V100S         NVIDIA V100 data sheet 1165301-r5
  T4                  NVIDIA T4 data sheet 951643
  Quadro RTX 6000     NVIDIA Turing architecture white paper WP-09183-001
  A10, A40            NVIDIA A10 and A40 data sheets
  A30                 computed: 56 multiprocessors at 1.44 GHz with the rates of the A100's (data sheet: 10.3, 82, 165)
  A100                NVIDIA A100 data sheet 1758950-r4 (PCIe and SXM alike)
  L4, L40S            NVIDIA L4 and L40S data sheets, half of the figures with sparsity
  RTX 6000 Ada        NVIDIA RTX 6000 Ada data sheet; its tensor figures are with sparsity and fp8, so that they are left out
  H100, H200          NVIDIA H100 tensor core GPU data sheet (PCIe; SXM), half of those with sparsity; H200 computes as H100 SXM
  B200                NVIDIA Blackwell data sheet, HGX B200, half of the figures with sparsity
  MI250X              AMD CDNA 2 white paper; one of the two dies, for each is a device of its own
  MI300X              AMD Instinct MI300X data sheet
H100 NVL and H200 NVL are left out: no dense figures were at hand. A site's own figures stand in its system file (`peak_tflops`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_P100_PCIE = {"fp32": 9.3, "fp16": 18.7}
_P100_SXM = {"fp32": 10.6, "fp16": 21.2}
_V100_PCIE = {"fp32": 14.0, "fp16": 112.0}
_V100_SXM = {"fp32": 15.7, "fp16": 125.0}
_V100S = {"fp32": 16.4, "fp16": 130.0}
_A100 = {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0}
_H100_PCIE = {"fp32": 51.0, "tf32": 378.0, "fp16": 756.5, "bf16": 756.5}
_H100_SXM = {"fp32": 67.0, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5}

# A name is cut into words: nvidia-smi says "Tesla V100-SXM2-16GB", a system file v100-16gb-sxm2. The first row that has one of the
# models and one of the forms holds; a name that leaves open which of several forms it means has no peak.
_TABLE: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    (r"p100", r"pcie", _P100_PCIE),
    (r"p100", r"sxm2?|nvlink", _P100_SXM),
    (r"v100s", r"", _V100S),
    (r"v100", r"pcie", _V100_PCIE),
    (r"v100", r"sxm[23]?|nvlink", _V100_SXM),
    (r"t4", r"", {"fp32": 8.1, "fp16": 65.0}),
    (r"rtx6000", r"ada", {"fp32": 91.1}),
    (r"rtx6000", r"quadro", {"fp32": 16.3, "fp16": 130.5}),
    (r"a10", r"", {"fp32": 31.2, "tf32": 62.5, "fp16": 125.0, "bf16": 125.0}),
    (r"a30", r"", {"fp32": 10.3, "tf32": 82.0, "fp16": 165.0, "bf16": 165.0}),
    (r"a40", r"", {"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7}),
    (r"a100", r"", _A100),
    (r"l4", r"", {"fp32": 30.3, "tf32": 60.0, "fp16": 121.0, "bf16": 121.0}),
    (r"l40s", r"", {"fp32": 91.6, "tf32": 183.0, "fp16": 362.0, "bf16": 362.0}),
    (r"h[12]00", r"nvl", {}),
    (r"h100", r"pcie", _H100_PCIE),
    (r"h100", r"sxm5?|hbm3", _H100_SXM),
    (r"h200", r"", _H100_SXM),
    (r"b200", r"", {"fp32": 75.0, "tf32": 1100.0, "fp16": 2250.0, "bf16": 2250.0}),
    (r"mi250x", r"", {"fp16": 191.5, "bf16": 191.5}),
    (r"mi300x", r"", {"fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4}),
)
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
    for model, form, peaks in _TABLE:
        if _has(words, model) and (not form or _has(words, form)):
            return peaks
    return None


def _has(words: set[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, word) for word in words)
