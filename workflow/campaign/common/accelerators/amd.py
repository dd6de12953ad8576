"""AMD GPUs: ROCm, whose torch uses the names of CUDA; RCCL, whose messages use the names of NCCL; AMD SMI.

Sources: ROCm documentation (GPU isolation techniques; AMD SMI command line tool); data sheets as noted. Each of the two dies
of an MI250X is a separate device.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence

from campaign.common.accelerators.accelerator import Accelerator, DetectedDevice, make_peaks

_MASK_VARIABLE = "ROCR_VISIBLE_DEVICES"
_MASKABLE_NAME_PATTERN = re.compile(r"\d+|GPU-[0-9A-Fa-f-]+")


def _make_mask(names: Sequence[str]) -> Mapping[str, str]:
    """Return the visibility mask for devices given by number or UUID. It is empty if any name has another form."""
    return {_MASK_VARIABLE: ",".join(names)} if all(map(_MASKABLE_NAME_PATTERN.fullmatch, names)) else {}


def _parse_amd_smi(lines: Iterable[str]) -> tuple[DetectedDevice, ...]:
    """Parse the output of `amd-smi list --csv`, whose columns moved between releases but kept their names. It has no models."""
    table_lines = [line for line in lines if "," in line]
    start = next((number for number, line in enumerate(table_lines) if "gpu_uuid" in line), len(table_lines))
    rows = csv.DictReader(table_lines[start:], skipinitialspace=True)
    return tuple(DetectedDevice(row["gpu_uuid"], address=row.get("gpu_bdf") or "") for row in rows if row["gpu_uuid"])


ROCM = Accelerator(
    kind="rocm",
    title="AMD GPU",
    torch_type="cuda",
    backend="nccl",
    torch_build="hip",
    # A second mask would count only the devices that the first mask left visible.
    mask_variables=(_MASK_VARIABLE, "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    make_mask=_make_mask,
    list_command=("amd-smi", "list", "--csv"),
    parse_devices=_parse_amd_smi,
    describe_command=("amd-smi", "static", "--asic", "--driver", "--vram", "--csv"),
    container_option="--rocm",
    out_of_memory=(
        r"HIP(?: error:)? out of memory",
        r"Triton Error \[HIP\]: +(?:Code: 2, Mess?sage: )?out of memory",  # the misspelling is Triton's
        r"hipError(?:OutOfMemory|MemoryAllocation)\b",
        r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        r"HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error|miopenStatusAllocFailed",
    ),
    communication_errors=(r"ncclUnhandledHipError",),
    unavailable=(
        r"Torch not compiled with CUDA enabled",
        r"No HIP GPUs are available|no ROCm-capable device is detected|hipErrorNoDevice\b",
    ),
    # HIP runtime API, hipError_t; messages of the ROCr runtime.
    device_faults=(r"uncorrectable ECC error|hipErrorECCNotCorrectable|\bGPU is lost",),
    device_suspicions=(
        r"an illegal memory access was encountered|hipErrorIllegalAddress|Memory access fault by GPU node-\d+",
        r"unspecified launch failure|hipErrorLaunchFailure|HW Exception by GPU node-\d+",
    ),
    peaks=(
        (r"mi210", r"", make_peaks(22.6, fp16=181.0, bf16=181.0)),  # AMD Instinct MI210 data sheet
        (r"mi250", r"", make_peaks(fp16=181.0, bf16=181.0)),  # AMD CDNA 2 white paper, half
        (r"mi250x", r"", make_peaks(fp16=191.5, bf16=191.5)),  # AMD CDNA 2 white paper, half
        (r"mi300a", r"", make_peaks(122.6, 490.3, 980.6, 980.6)),  # AMD Instinct MI300A data sheet
        (r"mi300x", r"", make_peaks(163.4, 653.7, 1307.4, 1307.4)),  # AMD Instinct MI300X data sheet
    ),
    telemetry="AMD SMI (package amdsmi, installed with the driver)",
    unverified="nothing was run on an AMD GPU; masks, tools and messages follow AMD's documentation",
)
