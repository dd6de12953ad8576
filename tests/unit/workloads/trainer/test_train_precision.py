"""Precisions are proven by what is computed, and refused where a device has none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from campaign.spec.fields import Precision
from campaign.workloads.trainer import precision
from campaign.workloads.trainer.cpu_data_parallel import CpuDataParallel
from campaign.workloads.trainer.input_pipeline import make_feed
from campaign.workloads.trainer.models import build_model
from campaign.workloads.trainer.rank_interface import TrainSpec
from campaign.workloads.trainer.timed_steps import Training

CPU = torch.device("cpu")
X86 = "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16 amx_tile\n\nprocessor\t: 1\nflags\t\t: fpu\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp bf16\n"


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    precision.set_matmul_precision("fp32")
    yield
    precision.set_matmul_precision("fp32")


@pytest.mark.parametrize(("asked", "mantissa_bits"), [("fp32", 23), ("fp16", 10), ("bf16", 7)])
def test_a_product_is_rounded_as_the_precision_says(asked: Precision, mantissa_bits: int) -> None:
    precision.set_matmul_precision(asked)
    torch.manual_seed(0)
    value = 1 + torch.rand(64, 64)
    with precision.make_autocast(asked, CPU):
        product = (value @ torch.eye(64)).float()
    error = ((product - value).abs() / value).max().item()
    half_a_unit = 2.0 ** -(mantissa_bits + 1)
    assert error <= half_a_unit
    if asked != "fp32":
        assert error > half_a_unit / 4
    assert precision.measure_precision(asked, CPU) == asked


def test_fp16_o2_is_a_product_of_fp16_weights_with_fp16_gradients() -> None:
    half, full = torch.float16, torch.float32
    assert precision.measure_precision("fp16-o2", CPU, half, half) == "fp16-o2"
    assert precision.measure_precision("fp16-o2", CPU, full, full) == "fp32"
    assert precision.measure_precision("fp16-o2", CPU, half, full) == "fp16"
    assert precision.measure_precision("fp16", CPU, full, full) == "fp16"


@pytest.mark.parametrize("model", ["bert-nano", "gpt-nano", "cspn"])
def test_fp16_o2_keeps_norms_and_what_the_optimizer_updates_in_fp32(model: str) -> None:
    options = {"emulation": "allow", "activation_checkpointing": True, **({"image_px": 32} if model == "cspn" else {})}
    spec = TrainSpec(model=model, batch=2, measured_steps=1, warmup_steps=0, precision="fp16-o2", options=options)
    torch.manual_seed(0)
    trainable = build_model(model, spec.resolve_options())
    training = Training(spec, trainable, make_feed(spec, trainable, 0, 1, CPU)[0], CPU, 1)
    training.warm_up()
    norms = {id(weight) for norm in precision.find_weighted_norms(trainable) for weight in norm.parameters()}
    assert norms
    updated = [weight for group in training.strategy.optimizer.param_groups for weight in group["params"]]
    assert {weight.dtype for weight in updated} == {torch.float32}
    for weight, own in zip(trainable.parameters(), updated, strict=True):
        assert weight.grad is not None
        assert {weight.dtype, weight.grad.dtype} == {torch.float32 if id(weight) in norms else torch.float16}
        assert torch.equal(weight, own.to(weight.dtype))  # the model follows the optimizer
    assert any(not torch.equal(own, own.half().float()) for own in updated)  # which knows more digits


def test_what_is_in_force_is_found_out_not_echoed() -> None:
    assert precision.measure_precision("tf32", CPU) == "fp32"


@pytest.mark.parametrize("asked", ["fp32", "tf32", "bf16"])
def test_torch_compile_can_read_the_switches(asked: Precision) -> None:
    precision.set_matmul_precision(asked)
    allowed = asked == "tf32"
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"


def test_convolutions_are_looked_at_beside_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarser(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return convolve(image.bfloat16(), weight.bfloat16()).float()

    convolve = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", coarser)
    found = precision.measure_precision("fp32", CPU)
    assert found == "fp32 in products, bf16 in convolutions"
    assert precision.describe_precision_mismatch("fp32", found) == f"measured {found} instead of fp32"


@pytest.mark.parametrize(
    ("asked", "found", "has_flaw"),
    [
        ("tf32", "tf32", False),
        ("tf32", "tf32 in products, fp32 in convolutions", False),
        ("tf32", "fp32 in products, tf32 in convolutions", True),
        ("tf32", "fp32", True),
        ("fp32", "fp32 in products, tf32 in convolutions", True),
        ("bf16", "fp16", True),
    ],
)
def test_a_finer_convolution_is_no_flaw(asked: Precision, found: str, has_flaw: bool) -> None:
    assert bool(precision.describe_precision_mismatch(asked, found)) is has_flaw


def trained(
    asked: Precision, parallel: str, replicas: int = 1, looked_at: bool = True, **more: Any
) -> tuple[Training, Any]:
    options = {"emulation": "allow", "parallel": parallel, "seq_len": 4, **more}
    spec = TrainSpec(model="bert-nano", batch=2, replicas=replicas, measured_steps=1, precision=asked, options=options)
    torch.manual_seed(0)
    trainable = build_model("bert-nano", spec.resolve_options())
    training = Training(spec, trainable, make_feed(spec, trainable, 0, 1, CPU)[0], CPU, 1)
    copies = training.model.replica_modules if isinstance(training.model, CpuDataParallel) else ()
    return training, precision.DtypeObserver(trainable.network, False, copies) if looked_at else None


def test_a_replica_computes_in_the_precision_whatever_its_thread_enters() -> None:
    """As `torch.nn.parallel.parallel_apply` does it: a copy of the module, in a new thread, in an autocast of another type."""
    training, seen = trained("bf16", "ddp")
    replica, batch = training.model._replicate_for_data_parallel(), training.feed()
    for name, child in training.model.named_children():
        replica._modules[name] = child

    def work() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            replica(*batch)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()
    assert seen.describe_type_mismatch("bf16") == ""
    assert seen.describe_type_mismatch("fp16") == "bfloat16 on replica 0"


def test_each_replica_is_looked_at() -> None:
    training, seen = trained("bf16", "dp", replicas=2)
    training.run_step()
    assert seen.describe_type_mismatch("bf16") == ""
    assert isinstance(training.model, CpuDataParallel)
    second = training.model.replica_modules[1]
    second.__class__ = type(second).__mro__[1]  # without the precision inside
    training.run_step()
    assert seen.describe_type_mismatch("bf16", 2) == "float32 on replica 1"
    assert seen.describe_type_mismatch("bf16", 3) == "observed on only 2 of 3 replicas"


def test_what_is_looked_at_is_no_part_of_a_compiled_model() -> None:
    def graphs(looked_at: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        training, seen = trained("bf16", "ddp", looked_at=looked_at)
        counter = CompileCounter()
        training.model.compile(backend=counter)
        for _ in range(3):
            training.run_step()
        assert seen is None or seen.describe_type_mismatch("bf16") == ""
        assert seen is None or seen.describe_type_mismatch("fp32") == "bfloat16 on replica 0"
        return counter.frame_count, counter.op_count

    assert graphs(looked_at=True) == graphs(looked_at=False)


def test_layers_that_are_computed_again_are_in_the_same_precision() -> None:
    def gradients(again: bool) -> list[torch.Tensor]:
        training, _ = trained("bf16", "ddp", activation_checkpointing=again)
        training.run_step()
        return [weight.grad for weight in training.model.parameters() if weight.grad is not None]

    assert all(torch.equal(one, other) for one, other in zip(gradients(False), gradients(True), strict=True))


def test_tf32_on_a_cpu_is_unsupported() -> None:
    reason = precision.unsupported_reason("tf32", CPU, allow_emulation=True)
    assert reason is not None
    assert "tensor cores" in reason
    assert precision.unsupported_reason("fp32", CPU, allow_emulation=False) is None


@pytest.mark.parametrize(
    ("cpuinfo", "asked", "emulated"),
    [
        (X86, "bf16", False),
        (X86, "fp16", True),
        (X86, "fp16-o2", True),
        (ARM, "bf16", False),
        (ARM, "fp16", False),
        ("", "bf16", True),
        ("", "fp32", False),
    ],
)
def test_instructions_decide_what_a_cpu_emulates(cpuinfo: str, asked: Precision, emulated: bool) -> None:
    assert precision.is_emulated(asked, precision.parse_cpu_features(cpuinfo)) is emulated


@pytest.mark.parametrize("asked", ["bf16", "fp16"])
def test_emulation_is_refused_unless_allowed(asked: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "parse_cpu_features", lambda _: frozenset({"avx2"}))
    reason = precision.unsupported_reason(asked, CPU, allow_emulation=False)
    assert reason is not None
    assert f"no {asked} instructions" in reason
    assert precision.unsupported_reason(asked, CPU, allow_emulation=True) is None


def test_only_both_kinds_of_fp16_scale_their_loss_and_headroom_lowers_the_scale() -> None:
    scaled = [asked for asked in get_args(Precision) if precision.make_scaler(asked, CPU)]
    assert scaled == ["fp16", "fp16-o2"]
    scaler = precision.make_scaler("fp16", CPU)
    assert scaler is not None
    scaler.scale(torch.ones(()))
    before = scaler.get_scale()
    precision.lower_settled_scale(scaler)
    assert scaler.get_scale() == before / 16
