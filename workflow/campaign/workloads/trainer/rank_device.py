"""Torch device of a rank: its choice, its identity, and the evidence that work was done on it. Needs torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.common.errors import ConfigError
from campaign.common.processes.numa import bind_near_device, find_nvidia_pci_address
from campaign.workloads.device_faults import DEVICE_NOT_AVAILABLE


def choose_device(kind: AcceleratorKind, local_rank: int, devices: int = 1) -> torch.device:
    """Choose the device for a rank, and make it torch's current device.

    Raises ConfigError if this process sees too few devices, or if its torch is built for another kind. No other device is used in
    its place.

    Args:
        kind: kind of the device.
        local_rank: number of the rank on its host, from 0.
        devices: number of devices used by this process.
    """
    accelerator = ACCELERATORS[kind]
    if accelerator.torch_type == "cpu":
        return torch.device("cpu")
    if problem := _find_build_mismatch(kind):
        raise ConfigError(f"device {kind} {DEVICE_NOT_AVAILABLE}{problem}")
    count = get_device_module(accelerator.torch_type).device_count()
    if count == 0:
        masks = ", ".join(accelerator.mask_variables)
        raise ConfigError(
            f"device {kind} {DEVICE_NOT_AVAILABLE}this process sees no device; check the driver, {masks} and the torch build "
            f"({torch.__version__})"
        )
    if count < devices:
        raise ConfigError(f"device {kind} {DEVICE_NOT_AVAILABLE}this process sees only {count} of {devices} devices")
    # If one device is visible, the launcher has bound the rank to it. Otherwise the local rank selects the device.
    index = 0 if count == 1 else local_rank
    if index >= count:
        raise ConfigError(
            f"device {kind} {DEVICE_NOT_AVAILABLE}local rank {index} has no device, because this process sees only {count} devices"
        )
    device = torch.device(accelerator.torch_type, index)
    get_device_module(device.type).set_device(device)
    return device


def get_device_module(torch_type: str) -> Any:
    """Return torch's module for a type of device, such as `torch.cuda` or `torch.xpu`. All have the same functions."""
    return torch.get_device_module(torch_type)


def _find_build_mismatch(kind: AcceleratorKind) -> str:
    """Describe why this build of torch does not fit a kind of device. Returns an empty string if it does.

    In torch, AMD's devices go by CUDA's names, so only the build of torch distinguishes them.
    """
    hip = torch.version.hip is not None
    if kind == "rocm" and not hip and torch.version.cuda is not None:
        return "this torch is built for CUDA"
    if kind == "cuda" and hip:
        return "this torch is built for ROCm; use `runs_on: rocm`"
    return ""


def identify_device(device: torch.device) -> dict[str, str]:
    """Return the name of a device as `device_name`, and its UUID as `device_uuid` if torch reports one."""
    if device.type != "cpu":
        name, uuid = get_device_module(device.type).get_device_properties(device).name, read_device_uuid(device)
        return {"device_name": name, **({"device_uuid": uuid} if uuid else {})}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return {"device_name": line.partition(":")[2].strip()}
    return {"device_name": os.uname().machine}


def read_device_uuid(device: torch.device) -> str:
    """Return the UUID of a device, or an empty string if torch does not report one."""
    uuid = getattr(get_device_module(device.type).get_device_properties(device), "uuid", None)
    return uuid.hex() if isinstance(uuid, bytes) else str(uuid or "")


def read_library_versions(device: torch.device) -> dict[str, str]:
    """Return the versions of the libraries that torch loaded for a GPU: CUDA or HIP, cuDNN or MIOpen, NCCL or RCCL.

    Versions that torch does not report are left out.
    """
    if device.type != "cuda":
        return {}
    cudnn: Any = torch.backends.cudnn
    nccl_module: Any = torch.cuda.nccl
    nccl = nccl_module.version() if torch.distributed.is_nccl_available() else ()
    versions = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": cudnn.version(),
        "nccl": ".".join(map(str, nccl)),
    }
    return {name: str(version) for name, version in versions.items() if version}


def list_replica_uuids(device: torch.device, replicas: int) -> tuple[str, ...]:
    """List the UUIDs of the devices that this process uses in addition to its first one (DataParallel).

    The result is empty if the process uses a single device, or if torch reports no UUIDs.
    """
    if device.type == "cpu" or replicas < 2:
        return ()
    return tuple(uuid for n in range(1, replicas) if (uuid := read_device_uuid(torch.device(device.type, n))))


def bind_to_socket(device: torch.device) -> tuple[str, str]:
    """Bind this rank to the processors in its device's socket. Return a description of the binding, and a flag.

    The flag is empty unless none of these processors is available. The form of the description is documented at `RankResult.numa`.
    Ranks on a CPU, and ranks on a host that reports no NUMA nodes, are not bound.
    """
    if device.type == "cpu":
        return "", ""
    properties = get_device_module(device.type).get_device_properties(device)
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [part for part in parts if isinstance(part, int)]
    has_address = len(numbers) == len(parts)
    address = (
        "{:04x}:{:02x}:{:02x}.0".format(*numbers) if has_address else find_nvidia_pci_address(read_device_uuid(device))
    )
    binding, is_local = bind_near_device(address)
    return binding, "" if is_local else f"a rank has no processor in the NUMA node of its device ({binding})"


def locate_tensors(tensors: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, tuple[str, ...]]:
    """Find out which devices hold tensors, by kind of tensor. Kinds without tensors are left out.

    Args:
        tensors: tensors by kind, such as parameters or gradients.
    """
    devices_by_kind = {kind: tuple(sorted({str(tensor.device) for tensor in group})) for kind, group in tensors.items()}
    return {kind: devices for kind, devices in devices_by_kind.items() if devices}


def describe_foreign_devices(device: torch.device, devices_by_kind: Mapping[str, Iterable[str]]) -> str:
    """Describe tensors that were not on the expected device. Returns an empty string if there were none.

    Args:
        device: expected device; without an index, any device of this type.
        devices_by_kind: names of devices by kind of tensor.
    """

    def matches_device(name: str) -> bool:
        candidate = torch.device(name)
        return candidate.type == device.type and (
            None in (candidate.index, device.index) or candidate.index == device.index
        )

    return "; ".join(
        f"{kind} on {', '.join(wrong)}"
        for kind, names in devices_by_kind.items()
        if (wrong := [device_name for device_name in names if not matches_device(device_name)])
    )
