"""Hardware and software of the host that measures: one document, stored once for all records that share it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from campaign.processes.command import run_command

# What can change a number; listing every installed package would make each environment unique.
PACKAGES = ("torch", "numpy", "snakemake", "submitit", "pydantic", "transformers", "torchvision", "composable-campaign")


def environment_document() -> dict[str, Any]:
    """Host, processor, memory, kernel, Python, packages and GPUs; what cannot be found out is absent."""
    gpus = _gpus()
    return {
        "schema_version": "environment/1",
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "packages": package_versions(),
        **({"gpus": gpus} if gpus else {}),
    }


@cache
def package_versions() -> dict[str, str]:
    """Versions of the packages that are installed here."""
    return {name: version for name in PACKAGES if (version := _version(name))}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpus() -> list[str]:
    """One line a GPU from nvidia-smi, where there is one."""
    if not shutil.which("nvidia-smi"):
        return []
    query = "--query-gpu=index,uuid,name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max"
    try:
        answer = run_command(["nvidia-smi", query, "--format=csv,noheader"], timeout_s=30)
    except OSError:
        return []
    return answer.out.strip().splitlines() if answer.code == 0 else []
