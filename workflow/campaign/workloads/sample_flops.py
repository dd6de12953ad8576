"""Operations of a built-in model on one sample, known without building it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.documents.cell import Scalar
from campaign.workloads.trainer.model_catalog import MODELS

SIZES: Mapping[str, int] = {"seq_len": 1, "image_px": 2}
"""Options that are the size of a sample, and the power of it that operations grow with (attention's square is left out)."""


def sample_flops(workload: Mapping[str, Any], options: Mapping[str, Scalar]) -> float | None:
    """Operations of a forward pass; None where the model is not in the catalog. options: of a run, the file's and its own."""
    info = MODELS.get(str(workload.get("model"))) if workload.get("kind") == "train" else None
    if info is None or info.forward_flops_per_sample is None:
        return None
    scale = 1.0
    for name, power in SIZES.items():
        usual, own = info.default_options.get(name), options.get(name)
        if isinstance(usual, int) and isinstance(own, int):
            scale *= (own / usual) ** power
    return info.forward_flops_per_sample * scale
