"""Floating-point operations of a training step: what the model costs, whatever a device or a strategy really does. Needs torch.

Two for a multiply and an add; only matrix products and convolutions count. A step counts as three forward passes (Kaplan et al.
2020): torch's counter would give grouped convolutions too much in the backward pass, by the number of groups. Activations that are
computed again are not counted, and attention counts in full where it is causal (Chowdhery et al. 2022, appendix B, do the same).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import nn

from campaign.documents.cell import Scalar
from campaign.workloads.trainer.model_catalog import model_info, resolve_options
from campaign.workloads.trainer.model_options import FAMILY_OPTIONS
from campaign.workloads.trainer.models import batch_of, build
from campaign.workloads.trainer.run_spec import TrainSpec

_FORWARD_PASSES = 3.0
_COUNTED = 2
# They keep the shape and hold nothing that counts, and without data torch takes most of the time for them.
_PASSED_OVER = (nn.BatchNorm2d, nn.LayerNorm, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Dropout)


def flops_per_step(spec: TrainSpec) -> float | None:
    """Operations of one optimizer step of one rank, over all its samples; None for a foreign model that cannot be counted."""
    return training_flops(spec.model, spec.options, spec.batch * spec.replicas)


def training_flops(model: str, options: Mapping[str, Scalar], batch: int) -> float | None:
    """Operations of training on a batch. options: as in a workload file; ConfigError where they do not fit the model."""
    forward = forward_flops(model, options)
    return None if forward is None else _FORWARD_PASSES * forward * batch


def forward_flops(model: str, options: Mapping[str, Scalar]) -> float | None:
    """Operations of one sample's forward pass; the model is built without memory (`meta`) only where no table has the number."""
    resolved = resolve_options(model, options)
    info = model_info(model)
    shaping = {name: resolved[name] for name in FAMILY_OPTIONS[info.family]}
    if info.forward_flops_per_sample is not None and shaping.items() <= info.default_options.items():
        return info.forward_flops_per_sample
    return count(model, tuple(sorted(shaping.items())))


@cache
def count(model: str, options: tuple[tuple[str, Scalar], ...]) -> float | None:
    """The same by counting; options: those that shape the model, sorted."""
    from torch.utils.flop_counter import FlopCounterMode

    foreign = model_info(model).parameters is None
    try:
        trainable = build(model, resolve_options(model, dict(options)), "meta")
        batch = tuple(
            (tensor.float() if tensor.dtype == torch.uint8 else tensor).to("meta")
            for tensor in batch_of(trainable, range(_COUNTED), 1)
        )
        if not foreign:
            _leave_out(trainable.network)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            trainable.network(*batch[: trainable.inputs])
    except Exception:
        if not foreign:
            raise
        return None  # a package's model may do on no data what only data allows
    return float(counter.get_total_flops()) / _COUNTED


def _leave_out(network: nn.Module) -> None:
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, _PASSED_OVER):
                setattr(module, name, nn.Identity())
