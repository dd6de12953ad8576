"""What cannot be done is said, with the reason, and nothing is run in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from campaign.workloads.trainer import models
from campaign.workloads.trainer.models import find_layers
from campaign.workloads.trainer.parallel_strategies import choose_optimizer
from campaign.workloads.trainer.rank_interface import TrainSpec
from campaign.workloads.trainer.training_session import unsupported_model_reason, unsupported_run_reason

CPU = torch.device("cpu")


def nano(**options: object) -> TrainSpec:
    return TrainSpec.model_validate({"model": "bert-nano", "batch": 2, "measured_steps": 1, "options": options})


def test_what_is_asked_for_by_default_is_supported() -> None:
    assert unsupported_run_reason(nano(), 2, CPU) is None


def test_compiling_without_a_compiler_is_unsupported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    reason = unsupported_run_reason(nano(compile=True), 1, CPU)
    assert reason is not None
    assert "none of c++, g++, clang++ is on the PATH" in reason


def test_a_compiler_that_does_not_work_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "my-c++"
    broken.write_text("#!/bin/sh\necho 'Python.h: No such file or directory' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    reason = unsupported_run_reason(nano(compile=True), 1, CPU)
    assert reason is not None
    assert "Python.h: No such file" in reason


def test_data_parallel_modules_are_not_compiled() -> None:
    spec = nano(compile=True, parallel="dp").model_copy(update={"replicas": 2})
    assert "DataParallel" in (unsupported_run_reason(spec, 1, CPU) or "")


def test_what_cannot_be_held_to_a_pace_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsupported_run_reason(nano(), 1, CPU) is None
    compiled = nano(compile=True).model_copy(update={"pace_gflops": (1.0,)})
    assert "no modules to slow down" in (unsupported_run_reason(compiled, 1, CPU) or "")
    monkeypatch.setattr(models, "count_step_flops", lambda _: None)
    uncounted = nano().model_copy(update={"pace_gflops": (1.0,)})
    assert "cannot be counted" in (unsupported_run_reason(uncounted, 1, CPU) or "")


def test_a_mixed_policy_is_one_of_fsdp_in_bf16_on_several_devices() -> None:
    def reason(ranks: int, precision: str = "bf16", **options: object) -> str:
        asked = nano(emulation="allow", **{"fsdp_precision": "mixed", "parallel": "fsdp", **options})
        return unsupported_run_reason(asked.model_copy(update={"precision": precision}), ranks, CPU) or ""

    assert reason(2) == ""
    assert reason(1, fsdp_precision="autocast") == ""
    assert "not with 'parallel: ddp' in bf16" in reason(2, parallel="ddp")
    assert "not with 'parallel: fsdp' in fp32" in reason(2, "fp32")
    assert "at least two devices" in reason(1)


def test_batch_norms_are_not_computed_in_bf16_as_a_whole() -> None:
    options = {"fsdp_precision": "mixed", "parallel": "fsdp"}
    for model, refused in (("mobilenetv2-32px", True), ("bert-nano", False)):
        spec = TrainSpec(model=model, batch=2, measured_steps=1, precision="bf16", options=options)
        found = unsupported_model_reason(spec, models.build_model(model, spec.resolve_options(), "meta"))
        assert bool(found) == refused


@pytest.mark.parametrize(
    ("device", "changes", "fused"),
    [
        ("cuda", {}, True),
        ("cuda", {"precision": "bf16"}, True),
        ("cuda", {"precision": "fp16"}, False),
        ("cuda", {"model": "mobilenetv2-32px"}, False),
        ("cpu", {}, False),
    ],
)
def test_adamw_is_fused_where_a_device_has_it_and_each_step_can_be_known(
    device: str, changes: dict[str, object], fused: bool
) -> None:
    spec = TrainSpec.model_validate({"model": "bert-nano", "batch": 2, "measured_steps": 1, **changes})
    trainable = models.build_model(spec.model, spec.resolve_options(), "meta")
    assert choose_optimizer(spec, trainable, torch.device(device))[1].get("fused", False) is fused


def test_sharded_weights_have_no_other_memory_format() -> None:
    spec = nano(channels_last=True, parallel="fsdp")
    assert "contiguous" in (unsupported_run_reason(spec, 2, CPU) or "")
    assert unsupported_run_reason(spec, 1, CPU) is None
    default = nano(parallel="fsdp").model_copy(update={"device": "cuda"})
    assert not default.uses_channels_last


def test_a_network_without_layers_has_nothing_to_compute_again() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    trainable = models.Trainable(plain, lambda x: x.sum(), 1, lambda _: (torch.zeros(2),), "sgd")
    assert "needs repeated layers" in (unsupported_model_reason(nano(activation_checkpointing=True), trainable) or "")
    assert unsupported_model_reason(nano(), trainable) is None


@pytest.mark.parametrize(
    ("model", "count"), [("bert-nano", 2), ("gpt-nano", 2), ("resnet50w16", 16), ("mobilenetv2-32px", 17), ("cspn", 19)]
)
def test_layers_are_the_repeated_parts_and_none_is_inside_another(model: str, count: int) -> None:
    spec = TrainSpec(model=model, batch=1, measured_steps=1)
    layers = find_layers(models.build_model(model, spec.resolve_options()).network)
    assert len(layers) == count
    inside = {id(part) for layer in layers for part in layer.modules() if part is not layer}
    assert not inside & {id(layer) for layer in layers}
