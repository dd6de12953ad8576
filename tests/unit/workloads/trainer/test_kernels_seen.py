"""Kernels are seen as they are called; what is not called is not told."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from campaign.workloads.trainer.kernels_seen import record_kernels


def attend() -> None:
    query = torch.randn(2, 4, 16, 32, requires_grad=True)
    torch.autograd.backward(scaled_dot_product_attention(query, query, query).sum())


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ([SDPBackend.MATH], "math"),
        ([SDPBackend.FLASH_ATTENTION], "flash"),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], "flash"),
    ],
)
def test_the_attention_that_was_chosen_is_found(chosen: list[SDPBackend], found: str) -> None:
    with record_kernels() as seen, sdpa_kernel(chosen):
        attend()
    assert seen == {"attention": found}


def test_several_kernels_are_all_told() -> None:
    with record_kernels() as seen:
        attend()
        with sdpa_kernel(SDPBackend.MATH):
            attend()
    assert seen == {"attention": "flash and math"}


def test_products_without_attention_are_none_and_other_threads_are_not_seen() -> None:
    with record_kernels() as seen:
        torch.ones(3, 3) @ torch.ones(3, 3)
        other = threading.Thread(target=attend)
        other.start()
        other.join()
    assert seen == {}


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_optimizer_is_seen_in_its_step(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.AdamW([weight], fused=fused)
    with record_kernels() as seen:
        optimizer.step()
    assert seen == ({"optimizer": "fused"} if fused else {})
