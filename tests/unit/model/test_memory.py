"""Memory by hand, and what two studies saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from campaign.model.description import (
    MIB,
    Division,
    Network,
    NetworkLayer,
    StepCase,
    WorkSharing,
    transformer_layer,
)
from campaign.model.memory import memory_mib
from campaign.model.parameters import DEFAULTS, UncertainNumber, medians, sample
from campaign.model.simulation import simulate
from tests.unit.model.step_cases import case, lossless, topology

NETWORK = Network(
    tuple(
        NetworkLayer((MIB,), 1.0, 2.0, unit=True, activations=float(MIB), masks=float(MIB), boundary=MIB / 4)
        for _ in range(4)
    )
)


def needed(of: StepCase) -> float:
    return float(memory_mib(of, medians(lossless(context=0.0)))[0])


def of(precision: str = "fp32", ranks: int = 4, batch: int = 8, **sharing: Any) -> StepCase:
    return case(NETWORK, topology(local=ranks), precision=precision, batch=batch, sharing=WorkSharing(**sharing))


def test_states_and_activations_of_one_device() -> None:
    # 4 Mi elements: weight, gradient and two states of Adam; 8 samples keep four layers of 4 MiB and a mask of 1.
    assert needed(of(ranks=1)) == 4 * (4 + 4 + 8) + 8 * 4 * (4 + 1)
    # Buckets are a copy of the gradients.
    assert needed(of()) == 4 * (4 + 8 + 8) + 8 * 4 * 5
    # Autocast keeps a copy of the weights, O2 halves gradients; activations are half as large.
    assert needed(of("bf16")) == 4 * (6 + 8 + 8) + 8 * 4 * 3
    assert needed(of("fp16-o2")) == 4 * (6 + 4 + 8) + 8 * 4 * 3


def test_sharding_divides_states() -> None:
    assert needed(of(parallel="zero1")) == 4 * (4 + 8 + 2) + 8 * 4 * 5
    # A quarter of all, and two units gathered with their gradients.
    assert needed(of(parallel="fsdp")) == 4 * 16 / 4 + 2 * 4 * 2 + 8 * 4 * 5


def test_checkpointing_keeps_boundaries_and_one_layer() -> None:
    assert needed(of(recompute=True)) == 4 * 20 + 8 * (4 * 1 + 5)


def test_accumulation_divides_activations() -> None:
    assert needed(of(accumulation=2)) == 4 * 20 + 4 * 4 * 5


def test_a_stage_keeps_the_microbatches_that_it_has_begun() -> None:
    groups = ((0, 1),), ((0,), (1,))
    division = Division(1, 2, ((0,), (1,)), *groups, microbatches=4)
    begun = case(NETWORK, topology(local=2), sharing=WorkSharing(division=division))
    # Half of the layers; of 16 samples, the first stage has begun two microbatches of 4, all four with gpipe.
    assert needed(begun) == 2 * 16 + 2 * 4 * 2 * 5
    assert (
        needed(replace(begun, sharing=WorkSharing(division=replace(division, schedule="gpipe")))) == 2 * 16 + 16 * 2 * 5
    )


def test_unknown_activations_are_no_prediction() -> None:
    unknown = replace(of(), network=Network((NetworkLayer((MIB,), 1.0, 2.0),)), memory_mib=1e6)
    found = simulate(unknown, medians(lossless(rate_local=1e9)))
    assert np.isnan(found.memory_mib).all()
    assert found.fits is None


def test_bert_large_fits_an_a100_as_it_was_seen() -> None:
    """FASTER, section 3.2.2: batch 32 in TF32 runs out of 40 GB, in FP16 it fits. Falcon, section V.C.4: 6 fit into 16 GB."""
    kept, masks = transformer_layer(1024, 384, 16, fused=False)
    inside = (1024 * 3072, 3072, 1024 * 1024, 1024, 1024 * 4096, 4096, 4096 * 1024, 1024, *(1024,) * 4)
    encoder = NetworkLayer(inside, 1.0, 2.0, unit=True, activations=kept, masks=masks)
    network = Network((NetworkLayer((31_782_912,), 0, 0, activations=384.0 * 1024), *(encoder,) * 24))
    assert network.elements == pytest.approx(334e6, rel=0.01)
    draws = sample({**DEFAULTS, "rate[local]": UncertainNumber.about(1e10, 1.1, "byte/s", "")}, 500)

    def share(precision: str, batch: int, gib: float) -> float:
        found = simulate(
            case(network, topology(local=8), precision=precision, batch=batch, memory_mib=gib * 1024), draws
        ).fits
        assert found is not None
        return found

    assert share("tf32", 16, 40) > 0.99
    assert share("tf32", 32, 40) < 0.05
    assert share("fp16-o2", 32, 40) > 0.99
    assert share("fp16-o2", 6, 16) > 0.99
