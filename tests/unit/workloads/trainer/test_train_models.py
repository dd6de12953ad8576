"""The models are the published ones: exact parameter counts, known arithmetic, and losses in which everything takes part."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from campaign.common.errors import ConfigError
from campaign.workloads.trainer import models
from campaign.workloads.trainer.model_catalog import FAMILY_OPTIONS, MODELS, resolve_options
from campaign.workloads.trainer.models import Sample, build_model, make_batch, yolo
from campaign.workloads.trainer.rank_interface import RankEnvironment, TrainSpec
from campaign.workloads.trainer.training_session import TrainingSession
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES

PLACE = RankEnvironment(0, 2, 0, Path("spec"), Path("out"), 2)

REDUCED = sorted(name for name, info in MODELS.items() if "reduced" in info.description)
# Parameters, and operations of one sample's forward pass, to the precision that they are published or were derived by hand with.
PUBLISHED = {
    "resnet50": (25_557_032, 8.18e9),
    "mobilenetv2": (3_504_872, 0.602e9),
    "yolov5l": (46_563_709, 109.0e9),
    "yolov5s": (7_235_389, 16.4e9),
    "bert-base": (108_893_186, 70.7e9),
    "bert-large": (334_094_338, 246.4e9),
    # 2 x (weights of the layers and of the output) x tokens + 4 x layers x tokens^2 x width
    "gpt2": (124_439_808, 2 * (12 * 12 * 768**2 + 50257 * 768) * 1024 + 4 * 12 * 1024**2 * 768),
    "gpt3-1.3b": (
        50257 * 2048 + 2048 * 2048 + 24 * (12 * 2048**2 + 13 * 2048) + 2 * 2048,
        2 * (24 * 12 * 2048**2 + 50257 * 2048) * 2048 + 4 * 24 * 2048**2 * 2048,
    ),
    "gpt3-6.7b": (
        50257 * 4096 + 2048 * 4096 + 32 * (12 * 4096**2 + 13 * 4096) + 2 * 4096,
        2 * (32 * 12 * 4096**2 + 50257 * 4096) * 2048 + 4 * 32 * 2048**2 * 4096,
    ),
    "gpt2-medium": (354_823_168, 2 * (24 * 12 * 1024**2 + 50257 * 1024) * 1024 + 4 * 24 * 1024**2 * 1024),
}


def as_input(batch: Sample) -> Sample:
    return tuple(tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor for tensor in batch)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_parameters_and_arithmetic(name: str) -> None:
    info = MODELS[name]
    trainable = build_model(name, info.default_options, "meta")
    shaping = {option: info.default_options[option] for option in FAMILY_OPTIONS[info.family]}
    counted = models.count_module_flops(name, tuple(sorted(shaping.items())))
    parameters = sum(parameter.numel() for parameter in trainable.parameters())
    assert parameters == info.parameters
    assert counted is not None
    assert sum(counted.values()) == info.forward_flops_per_sample
    if "reduced" not in info.description:
        assert parameters == PUBLISHED[name][0]
        assert sum(counted.values()) == pytest.approx(PUBLISHED[name][1], rel=0.003)


def test_only_models_of_a_billion_parameters_are_built_without_memory() -> None:
    assert [name for name in MODELS if models.is_deferred(name)] == ["gpt3-1.3b", "gpt3-6.7b"]
    spec = TrainSpec(model="gpt3-6.7b", batch=2, measured_steps=1)
    session = TrainingSession(spec.model_copy(update={"options": {"parallel": "fsdp"}}), PLACE, 0.0)
    assert all(weight.is_meta for weight in session._build_model().parameters())


def test_a_sequence_is_no_longer_than_a_model_has_positions() -> None:
    for name, most in (("gpt2", 1024), ("gpt3-1.3b", 2048), ("bert-base", 512)):
        assert resolve_options(name, {"seq_len": most})["seq_len"] == most
        with pytest.raises(ConfigError, match=f"at most {most}"):
            resolve_options(name, {"seq_len": most + 1})


def test_late_weights_are_drawn_as_others_are_and_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_model("gpt-nano", MODELS["gpt-nano"].default_options)
    late, again, other = (build_model("gpt-nano", MODELS["gpt-nano"].default_options, "meta") for _ in range(3))
    for trainable, seed in ((late, 1), (again, 1), (other, 2)):
        models.materialise_weights(trainable, torch.device("cpu"), seed)
    for (name, weight), expected in zip(late.named_parameters(), plain.parameters(), strict=True):
        assert weight.std().item() == pytest.approx(expected.std().item(), rel=0.05, abs=1e-9), name
        assert weight.mean().item() == pytest.approx(expected.mean().item(), abs=2e-3), name
    pairs = list(zip(late.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(one, same) for one, same, _ in pairs)
    assert sum(not torch.equal(one, another) for one, _, another in pairs) == 10  # all but norms and biases


@pytest.mark.parametrize("name", REDUCED)
def test_every_parameter_takes_part_in_the_loss(name: str) -> None:
    torch.manual_seed(0)
    trainable = build_model(name, MODELS[name].default_options)
    loss = trainable(*as_input(make_batch(trainable, range(6), 1)))
    loss.backward()
    idle = [key for key, value in trainable.named_parameters() if value.grad is None or not value.grad.abs().sum() > 0]
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert idle == []


@pytest.mark.parametrize("name", ["bert-nano", "gpt-nano"])
def test_dropout_is_an_option_that_changes_training_only(name: str) -> None:
    torch.manual_seed(0)
    trainable = build_model(name, resolve_options(name, {"dropout": 0.5, "seq_len": 8}))
    batch = make_batch(trainable, range(2), 1)
    assert trainable(*batch) != trainable(*batch)
    trainable.eval()
    assert trainable(*batch) == trainable(*batch)


def test_a_language_model_sees_nothing_of_what_is_to_come() -> None:
    torch.manual_seed(0)
    network = build_model("gpt-nano", resolve_options("gpt-nano", {"seq_len": 8})).network
    token_ids = torch.arange(8).unsqueeze(0)
    changed = token_ids.clone()
    changed[0, 5] = 99
    before, after = network(token_ids), network(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_what_a_language_model_foretells_is_the_same_text_one_token_on() -> None:
    token_ids, following = make_batch(build_model("gpt-nano", MODELS["gpt-nano"].default_options, "meta"), range(2), 1)
    assert token_ids.shape == following.shape == (2, 64)
    assert torch.equal(token_ids[:, 1:], following[:, :-1])


def test_a_new_language_model_expects_every_token_alike() -> None:
    torch.manual_seed(0)
    trainable = build_model("gpt-nano", MODELS["gpt-nano"].default_options)
    loss = trainable(*make_batch(trainable, range(4), 1))
    assert loss.item() == pytest.approx(math.log(GPT_SIZES["gpt-nano"].vocabulary), rel=0.02)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["bert-nano", "cspn", "gpt-nano"]))
def test_a_sample_depends_on_its_index_not_on_how_the_batch_is_cut(seed: int, name: str) -> None:
    trainable = build_model(name, MODELS[name].default_options, "meta")
    whole = make_batch(trainable, range(4), seed)
    halves = [make_batch(trainable, part, seed) for part in (range(2), range(2, 4))]
    for column, tensor in enumerate(whole):
        assert torch.equal(tensor, torch.cat([half[column] for half in halves]))
    assert not torch.equal(whole[0][0], whole[0][1])


def test_a_detector_that_finds_the_boxes_has_a_lower_loss_than_one_that_does_not() -> None:
    objects = torch.tensor([[[3.0, 0.3, 0.6, 0.25, 0.5]]])
    blank = [torch.full((1, 3, 85, size, size), -8.0) for size in (8, 4, 2)]
    found = [output.clone() for output in blank]
    for output in found:
        size = output.shape[-1]
        row, column = int(0.6 * size), int(0.3 * size)
        offsets = torch.tensor([0.3 * size - column, 0.6 * size - row, 0.25, 0.5])
        output[0, 0, :4, row, column] = torch.logit(offsets)
        output[0, 0, 4, row, column] = 8.0
        output[0, 0, 5 + 3, row, column] = 8.0
    assert yolo.detection_loss(found, objects) < 0.01 < yolo.detection_loss(blank, objects)


@pytest.mark.parametrize("package", ["transformers", "torchvision"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    name = f"{package}:bert"
    with pytest.raises(ConfigError, match=f"need the package {package}"):
        build_model(name, resolve_options(name, {}))


class _Tuple:
    """What transformers gives: something with to_tuple()."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def to_tuple(self) -> tuple[object, ...]:
        return self._values


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.pooler = nn.Linear(4, 4)

    def forward(self, input_ids: torch.Tensor, return_dict: bool) -> _Tuple:
        assert return_dict
        hidden = self.embedding(input_ids)
        return _Tuple(hidden, self.pooler(hidden[:, 0]), None)


def _fake_transformers() -> Any:
    module = ModuleType("transformers")
    configuration = SimpleNamespace(vocab_size=11)

    def from_pretrained(name: str) -> SimpleNamespace:
        raise OSError(f"{name} is not cached")

    parts = {
        "CONFIG_MAPPING": {"bert": object},
        "AutoConfig": SimpleNamespace(for_model=lambda name: configuration, from_pretrained=from_pretrained),
        "AutoModel": SimpleNamespace(from_config=lambda found: _Network()),
    }
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def test_a_model_of_transformers_trains_with_all_of_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", _fake_transformers())
    trainable = build_model("transformers:bert", resolve_options("transformers:bert", {"seq_len": 6}))
    batch = make_batch(trainable, range(3), 1)
    assert batch[0].shape == (3, 6)
    trainable(*batch).backward()
    assert all(parameter.grad is not None for parameter in trainable.parameters())
    with pytest.raises(ConfigError, match="neither a model type"):
        build_model("transformers:nothing", resolve_options("transformers:nothing", {}))
