"""What devices can do at most: dense peaks in TFLOP/s by precision, as their vendors give them, never those with sparsity.

fp32 is that of the ordinary cores, tf32, fp16 and bf16 that of the tensor or matrix cores where there are any. "Half" is half of a
data sheet's figures with sparsity. H100 NVL and H200 NVL are left out: no dense figures were at hand. A site's own figures stand in
its system file (`peak_tflops`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def _peaks(
    fp32: float | None = None, tf32: float | None = None, fp16: float | None = None, bf16: float | None = None
) -> Mapping[str, float]:
    given = {"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16}
    return {precision: peak for precision, peak in given.items() if peak is not None}


_H100_SXM = _peaks(67.0, 494.5, 989.5, 989.5)
# A name is cut into words: nvidia-smi says "Tesla V100-SXM2-16GB", a system file v100-16gb-sxm2. The first row that has one of the
# models and one of the forms holds; a name that leaves open which of several forms it means has no peak.
_TABLE: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    (r"p100", r"pcie", _peaks(9.3, fp16=18.7)),  # NVIDIA Tesla P100 data sheet
    (r"p100", r"sxm2?|nvlink", _peaks(10.6, fp16=21.2)),
    (r"v100s", r"", _peaks(16.4, fp16=130.0)),  # NVIDIA V100 data sheet 1165301-r5
    (r"v100", r"pcie", _peaks(14.0, fp16=112.0)),
    (r"v100", r"sxm[23]?|nvlink", _peaks(15.7, fp16=125.0)),
    (r"t4", r"", _peaks(8.1, fp16=65.0)),  # NVIDIA T4 data sheet 951643
    (
        r"rtx6000",
        r"ada",
        _peaks(91.1),
    ),  # data sheet; its tensor figures are with sparsity and fp8, so that they are left out
    (r"rtx6000", r"quadro", _peaks(16.3, fp16=130.5)),  # NVIDIA Turing architecture white paper WP-09183-001
    (r"a10", r"", _peaks(31.2, 62.5, 125.0, 125.0)),  # NVIDIA A10 data sheet
    # Computed: 56 multiprocessors at 1.44 GHz with the rates of the A100's (data sheet: 10.3, 82, 165).
    (r"a30", r"", _peaks(10.3, 82.0, 165.0, 165.0)),
    (r"a40", r"", _peaks(37.4, 74.8, 149.7, 149.7)),  # NVIDIA A40 data sheet
    (r"a100", r"", _peaks(19.5, 156.0, 312.0, 312.0)),  # NVIDIA A100 data sheet 1758950-r4 (PCIe and SXM alike)
    (r"l4", r"", _peaks(30.3, 60.0, 121.0, 121.0)),  # NVIDIA L4 data sheet, half
    (r"l40s", r"", _peaks(91.6, 183.0, 362.0, 362.0)),  # NVIDIA L40S data sheet, half
    (r"h[12]00", r"nvl", {}),
    (r"h100", r"pcie", _peaks(51.0, 378.0, 756.5, 756.5)),  # NVIDIA H100 tensor core GPU data sheet, half
    (r"h100", r"sxm5?|hbm3", _H100_SXM),
    (r"h200", r"", _H100_SXM),  # it computes as H100 SXM
    (r"b200", r"", _peaks(75.0, 1100.0, 2250.0, 2250.0)),  # NVIDIA Blackwell data sheet, HGX B200, half
    (
        r"mi250x",
        r"",
        _peaks(fp16=191.5, bf16=191.5),
    ),  # AMD CDNA 2 white paper; one of the two dies is a device of its own
    (r"mi300x", r"", _peaks(163.4, 653.7, 1307.4, 1307.4)),  # AMD Instinct MI300X data sheet
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

    def has(pattern: str) -> bool:
        return any(re.fullmatch(pattern, word) for word in words)

    return next((peaks for model, form, peaks in _TABLE if has(model) and (not form or has(form))), None)
