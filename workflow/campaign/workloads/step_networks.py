"""Networks and options of training in the terms of the model of a step. Without torch.

`networks.json` has the layers of the built-in models as a trace has them, counted on models without memory; `python -m
campaign.workloads.traces.built_in_networks` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from campaign.documents.cell import Scalar
from campaign.model.description import MIB, Division, Network, NetworkLayer, WorkSharing, transformer_layer
from campaign.workloads.sample_flops import size_scale
from campaign.workloads.trainer.model_catalog import MODELS
from campaign.workloads.trainer.rank_mesh import RankMesh, activation_elements, microbatches, own_tokens, tensor_bytes
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES, TRANSFORMER_SIZES

NETWORKS = Path(__file__).with_name("networks.json")
OPTIMIZER_SHARE = 0.05
"""Share of the optimizer in a step of a built-in model, where nobody measured it; that of paced devices."""
_FIRST_BUCKET_MIB = 1.0
_DEFAULT_BUCKET_MIB = 25.0
_TENSOR_CALLS = 4
"""Collectives along tensors in the two passes of a transformer layer."""
_SENT_BYTES = 4
"""Of an activation, from a pipeline stage to the next, and of a gradient of the tied weight."""


def built_in_network(model: str, options: Mapping[str, Scalar]) -> Network | None:
    """The network of a built-in model under resolved options; None for a foreign one.

    Operations and activations of samples of another size are in proportion. The attention of transformers is fused, as PyTorch does
    it on GPUs.
    """
    known = _networks().get(model)
    if known is None:
        return None
    layers = tuple(
        NetworkLayer(tuple(tensors), forward, 2 * forward, bool(unit), activations, masks, gradual=True)
        for repeat, unit, forward, activations, masks, tensors in known["layers"]
        for _ in range(repeat)
    )
    size = TRANSFORMER_SIZES.get(model)
    if size is not None:
        tokens = int(options["seq_len"])
        kept, masks = transformer_layer(size.width, tokens, size.heads, fused=True)
        inner = (kept, masks, float(tokens * size.width))
        layers = tuple(_with_activations(layer, *inner) if layer.unit else layer for layer in layers)
    scale = size_scale(MODELS[model], options)
    if scale != 1:
        layers = tuple(
            layer if size and layer.unit else _with_activations(layer, (layer.activations or 0.0) * scale, layer.masks)
            for layer in layers
        )
    shares = sum(layer.forward + layer.backward for layer in layers)
    moved = 0.0 if options["input"] == "resident" else float(known["sample_bytes"]) * scale
    optimizer = shares * OPTIMIZER_SHARE / (1 - OPTIMIZER_SHARE)
    return Network(layers, optimizer, moved, moved, optimizer_states=2 if size is not None else 1)


def _with_activations(layer: NetworkLayer, activations: float, masks: float, boundary: float = 0.0) -> NetworkLayer:
    return replace(layer, activations=activations, masks=masks, boundary=boundary)


@cache
def _networks() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NETWORKS.read_text(encoding="utf-8"))
    return found


def work_sharing(options: Mapping[str, Scalar], division: Division | None = None) -> WorkSharing:
    """Resolved options of training."""
    bucket_mib = float(options["bucket_mib"])
    # As `bucket_caps`: a size that was asked for has no smaller first bucket.
    first_mib = _FIRST_BUCKET_MIB if bucket_mib == _DEFAULT_BUCKET_MIB else bucket_mib
    return WorkSharing(
        options["parallel"],  # type: ignore[arg-type]  # one of the option's choices
        bool(options["overlap"]),
        bucket_mib * MIB,
        first_mib * MIB,
        int(options["accumulation"]),
        bool(options.get("activation_checkpointing", False)),
        division,
        2 if options.get("fsdp_precision") == "mixed" else None,
    )


def division_of(model: str, options: Mapping[str, Scalar], batch: int, ranks: int, precision: str) -> Division:
    """How ranks divide a built-in model; `is_divided`. ValueError: they cannot."""
    mesh = RankMesh.of(options, ranks)
    size, parts = TRANSFORMER_SIZES[model], microbatches(options)
    samples = batch * mesh.replica
    places = [mesh.coordinates(rank) for rank in range(ranks)]
    sent = [tensor_bytes(model, options, samples, mesh, place, precision, 1) for place in places]
    shared = mesh.tensor if options["sequence_parallel"] else 1
    boundary = _SENT_BYTES * activation_elements(model, options, samples) / parts / shared
    return Division(
        mesh.tensor,
        mesh.pipeline,
        tuple(mesh.groups("tp")),
        tuple(mesh.groups("pp")),
        tuple(mesh.groups("dp")),
        parts,
        options["pipeline_schedule"],  # type: ignore[arg-type]  # one of the option's choices
        boundary,
        float(max(sent)),
        _TENSOR_CALLS * parts * -(-size.layers // mesh.pipeline),
        own_tokens(size, mesh.tensor, 0) * size.width * _SENT_BYTES
        if model in GPT_SIZES and mesh.pipeline > 1
        else 0.0,
    )
