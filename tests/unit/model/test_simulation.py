"""Steps by hand, and what holds of every step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.model.description import (
    MIB,
    ComputeTime,
    Division,
    InputPath,
    Network,
    NetworkLayer,
    StepCase,
    WorkSharing,
)
from campaign.model.parameters import DEFAULTS, Draws, UncertainNumber, medians, sample
from campaign.model.passes import buckets, pipeline_ends, stages
from campaign.model.simulation import compute_s, simulate, slowest_of
from tests.unit.model.step_cases import MB, case, layers, lossless, topology

SMALL = WorkSharing(bucket_bytes=8 * MB, first_bucket_bytes=8 * MB)
PARALLEL = ("ddp", "dp", "zero1", "fsdp", "horovod")


def seconds(of: StepCase, **values: float) -> float:
    return float(simulate(of, medians(lossless(**values))).step_s[0])


# Three layers of 8 MB: 1 s of forward passes and 2 s of backward passes, a ring of two at 8 MB/s takes 1 s for each.
NETWORK = layers(8, 8, 8)
RATE = {"rate_local": 8e6}


def test_buckets_are_reduced_while_the_layers_before_them_compute() -> None:
    # Ready at 1 2/3, 2 1/3 and 3; each takes 1 s after the one before it.
    assert seconds(case(NETWORK, seconds=3.0, sharing=SMALL), **RATE) == pytest.approx(1 + 2 / 3 + 3)


def test_without_overlap_all_gradients_are_reduced_after_the_backward_pass() -> None:
    assert seconds(case(NETWORK, seconds=3.0, sharing=replace(SMALL, overlap=False)), **RATE) == pytest.approx(3 + 3)


def test_collectives_slow_compute_down() -> None:
    # From 1 2/3 on: 1 1/3 s of work take 2 s, in which two collectives end; the third one follows.
    slow = seconds(case(NETWORK, seconds=3.0, sharing=SMALL), **RATE, slowdown=0.5)
    assert slow == pytest.approx(1 + 2 / 3 + 2 + 1)


def test_gradual_layers_have_their_last_gradients_first() -> None:
    network = Network((NetworkLayer((2 * MB, 2 * MB), 1.0, 2.0, gradual=True),))
    assert buckets(network.layers, SMALL, 4) == [(0.5, 8.0 * MB), (1.0, 8.0 * MB)]
    at_once = tuple(replace(layer, gradual=False) for layer in network.layers)
    assert buckets(at_once, SMALL, 4) == [(1.0, 8.0 * MB), (1.0, 8.0 * MB)]


def test_buckets_are_those_of_ddp() -> None:
    small = Network(tuple(NetworkLayer((MIB // 4,), 1, 2) for _ in range(60)))
    sizes = [size / MIB for _, size in buckets(small.layers, WorkSharing(), 4)]
    assert sizes == [1, 25, 25, 9]
    assert [size / MIB for _, size in buckets(small.layers, WorkSharing(), 2)] == [1, 25, 4]
    fused = WorkSharing("horovod", bucket_bytes=128 * MIB, first_bucket_bytes=128 * MIB)
    assert [size / MIB for _, size in buckets(small.layers, fused, 4)] == [60]


def test_accumulation_communicates_once() -> None:
    plain = case(NETWORK, seconds={4: 1.5, 8: 3.0}, sharing=replace(SMALL, accumulation=2))
    # Two micro-steps of 1.5 s; the last backward pass ends at 3, its buckets are ready at 2 1/3, 2 2/3 and 3.
    assert seconds(plain, **RATE) == pytest.approx(2 + 1 / 3 + 3)


def test_zero_divides_the_optimizer_and_gathers_weights() -> None:
    network = replace(NETWORK, optimizer=3.0)
    ddp = seconds(case(network, seconds=4.0, sharing=SMALL), **RATE)
    zero = seconds(case(network, seconds=4.0, sharing=replace(SMALL, parallel="zero1")), **RATE)
    assert zero - ddp == pytest.approx(-0.5 + 24 / 2 / 8)


def test_one_process_sends_weights_and_gets_gradients_beside_pythons_lock() -> None:
    of = case(NETWORK, seconds=3.0, sharing=WorkSharing("dp"))
    assert seconds(of, **RATE) == pytest.approx(3 + 2 * 3)
    assert seconds(of, **RATE, python=2.0) == pytest.approx(2 * 2.0 + 2 + 2 * 3)


def test_units_are_gathered_one_ahead_and_scattered_behind() -> None:
    # A gather of 8 MB takes 0.5 s, a layer 1/3 and 2/3 s. Forward: gathers end at 0.5, 1, 1.5; compute ends at 1 5/6.
    # Backward: gathers end at 2 1/3 and 2 5/6, the first layer at 3 and its scatter at 3.5; behind it the last gather at 4, the
    # last layer at 4 2/3, and its scatter at 5 1/6.
    network = layers(8, 8, 8, unit=True)
    found = seconds(case(network, seconds=3.0, sharing=WorkSharing("fsdp")), **RATE)
    assert found == pytest.approx(5 + 1 / 6)


def test_with_gloo_nothing_of_fsdp_is_hidden() -> None:
    at = topology(algorithm="gloo")
    found = seconds(case(layers(8, 8, 8, unit=True), at, 3.0, sharing=WorkSharing("fsdp")), **RATE)
    assert found == pytest.approx(3 + 6 * 0.5 + 3 * 1.0)


def test_input_is_read_ahead_or_by_the_step_itself() -> None:
    network = replace(layers(8), input_bytes=1e6, decode_s=0.2)
    of = case(network, topology(local=1), 1.0, input=InputPath("nvme", 2, 8))
    ahead = simulate(of, medians(lossless(read_nvme=2e6)))
    # 8 samples: 4 s to read, 0.8 s to decode with two workers.
    assert ahead.step_s[0] == pytest.approx(4.0)
    assert ahead.parts["input"][0] == pytest.approx(3.0)
    assert ahead.host_busy is not None
    assert ahead.host_busy[0] == pytest.approx(8 * 0.2 / 8 / 4.0)
    inline = replace(of, input=InputPath("nvme", 0, 8))
    assert seconds(inline, read_nvme=2e6) == pytest.approx(1 + 4 + 1.6)
    # Two ranks share the storage of their host, and its cores.
    both = replace(of, topology=topology(local=2), input=InputPath("nvme", 2, 1))
    assert seconds(both, read_nvme=1e12, rate_local=1e12) == pytest.approx(8 * 0.2 / 0.5)


def test_copies_and_fixed_costs_add_up() -> None:
    network = replace(layers(8), copied_bytes=1e6)
    assert seconds(case(network, topology(local=1), 1.0), copy=4e6, fixed=0.5) == pytest.approx(1 + 2)
    assert seconds(case(network, topology(local=2), 1.0), copy=4e6, fixed=0.5, rate_local=1e15) == pytest.approx(3.5)


def test_the_slowest_of_several_ranks_and_models_counts() -> None:
    draws = medians(lossless(jitter=0.1))
    assert compute_s(case(layers(8), topology(local=1)), draws)[0] == pytest.approx(1.0)
    assert compute_s(case(layers(8), topology(local=8)), draws)[0] == pytest.approx(1 + 0.1 * slowest_of(8))
    # Expected maxima of standard normal numbers (Tippett 1925).
    assert [slowest_of(n) for n in (1, 2, 8)] == pytest.approx([0, 0.5642, 1.4236], abs=5e-3)
    mixed = replace(
        case(layers(8), topology(local=1)), compute=(ComputeTime("a", {8: 1.0}), ComputeTime("b", {8: 2.0}))
    )
    assert compute_s(mixed, draws)[0] == pytest.approx(2.0)


def test_one_measured_batch_leaves_a_share_that_every_batch_takes() -> None:
    of = case(layers(8), topology(local=1), {8: 1.0}, batch=16)
    assert seconds(of, start=0.25) == pytest.approx(0.25 + 1.5)
    assert seconds(of) == pytest.approx(2.0)


def division(stages_: int, microbatches: int, **more: Any) -> Division:
    ranks = tuple(range(stages_))
    return Division(
        1, stages_, tuple((rank,) for rank in ranks), (ranks,), tuple((r,) for r in ranks), microbatches, **more
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_fills_and_drains(schedule: Any) -> None:
    ones, twos = [np.ones(1)] * 4, [np.full(1, 2.0)] * 4
    ends = pipeline_ends(ones, twos, np.zeros(1), 6, schedule)
    # Stages of equal length: (m + p - 1) times both passes.
    assert max(float(end[0]) for end in ends) == pytest.approx((6 + 4 - 1) * 3)


def test_a_stage_waits_for_messages_in_both_directions() -> None:
    first, second, message = (np.full(1, x) for x in (1.0, 3.0, 0.5))
    # The second stage computes from 1.5 to 4.5 and back to 7.5; the first one goes on at 8.
    ends = pipeline_ends([first, second], [first, second], message, 1, "1f1b")
    assert [float(end[0]) for end in ends] == [9.0, 7.5]


def test_a_pipelined_step_has_a_bubble_and_messages() -> None:
    network = layers(8, 8, unit=True)
    of = case(network, topology(local=2), {4: 1.5, 8: 3.0}, batch=8, sharing=WorkSharing(division=division(2, 4)))
    # A microbatch of 4 takes 1.5 s: a stage 0.25 + 0.5 s.
    assert seconds(of, rate_local=1e15) == pytest.approx((4 + 2 - 1) * 0.75)
    slow = replace(of, sharing=WorkSharing(division=division(2, 4, boundary_bytes=1e6)))
    found = simulate(slow, medians(lossless(rate_local=1e7)))
    assert found.step_s[0] > (4 + 2 - 1) * 0.75
    assert found.sent_bytes == pytest.approx(4e6)
    tied = replace(of, sharing=WorkSharing(division=division(2, 4, tied_bytes=1e6)))
    assert seconds(tied, rate_local=1e6) == pytest.approx((4 + 2 - 1) * 0.75 + 1, rel=1e-6)


def test_tensor_parallelism_divides_compute_and_waits_for_its_collectives() -> None:
    groups = {
        "tensor_groups": ((0, 1), (2, 3)),
        "pipeline_groups": ((0,), (1,), (2,), (3,)),
        "data_groups": ((0, 2), (1, 3)),
    }
    divided = Division(2, 1, **groups, tensor_bytes=8e6, tensor_calls=4)
    of = case(
        layers(8, 8, 8, unit=True), topology(local=4), {16: 3.0, 32: 6.0}, sharing=replace(SMALL, division=divided)
    )
    # 16 samples of a replica take 3 s on one device, half on two; 8 MB along tensors take 1 s, and so do gradients of 4 MB each
    # in the other group of each rank, whose ring shares no port in the same direction.
    found = simulate(of, medians(lossless(rate_local=8e6)))
    assert found.parts["compute"][0] == pytest.approx(1.5)
    assert 1.5 + 1 < found.step_s[0] < 1.5 + 1 + 1.5
    sharded = simulate(replace(of, sharing=replace(of.sharing, parallel="fsdp")), medians(lossless(rate_local=8e6)))
    assert sharded.sent_bytes == pytest.approx(8e6 + 3 * 3 * 2e6)


def test_stages_have_what_stands_around_their_units() -> None:
    network = (*layers(1).layers, *layers(2, 3, 4, unit=True).layers, *layers(5).layers)
    assert [[sum(x.tensors) * 4 // MB for x in stage] for stage in stages(network, 2)] == [[1, 2, 3], [4, 5]]
    assert [len(stage) for stage in stages(layers(1, 1, 1).layers, 2)] == [2, 1]


# What holds of every case.


@st.composite
def cases(draw: st.DrawFn) -> StepCase:
    several = [
        NetworkLayer(
            tuple(draw(st.lists(st.integers(1, 20 * MB), min_size=0, max_size=3))),
            draw(st.floats(0.1, 3)),
            draw(st.floats(0.1, 6)),
            draw(st.booleans()),
            draw(st.integers(0, MB)),
            gradual=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]
    several.append(NetworkLayer((MB,), 1.0, 2.0, activations=MB))
    network = Network(tuple(several), draw(st.floats(0, 0.3)), copied_bytes=draw(st.sampled_from((0.0, 1e5))))
    shape = draw(st.sampled_from(((1, 1, 0), (1, 2, 0), (1, 4, 4), (1, 0, 3), (2, 2, 0), (4, 1, 0), (2, 1, 2))))
    at = topology(*shape, p2p=draw(st.booleans()), algorithm=draw(st.sampled_from(("nccl", "ring", "gloo"))))
    sharing = WorkSharing(
        draw(st.sampled_from(PARALLEL)),
        bucket_bytes=draw(st.sampled_from((5 * MIB, 25 * MIB))),
        accumulation=draw(st.sampled_from((1, 2))),
        recompute=draw(st.booleans()),
    )
    return case(network, at, draw(st.floats(0.01, 2)), sharing=sharing)


PRIOR = {
    **DEFAULTS,
    **{
        f"rate[{kind}]": UncertainNumber.about(5e9, 3, "byte/s", "")
        for kind in ("local", "fabric", "network", "uplink")
    },
}
DRAWS = sample(PRIOR, 5)


def changed(**values: float) -> Draws:
    """The draws with some parameters multiplied."""
    return Draws({name: value * values.get(name.partition("[")[0], 1.0) for name, value in DRAWS.values.items()})


@settings(max_examples=40)
@given(cases())
def test_the_parts_of_a_step_add_up_and_none_is_negative(of: StepCase) -> None:
    found = simulate(of, DRAWS)
    assert sum(found.parts.values()) == pytest.approx(found.step_s)
    assert all((part >= -1e-9).all() for part in found.parts.values())
    assert ((found.busy > 0) & (found.busy <= 1 + 1e-9)).all()


@settings(max_examples=40)
@given(cases())
def test_a_step_takes_at_least_as_long_as_its_compute_and_as_its_collectives(of: StepCase) -> None:
    found = simulate(of, DRAWS)
    assert (found.step_s >= found.parts["compute"] + found.parts["optimizer"] - 1e-9).all()
    assert (found.step_s >= found.communication_s - 1e-9).all()


@settings(max_examples=40)
@given(cases(), st.floats(1, 20))
def test_more_bandwidth_never_makes_a_step_slower(of: StepCase, factor: float) -> None:
    assert (simulate(of, changed(rate=factor)).step_s <= simulate(of, DRAWS).step_s * (1 + 1e-9)).all()


@settings(max_examples=40)
@given(cases(), st.sampled_from(("compute", "fixed", "latency", "launch", "slowdown", "crowd")))
def test_a_larger_loss_never_makes_a_step_faster(of: StepCase, name: str) -> None:
    assert (simulate(of, changed(**{name: 1.5})).step_s >= simulate(of, DRAWS).step_s * (1 - 1e-9)).all()


@settings(max_examples=40)
@given(cases())
def test_overlap_never_costs_more_than_it_hides(of: StepCase) -> None:
    of = replace(of, sharing=replace(of.sharing, parallel="ddp"))
    free = changed(latency=0.0, launch=0.0)  # more buckets are more messages
    without = replace(of, sharing=replace(of.sharing, overlap=False))
    assert (simulate(of, free).step_s <= simulate(without, free).step_s * (1 + 1e-9)).all()


@settings(max_examples=40)
@given(cases())
def test_one_device_communicates_with_nobody(of: StepCase) -> None:
    found = simulate(
        replace(of, topology=topology(local=1)), Draws({k: v for k, v in DRAWS.values.items() if "[" not in k})
    )
    assert not found.link_bytes
    assert found.sent_bytes == 0
    assert not found.communication_s.any()
    assert not found.parts["communication"].any()
    assert not found.parts["fixed"].any()


@settings(max_examples=40)
@given(cases(), st.integers(1, 64))
def test_memory_grows_with_the_batch(of: StepCase, more: int) -> None:
    larger = replace(of, batch=of.batch + 2 * more)
    assert (simulate(larger, DRAWS).memory_mib >= simulate(of, DRAWS).memory_mib).all()


def test_links_without_a_rate_leave_much_open() -> None:
    known = {**DEFAULTS, "rate[local]": UncertainNumber.known(5e9, "byte/s", "planted")}
    many = case(layers(800, 800), seconds=0.01)
    unknown, sure = (simulate(many, sample(prior, 200)).step_s for prior in (DEFAULTS, known))
    assert np.ptp(np.log(unknown)) > 2 * np.ptp(np.log(sure))
