"""Operations of a built-in model on one sample, known without building it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.documents.cell import Scalar
from campaign.workloads.trainer.model_catalog import MODELS, ModelInfo
from campaign.workloads.trainer.transformer_sizes import TRANSFORMER_SIZES

SIZES: Mapping[str, int] = {"seq_len": 1, "image_px": 2}
"""Options that are the size of a sample, and the power of it that operations grow with, but for attention's square."""


def sample_flops(workload: Mapping[str, Any], options: Mapping[str, Scalar]) -> float | None:
    """Operations of a forward pass; None where the model is not in the catalog. options: of a run, the file's and its own."""
    info = MODELS.get(str(workload.get("model"))) if workload.get("kind") == "train" else None
    if info is None or info.forward_flops_per_sample is None:
        return None
    usual, own = (attention_flops(info.name, tokens) for tokens in _tokens(info, options))
    return (info.forward_flops_per_sample - usual) * size_scale(info, options) + own


def size_scale(info: ModelInfo, options: Mapping[str, Scalar]) -> float:
    """By how much more a sample of these options is than the model's own."""
    scale = 1.0
    for name, power in SIZES.items():
        usual, own = info.default_options.get(name), options.get(name)
        if isinstance(usual, int) and isinstance(own, int):
            scale *= (own / usual) ** power
    return scale


def attention_flops(model: str, tokens: int) -> float:
    """Operations of a transformer's products of all pairs of tokens; 0 for other models."""
    size = TRANSFORMER_SIZES.get(model)
    return 4.0 * size.layers * tokens**2 * size.width if size else 0.0


def _tokens(info: ModelInfo, options: Mapping[str, Scalar]) -> tuple[int, int]:
    usual = int(info.default_options.get("seq_len", 0))
    return usual, int(options.get("seq_len", usual))
