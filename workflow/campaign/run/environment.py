"""Hardware and software of the measuring host, as one document that is stored once for all records that share it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from campaign.common.accelerators import ACCELERATORS
from campaign.common.credentials import MASK, is_secret_name, mask_secrets
from campaign.common.processes.command import run_command
from campaign.observe.device_state import read_local_settings

# Packages that can change a measured number. A list of all installed packages would make each environment unique.
PACKAGES = ("torch", "numpy", "snakemake", "submitit", "pydantic", "transformers", "torchvision", "composable-campaign")
# Libraries of NVIDIA that torch installs. Their names end in the version of CUDA.
_CUDA_PACKAGES = tuple(f"nvidia-{name}-cu{cuda}" for name in ("cudnn", "nccl") for cuda in (11, 12, 13))

_TUNING_PREFIXES = ("NCCL_", "CUDA_", "CUDNN_", "PYTORCH_", "TORCH_")
_MASK_VARIABLES = {mask for each in ACCELERATORS.values() for mask in each.mask_variables}
"""Variables that select devices. They are left out, because they differ between leases and records list the devices."""

_KERNEL_MODULES = ("nvidia", "amdgpu", "mlx5_core")
"""Kernel modules that are updated separately from the kernel."""
_SYS = Path("/sys")


def describe_environment() -> dict[str, Any]:
    """Describe host, processor, memory, kernel, drivers, firmware, Python, packages, GPUs and tuning variables of this host.

    Values that cannot be determined are left out.
    """
    gpus, devices, variables = (
        _describe_gpus(),
        [settings.to_dict() for settings in read_local_settings()],
        _list_tuning_variables(),
    )
    drivers = {name: _SYS / "module" / name / "version" for name in _KERNEL_MODULES}
    firmware = {"BIOS": _SYS / "class/dmi/id/bios_version"}
    firmware |= {path.parent.name: path for path in sorted(_SYS.glob("class/infiniband/*/fw_ver"))}
    return {
        "schema_version": "environment/1",
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": _read_cpu_model(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "packages": package_versions(),
        **({"drivers": versions_by_name} if (versions_by_name := _read_files(drivers)) else {}),
        **({"firmware": versions_by_name} if (versions_by_name := _read_files(firmware)) else {}),
        **({"gpus": gpus} if gpus else {}),
        **({"devices": devices} if devices else {}),
        **({"variables": variables} if variables else {}),
    }


def list_versions(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of each piece of software in an environment document, e.g. 'nvidia driver' -> '570.86'."""
    lines = (line.split(", ") for line in document.get("gpus", ()))
    nvidia_drivers = [line[4] for line in lines if len(line) > 4 and line[1].startswith("GPU-")]
    return {
        **{name: str(document[key]) for name, key in (("kernel", "system"), ("python", "python")) if key in document},
        **({"nvidia driver": nvidia_drivers[0]} if nvidia_drivers else {}),
        **{f"{name} driver": version for name, version in document.get("drivers", {}).items()},
        **{f"{name} firmware": version for name, version in document.get("firmware", {}).items()},
        **document.get("packages", {}),
    }


def _read_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the stripped content of each file that can be read and is not empty."""
    texts = {}
    for name, path in files.items():
        with suppress(OSError):
            texts[name] = path.read_text(encoding="utf-8").strip()
    return {name: text for name, text in texts.items() if text}


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of the relevant packages that are installed on this host."""
    return {name: version for name in (*PACKAGES, *_CUDA_PACKAGES) if (version := _find_version(name))}


def _list_tuning_variables() -> dict[str, str]:
    """Return the environment variables that tune CUDA, NCCL and torch, with secrets masked."""
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_TUNING_PREFIXES) and name not in _MASK_VARIABLES
    }
    return {name: MASK if is_secret_name(name) else mask_secrets(value) for name, value in variables.items()}


def _find_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_cpu_model() -> str:
    """Return the processor's model name, or the machine type if the kernel does not list a model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _describe_gpus() -> list[str]:
    """Return one line per GPU, as printed by the vendor's tools if they are installed."""
    commands = [accelerator.describe_command for accelerator in ACCELERATORS.values() if accelerator.describe_command]
    descriptions: list[str] = []
    for command in commands:
        if shutil.which(command[0]):
            with suppress(OSError):
                answer = run_command(command, timeout_s=30)
                descriptions += answer.out.strip().splitlines() if answer.code == 0 else []
    return descriptions
