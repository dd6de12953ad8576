"""Memory of a device in a step. Pure.

Weights, gradients and optimizer states by their precision and the strategy (Rajbhandari et al. 2020, arXiv 1910.02054), activations
of the layers (Korthikanti et al. 2022, arXiv 2205.05198), what the libraries take, and what the allocator holds beside it.
"""

from __future__ import annotations

from campaign.model.description import ELEMENT_BYTES, MIB, NetworkLayer, StepCase
from campaign.model.parameters import Draws, Floats
from campaign.model.passes import elements, stages

_STATE_BYTES = 4


def memory_mib(case: StepCase, draws: Draws) -> Floats:
    """MiB on the fullest device, under each draw; nan where the activations of a layer are not known."""
    division, sharing = case.sharing.division, case.sharing
    parts = stages(case.network.layers, division.pipeline) if division else [list(case.network.layers)]
    fullest = max(_states(case, layers) + _activations(case, layers, stage) for stage, layers in enumerate(parts))
    if any(layer.activations is None for layer in case.network.layers) and not sharing.recompute:
        fullest = float("nan")
    return (draws.of("context") + fullest / MIB) * draws.of("allocator")


def _states(case: StepCase, layers: list[NetworkLayer]) -> float:
    """Bytes of weights, gradients and what the optimizer keeps."""
    sizes, sharing, ranks = ELEMENT_BYTES[case.precision], case.sharing, len(case.topology.ranks)
    division = sharing.division
    own = elements(layers) / (division.tensor if division else 1)
    replicas = ranks // (division.tensor * division.pipeline) if division else ranks
    kept = float(_STATE_BYTES) * case.network.optimizer_states
    if sharing.parallel == "fsdp" and replicas > 1:
        units = [elements([layer]) for layer in layers if layer.unit]
        whole = elements(layers) - sum(units) + 2 * max(units, default=0)  # two units are gathered at a time
        return (sizes.weight + sizes.gradient + kept) * own / replicas + 2 * sizes.gradient * whole
    if sharing.parallel == "zero1":
        kept /= replicas
    # Buckets are copies of the gradients; DataParallel's root gathers those of the others.
    copies = 1 if replicas == 1 else 2
    return own * (sizes.weight + copies * sizes.gradient + kept)


def _activations(case: StepCase, layers: list[NetworkLayer], stage: int) -> float:
    """Bytes that are kept for the backward pass of all microbatches that a stage has begun."""
    size, division = ELEMENT_BYTES[case.precision].activation, case.sharing.division
    samples, shared = case.batch / case.sharing.accumulation, 1
    if division:
        begun = (
            division.microbatches
            if division.schedule == "gpipe"
            else min(division.microbatches, division.pipeline - stage)
        )
        samples = case.batch * division.tensor * division.pipeline / division.microbatches * begun
        shared = division.tensor
    kept = [layer_bytes(layer, size) for layer in layers]
    if not case.sharing.recompute:
        return samples * sum(kept) / shared
    inside = [bytes_ for bytes_, layer in zip(kept, layers, strict=True) if layer.unit]
    rest = sum(kept) - sum(inside) + sum(layer.boundary * size for layer in layers if layer.unit)
    return samples * (rest + max(inside, default=0.0)) / shared


def layer_bytes(layer: NetworkLayer, activation_bytes: int) -> float:
    """Bytes of a sample; 0 where activations are not known."""
    return (layer.activations or 0.0) * activation_bytes + layer.masks
