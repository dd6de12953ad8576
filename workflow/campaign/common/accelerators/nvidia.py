"""NVIDIA GPUs: CUDA, NCCL, NVML.

Sources: CUDA C++ programming guide (CUDA_VISIBLE_DEVICES); nvidia-smi --help-query-gpu; data sheets as noted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from campaign.common.accelerators.accelerator import Accelerator, make_peaks

_MASK_VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER_ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Environment of every program, so that devices have the numbers of nvidia-smi and NVML and are not numbered by speed."""
_H100_SXM = make_peaks(67.0, 494.5, 989.5, 989.5)


_UUID_PATTERN = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
# A number, a UUID or the beginning of one. Parts of devices (MIG) had different names before driver 470.
_MASKABLE_NAME_PATTERN = re.compile(r"\d+|(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]*|MIG-GPU-[0-9a-fA-F-]+/\d+/\d+")


def _make_mask(names: Sequence[str]) -> Mapping[str, str]:
    """Return the mask for devices given by number or UUID. It is empty for any other name, such as a PCI address.

    CUDA silently hides all devices from the first unknown name on.
    """
    mask_names = [f"GPU-{name}" if _UUID_PATTERN.fullmatch(name) else name for name in names]
    return {_MASK_VARIABLE: ",".join(mask_names)} if all(map(_MASKABLE_NAME_PATTERN.fullmatch, mask_names)) else {}


def get_visible_uuids(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of the devices that the mask of an environment makes visible to a program.

    The result is empty if the mask has none or contains anything but UUIDs. A number identifies no device, because it counts
    only the devices that the reader of the mask sees.
    """
    mask_names = tuple(name.strip() for name in environment.get(_MASK_VARIABLE, "").split(","))
    are_full_uuids = all(name[:4] in ("GPU-", "MIG-") and _UUID_PATTERN.fullmatch(name[4:]) for name in mask_names)
    return mask_names if are_full_uuids and len(set(mask_names)) == len(mask_names) else ()


CUDA = Accelerator(
    kind="cuda",
    title="NVIDIA GPU",
    torch_type="cuda",
    backend="nccl",
    torch_build="cuda",
    mask_variables=(_MASK_VARIABLE,),
    make_mask=_make_mask,
    list_command=("nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"),
    describe_command=(
        "nvidia-smi",
        "--query-gpu=index,uuid,name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv,noheader",
    ),
    container_option="--nv",
    out_of_memory=(
        # Only the common prefix: the class and the words after it changed with nearly every release of torch.
        r"CUDA(?: (?:driver )?error:)? out of memory",
        r"Triton Error \[CUDA\]: out of memory",
        r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED",
        r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        r"cudaMalloc failed: out of memory",  # llama.cpp
        r"Cuda failure (?:2 )?'out of memory'",
        r"CUDA failure \S+ 'out of memory'",  # nccl-tests
        # Allocators that then request less print this only as a warning; TensorFlow prints it for pinned host memory, too.
        r"(?<!on host: )CUDA_ERROR_OUT_OF_MEMORY|cudaError(?:OutOfMemory|MemoryAllocation)\b",
    ),
    communication_errors=(
        r"ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|ncclInvalidArgument",
    ),
    unavailable=(
        r"Torch not compiled with CUDA enabled",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice\b",
        r"Found no NVIDIA driver on your system|The NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient for CUDA runtime version|Driver/library version mismatch",
        r"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable|cudaErrorDevicesUnavailable",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",  # error 802: no fabric manager
        r"no kernel image is available for execution on the device",
    ),
    # Sources: CUDA runtime API, cudaError; NVIDIA GPU deployment and management documentation, Xid errors. Xid errors that programs
    # cause by themselves (13, 31, 43, 45, 68, 69) are not faults.
    device_faults=(
        r"uncorrectable (?:ECC|NVLink) error|cudaError(?:ECC|Nvlink)Uncorrectable|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE",
        r"GPU (?:has fallen off the bus|is lost)|[Ff]allen off the bus|NVML_ERROR_GPU_IS_LOST",
        r"Xid \(PCI:[^)]*\): (?!(?:13|31|43|45|68|69)\b)\d+",
    ),
    device_suspicions=(
        r"an illegal memory access was encountered|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS",
        r"unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED",
        r"an illegal instruction was encountered|cudaErrorIllegalInstruction|CUDA_ERROR_ILLEGAL_INSTRUCTION",
        r"misaligned address|cudaErrorMisalignedAddress|hardware stack error|cudaErrorHardwareStackError",
    ),
    peaks=(
        (r"p100", r"pcie", make_peaks(9.3, fp16=18.7)),  # NVIDIA Tesla P100 data sheet
        (r"p100", r"sxm2?|nvlink", make_peaks(10.6, fp16=21.2)),
        (r"v100s", r"", make_peaks(16.4, fp16=130.0)),  # NVIDIA V100 data sheet 1165301-r5
        (r"v100", r"pcie", make_peaks(14.0, fp16=112.0)),
        (r"v100", r"sxm[23]?|nvlink", make_peaks(15.7, fp16=125.0)),
        (r"t4", r"", make_peaks(8.1, fp16=65.0)),  # NVIDIA T4 data sheet 951643
        # Data sheet; its tensor figures are with sparsity and fp8, so that they are left out.
        (r"rtx6000", r"ada", make_peaks(91.1)),
        (r"rtx6000", r"quadro", make_peaks(16.3, fp16=130.5)),  # NVIDIA Turing architecture white paper WP-09183-001
        (r"a10", r"", make_peaks(31.2, 62.5, 125.0, 125.0)),  # NVIDIA A10 data sheet
        # Computed: 56 multiprocessors at 1.44 GHz with the rates of the A100's (data sheet: 10.3, 82, 165).
        (r"a30", r"", make_peaks(10.3, 82.0, 165.0, 165.0)),
        (r"a40", r"", make_peaks(37.4, 74.8, 149.7, 149.7)),  # NVIDIA A40 data sheet
        (r"a100", r"", make_peaks(19.5, 156.0, 312.0, 312.0)),  # NVIDIA A100 data sheet 1758950-r4 (PCIe and SXM alike)
        (r"l4", r"", make_peaks(30.3, 60.0, 121.0, 121.0)),  # NVIDIA L4 data sheet, half
        (r"l40s", r"", make_peaks(91.6, 183.0, 362.0, 362.0)),  # NVIDIA L40S data sheet, half
        (r"h[12]00", r"nvl", {}),
        (r"h100", r"pcie", make_peaks(51.0, 378.0, 756.5, 756.5)),  # NVIDIA H100 tensor core GPU data sheet, half
        (r"h100", r"sxm5?|hbm3", _H100_SXM),
        (r"h200", r"", _H100_SXM),  # it computes as H100 SXM
        (r"b200", r"", make_peaks(75.0, 1100.0, 2250.0, 2250.0)),  # NVIDIA Blackwell data sheet, HGX B200, half
    ),
    telemetry="NVML (nvidia-ml-py)",
)
