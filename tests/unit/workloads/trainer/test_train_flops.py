"""What a step costs: three forward passes over all samples, at the options of the run, whatever the strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from campaign.workloads.trainer import models
from campaign.workloads.trainer.model_catalog import MODELS
from campaign.workloads.trainer.models import Trainable, build_model
from campaign.workloads.trainer.rank_interface import TrainSpec

BERT = MODELS["bert-nano"].forward_flops_per_sample


def spec_of(**changes: object) -> TrainSpec:
    return TrainSpec.model_validate({"model": "bert-nano", "batch": 4, "measured_steps": 1, **changes})


def test_a_step_is_three_forward_passes_over_the_samples_of_all_devices_of_the_process() -> None:
    assert BERT is not None
    assert models.count_step_flops(spec_of()) == 3 * 4 * BERT
    assert models.count_step_flops(spec_of(replicas=2, options={"parallel": "dp"})) == 3 * 8 * BERT


def test_options_that_shape_the_model_count_and_others_do_not() -> None:
    longer = models.count_step_flops(spec_of(options={"seq_len": 128}))
    assert BERT is not None
    assert longer is not None
    # Layers grow with the tokens, attention with their square: 4 x layers x width of it for each pair.
    attention = 4 * 2 * 128
    assert longer / 12 == 2 * (BERT - attention * 64**2) + attention * 128**2
    same = spec_of(
        precision="bf16", options={"accumulation": 2, "activation_checkpointing": True, "learning_rate": 0.5}
    )
    assert models.count_step_flops(same) == 12 * BERT


def test_a_number_that_a_table_has_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "count_module_flops", None)
    assert models.count_training_flops("gpt2", {}, 1) == 3 * 291_648_307_200


def test_grouped_convolutions_cost_what_their_groups_do() -> None:
    # By pixels and channels: the first convolution, and what follows each expansion by its 3x3 filters of one channel.
    network = build_model("mobilenetv2", {"image_px": 64}, "meta").network
    expected, side = 2 * 1280 * 1000, 64
    for convolution in (module for module in network.modules() if isinstance(module, nn.Conv2d)):
        side //= convolution.stride[0]
        expected += 2 * convolution.weight.numel() * side**2
    assert models.count_training_flops("mobilenetv2", {"image_px": 64}, 1) == 3 * expected


class _NeedsData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * int(x.sum().item())


def test_a_foreign_model_that_cannot_be_counted_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_data(*_: object) -> Trainable:
        return Trainable(_NeedsData(), lambda y: y.sum(), 1, lambda generator: (torch.zeros(3),), "sgd")

    monkeypatch.setattr(models, "build_model", needs_data)
    assert models.count_training_flops("torchvision:nothing", {}, 1) is None
    with pytest.raises(RuntimeError):
        models.count_training_flops("bert-nano", {"seq_len": 63}, 1)
