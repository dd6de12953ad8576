"""The precision axis as real switches of torch, and the proof by computing that a switch is on.

`fp16` and `bf16` are autocast: weights and gradients stay fp32. `fp16-o2` is what published studies with apex call FP16 (its level
O2): weights and gradients are fp16, so half the bytes are all-reduced; norms are fp32, and the optimizer updates fp32 weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.hooks import RemovableHandle

from campaign.spec.fields import Precision
from campaign.workloads.trainer.models import Trainable
from campaign.workloads.trainer.rank_device import device_module

_AUTOCAST: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_TF32_CAPABILITY = (8, 0)
_PROBE_SIZE, _PROBE_CHANNELS = 256, 32
_HEADROOM = 2.0**-4
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FEATURES: dict[Precision, frozenset[str]] = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
    "fp16-o2": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NORMS = (*_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


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
    return emulated(precision, cpu_features(_CPUINFO.read_text(encoding="utf-8")))


def unsupported_reason(precision: Precision, device: torch.device, allow_emulation: bool) -> str | None:
    """Why the device cannot compute in this precision, or None. Nothing is ever run in its place."""
    if device.type == "cpu":
        if precision == "tf32":
            return "tf32 is a mode of CUDA tensor cores; a CPU has no such mode"
        if not allow_emulation and emulated_here(precision):
            wanted = " or ".join(sorted(_CPU_FEATURES[precision]))
            return f"this CPU has no {precision} instructions ({wanted}); with option emulation: allow it is computed slowly"
        return None
    if device.type != "cuda":
        return _unsupported_elsewhere(precision, device)
    major, minor = torch.cuda.get_device_capability(device)
    name = f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
    if precision == "tf32" and (major, minor) < _TF32_CAPABILITY:
        return f"{name} has no tf32; it needs compute capability 8.0"
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=allow_emulation):
        return f"{name} has no bf16; torch would emulate it"
    return None


def _unsupported_elsewhere(precision: Precision, device: torch.device) -> str | None:
    """Why a device that is neither a CPU nor one with CUDA's interface cannot do it."""
    if precision == "tf32":
        return f"tf32 is a mode of NVIDIA's tensor cores, and none of {device.type} here"
    module = device_module(device.type)
    if precision == "bf16" and not module.is_bf16_supported(including_emulation=False):
        return f"{module.get_device_name(device)} has no bf16; torch would emulate it"
    return None


def switch_on(precision: Precision) -> None:
    """Set the process-wide switches: tf32 inside CUDA and cuDNN for `tf32`, full fp32 (ieee) for everything else.

    By the older switches, which set the newer ones (fp32_precision) too: after the newer ones alone, torch raises when the older
    ones are read, and torch.compile reads them (pytorch issues 166387, 189955).
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # oneDNN may compute fp32 products in bf16 on some CPUs when it is allowed to; a site's environment must not decide that.
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in; parameters and gradients stay fp32 (so the bytes of an all-reduce do not halve)."""
    if dtype := _AUTOCAST.get(precision):
        return torch.autocast(device.type, dtype=dtype)
    return nullcontext()


def compute_inside(module: nn.Module, precision: Precision, device: torch.device) -> None:
    """Have the module enter `autocast` in its own forward pass, whichever thread that runs in.

    torch keeps autocast by thread, and `nn.DataParallel` enters one of its own in the thread of each replica, without a type: on
    CUDA that is fp16, whatever was asked for outside.
    """
    if dtype := _AUTOCAST.get(precision):
        module.__class__ = _computing_in(type(module), device.type, dtype)  # type: ignore[arg-type]  # a class is hashable


@cache
def _computing_in(kind: type[nn.Module], device_type: str, dtype: torch.dtype) -> type[nn.Module]:
    # A class, not a changed object: DataParallel copies a module's attributes, and a method among them would stay the original's.
    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return kind.forward(self, *arguments, **named)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def make_scaler(precision: Precision, device: torch.device) -> GradScaler | None:
    """Loss scaling for both kinds of fp16, None for the others.

    The scale only ever goes down: growing it every 2000 steps makes one step overflow, be dropped and look faster than the others.
    """
    if precision not in ("fp16", "fp16-o2"):
        return None
    return GradScaler(device.type, growth_interval=1_000_000_000)


def leave_headroom(scaler: GradScaler) -> None:
    """Lower a settled scale by 16: a gradient somewhat larger than the last ones then does not overflow in the window."""
    scaler.update(scaler.get_scale() * _HEADROOM)


def norms_of(module: nn.Module) -> list[nn.Module]:
    """Normalisation layers that have weights."""
    return [norm for norm in module.modules() if isinstance(norm, NORMS) and next(norm.parameters(), None) is not None]


def has_batch_norms(module: nn.Module) -> bool:
    return any(isinstance(each, _BATCH_NORMS) for each in module.modules())


def to_half(trainable: Trainable) -> None:
    """fp16-o2 of a model, in place: all weights fp16 but those of norms, which compute in fp32."""
    norms = set(norms_of(trainable))
    for module in trainable.modules():
        if module in norms:
            compute_in_fp32(module)
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.half()  # in place, so that weights which two modules share stay shared
    cast_inputs(trainable)


def compute_in_fp32(norm: nn.Module) -> None:
    """Have a norm take fp16 and give fp16. Batch normalisation does it by itself, with fp32 weights and statistics."""
    if isinstance(norm, _BATCH_NORMS):
        return
    norm.register_forward_pre_hook(lambda _, inputs: tuple(tensor.float() for tensor in inputs))
    norm.register_forward_hook(lambda _, __, output: output.half())


def cast_inputs(trainable: Trainable) -> None:
    """What goes into the network becomes fp16 where it is a number with a point; what goes into the loss stays."""
    trainable.network.register_forward_pre_hook(
        lambda _, inputs: tuple(tensor.half() if tensor.is_floating_point() else tensor for tensor in inputs)
    )


class Masters:
    """The fp32 weights that an optimizer updates in the place of a model's fp16 ones; a weight that is fp32 is its own."""

    def __init__(self, trainable: nn.Module) -> None:
        weights = [weight for weight in trainable.parameters() if weight.requires_grad]
        self.parameters = [nn.Parameter(w.detach().float()) if w.dtype == torch.float16 else w for w in weights]
        pairs = [(own, weight) for own, weight in zip(self.parameters, weights, strict=True) if own is not weight]
        self._masters = [own for own, _ in pairs]
        self._weights = [weight for _, weight in pairs]

    def take_gradients(self) -> None:
        """After the backward pass: the model's gradients become those of the fp32 weights."""
        used = [(own, w.grad) for own, w in zip(self._masters, self._weights, strict=True) if w.grad is not None]
        for own, _ in used:
            if own.grad is None:
                own.grad = torch.empty_like(own)
        _copy([own.grad for own, _ in used if own.grad is not None], [gradient for _, gradient in used])

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """After every step that the optimizer does: the model gets its new weights."""

        def give_weights(*_: object) -> None:
            with torch.no_grad():
                _copy(self._weights, self._masters)

        optimizer.register_step_post_hook(give_weights)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def in_force(
    precision: Precision,
    device: torch.device,
    weights: torch.dtype = torch.float32,
    gradients: torch.dtype = torch.float32,
    *,
    compiled: bool = False,
) -> str:
    """The precision that matrix products and convolutions really have on this device now: fp32, tf32, fp16, fp16-o2 or bf16, or
    what either has where they differ (torch has a switch for each).

    weights, gradients: the types that the model's weights have in the forward pass and their gradients in the backward pass. A
    product of weights that are fp16 themselves, and have gradients that are, is fp16-o2. compiled: as torch.compile computes them.
    """
    with autocast(precision, device), torch.no_grad():
        found = {
            what: _rounded_as(torch.compile(do) if compiled else do, device, weights, gradients)
            for what, do in _PROBES.items()
        }
    if len(set(found.values())) == 1:
        return found["products"]
    return ", ".join(f"{name} in {what}" for what, name in found.items())


_FINER = ("tf32", "tf32 in products, fp32 in convolutions")


def flaw(precision: Precision, found: str) -> str:
    """Why what `in_force` has found is not the precision that was asked for; empty where it is, or is finer."""
    # tf32 is a permission, and which kernel cuDNN takes for a convolution as small as the probe is its own choice.
    return "" if found == precision or (precision, found) == _FINER else f"found {found}, not {precision}"


def _rounded_as(
    do: Callable[[Tensor], Tensor], device: torch.device, weights: torch.dtype, gradients: torch.dtype
) -> str:
    """1 + 2^-9 survives in tf32 and fp16 (10 explicit bits) and not in bf16 (7); 1 + 2^-12 survives in fp32 (23) only."""
    fine, coarse = (
        do(torch.full((_PROBE_SIZE, _PROBE_SIZE), 1 + 2.0**-bits, device=device, dtype=weights)) for bits in (12, 9)
    )
    if float(fine.flatten()[0]) != 1.0:
        return "fp32"
    if float(coarse.flatten()[0]) == 1.0:
        return "bf16"
    if fine.dtype != torch.float16:
        return "tf32"
    return "fp16-o2" if weights == gradients == torch.float16 else "fp16"


def _product(filled: Tensor) -> Tensor:
    return filled @ torch.eye(_PROBE_SIZE, device=filled.device, dtype=filled.dtype)


def _convolution(filled: Tensor) -> Tensor:
    image = filled.view(1, _PROBE_CHANNELS, -1, _PROBE_CHANNELS)
    same = torch.eye(_PROBE_CHANNELS, device=filled.device, dtype=filled.dtype)[:, :, None, None]
    return nn.functional.conv2d(image, same)


_PROBES: dict[str, Callable[[Tensor], Tensor]] = {"products": _product, "convolutions": _convolution}


_COMPUTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _first_computing(network: nn.Module) -> nn.Module | None:
    return next((module for module in network.modules() if isinstance(module, _COMPUTING)), None)


class SeenTypes:
    """Types of the first layer that computes: what it returned in all steps, on every replica, its weight's in the forward pass
    and that weight's gradient's.

    replicas: the networks that compute in the place of the network, if not itself. inside: look at the weight in the first step
    after this was made, in the pass itself, because a sharded weight has its type only there. Otherwise the types are those of the
    weight and of the gradient that the last step has left.
    """

    def __init__(self, network: nn.Module, inside: bool, replicas: Sequence[nn.Module] = ()) -> None:
        self._first = _first_computing(network)
        self._weights = self._gradients = torch.float32
        self._inside = inside and self._first is not None
        self._returned: set[tuple[int, int, torch.dtype]] = set()
        for number, replica in enumerate(replicas or (network,)):
            if first := _first_computing(replica):
                first.register_forward_hook(partial(self._note, number))
        if self._first is not None and inside:
            self._handle = self._first.register_forward_pre_hook(self._look)

    def _note(self, number: int, _: nn.Module, __: Any, output: Tensor) -> None:
        # The device's number, too: DataParallel makes its replicas anew in each step, and each calls the network's own hooks.
        self._keep(number, output.get_device(), output.dtype)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _keep(self, number: int, device: int, kind: torch.dtype) -> None:
        # torch.compile calls this once, while it traces: what is kept must neither be watched nor be a part of what it makes.
        self._returned.add((number, device, kind))

    def differing(self, precision: Precision, replicas: int = 1) -> str:
        """What other type the first layer returned on some of the replicas than it has in this precision, in words, or nothing."""
        wanted = torch.float16 if precision == "fp16-o2" else _AUTOCAST.get(precision, torch.float32)
        kinds = {(max(number, device), kind) for number, device, kind in self._returned}
        seen = {replica for replica, _ in kinds}
        if 0 < len(seen) < replicas:
            return f"something on {len(seen)} of {replicas} replicas only"
        return ", ".join(
            f"{str(kind).removeprefix('torch.')} on replica {replica}"
            for replica, kind in sorted(kinds, key=str)
            if kind != wanted
        )

    def _look(self, module: nn.Module, _: Any) -> None:
        self._handle.remove()
        weight = module.get_parameter("weight")
        self._weights = weight.dtype
        handle: list[RemovableHandle] = []

        def note(gradient: Tensor) -> None:
            self._gradients = gradient.dtype
            handle.pop().remove()

        handle.append(weight.register_hook(note))  # type: ignore[no-untyped-call]

    def types(self) -> tuple[torch.dtype, torch.dtype]:
        """(of weights, of gradients), after a step."""
        if self._first is None or self._inside:
            return self._weights, self._gradients
        weight: Any = self._first.weight  # no parameter where it is put together from a part for each pass
        gradient = weight.grad if weight.is_leaf else None
        return weight.dtype, weight.dtype if gradient is None else gradient.dtype
