"""Writes the layers of the built-in models for the model of a step, counted on models without memory. Needs torch.

python -m campaign.workloads.traces.built_in_networks
"""

from __future__ import annotations

import json

from campaign.workloads.step_networks import NETWORKS
from campaign.workloads.traces.model_flops import model_flops
from campaign.workloads.traces.trace_file import folded
from campaign.workloads.trainer.model_catalog import MODELS


def text() -> str:
    """The file: a line a layer; repeat, unit, operations of the forward pass in 10^9, activations, masks, tensors."""
    models = []
    for name in MODELS:
        counted = model_flops(name, {})
        lines = [
            json.dumps([layer.repeat, layer.is_unit, layer.forward, layer.activations, layer.masks, layer.tensors])
            for layer in folded(each._replace(forward=each.forward / 1e9) for each in counted.layers)
        ]
        inside = ",\n  ".join(lines)
        models.append(f'"{name}": {{"sample_bytes": {counted.sample_bytes}, "layers": [\n  {inside}]}}')
    return "{\n" + ",\n".join(models) + "\n}\n"


if __name__ == "__main__":
    NETWORKS.write_text(text(), encoding="utf-8")
