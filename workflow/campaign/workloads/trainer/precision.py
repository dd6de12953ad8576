"""Precision of a run: the switches of torch that set it, and a test computation that proves it.

`fp16` and `bf16` are autocast, with weights and gradients in fp32. `fp16-o2` is called FP16 in published studies with apex (its
level O2). Its weights and gradients are fp16, so only half as many bytes are all-reduced. Its norms are fp32, and the optimizer
updates fp32 weights.
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
from campaign.workloads.trainer.rank_device import get_device_module

_AUTOCAST: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_MIN_TF32_CAPABILITY = (8, 0)
_PROBE_SIZE, _PROBE_CHANNELS = 256, 32
_SCALE_HEADROOM_FACTOR = 2.0**-4
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FEATURES: dict[Precision, frozenset[str]] = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
    "fp16-o2": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NORMS = (*_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def parse_cpu_features(cpuinfo: str) -> frozenset[str]:
    """Extract the CPU's instruction set features (`flags` on x86, `Features` on Arm) from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()


def is_emulated(precision: Precision, features: frozenset[str]) -> bool:
    """Return whether a CPU with these features only emulates a precision, by converting to fp32 and back."""
    return precision in _CPU_FEATURES and not _CPU_FEATURES[precision] & features


def is_emulated_on_this_cpu(precision: Precision) -> bool:
    """Return whether the CPU of this machine only emulates a precision, by converting to fp32 and back."""
    return is_emulated(precision, parse_cpu_features(_CPUINFO.read_text(encoding="utf-8")))


def unsupported_reason(precision: Precision, device: torch.device, allow_emulation: bool) -> str | None:
    """Return the reason why a device cannot compute in a precision, or None. No other precision is used in its place."""
    if device.type == "cpu":
        if precision == "tf32":
            return "tf32 is a mode of NVIDIA's tensor cores, which a CPU does not have"
        if not allow_emulation and is_emulated_on_this_cpu(precision):
            instructions = " or ".join(sorted(_CPU_FEATURES[precision]))
            return f"this CPU has no {precision} instructions ({instructions}); set option 'emulation: allow' to emulate them"
        return None
    if device.type != "cuda":
        return _unsupported_accelerator_reason(precision, device)
    major, minor = torch.cuda.get_device_capability(device)
    name = f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
    if precision == "tf32" and (major, minor) < _MIN_TF32_CAPABILITY:
        return f"{name} does not support tf32, which needs compute capability 8.0"
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=allow_emulation):
        return f"{name} does not support bf16, which torch would emulate"
    return None


def _unsupported_accelerator_reason(precision: Precision, device: torch.device) -> str | None:
    """Return the reason why a device that is neither a CPU nor a CUDA device cannot compute in a precision, or None."""
    if precision == "tf32":
        return f"tf32 is a mode of NVIDIA's tensor cores and not supported on {device.type}"
    module = get_device_module(device.type)
    if precision == "bf16" and not module.is_bf16_supported(including_emulation=False):
        return f"{module.get_device_name(device)} does not support bf16, which torch would emulate"
    return None


def set_matmul_precision(precision: Precision) -> None:
    """Set torch's process-wide switches: tf32 in CUDA and cuDNN for `tf32`, full fp32 (ieee) for all other precisions.

    The older switches are used, because they also set the newer ones (fp32_precision). If only the newer ones are set, torch
    raises an exception when torch.compile reads the older ones (pytorch issues 166387, 189955).
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # oneDNN can compute fp32 products in bf16 on some CPUs. The environment of a site must not enable that.
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.mkldnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def make_autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which forward passes run in this precision: autocast, or one that does nothing.

    Parameters and gradients stay in fp32, so an all-reduce transfers as many bytes as in fp32.
    """
    if dtype := _AUTOCAST.get(precision):
        return torch.autocast(device.type, dtype=dtype)
    return nullcontext()


def enable_autocast_in_forward(module: nn.Module, precision: Precision, device: torch.device) -> None:
    """Make a module enter autocast within its own forward pass, whichever thread the pass runs in.

    torch keeps autocast per thread. `nn.DataParallel` enters an autocast without a type in the thread of each replica, which
    on CUDA is fp16, whatever is set outside.
    """
    if dtype := _AUTOCAST.get(precision):
        module.__class__ = _make_autocast_class(type(module), device.type, dtype)  # type: ignore[arg-type]  # a class is hashable


@cache
def _make_autocast_class(kind: type[nn.Module], device_type: str, dtype: torch.dtype) -> type[nn.Module]:
    """Derive a subclass of a module's class whose forward pass runs in autocast of the given type."""
    # The class is changed, not the object, because DataParallel copies a module's attributes, and a copied method would stay bound
    # to the original.

    def forward(self: nn.Module, *arguments: Any, **keyword_arguments: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return kind.forward(self, *arguments, **keyword_arguments)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def make_scaler(precision: Precision, device: torch.device) -> GradScaler | None:
    """Create a gradient scaler for `fp16` and `fp16-o2`. Returns None for other precisions.

    Its scale only decreases. If it grew every 2000 steps, a step would overflow, be dropped, and look faster than others.
    """
    if precision not in ("fp16", "fp16-o2"):
        return None
    return GradScaler(device.type, growth_interval=1_000_000_000)


def lower_settled_scale(scaler: GradScaler) -> None:
    """Divide a loss scale that has settled by 16, so that slightly larger gradients do not overflow in the window."""
    scaler.update(scaler.get_scale() * _SCALE_HEADROOM_FACTOR)


def find_weighted_norms(module: nn.Module) -> list[nn.Module]:
    """Return those normalisation layers within a module that have weights."""
    return [norm for norm in module.modules() if isinstance(norm, NORMS) and next(norm.parameters(), None) is not None]


def has_batch_norms(module: nn.Module) -> bool:
    """Return whether a module contains batch normalisation."""
    return any(isinstance(layer, _BATCH_NORMS) for layer in module.modules())


def convert_to_fp16(trainable: Trainable) -> None:
    """Convert a model to fp16-o2 in place. All weights become fp16, except those of norms, which compute in fp32."""
    norms = set(find_weighted_norms(trainable))
    for module in trainable.modules():
        if module in norms:
            compute_norm_in_fp32(module)
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.half()  # in place, so that weights shared by two modules stay shared
    cast_inputs_to_fp16(trainable)


def compute_norm_in_fp32(norm: nn.Module) -> None:
    """Make a norm convert fp16 inputs to fp32, and its output back to fp16.

    Batch normalisation is left unchanged, because with fp32 weights and statistics it already does so.
    """
    if isinstance(norm, _BATCH_NORMS):
        return
    norm.register_forward_pre_hook(lambda _, inputs: tuple(tensor.float() for tensor in inputs))
    norm.register_forward_hook(lambda _, __, output: output.half())


def cast_inputs_to_fp16(trainable: Trainable) -> None:
    """Make a model convert its network's floating-point inputs to fp16. Inputs of the loss are not converted."""
    trainable.network.register_forward_pre_hook(
        lambda _, inputs: tuple(tensor.half() if tensor.is_floating_point() else tensor for tensor in inputs)
    )


class MasterWeights:
    """Master weights in fp32, which the optimizer updates instead of fp16 weights. Weights in fp32 are used directly."""

    def __init__(self, trainable: nn.Module) -> None:
        weights = [weight for weight in trainable.parameters() if weight.requires_grad]
        self.parameters = [nn.Parameter(w.detach().float()) if w.dtype == torch.float16 else w for w in weights]
        pairs = [
            (master, weight) for master, weight in zip(self.parameters, weights, strict=True) if master is not weight
        ]
        self._masters = [master for master, _ in pairs]
        self._weights = [weight for _, weight in pairs]

    def copy_gradients(self) -> None:
        """Copy the model's gradients to the fp32 master weights. To be called after the backward pass."""
        gradient_pairs = [
            (master, w.grad) for master, w in zip(self._masters, self._weights, strict=True) if w.grad is not None
        ]
        for master, _ in gradient_pairs:
            if master.grad is None:
                master.grad = torch.empty_like(master)
        _copy_tensors(
            [master.grad for master, _ in gradient_pairs if master.grad is not None],
            [gradient for _, gradient in gradient_pairs],
        )

    def register_weight_copy_hook(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer copy the fp32 master weights to the model after every step that it applies."""

        def copy_weights(*_: object) -> None:
            with torch.no_grad():
                _copy_tensors(self._weights, self._masters)

        optimizer.register_step_post_hook(copy_weights)


def _copy_tensors(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy all source tensors to their targets in one operation."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def measure_precision(
    precision: Precision,
    device: torch.device,
    weights: torch.dtype = torch.float32,
    gradients: torch.dtype = torch.float32,
    *,
    use_compile: bool = False,
) -> str:
    """Measure in which precision a device computes matrix products and convolutions: fp32, tf32, fp16, fp16-o2 or bf16.

    If products and convolutions differ, the result names both, because torch has a switch for each. A product is fp16-o2 if
    weights and gradients are fp16.

    Args:
        precision: precision of the run.
        device: the device.
        weights: type of the model's weights in the forward pass.
        gradients: type of their gradients in the backward pass.
        use_compile: true to compute the probes with torch.compile.
    """
    with make_autocast(precision, device), torch.no_grad():
        precisions = {
            operation: _classify_rounding(torch.compile(probe) if use_compile else probe, device, weights, gradients)
            for operation, probe in _PROBES.items()
        }
    if len(set(precisions.values())) == 1:
        return precisions["products"]
    return ", ".join(f"{name} in {operation}" for operation, name in precisions.items())


_ACCEPTED_FINER_PRECISION = ("tf32", "tf32 in products, fp32 in convolutions")


def describe_precision_mismatch(precision: Precision, measured_precision: str) -> str:
    """Describe a mismatch between measured and configured precision. Returns an empty string if there is none to report."""
    # tf32 is only allowed, not required, and cuDNN may choose an fp32 kernel for a convolution as small as the probe.
    return (
        ""
        if measured_precision == precision or (precision, measured_precision) == _ACCEPTED_FINER_PRECISION
        else f"measured {measured_precision} instead of {precision}"
    )


def _classify_rounding(
    probe: Callable[[Tensor], Tensor], device: torch.device, weights: torch.dtype, gradients: torch.dtype
) -> str:
    """Classify the precision of a computation by which numbers survive its rounding.

    1 + 2^-9 survives in tf32 and fp16 (10 explicit bits) but not in bf16 (7). 1 + 2^-12 survives only in fp32 (23).
    """
    fine, coarse = (
        probe(torch.full((_PROBE_SIZE, _PROBE_SIZE), 1 + 2.0**-bits, device=device, dtype=weights)) for bits in (12, 9)
    )
    if float(fine.flatten()[0]) != 1.0:
        return "fp32"
    if float(coarse.flatten()[0]) == 1.0:
        return "bf16"
    if fine.dtype != torch.float16:
        return "tf32"
    return "fp16-o2" if weights == gradients == torch.float16 else "fp16"


def _probe_product(matrix: Tensor) -> Tensor:
    return matrix @ torch.eye(_PROBE_SIZE, device=matrix.device, dtype=matrix.dtype)


def _probe_convolution(matrix: Tensor) -> Tensor:
    image = matrix.view(1, _PROBE_CHANNELS, -1, _PROBE_CHANNELS)
    identity_kernel = torch.eye(_PROBE_CHANNELS, device=matrix.device, dtype=matrix.dtype)[:, :, None, None]
    return nn.functional.conv2d(image, identity_kernel)


_PROBES: dict[str, Callable[[Tensor], Tensor]] = {"products": _probe_product, "convolutions": _probe_convolution}


_COMPUTE_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _find_first_compute_layer(network: nn.Module) -> nn.Module | None:
    """Return the first linear or convolutional layer of a network, or None if it has neither."""
    return next((module for module in network.modules() if isinstance(module, _COMPUTE_LAYERS)), None)


class DtypeObserver:
    """Observer of the number types of a network's first compute layer: those of its output, weight and gradient.

    Outputs are observed in every step and on every replica.

    Args:
        network: the network.
        observe_in_pass: true to observe the weight within the next pass, because a sharded weight has its type only there.
            Otherwise, the types are those of the weight and the gradient after the last step.
        replicas: networks that compute in place of the network, if any.
    """

    def __init__(self, network: nn.Module, observe_in_pass: bool, replicas: Sequence[nn.Module] = ()) -> None:
        self._layer = _find_first_compute_layer(network)
        self._weights = self._gradients = torch.float32
        self._observe_in_pass = observe_in_pass and self._layer is not None
        self._returned: set[tuple[int, int, torch.dtype]] = set()
        for number, replica in enumerate(replicas or (network,)):
            if layer := _find_first_compute_layer(replica):
                layer.register_forward_hook(partial(self._record_output, number))
        if self._layer is not None and observe_in_pass:
            self._handle = self._layer.register_forward_pre_hook(self._observe_weight)

    def _record_output(self, number: int, _: nn.Module, __: Any, output: Tensor) -> None:
        # The device index is needed, because DataParallel creates replicas in each step that call the network's hooks.
        self._store_output_type(number, output.get_device(), output.dtype)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _store_output_type(self, number: int, device: int, kind: torch.dtype) -> None:
        # torch.compile calls this once while tracing. The stored set must not become part of the compiled graph.
        self._returned.add((number, device, kind))

    def describe_type_mismatch(self, precision: Precision, replicas: int = 1) -> str:
        """Describe replicas whose first layer returned a type that does not fit the precision; an empty string if none did."""
        expected_type = torch.float16 if precision == "fp16-o2" else _AUTOCAST.get(precision, torch.float32)
        kinds = {(max(number, device), kind) for number, device, kind in self._returned}
        observed_replicas = {replica for replica, _ in kinds}
        if 0 < len(observed_replicas) < replicas:
            return f"observed on only {len(observed_replicas)} of {replicas} replicas"
        return ", ".join(
            f"{str(kind).removeprefix('torch.')} on replica {replica}"
            for replica, kind in sorted(kinds, key=str)
            if kind != expected_type
        )

    def _observe_weight(self, module: nn.Module, _: Any) -> None:
        self._handle.remove()
        weight = module.get_parameter("weight")
        self._weights = weight.dtype
        handle: list[RemovableHandle] = []

        def record_gradient(gradient: Tensor) -> None:
            self._gradients = gradient.dtype
            handle.pop().remove()

        handle.append(weight.register_hook(record_gradient))  # type: ignore[no-untyped-call]

    def weight_and_gradient_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Return the types of the layer's weight and of its gradient. At least one step must have run."""
        if self._layer is None or self._observe_in_pass:
            return self._weights, self._gradients
        weight: Any = self._layer.weight  # not a parameter if it is gathered from shards in each pass
        gradient = weight.grad if weight.is_leaf else None
        return weight.dtype, weight.dtype if gradient is None else gradient.dtype
