"""What workloads tell the model of a step: networks, options, and bytes that are those of the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from campaign.model.description import MIB, ComputeTime, RankPlace, StepCase, Topology
from campaign.model.parameters import medians
from campaign.model.simulation import simulate
from campaign.workloads.replay import ReplayWorkload
from campaign.workloads.sample_flops import sample_flops
from campaign.workloads.step_networks import NETWORKS, built_in_network, division_of, work_sharing
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.model_catalog import MODELS, resolve_options
from campaign.workloads.trainer.rank_mesh import RankMesh, pipeline_bytes, tensor_bytes
from tests.campaign_files import one_cell
from tests.unit.model.step_cases import lossless


@pytest.mark.parametrize("model", MODELS)
def test_a_built_in_network_has_the_elements_and_operations_of_its_model(model: str) -> None:
    network = built_in_network(model, resolve_options(model, {}))
    assert network is not None
    assert network.elements == MODELS[model].parameters
    flops = MODELS[model].forward_flops_per_sample
    assert flops is not None
    assert sum(layer.forward for layer in network.layers) == pytest.approx(flops / 1e9, rel=1e-4)
    assert network.optimizer == pytest.approx(0.05 * network.total_share)


def test_a_foreign_model_has_no_network() -> None:
    assert built_in_network("torchvision:resnet18", {}) is None
    foreign = TrainWorkload.model_validate(
        {"name": "x", "kind": "train", "model": "torchvision:resnet18", "precisions": ["fp32"]}
    )
    assert foreign.step_facts(one_cell()) is None


def test_samples_of_another_size_keep_more() -> None:
    small, large = (built_in_network("resnet50", resolve_options("resnet50", {"image_px": px})) for px in (224, 448))
    assert small is not None
    assert large is not None
    assert large.layers[3].activations == pytest.approx(4 * (small.layers[3].activations or 0))
    bert = built_in_network("bert-base", resolve_options("bert-base", {"seq_len": 128}))
    assert bert is not None
    assert bert.layers[5].activations == 16 * 128 * 768
    assert sample_flops({"kind": "train", "model": "bert-nano"}, {"seq_len": 16}) == 12_853_248


def test_the_file_of_networks_is_in_step_with_the_models() -> None:
    pytest.importorskip("torch")
    from campaign.workloads.traces.built_in_networks import text

    assert NETWORKS.read_text() == text(), "run: python -m campaign.workloads.traces.built_in_networks"


def test_options_of_training_are_ways_of_sharing() -> None:
    plain = work_sharing(resolve_options("resnet50", {}))
    assert (plain.parallel, plain.bucket_bytes, plain.first_bucket_bytes) == ("ddp", 25 * MIB, MIB)
    asked = work_sharing(resolve_options("resnet50", {"bucket_mib": 8.0, "parallel": "fsdp", "accumulation": 4}))
    # A size that was asked for has no smaller first bucket.
    assert (asked.parallel, asked.first_bucket_bytes, asked.accumulation) == ("fsdp", 8 * MIB, 4)


def test_a_replay_says_what_it_waits_for() -> None:
    workload = ReplayWorkload.model_validate(
        {
            "name": "r",
            "kind": "replay",
            "precisions": ["fp32", "bf16"],
            "input_bytes": 5,
            "layers": [
                {"tensors": [4], "forward": 1, "backward": 2, "repeat": 3, "activations": 7, "masks": 2},
                {"tensors": [9]},
            ],
            "optimizer": 1,
            "compute": [
                {"device": "cpu-rank", "precision": "fp32", "batch": 4, "seconds": 1.0},
                {"device": "cpu-rank", "precision": "fp32", "batch": 8, "seconds": 1.5},
                {"device": "cpu-rank", "precision": "bf16", "batch": 8, "seconds": 0.5},
            ],
        }
    )
    facts = workload.step_facts(one_cell(options={"input": "storage", "loader_workers": 3}))
    assert facts.seconds == {"cpu-rank": {4: 1.0, 8: 1.5}}
    assert facts.workers == 3
    assert (facts.network.elements, facts.network.total_share, len(facts.network.layers)) == (21, 10, 4)
    assert [(layer.unit, layer.activations) for layer in facts.network.layers] == [(True, 7)] * 3 + [(False, None)]
    # What is kept for the backward pass changes no measurement.
    other = workload.model_copy(
        update={"layers": tuple(x.model_copy(update={"activations": 1.0}) for x in workload.layers)}
    )
    assert other.identity() == workload.identity()


def sent_bytes(model: str, ranks: int, options: dict[str, Any], precision: str = "fp32") -> float:
    resolved = resolve_options(model, options)
    network = built_in_network(model, resolved)
    assert network is not None
    division = None
    if any(resolved[name] > 1 for name in ("tensor_parallel", "pipeline_parallel")):  # type: ignore[operator]
        division = division_of(model, resolved, 4, ranks, precision)
    case = StepCase(
        network,
        (ComputeTime("x", {4: 1.0, 8: 2.0}),),
        4,
        precision,
        Topology(tuple(RankPlace(0) for _ in range(ranks))),
        work_sharing(resolved, division),
    )
    return simulate(case, medians(lossless(rate_local=1e9))).sent_bytes


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": False},
        {"accumulation": 2},
        {"parallel": "zero1"},
        {"parallel": "fsdp"},
        {"parallel": "fsdp", "accumulation": 2},
        {"parallel": "fsdp", "fsdp_precision": "mixed"},
        {"parallel": "dp", "accumulation": 2},
    ],
    ids=lambda options: " ".join(f"{k}={v}" for k, v in options.items()) or "ddp",
)
@pytest.mark.parametrize("model", ["bert-nano", "resnet50w16"])
def test_a_rank_sends_as_many_bytes_as_the_strategy_of_the_trainer(
    model: str, options: dict[str, Any], ranks: int
) -> None:
    pytest.importorskip("torch")
    from campaign.workloads.trainer.models import build
    from campaign.workloads.trainer.parallel_strategies import traffic_of
    from campaign.workloads.trainer.rank_interface import TrainSpec

    replicas = ranks if options.get("parallel") == "dp" else 1
    precision: Any = "bf16" if "fsdp_precision" in options else "fp32"
    spec = TrainSpec(model=model, batch=4, measured_steps=1, options=options, replicas=replicas, precision=precision)
    whole = build(model, resolve_options(model, options), "meta")
    traffic = traffic_of(spec, whole, 1 if replicas > 1 else ranks)
    assert sent_bytes(model, ranks, options, precision) == pytest.approx(traffic.communication_bytes, rel=1e-6)


@pytest.mark.parametrize(
    "options", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"pipeline_parallel": 2, "microbatches": 4}]
)
def test_the_busiest_rank_of_a_divided_model_sends_as_many_bytes_as_in_the_trainer(options: dict[str, Any]) -> None:
    resolved, mesh = resolve_options("gpt-nano", options), RankMesh.of(resolve_options("gpt-nano", options), 2)
    places = [mesh.coordinates(rank) for rank in range(2)]
    expected = [
        tensor_bytes("gpt-nano", resolved, 8, mesh, place, "fp32", 1)
        + pipeline_bytes("gpt-nano", resolved, 8, mesh, place)
        for place in places
    ]
    assert sent_bytes("gpt-nano", 2, options) == pytest.approx(max(expected), rel=1e-6)
    assert replace(division_of("gpt-nano", resolved, 4, 2, "fp32")).microbatches == resolved.get(
        "microbatches", mesh.pipeline
    )
