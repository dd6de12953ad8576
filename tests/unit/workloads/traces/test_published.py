"""Traces from public numbers: every parameter and every operation of the model, at the published rate."""

from __future__ import annotations

import pytest

from campaign.errors import ConfigError
from campaign.run.try_workload import find_workload
from campaign.workloads.traces.published import Published, published_trace
from campaign.workloads.trainer.model_catalog import MODELS


def number(**rate: float) -> Published:
    return Published("a100-40gb", "fp16", 6, "page 3", **rate)


@pytest.mark.parametrize("model", ["mobilenetv2", "resnet50", "yolov5l", "bert-base", "bert-large", "gpt2"])
def test_a_trace_has_the_parameters_and_operations_of_its_model(model: str) -> None:
    made = published_trace(find_workload(model).model, "it", number(samples_per_s=32.5))
    assert made.parameters == MODELS[model].parameters
    flops = MODELS[model].forward_flops_per_sample
    assert flops is not None
    assert made.total_share == pytest.approx(3 * flops / 1e9, rel=1e-4)
    assert made.compute[0].seconds == pytest.approx(6 / 32.5, rel=1e-4)
    assert len(made.layers) < 25


def test_the_layers_of_bert_are_one_line_and_its_tensors_are_in_their_order() -> None:
    made = published_trace(find_workload("bert-base").model, "it", number(step_s=0.2))
    (encoder,) = [layer for layer in made.layers if layer.repeat > 1]
    assert (encoder.repeat, encoder.is_unit) == (12, True)
    assert encoder.tensors[:4] == (768 * 2304, 2304, 768 * 768, 768)
    assert encoder.backward == pytest.approx(2 * encoder.forward, rel=1e-4)
    assert [layer.name for layer in made.layers] == ["tokens", "positions", "segments", "layers.0", "answer"]
    # A norm belongs to the weights before it.
    assert made.layers[2].tensors == (2 * 768, 768, 768)


def test_operations_outside_of_all_layers_count_with_the_layer_before_them() -> None:
    made = published_trace(find_workload("gpt2").model, "it", number(step_s=0.2))
    # Its output is a product with the weights of its input.
    assert (made.layers[0].name, made.layers[0].forward) == ("tokens", 0.0)
    assert made.layers[-1].forward == pytest.approx(2 * 1024 * 768 * 50257 / 1e9, rel=1e-4)


def test_each_rate_gives_the_same_step() -> None:
    per_sample = 3 * 70_666_813_440
    tflops = 6 * per_sample / 0.2 / 1e12
    rates = [{"step_s": 0.2}, {"samples_per_s": 30.0}, {"tflops": tflops}, {"mfu_pct": 100 * tflops / 312}]
    for rate in rates:
        assert number(**rate).seconds(per_sample) == pytest.approx(0.2)
    unknown = Published("abacus", "fp16", 6, "", mfu_pct=40)
    with pytest.raises(ConfigError, match=r"the peak of 'abacus' in fp16 is not known .* give --tflops"):
        unknown.seconds(per_sample)


def test_the_optimizer_has_the_part_that_is_stated() -> None:
    made = published_trace(
        find_workload("bert-base").model, "it", Published("t4", "fp16", 4, "", 10.0, optimizer_pct=5)
    )
    assert made.optimizer / made.total_share == pytest.approx(0.05, rel=1e-3)


def test_only_built_in_training_is_traced() -> None:
    with pytest.raises(ConfigError, match="'hpl' is of kind command; a trace is made of one of kind train"):
        published_trace(find_workload("hpl").model, "it", number(step_s=1.0))
