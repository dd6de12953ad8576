"""Which rank has which part of a model, what crosses hosts, and what is refused when a campaign is planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.model_catalog import resolve_options
from campaign.workloads.trainer.rank_interface import RankResult, write_result
from campaign.workloads.trainer.rank_mesh import (
    RANK_ORDERS,
    RankMesh,
    layers_of_stage,
    own_tokens,
    pipeline_bytes,
    tensor_bytes,
)
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES
from tests.campaign_files import one_cell, one_run

FILE = TrainWorkload(name="nano", kind="train", model="gpt-nano", precisions=("fp32",), options={"seq_len": 16})


SIZE = st.integers(1, 4)


@given(tensor=SIZE, pipeline=SIZE, data=SIZE, order=st.sampled_from(RANK_ORDERS))
def test_every_rank_has_one_place_and_groups_divide_the_ranks(
    tensor: int, pipeline: int, data: int, order: str
) -> None:
    mesh = RankMesh(tensor, pipeline, data, order)
    ranks = range(tensor * pipeline * data)
    places = [tuple(mesh.coordinates(rank).items()) for rank in ranks]
    assert len(set(places)) == len(places)
    sizes = {"tp": tensor, "pp": pipeline, "dp": data}
    for dimension, size in sizes.items():
        groups = mesh.groups(dimension)  # type: ignore[arg-type]
        assert sorted(rank for group in groups for rank in group) == list(ranks)
        assert {len(group) for group in groups} == {size}
    assert mesh.table()[pipeline - 1][data - 1][tensor - 1] == len(ranks) - 1


@pytest.mark.parametrize(
    ("order", "hosts"),
    [
        ("tp-dp-pp", {"tp": 1, "dp": 1, "pp": 2}),
        ("pp-tp-dp", {"tp": 1, "dp": 2, "pp": 1}),
        ("dp-pp-tp", {"tp": 2, "dp": 1, "pp": 1}),
    ],
)
def test_the_order_of_ranks_decides_which_groups_cross_hosts(order: str, hosts: dict[Any, int]) -> None:
    mesh = RankMesh(2, 2, 2, order)
    names = ["a"] * 4 + ["b"] * 4
    assert {each: mesh.hosts_of_a_group(each, names) for each in hosts} == hosts


def refused(model: str = "gpt-nano", devices: int = 4, batch: int = 4, precision: Any = "fp32", **options: Any) -> str:
    file = TrainWorkload(name="nano", kind="train", model=model, precisions=(precision,), options={})
    cell = replace(one_cell(devices=devices, workload="nano", options=options), batch=batch, precision=precision)
    return file.refusal(cell) or ""


def test_what_cannot_be_divided_is_refused_with_the_remedy() -> None:
    assert refused() == refused(tensor_parallel=4) == refused(tensor_parallel=2, pipeline_parallel=2) == ""
    assert refused("resnet50w16", tensor_parallel=2).endswith(
        "or train one of bert-base, bert-large, bert-nano, gpt-nano, gpt2, gpt2-medium, gpt3-1.3b, gpt3-6.7b"
    )
    assert "3 are no multiple of that; use such a number of devices" in refused(devices=3, tensor_parallel=2)
    assert "gpt-nano has 4 attention heads; set it to a divisor of 4" in refused(devices=3, tensor_parallel=3)
    assert "has 2 layers; set it to at most 2" in refused(devices=3, pipeline_parallel=3)
    assert "a replica's 8 samples (batch 4 x 2 devices)" in refused(pipeline_parallel=2, microbatches=3)
    assert "seq_len 63 is no multiple" in refused(tensor_parallel=2, sequence_parallel=True, seq_len=63)
    assert "set tensor_parallel above 1" in refused(sequence_parallel=True)
    assert "set parallel: ddp or fsdp" in refused(tensor_parallel=2, parallel="zero1")
    assert "set parallel: ddp, or pipeline_parallel: 1" in refused(pipeline_parallel=2, parallel="fsdp")
    assert "use bf16" in refused(tensor_parallel=2, precision="fp16")
    assert "set microbatches, and accumulation: 1" in refused(pipeline_parallel=2, accumulation=2)
    assert "set input: resident" in refused(tensor_parallel=2, input="storage")
    for name in ("compile", "measure_communication"):
        assert f"{name} is not available for a divided model" in refused(tensor_parallel=2, **{name: True})
    assert "overlap: false is not available" in refused(tensor_parallel=2, overlap=False)


def traffic(
    ranks: int, batch: int, precision: str = "fp32", model: str = "gpt2", **options: Any
) -> list[tuple[int, int]]:
    """(tensor, pipeline) bytes of each rank."""
    resolved = resolve_options(model, options)
    mesh = RankMesh.of(resolved, ranks)
    places = [mesh.coordinates(rank) for rank in range(ranks)]
    samples = batch * mesh.replica
    return [
        (
            tensor_bytes(model, resolved, samples, mesh, place, precision, 1),
            pipeline_bytes(model, resolved, samples, mesh, place),
        )
        for place in places
    ]


def test_activations_of_gpt2_over_four_devices_are_those_of_the_formula_by_hand() -> None:
    # 12 layers x 4 all-reduces of samples x tokens x width, with those of embeddings and output; 3 numbers a token for the loss.
    activations = 2 * 4 * 1024 * 768
    by_hand = 2 * 3 / 4 * (4 * (12 * 4 + 2) * activations + 4 * 3 * 2 * 4 * 1024)
    assert traffic(4, 2, tensor_parallel=4) == [(by_hand, 0)] * 4
    # With sequence parallelism the same, and half of an all-reduce at either end of the layers; two norms with two weights a layer.
    by_tokens = by_hand + 2 * 3 / 4 * (4 * activations + 12 * 4 * 768 * 4)
    assert traffic(4, 2, tensor_parallel=4, sequence_parallel=True) == [(by_tokens, 0)] * 4
    half = by_hand - 2 * 3 / 4 * 12 * 2 * 2 * activations  # products of the forward pass only
    assert traffic(4, 2, "bf16", tensor_parallel=4) == [(half, 0)] * 4


def test_a_pipeline_sends_activations_forward_and_gradients_back() -> None:
    activations = 3 * 4 * 1024 * 768 * 4
    tied = 50257 * 768 * 4
    sent = [pipeline for _, pipeline in traffic(4, 3, pipeline_parallel=4, rank_order="pp-tp-dp")]
    assert sent == [activations + tied, 2 * activations, 2 * activations, activations + tied]
    assert [layers_of_stage(12, stage, 5) for stage in range(5)] == [3, 3, 2, 2, 2]
    assert [own_tokens(GPT_SIZES["gpt2"], 4, part) for part in range(4)] == [12565, 12565, 12565, 12562]


def test_throughput_counts_every_sample_once_and_hosts_of_groups_are_recorded(tmp_path: Path) -> None:
    cell = one_cell(devices=1, hosts=2, workload="nano", options={"tensor_parallel": 2})
    run = one_run(tmp_path, cell)
    for rank in range(2):
        found = {"status": "ok", "step_times_s": (0.5,) * 3, "window_s": 1.5, "loss_first": 2.0, "loss_last": 1.0}
        write_result(
            tmp_path, RankResult(rank=rank, world_size=2, host="h", tensor_parallel_bytes_per_step=5 + rank, **found)
        )
    outcome = FILE.read(run, Ended((0, 0), 0.0, 1.0), Log.of(""))
    # `batch` is by device: two devices that share a model take two batches.
    assert outcome.throughput_per_s == pytest.approx(cell.batch * 2 * 3 / 1.5)
    assert {name: value for name, value in outcome.metrics.items() if "_parallel_" in name} == {
        "tensor_parallel_bytes_per_step": 6.0,
        "tensor_parallel_hosts": 2.0,
        "pipeline_parallel_hosts": 1.0,
        "data_parallel_hosts": 1.0,
    }
