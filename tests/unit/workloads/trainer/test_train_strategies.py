"""Every strategy trains the parameters that one rank trains on the whole batch, and communicates as much as it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from campaign.workloads.rank_launchers import find_free_port

# A process of its own, as ranks are forked: pytest's has threads. Its specification is the scenarios. Each rank leaves its
# whole parameters, and what one more step hands to collectives. No conv nets: batch norms see the samples of their rank.
PROGRAM = """
import json, os, sys, traceback
os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
from pathlib import Path
import torch
import torch.distributed as dist
from campaign.workloads.trainer import models, parallel_strategies
from campaign.workloads.trainer.rank_interface import RankEnvironment
from campaign.workloads.trainer.training_session import TrainingSession
from campaign.workloads.trainer.rank_interface import TrainSpec

torch.set_num_threads(1)
import torch.distributed.optim
out = Path(os.environ["CAMPAIGN_OUT"])

def counted(step, ddp):
    found = {"reduced": 0, "gathered": 0, "scattered": 0, "broadcast": 0}
    def count(name, into):
        function = getattr(dist, name, None)
        def instead(*args, **kwargs):
            tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            found[into] += max(each.numel() * each.element_size() for each in tensors)  # the whole, not the share
            return function(*args, **kwargs)
        if function:
            setattr(dist, name, instead)
    for name in ("all_gather_single", "all_gather_into_tensor"):  # renamed in torch 2.13
        count(name, "gathered")
    for name in ("reduce_scatter_single", "reduce_scatter_tensor"):
        count(name, "scattered")
    count("broadcast", "broadcast")
    if ddp:
        def hook(_, bucket):
            buffer = bucket.buffer()
            found["reduced"] += buffer.numel() * buffer.element_size()
            work = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        ddp.register_comm_hook(None, hook)
    step()
    return found

def train(rank, ranks, name, model, optimizer, spec):
    torch.manual_seed(0)
    if name.startswith("late"):
        models.MIN_DEFERRED_PARAMETERS = 0
    if name.endswith("fused"):
        parallel_strategies.FUSED_ADAMW_DEVICE_TYPES = {"cpu"}
    build = models.build_model
    names = []
    def built(*args, **kwargs):
        trainable = build(*args, **kwargs)
        trainable.optimizer = optimizer
        names.extend([key for key, _ in trainable.named_parameters()])
        return trainable
    models.build_model = built
    spec = TrainSpec(model=model, measured_steps=3, warmup_steps=1, seed=1, time_out_s=30, **spec)
    session = TrainingSession(spec, RankEnvironment(rank, ranks, rank, out, out, ranks), 0.0)
    result = session.run()
    assert result.status == "ok", result
    training = session._training
    strategy = training.strategy
    trainable = strategy.model
    while not isinstance(trainable, models.Trainable):
        trainable = trainable.module
    named = {}
    for key in names:
        part, _, last = key.rpartition(".")
        named[key] = getattr(trainable.get_submodule(part), last).detach()
    whole = {key: (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).clone() for key, weight in named.items()}
    if ranks > 1:
        found = counted(training.run_step, strategy.model if strategy.name in ("ddp", "zero1") else None)
        (out / f"{name}-{rank}.json").write_text(json.dumps({"found": found, "said": result.model_dump()}))
    torch.save(whole, out / f"{name}-{rank}.pt")

for name, (ranks, port, *rest) in json.loads(Path(os.environ["CAMPAIGN_SPEC"]).read_text()).items():
    os.environ["MASTER_PORT"] = str(port)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                train(rank, ranks, name, *rest)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0, name
"""


def options(parallel: str = "ddp", **more: Any) -> dict[str, Any]:
    return {"seq_len": 8, "dropout": 0.0, "parallel": parallel, **more}


# name: ranks, model, optimizer, the rest of the specification; four samples a step in each
ADAMW: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {"batch": 4, "options": options()}),
    "single-accumulation": (1, {"batch": 4, "options": options(accumulation=2)}),
    "ddp2": (2, {"batch": 2, "options": options()}),
    "ddp4": (4, {"batch": 1, "options": options()}),
    "ddp2-accumulation": (2, {"batch": 2, "options": options(accumulation=2)}),
    "ddp2-bucket": (2, {"batch": 2, "options": options(bucket_mib=0.25, activation_checkpointing=True)}),
    "zero1": (2, {"batch": 2, "options": options("zero1", accumulation=2)}),
    "fsdp": (2, {"batch": 2, "options": options("fsdp")}),
    "dp": (1, {"batch": 2, "replicas": 2, "options": options("dp")}),
    "dp-accumulation": (
        1,
        {"batch": 2, "replicas": 2, "options": options("dp", accumulation=2, activation_checkpointing=True)},
    ),
}
FUSED = ("ddp2", "zero1", "fsdp", "dp")
"""As on a GPU, where AdamW is one kernel."""
SGD = {name: ADAMW[name] for name in ("single", "ddp2", "zero1", "dp")} | {
    "fsdp-accumulation": (2, {"batch": 2, "options": options("fsdp", accumulation=2, activation_checkpointing=True)}),
}
HALF: dict[str, tuple[int, dict[str, Any]]] = {
    f"{precision}-{parallel}": (
        2,
        {"batch": 1, "precision": precision, "options": options(parallel, emulation="allow")},
    )
    for precision, parallel in (("fp16", "ddp"), ("fp16-o2", "ddp"), ("fp16-o2", "zero1"), ("fp16-o2", "fsdp"))
}


MIXED = (2, {"batch": 2, "precision": "bf16", "options": options("fsdp", emulation="allow", fsdp_precision="mixed")})
AUTOCAST = (2, {"batch": 2, "precision": "bf16", "options": options("fsdp", emulation="allow")})
# As models of a billion parameters: built without memory, which they get where they are sharded.
LATE: dict[str, tuple[int, dict[str, Any]]] = {
    "late-single": (1, {"batch": 4, "options": options()}),
    "late-ddp": (2, {"batch": 2, "options": options()}),
    "late-fsdp": (2, {"batch": 2, "options": options("fsdp")}),
}
SCENARIOS = {
    **{name: (ranks, "gpt-nano", "sgd", spec) for name, (ranks, spec) in LATE.items()},
    **{f"adamw-{name}": (ranks, "bert-nano", "adamw", spec) for name, (ranks, spec) in ADAMW.items()},
    # A learning rate at which a wrong gradient shows, and a model with a weight that is used twice.
    **{
        f"sgd-{name}": (
            ranks,
            "gpt-nano",
            "sgd",
            {**spec, "options": {**spec["options"], "learning_rate": 0.1}},
        )
        for name, (ranks, spec) in SGD.items()
    },
    **{name: (ranks, "bert-nano", "adamw", spec) for name, (ranks, spec) in HALF.items()},
    **{f"adamw-{name}-fused": (*ADAMW[name][:1], "bert-nano", "adamw", ADAMW[name][1]) for name in FUSED},
    "bf16-mixed": (MIXED[0], "bert-nano", "adamw", MIXED[1]),
    "bf16-autocast": (AUTOCAST[0], "bert-nano", "adamw", AUTOCAST[1]),
}
# They move the logits of all tokens alike, which a softmax over tokens does not see: their gradient is zero but for rounding, and
# AdamW turns that rounding into whole steps.
SHIFT_ALL_LOGITS = {"network.answer.bias", "network.layers.1.feed_forward_norm.bias"}
# Four steps of AdamW move a parameter by up to 4e-3, those of SGD with this rate by up to 1e-1.
ROUNDING = 5e-5
Parameters = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def out(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    scenarios = {name: (ranks, find_free_port(), *rest) for name, (ranks, *rest) in SCENARIOS.items()}
    outcome = driver.run(directory, scenarios, patience_s=300, program=PROGRAM)
    assert outcome.codes == [0], outcome.log
    return directory


def parameters(out: Path, name: str, rank: int = 0) -> Parameters:
    loaded: Parameters = torch.load(out / f"{name}-{rank}.pt")
    return loaded


def largest_difference(one: Parameters, other: Parameters) -> float:
    assert set(one) == set(other)
    return max((one[name] - other[name]).abs().max().item() for name in set(one) - SHIFT_ALL_LOGITS)


@pytest.mark.parametrize(
    "name",
    [name for name in SCENARIOS if name.startswith(("adamw-", "sgd-")) and "single" not in name],
)
def test_the_parameters_are_those_of_one_rank_with_the_whole_batch(out: Path, name: str) -> None:
    reference = f"{name.partition('-')[0]}-single"
    assert largest_difference(parameters(out, reference), parameters(out, name)) < ROUNDING


def test_accumulation_on_one_rank_changes_nothing(out: Path) -> None:
    assert largest_difference(parameters(out, "adamw-single"), parameters(out, "adamw-single-accumulation")) < 2e-5


@pytest.mark.parametrize("name", ["adamw-ddp4", "adamw-zero1", "sgd-fsdp-accumulation"])
def test_all_ranks_have_the_same_parameters_to_the_bit(out: Path, name: str) -> None:
    first = parameters(out, name)
    for rank in range(1, SCENARIOS[name][0]):
        other = parameters(out, name, rank)
        assert all(torch.equal(first[key], other[key]) for key in first)


def traffic(out: Path, name: str) -> tuple[dict[str, int], dict[str, Any]]:
    document = json.loads((out / f"{name}-0.json").read_text())
    return document["found"], document["said"]


@pytest.mark.parametrize(
    "name", ["adamw-ddp2", "adamw-ddp2-accumulation", "adamw-zero1", "fp16-ddp", "fp16-o2-ddp", "fp16-o2-zero1"]
)
def test_what_is_all_reduced_is_what_the_result_says(out: Path, name: str) -> None:
    found, said = traffic(out, name)
    assert found["reduced"] == said["allreduce_bytes_per_step"] == said["gradient_bytes"]
    # Two ranks send half of each broadcast on average, and 2 (N - 1) / N = 1 of what they reduce.
    assert said["communication_bytes_per_step"] == found["reduced"] + found["broadcast"] // 2


def test_only_fp16_o2_halves_the_bytes(out: Path) -> None:
    fp32, autocast, o2 = (traffic(out, name)[0]["reduced"] for name in ("adamw-ddp2", "fp16-ddp", "fp16-o2-ddp"))
    assert autocast == fp32
    assert o2 / fp32 == pytest.approx(0.5, abs=0.002)  # norms stay fp32


@pytest.mark.parametrize("name", ["adamw-fsdp", "sgd-fsdp-accumulation", "fp16-o2-fsdp"])
def test_what_is_gathered_and_scattered_is_what_the_result_says(out: Path, name: str) -> None:
    found, said = traffic(out, name)
    assert "allreduce_bytes_per_step" not in said or said["allreduce_bytes_per_step"] is None
    assert found["scattered"] == pytest.approx(said["gradient_bytes"], rel=1e-3)  # shards are padded
    # Two ranks send half of what is gathered, and of what is scattered.
    assert said["communication_bytes_per_step"] == pytest.approx((found["gathered"] + found["scattered"]) / 2, rel=1e-3)


def test_a_fused_optimizer_is_seen_in_force(out: Path) -> None:
    for name, found in (("adamw-ddp2-fused", {"optimizer": "fused"}), ("adamw-ddp2", {})):
        in_force = traffic(out, name)[1]["in_force"]
        assert {key: in_force[key] for key in ("precision", "attention")} == {"precision": "fp32", "attention": "flash"}
        assert {key: value for key, value in in_force.items() if key == "optimizer"} == found


def test_the_mixed_policy_gathers_half_the_bytes_and_reduces_all(out: Path) -> None:
    (mixed, said), (autocast, plain) = (traffic(out, name) for name in ("bf16-mixed", "bf16-autocast"))
    assert mixed["gathered"] == pytest.approx(autocast["gathered"] / 2, rel=1e-3)  # shards are padded
    assert mixed["scattered"] == autocast["scattered"] == pytest.approx(2 * said["gradient_bytes"], rel=1e-3)
    assert said["communication_bytes_per_step"] == pytest.approx((mixed["gathered"] + mixed["scattered"]) / 2, rel=1e-3)
    assert (said["in_force"]["weights"], said["in_force"]["precision"]) == ("bfloat16", "bf16")
    assert "weights" not in plain["in_force"]
    assert said["loss_last"] == pytest.approx(plain["loss_last"], rel=0.02)
    assert {weight.dtype for weight in parameters(out, "bf16-mixed").values()} == {torch.float32}


@pytest.mark.parametrize("name", list(HALF))
def test_the_precision_found_is_the_one_asked_for(out: Path, name: str) -> None:
    _, said = traffic(out, name)
    assert said["precision"] == name.rpartition("-")[0]
    assert said["skipped_steps"] == 0


def test_accumulation_all_reduces_once_a_step(out: Path) -> None:
    assert traffic(out, "adamw-ddp2")[0]["reduced"] == traffic(out, "adamw-ddp2-accumulation")[0]["reduced"]


@pytest.mark.parametrize("name", [name for name in LATE if name != "late-single"])
def test_a_model_without_memory_gets_the_same_weights_wherever_it_is(out: Path, name: str) -> None:
    reference = parameters(out, "late-single")
    found = [parameters(out, name, rank) for rank in range(LATE[name][0])]
    assert set().union(*found) == set(reference)
    for each in found:
        assert largest_difference({key: reference[key] for key in each}, each) < ROUNDING
