"""The torch device of a rank: chosen, identified, and the evidence that its work was there. Needs torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.common.errors import ConfigError
from campaign.common.processes.numa import bind_near_device, find_nvidia_pci_address
from campaign.workloads.device_faults import NOT_SEEN


def choose_device(kind: AcceleratorKind, local_rank: int, devices: int = 1) -> torch.device:
    """The device of a rank, made torch's current one; devices: how many this process uses.

    ConfigError: this process sees too few, or its torch is for another kind. Nothing is ever run in its place.
    """
    accelerator = ACCELERATORS[kind]
    if accelerator.torch_type == "cpu":
        return torch.device("cpu")
    if problem := _wrong_build(kind):
        raise ConfigError(f"device {kind} {NOT_SEEN}{problem}")
    count = device_module(accelerator.torch_type).device_count()
    if count == 0:
        masks = ", ".join(accelerator.mask_variables)
        raise ConfigError(
            f"device {kind} {NOT_SEEN}this process sees none (driver, {masks}, torch build: {torch.__version__})"
        )
    if count < devices:
        raise ConfigError(f"device {kind} {NOT_SEEN}this process sees {count} of {devices}")
    # One visible device: the launcher has bound each rank to its own. More: the local rank chooses.
    index = 0 if count == 1 else local_rank
    if index >= count:
        raise ConfigError(f"device {kind} {NOT_SEEN}local rank {index} has none of its own: this process sees {count}")
    device = torch.device(accelerator.torch_type, index)
    device_module(device.type).set_device(device)
    return device


def device_module(torch_type: str) -> Any:
    """`torch.cuda`, `torch.xpu`, ..: what torch has for each type of device under the same names."""
    return torch.get_device_module(torch_type)


def _wrong_build(kind: AcceleratorKind) -> str:
    """AMD's devices have CUDA's names in torch, so that only its build tells them apart."""
    hip = torch.version.hip is not None
    if kind == "rocm" and not hip and torch.version.cuda is not None:
        return "this torch is built for CUDA"
    if kind == "cuda" and hip:
        return "this torch is built for ROCm; use `runs_on: rocm`"
    return ""


def identity(device: torch.device) -> dict[str, str]:
    """`device_name`, and `device_uuid` where torch tells it."""
    if device.type != "cpu":
        name, text = device_module(device.type).get_device_properties(device).name, uuid_of(device)
        return {"device_name": name, **({"device_uuid": text} if text else {})}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return {"device_name": line.partition(":")[2].strip()}
    return {"device_name": os.uname().machine}


def uuid_of(device: torch.device) -> str:
    """The UUID of a device; empty where torch does not tell it."""
    uuid = getattr(device_module(device.type).get_device_properties(device), "uuid", None)
    return uuid.hex() if isinstance(uuid, bytes) else str(uuid or "")


def libraries(device: torch.device) -> dict[str, str]:
    """Versions of what torch has loaded for a GPU: CUDA or HIP, cuDNN or MIOpen, NCCL or RCCL; what it does not tell is absent."""
    if device.type != "cuda":
        return {}
    cudnn: Any = torch.backends.cudnn
    of_nccl: Any = torch.cuda.nccl
    nccl = of_nccl.version() if torch.distributed.is_nccl_available() else ()
    told = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": cudnn.version(),
        "nccl": ".".join(map(str, nccl)),
    }
    return {name: str(version) for name, version in told.items() if version}


def uuids_of_replicas(device: torch.device, replicas: int) -> tuple[str, ...]:
    """UUIDs of the devices that one process uses beside its first (DataParallel); empty where it uses one, or torch tells none."""
    if device.type == "cpu" or replicas < 2:
        return ()
    return tuple(uuid for n in range(1, replicas) if (uuid := uuid_of(torch.device(device.type, n))))


def bound_to_socket(device: torch.device) -> tuple[str, str]:
    """Bind this rank to the processors of its device's socket: see `RankResult.numa`, and a flag where it has none of them.

    Left as it is: a rank on the CPU, and one whose host does not tell its nodes.
    """
    if device.type == "cpu":
        return "", ""
    found = device_module(device.type).get_device_properties(device)
    parts = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [part for part in parts if isinstance(part, int)]
    told = len(numbers) == len(parts)
    address = "{:04x}:{:02x}:{:02x}.0".format(*numbers) if told else find_nvidia_pci_address(uuid_of(device))
    said, beside = bind_near_device(address)
    return said, "" if beside else f"NUMA: a rank has no processor in the socket of its device ({said})"


def places(tensors: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, tuple[str, ...]]:
    """The devices that tensors are on, by what the tensors are."""
    found = {what: tuple(sorted({str(tensor.device) for tensor in of})) for what, of in tensors.items()}
    return {what: devices for what, devices in found.items() if devices}


def elsewhere(device: torch.device, seen: Mapping[str, Iterable[str]]) -> str:
    """What was not on the device, in words; empty for nothing. A device without a number is any of its type."""

    def same(name: str) -> bool:
        other = torch.device(name)
        return other.type == device.type and (None in (other.index, device.index) or other.index == device.index)

    return "; ".join(
        f"{what} on {', '.join(wrong)}" for what, names in seen.items() if (wrong := [n for n in names if not same(n)])
    )
