"""What failed runs say of their devices, in the words of runtimes and drivers."""

from __future__ import annotations

import re

import pytest

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.spec.record import Status
from campaign.workloads.device_faults import DEVICE_FAULT_SIGNS, DEVICE_NOT_AVAILABLE, find_device_fault
from campaign.workloads.log_reader import Log

UNAVAILABLE = [
    "AssertionError: Torch not compiled with CUDA enabled",
    "RuntimeError: No CUDA GPUs are available",
    "CUDA error: no CUDA-capable device is detected",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "CUDA driver version is insufficient for CUDA runtime version",
    "Failed to initialize NVML: Driver/library version mismatch",
    "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    f"error: device cuda {DEVICE_NOT_AVAILABLE}this process sees no device; check the driver, CUDA_VISIBLE_DEVICES and the "
    "torch build (2.13.0+cpu)",
    "result: cudaErrorNoDevice",
    "CUDA_ERROR_NO_DEVICE",
    "cudaErrorDevicesUnavailable",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "cudaErrorSystemNotReady",
]
FAULTS = [
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "CUDA error: uncorrectable NVLink error detected during the execution",
    "cudaErrorECCUncorrectable",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE (double bit error)",
    "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
    "NVML_ERROR_GPU_IS_LOST",
]
SUSPICIONS = [
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: an illegal instruction was encountered",
    "CUDA error: misaligned address",
    "CUDA error: hardware stack error",
    "cudaErrorIllegalAddress",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "cudaErrorLaunchFailure",
    "CUDA_ERROR_LAUNCH_FAILED",
    "cudaErrorIllegalInstruction",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "cudaErrorMisalignedAddress",
    "cudaErrorHardwareStackError",
]
OTHERS: list[tuple[AcceleratorKind, str, str]] = [
    ("rocm", "unavailable", "RuntimeError: No HIP GPUs are available"),
    ("rocm", "unavailable", "HIP error: no ROCm-capable device is detected"),
    ("rocm", "unavailable", "hipErrorNoDevice"),
    ("rocm", "fault", "hipErrorECCNotCorrectable"),
    ("rocm", "suspicion", "Memory access fault by GPU node-4 (Agent handle: 0x1) on address 0x7f. Reason: Unknown."),
    ("rocm", "suspicion", "HW Exception by GPU node-2 (Agent handle: 0x1) reason :GPU Hang"),
    ("rocm", "suspicion", "hipErrorIllegalAddress"),
    ("rocm", "suspicion", "hipErrorLaunchFailure"),
    ("xpu", "unavailable", "AssertionError: Torch not compiled with XPU enabled"),
    ("xpu", "unavailable", "RuntimeError: No XPU devices are available."),
    ("xpu", "suspicion", "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
]
ALL: list[tuple[AcceleratorKind, str, str]] = [
    *(("cuda", "unavailable", line) for line in UNAVAILABLE),
    *(("cuda", "fault", line) for line in FAULTS),
    *(("cuda", "suspicion", line) for line in SUSPICIONS),
    *OTHERS,
]


@pytest.mark.parametrize(("runs_on", "which", "line"), ALL, ids=[line[:40] for *_, line in ALL])
def test_each_message_is_of_its_class(runs_on: AcceleratorKind, which: str, line: str) -> None:
    found = find_device_fault(runs_on, "crashed", Log.from_text(f"step 1\n[rank1]: {line}\nmore"), 2)
    assert found is not None
    assert (found.kind, found.rank, found.evidence) == (which, 1, f"[rank1]: {line}")
    assert find_device_fault("cpu", "crashed", Log.from_text(line), 1) is None, (
        "a core that stands for a device does not fail so"
    )
    # In a log that is not read whole, the line is found by these bytes.
    assert any(sign in line.encode() for sign in DEVICE_FAULT_SIGNS)


def test_every_alternative_of_every_pattern_has_a_message_here() -> None:
    lines = [line for *_, line in ALL]
    for kind in ACCELERATORS.values():
        for pattern in (*kind.unavailable, *kind.device_faults, *kind.device_suspicions):
            assert any(re.search(pattern, line) for line in lines), pattern


@pytest.mark.parametrize("status", ["ok", "oom_device", "oom_host", "nan", "unsupported", "invalid"])
def test_a_run_that_failed_for_something_else_says_nothing_of_its_devices(status: Status) -> None:
    assert find_device_fault("cuda", status, Log.from_text(FAULTS[0]), 1) is None


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: shape mismatch",
        "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception",
        "NVRM: Xid (PCI:0000:3b:00): 43, pid=1",
        "CUDA out of memory. Tried to allocate 2 GiB",
        "",
    ],
)
def test_what_a_program_does_by_itself_is_no_fault_of_a_device(text: str) -> None:
    assert find_device_fault("cuda", "crashed", Log.from_text(text), 1) is None


def test_a_sure_fault_counts_more_than_the_complaint_before_it() -> None:
    found = find_device_fault(
        "cuda", "comm_error", Log.from_text(f"[rank3]: {SUSPICIONS[0]}\n[rank2]: {FAULTS[0]}\n"), 4
    )
    assert found is not None
    assert (found.kind, found.rank) == ("fault", 2)
