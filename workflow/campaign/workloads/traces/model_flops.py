"""Operations and activations of a built-in model, layer by layer, counted on a model without memory. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from campaign.documents.cell import Scalar
from campaign.errors import ConfigError
from campaign.workloads.traces.trace_file import TracedLayer
from campaign.workloads.trainer.model_catalog import model_info, resolve_options
from campaign.workloads.trainer.models import batch_of, build
from campaign.workloads.trainer.network_layers import Layer, Phase, in_order, network_layers, watched

# Operations of a backward pass for each one of the forward pass (Kaplan et al. 2020).
_BACKWARD = 2
# Batch normalisation takes no single one.
_SAMPLES = 2


@dataclass(frozen=True)
class ModelFlops:
    """Operations of a model. layers: in the order of the forward pass, with operations and activations of a sample; sample_bytes:
    of its input, as it is stored."""

    layers: tuple[TracedLayer, ...]
    sample_bytes: int


class _Saved:
    """Counts what is saved for the backward pass, each tensor once, and no weights: elements, and bytes of what is no number."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.elements = self.masks = 0
        self._storages = {weight.untyped_storage()._cdata for weight in weights}
        self._alive: list[Tensor] = []  # a storage that is gone may give its address to another one

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            self._alive.append(tensor)
            if tensor.is_floating_point():
                self.elements += storage.nbytes() // tensor.element_size()
            else:
                self.masks += storage.nbytes()
        return tensor


def model_flops(model: str, options: Mapping[str, Scalar]) -> ModelFlops:
    """Count the operations of a model. options: as in a workload file; ConfigError where they do not fit. What is in no layer
    counts with the one before."""
    trainable = build(model, resolve_options(model, options), "meta")
    layers = network_layers(trainable)
    inputs = batch_of(trainable, range(_SAMPLES), 1)[: trainable.inputs]
    flops: dict[Layer, float] = {}
    kept: dict[Layer, tuple[float, float]] = {}
    counted = 0
    saved = _Saved([*trainable.parameters(), *trainable.buffers()])

    def note(layer: Layer, phase: Phase) -> None:
        nonlocal counted
        before, counted = counted, counter.get_total_flops()
        flops[layer] = flops.get(layer, 0) + (counted - before) / _SAMPLES
        elements, masks = kept.get(layer, (0.0, 0.0))
        kept[layer] = (elements + saved.elements / _SAMPLES, masks + saved.masks / _SAMPLES)
        saved.elements = saved.masks = 0

    hooks = torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor)
    with FlopCounterMode(display=False) as counter, hooks, watched(layers, note):
        try:
            trainable.network(*((each.float() if each.dtype == torch.uint8 else each).to("meta") for each in inputs))
        except Exception as error:
            if model_info(model).parameters is not None:
                raise
            raise ConfigError(
                f"{model}: its operations cannot be counted without data ({error}); trace a real run"
            ) from error
        note(next(reversed(flops)), "forward")
    sample = batch_of(trainable, range(1), 1)
    return ModelFlops(
        tuple(
            TracedLayer(
                layer.name,
                f"{layer.kind} {count:.0f}",
                tuple(layer.tensors),
                count,
                _BACKWARD * count,
                layer.unit,
                *kept.get(layer, (0.0, 0.0)),
            )
            for layer, count in in_order(layers, flops, 0.0)
        ),
        sum(tensor.numel() * tensor.element_size() for tensor in sample),
    )
