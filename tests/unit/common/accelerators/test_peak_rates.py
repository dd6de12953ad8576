"""Dense peaks by name: names as nvidia-smi prints them, names as sites write them, and names that leave it open."""

from __future__ import annotations

import pytest

from campaign.common.accelerators import get_peak_tflops


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("Tesla P100-PCIE-16GB", "fp16", 18.7),
        ("Tesla P100-SXM2-16GB", "fp32", 10.6),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-PCIE-32GB", "fp16", 112.0),
        ("Tesla V100S-PCIE-32GB", "fp32", 16.4),
        ("Tesla T4", "fp16", 65.0),
        ("Quadro RTX 6000", "fp16", 130.5),
        ("NVIDIA RTX 6000 Ada Generation", "fp32", 91.1),
        ("NVIDIA A10", "tf32", 62.5),
        ("NVIDIA A30", "bf16", 165.0),
        ("NVIDIA A40", "fp32", 37.4),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156.0),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA A100 80GB PCIe", "fp16-o2", 312.0),
        ("NVIDIA L4", "fp16", 121.0),
        ("NVIDIA L40S", "bf16", 362.0),
        ("NVIDIA H100 PCIe", "fp32", 51.0),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H200", "tf32", 494.5),
        ("NVIDIA B200", "bf16", 2250.0),
        ("AMD Instinct MI250X", "fp16", 191.5),
        ("AMD Instinct MI300X", "fp32", 163.4),
        ("AMD Instinct MI300A", "bf16", 980.6),
        ("Intel(R) Data Center GPU Max 1100", "bf16", 355.5),
        ("Intel(R) Data Center GPU Max 1550", "tf32", 209.7),
    ],
)
def test_a_reported_name_has_its_dense_peak(name: str, precision: str, peak: float) -> None:
    assert get_peak_tflops("some-device", name, precision) == peak


def test_a_site_s_own_name_will_do_where_it_says_enough() -> None:
    assert get_peak_tflops("a100-40gb", None, "fp32") == 19.5
    assert get_peak_tflops("v100-16gb-sxm2", None, "fp32") == 15.7
    assert get_peak_tflops("v100-16gb", None, "fp32") is None, "PCIe and SXM2 differ"
    assert get_peak_tflops("v100-16gb", "Tesla V100-PCIE-16GB", "fp32") == 14.0


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "GRID A100-10C",
        "NVIDIA A10G",
        "NVIDIA RTX A6000",
        "NVIDIA H200 NVL",
        "NVIDIA H100 NVL",
        "cpu-rank",
    ],
)
def test_what_is_not_known_or_only_a_part_has_no_peak(name: str) -> None:
    assert get_peak_tflops("x", name, "fp16") is None
    assert get_peak_tflops(name, None, "fp16") is None


def test_a_precision_that_the_device_has_no_units_for_has_no_peak() -> None:
    assert get_peak_tflops("x", "Tesla V100-SXM2-16GB", "bf16") is None
    assert get_peak_tflops("x", "Tesla T4", "tf32") is None


def test_a_part_of_a_device_is_not_taken_for_the_whole_by_its_site_name() -> None:
    assert get_peak_tflops("a100-40gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "fp16") is None
