"""Hardware and software of the host that measures: one document, stored once for all records that share it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from campaign.accelerators import ACCELERATORS
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
    """One line a GPU from the tools of its vendor, where they are installed."""
    commands = [each.describe_command for each in ACCELERATORS.values() if each.describe_command]
    found: list[str] = []
    for command in commands:
        if shutil.which(command[0]):
            with suppress(OSError):
                answer = run_command(command, timeout_s=30)
                found += answer.out.strip().splitlines() if answer.code == 0 else []
    return found
