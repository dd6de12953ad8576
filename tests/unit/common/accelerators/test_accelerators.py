"""The table of devices: what each kind says must fit together; tools and messages are by documentation, not seen on hardware."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind, DetectedDevice, find_fallback
from campaign.observe.telemetry.sources import SOURCES
from campaign.workloads.log_reader import Log

AMD_SMI = """gpu,gpu_bdf,gpu_uuid,kfd_id,node_id,partition_id
0,0000:c1:00.0,d4ff74a0-0000-1000-8080-808080808080,7023,2,0
1,0000:c6:00.0,62ff74a0-0000-1000-8080-808080808081,28851,3,0
"""
XPU_SMI = """SOC UUID,PCI BDF Address,Device Name
"00000000-0000-0029-0000-002f0bd58086","0000:29:00.0","Intel(R) Data Center GPU Max 1550"
"00000000-0000-003a-0000-002f0bda8086","0000:3a:00.0","Intel(R) Data Center GPU Max 1100"
"""
FALLBACKS = {
    "Aten Op fallback from XPU to CPU happends. This may have performance implications.": "xpu",
    "[W128 09:40:21.158240118 RegisterXPU.cpp:45778] Warning: Aten Op fallback from XPU to CPU happens. This may": "xpu",
    "Warning: The operator 'aten::_linalg_svd.U' on the XPU backend is falling back to run on the CPU.": "xpu",
    "The operator 'aten::x' is not currently supported on the NPU backend and will fall back to run on the CPU.": "cuda",
    "WARNING:absl:No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0 for more info.)": "cuda",
    "is present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.": "cuda",
    "Skipping registering GPU devices...": "rocm",
    "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount()": "cuda",
}


def test_every_kind_of_a_system_file_is_in_the_table_and_is_known_to_the_rest() -> None:
    assert set(ACCELERATORS) == set(get_args(AcceleratorKind))
    for kind, each in ACCELERATORS.items():
        assert each.kind == kind
        assert each.title
        assert bool(each.unverified) == (kind in ("rocm", "xpu")), "what nobody ran says so"
        if kind == "cpu":
            continue
        assert each.mask_variables
        assert each.list_command
        assert each.out_of_memory
        for pattern in (*each.out_of_memory, *each.communication_errors, *each.fallbacks):
            re.compile(pattern)
    assert {"nvidia", "amd", "intel"} <= set(SOURCES)


@pytest.mark.parametrize(
    ("kind", "names", "environment"),
    [
        ("cuda", ["GPU-1", "MIG-2"], {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2"}),
        ("cuda", ["MIG-GPU-a1b2/1/0", "3"], {"CUDA_VISIBLE_DEVICES": "MIG-GPU-a1b2/1/0,3"}),
        (
            "cuda",
            ["00000000-0000-0029-0000-002f0bd58086"],
            {"CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0029-0000-002f0bd58086"},
        ),
        ("cuda", ["0000:c1:00.0"], {}),
        ("cuda", ["GPU-1", "accel0"], {}),
        ("rocm", ["GPU-deadbeef", "3"], {"ROCR_VISIBLE_DEVICES": "GPU-deadbeef,3"}),
        ("rocm", ["0000:c1:00.0"], {}),
        ("xpu", ["0", "3"], {"ZE_AFFINITY_MASK": "0,3", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}),
        ("xpu", ["1.0"], {"ZE_AFFINITY_MASK": "1.0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}),
        ("xpu", ["0", "1.0"], {}),
        ("xpu", ["00000000-0000-0029-0000-002f0bd58086"], {}),
        ("cpu", ["0"], {}),
    ],
)
def test_a_mask_names_devices_where_it_can(
    kind: AcceleratorKind, names: list[str], environment: dict[str, str]
) -> None:
    assert ACCELERATORS[kind].make_mask(names) == environment


def test_what_the_tools_list_is_understood() -> None:
    first, second = ACCELERATORS["rocm"].parse_devices(AMD_SMI.splitlines())
    assert first == DetectedDevice("d4ff74a0-0000-1000-8080-808080808080", "", "0000:c1:00.0")
    assert second.address == "0000:c6:00.0"
    assert ACCELERATORS["rocm"].parse_devices(AMD_SMI.replace(",", ", ").splitlines()) == (first, second)
    assert ACCELERATORS["rocm"].parse_devices(["ERROR: no driver"]) == ()
    *tiles, card = ACCELERATORS["xpu"].parse_devices(XPU_SMI.splitlines())
    assert [tile.model for tile in tiles] == ["Intel(R) Data Center GPU Max 1550"] * 2
    assert len({tile.identity for tile in tiles}) == 2
    assert card == DetectedDevice(
        "00000000-0000-003a-0000-002f0bda8086", "Intel(R) Data Center GPU Max 1100", "0000:3a:00.0"
    )


@pytest.mark.parametrize(("line", "kind"), FALLBACKS.items())
def test_a_fallback_is_found_in_a_log_and_not_on_a_cpu(line: str, kind: AcceleratorKind) -> None:
    log = Log.from_text(f"step 1\n  {line}\nstep 2\n")
    assert find_fallback(ACCELERATORS[kind], log.read_lines) == line
    assert find_fallback(ACCELERATORS["cpu"], log.read_lines) == "", "there it is what was asked for"


@pytest.mark.parametrize(
    "line",
    [
        "falling back to eager mode",
        "fallback from TCP to shared memory",
        "Warning: initialization: slow",
        "falling back to CPUs of",
    ],
)
def test_other_fallbacks_are_none(line: str) -> None:
    assert find_fallback(ACCELERATORS["xpu"], Log.from_text(line + "\n").read_lines) == ""
