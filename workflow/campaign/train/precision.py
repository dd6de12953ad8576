"""The precision axis as real switches of torch, and the proof by computing that a switch is on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.amp import GradScaler

from campaign.train.spec import Precision

_AUTOCAST: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_TF32_CAPABILITY = (8, 0)
_PROBE_SIZE = 256
_HEADROOM = 2.0**-4
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FEATURES: dict[Precision, frozenset[str]] = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}


def cpu_features(cpuinfo: str) -> frozenset[str]:
    """Instruction set features (`flags` on x86, `Features` on Arm) from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()


def emulated(precision: Precision, features: frozenset[str]) -> bool:
    """Whether a CPU with these features computes the precision by converting to fp32 and back."""
    return precision in _CPU_FEATURES and not _CPU_FEATURES[precision] & features


def emulated_here(precision: Precision) -> bool:
    return emulated(precision, cpu_features(_CPUINFO.read_text()))


def unsupported_reason(precision: Precision, device: torch.device, allow_emulation: bool) -> str | None:
    """Why the device cannot compute in this precision, or None. Nothing is ever run in its place."""
    if device.type == "cpu":
        if precision == "tf32":
            return "tf32 is a mode of CUDA tensor cores; a CPU has no such mode"
        if not allow_emulation and emulated_here(precision):
            wanted = " or ".join(sorted(_CPU_FEATURES[precision]))
            return f"this CPU has no {precision} instructions ({wanted}); with option emulation: allow it is computed slowly"
        return None
    major, minor = torch.cuda.get_device_capability(device)
    name = f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
    if precision == "tf32" and (major, minor) < _TF32_CAPABILITY:
        return f"{name} has no tf32; it needs compute capability 8.0"
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=allow_emulation):
        return f"{name} has no bf16; torch would emulate it"
    return None


def switch_on(precision: Precision) -> None:
    """Set the process-wide switches: tf32 inside CUDA and cuDNN for `tf32`, full fp32 (ieee) for everything else.

    Only the fp32_precision switches are touched: once they are set, torch raises when the older allow_tf32 ones are read.
    """
    inside = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = inside
    torch.backends.cudnn.conv.fp32_precision = inside  # type: ignore[attr-defined]  # made when torch loads
    # oneDNN may compute fp32 products in bf16 on some CPUs when it is allowed to; a site's environment must not decide that.
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in; parameters and gradients stay fp32 (so the bytes of an all-reduce do not halve)."""
    if dtype := _AUTOCAST.get(precision):
        return torch.autocast(device.type, dtype=dtype)
    return nullcontext()


def make_scaler(precision: Precision, device: torch.device) -> GradScaler | None:
    """Loss scaling for fp16, None for the others.

    The scale only ever goes down: growing it every 2000 steps makes one step overflow, be dropped and look faster than the others.
    """
    if precision != "fp16":
        return None
    return GradScaler(device.type, growth_interval=1_000_000_000)


def leave_headroom(scaler: GradScaler) -> None:
    """Lower a settled scale by 16: a gradient somewhat larger than the last ones then does not overflow in the window."""
    scaler.update(scaler.get_scale() * _HEADROOM)


def in_force(precision: Precision, device: torch.device) -> str:
    """The precision that a matrix product really has on this device now: fp32, tf32, fp16 or bf16.

    1 + 2^-9 survives in tf32 and fp16 (10 explicit bits) and not in bf16 (7); 1 + 2^-12 survives in fp32 (23) only.
    """
    with autocast(precision, device), torch.no_grad():
        fine = _product(1 + 2**-12, device)
        coarse = _product(1 + 2**-9, device)
    if float(fine[0, 0]) != 1.0:
        return "fp32"
    if float(coarse[0, 0]) == 1.0:
        return "bf16"
    return "fp16" if fine.dtype == torch.float16 else "tf32"


def _product(value: float, device: torch.device) -> torch.Tensor:
    filled = torch.full((_PROBE_SIZE, _PROBE_SIZE), value, device=device)
    return filled @ torch.eye(_PROBE_SIZE, device=device)
