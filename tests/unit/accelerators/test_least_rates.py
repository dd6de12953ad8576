"""Least rates: by the name that tools report, with their form; a part of a device, and what is not known, has none."""

from __future__ import annotations

import pytest

from campaign.accelerators import peak_tflops
from campaign.accelerators.least_rates import least_rates


@pytest.mark.parametrize(
    ("reported", "quantity", "least"),
    [
        ("NVIDIA H200", "memory_gb_per_s", 4000.0),
        ("NVIDIA H200", "h2d_gb_per_s", 48.0),
        ("NVIDIA H200", "allreduce_gb_per_s", 431.0),
        ("NVIDIA H100 80GB HBM3", "bf16_tflops", 0.88 * 794.5),
        ("NVIDIA H100 NVL", "h2d_gb_per_s", 52.0),
        ("NVIDIA A100-SXM4-80GB", "bf16_tflops", 0.88 * 271.2),
        ("NVIDIA A100-PCIE-40GB", "bf16_tflops", 0.88 * 252.9),
        ("Tesla V100-SXM2-16GB", "h2d_gb_per_s", 10.0),
        ("AMD Instinct MI300X", "allreduce_gb_per_s", 314.0),
    ],
)
def test_a_device_has_the_limits_of_its_form(reported: str, quantity: str, least: float) -> None:
    found = least_rates("whatever", reported)[quantity]
    assert found.least == pytest.approx(least)
    assert found.fails <= found.least
    assert found.source


@pytest.mark.parametrize("reported", ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"])
def test_a_form_whose_products_nobody_published_has_no_limit_for_them(reported: str) -> None:
    assert "bf16_tflops" not in least_rates("", reported)


@pytest.mark.parametrize(
    "reported", ["NVIDIA B200", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA H100-20C", "AMD EPYC"]
)
def test_other_devices_and_parts_have_none(reported: str) -> None:
    assert least_rates("h200", reported) == {}


def test_the_name_in_the_system_file_counts_where_nothing_is_reported() -> None:
    assert least_rates("a100-40gb-sxm") == least_rates("", "NVIDIA A100-SXM4-40GB")


@pytest.mark.parametrize(
    "reported", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X"]
)
def test_what_is_asked_for_is_below_the_vendors_peak(reported: str) -> None:
    peak = peak_tflops("", reported, "bf16")
    assert peak is not None
    assert least_rates("", reported)["bf16_tflops"].least < peak
