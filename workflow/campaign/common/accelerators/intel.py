"""Intel GPUs: Level Zero, torch's xpu, XCCL (oneCCL), Sysman.

A device is what Level Zero reports as one. By default (ZE_FLAT_DEVICE_HIERARCHY=FLAT), each tile is a device and tiles are numbered
over all cards, so that a Data Center GPU Max 1550 is two devices. With names of the form `card.tile`, the hierarchy is COMPOSITE,
and each rank sees only its own tile, because several tiles of one card in a mask appear as one device.
Sources: Level Zero specification (affinity mask, device hierarchies); documentation of XPU Manager (xpu-smi discovery);
XPUFallback.template of torch-xpu-ops; Intel Data Center GPU Max Series technical overview.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence

from campaign.common.accelerators.accelerator import Accelerator, DetectedDevice, make_peaks

_MASK_VARIABLE, _HIERARCHY_VARIABLE = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"
_TILE_PATTERN = re.compile(r"\d+\.\d+")
_TWO_TILE_MODEL_PATTERN = re.compile(r"Max 1[45]50\b")


def _make_mask(names: Sequence[str]) -> Mapping[str, str]:
    """Return the mask for devices or tiles by number. It is empty for UUIDs and PCI addresses, which a mask cannot name."""
    if names and all(map(_TILE_PATTERN.fullmatch, names)):
        return {_MASK_VARIABLE: ",".join(names), _HIERARCHY_VARIABLE: "COMPOSITE"}
    if names and all(name.isdecimal() for name in names):
        return {_MASK_VARIABLE: ",".join(names), _HIERARCHY_VARIABLE: "FLAT"}
    return {}


def _parse_xpu_smi(lines: Iterable[str]) -> tuple[DetectedDevice, ...]:
    """Parse the CSV output of `xpu-smi discovery --dump 4,11,2` (UUID, PCI address, name). The header is skipped.

    Two-tile GPUs yield one device per tile.
    """
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) >= 3 and "UUID" not in row[0]]
    return tuple(
        DetectedDevice(uuid.strip() + tile, name.strip(), address.strip())
        for uuid, address, name, *_ in rows
        for tile in (("", ".1") if _TWO_TILE_MODEL_PATTERN.search(name) else ("",))
    )


XPU = Accelerator(
    kind="xpu",
    title="Intel GPU",
    torch_type="xpu",
    backend="xccl",
    torch_build="xpu",
    mask_variables=(_MASK_VARIABLE,),
    make_mask=_make_mask,
    mask_per_rank=True,
    list_command=("xpu-smi", "discovery", "--dump", "4,11,2"),
    parse_devices=_parse_xpu_smi,
    describe_command=("xpu-smi", "discovery", "--dump", "1,2,4,8,11,13,14,16"),
    out_of_memory=(
        r"XPU(?: error:)? out of memory",
        # OUT_OF_RESOURCES is left out: it is also reported for a lost device or too many open allocations.
        r"(?:UR|ZE)_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        r"PI_ERROR_MEM_OBJECT_ALLOCATION_FAILURE",
    ),
    communication_errors=(r"oneCCL: [^\n]*(?:error|failed)", r"CCL_ERROR"),
    fallbacks=(
        # The misspelling is that of torch-xpu-ops.
        r"Aten Op fallback from XPU to CPU happend?s?",
        r"The operator '[^'\n]*' on the XPU backend is falling back to run on the CPU",
    ),
    unavailable=(r"Torch not compiled with XPU enabled", r"No XPU devices are available"),
    # A program's page fault looks like a lost device.
    device_suspicions=(r"(?:UR|ZE)_RESULT_ERROR_DEVICE_LOST",),
    peaks=(
        # Computed from the technical overview: 256 operations of fp32, 2048 of tf32 and 4096 of fp16 and bf16 a clock and Xe core.
        (r"1100", r"max", make_peaks(22.2, 177.8, 355.5, 355.5)),  # 56 Xe cores at 1.55 GHz
        (r"1550", r"max", make_peaks(26.2, 209.7, 419.4, 419.4)),  # one of two tiles: 64 Xe cores at 1.6 GHz
    ),
    telemetry="Level Zero Sysman (package pyzes)",
    unverified="nothing was run on an Intel GPU; masks, tools and messages follow the documentation of Intel and PyTorch",
)
