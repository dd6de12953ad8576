"""Bytes of activations and their gradients that a rank of a divided transformer sends in a step. Without torch.

A layer of width w gives activations of samples x tokens x w elements. Tensor parallelism all-reduces them twice in the forward and
twice in the backward pass of a layer (Shoeybi et al. 2019); sequence parallelism makes an all-gather and a reduce-scatter of each
all-reduce (Korthikanti et al. 2022). A pipeline stage sends them to the next one, and their gradients to the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

from campaign.documents.cell import Scalar
from campaign.workloads.trainer.rank_mesh import Dimension, RankMesh, microbatches
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES, TRANSFORMER_SIZES, Size

_FULL, _HALF = 4, 2
_LOSS_NUMBERS = 3
"""Of each token, exchanged between parts of the vocabulary: the largest logit, the sum of exponentials, the target's logit."""


def layers_of_stage(layers: int, stage: int, stages: int) -> int:
    """Earlier stages have one layer more."""
    return layers // stages + (stage < layers % stages)


def activation_elements(model: str, options: Mapping[str, Scalar], samples: int) -> int:
    return samples * int(options["seq_len"]) * TRANSFORMER_SIZES[model].width


def pipeline_bytes(
    model: str, options: Mapping[str, Scalar], samples: int, mesh: RankMesh, place: Mapping[Dimension, int]
) -> int:
    """To the stages beside it. samples: of a step of a replica."""
    if mesh.pipeline == 1:
        return 0
    first, last = place["pp"] == 0, place["pp"] == mesh.pipeline - 1
    shared = mesh.tensor if options["sequence_parallel"] else 1
    sent = (not last) + (not first)
    tied = 0
    if model in GPT_SIZES and (first or last):
        size = GPT_SIZES[model]
        # Two ranks send all of what they all-reduce.
        tied = own_tokens(size, mesh.tensor, place["tp"]) * size.width * _FULL
    return sent * _FULL * activation_elements(model, options, samples) // shared + tied


def own_tokens(size: Size, parts: int, part: int) -> int:
    """Tokens of the vocabulary that one of the devices has: all but the last ones have as many as `torch.chunk` gives."""
    most = -(-size.vocabulary // parts)
    return max(0, min(most, size.vocabulary - part * most))


def tensor_bytes(
    model: str,
    options: Mapping[str, Scalar],
    samples: int,
    mesh: RankMesh,
    place: Mapping[Dimension, int],
    precision: str,
    passes: int,
) -> int:
    """Within the group that divides each tensor. passes: backward passes of a step that each add up gradients of norms."""
    if mesh.tensor == 1:
        return 0
    size, elements = TRANSFORMER_SIZES[model], activation_elements(model, options, samples)
    by_tokens, gpt = bool(options["sequence_parallel"]), model in GPT_SIZES
    first, last = place["pp"] == 0, place["pp"] == mesh.pipeline - 1
    layers = layers_of_stage(size.layers, place["pp"], mesh.pipeline)
    product = _HALF if precision == "bf16" else _FULL
    # Of each layer, in units of an all-reduce of its activations.
    forward, backward = 2 * product, 2 * _FULL
    if by_tokens:
        # Half of it gathers what a norm gives, and its gradient; the other half scatters what a product gives.
        forward = _FULL + product
        backward = product + _FULL
    again = 0
    if options["activation_checkpointing"]:
        # Nothing in the backward pass of a GPT layer needs its last product again.
        products = product if gpt else 2 * product
        again = _FULL + products // 2 if by_tokens else products
    reduced = layers * elements * (forward + backward + again)
    reduced += first * elements * _FULL  # the embeddings of tokens
    reduced += (last and gpt) * elements * _FULL  # gradients of what the output is multiplied with
    reduced += (last and gpt) * _LOSS_NUMBERS * samples * int(options["seq_len"]) * _FULL
    if by_tokens:
        # Gathered once before the output; gradients before the layers. Half of an all-reduce.
        reduced += (first + last) * elements * _FULL // 2
        reduced += passes * layers * 4 * size.width * _FULL
    return 2 * (mesh.tensor - 1) * reduced // mesh.tensor


def data_passes(options: Mapping[str, Scalar], mesh: RankMesh) -> int:
    """Backward passes of a step that each add up gradients: all where data parallelism keeps them as plain tensors, else one."""
    return microbatches(options) * int(options["accumulation"]) if mesh.data > 1 else 1
