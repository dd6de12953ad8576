"""What a run asks for and this device or torch cannot do; nothing is ever run in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig

import torch

from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.parallel_strategies import name_of
from campaign.workloads.trainer.repeated_layers import layers_of
from campaign.workloads.trainer.run_spec import TrainSpec

_COMPILERS = ("c++", "g++", "clang++")
_PROGRAM = "#include <Python.h>\n#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n"
_COMPILER_PATIENCE_S = 60


def unsupported_reason(spec: TrainSpec, world_size: int, device: torch.device) -> str | None:
    """Why the run cannot be as it is asked for, or None."""
    options = spec.resolved_options()
    if device.type == "cpu" and options["input"] == "h2d":
        return "input h2d copies from the host to a device; on a CPU they are the same memory"
    if reason := precision.unsupported_reason(spec.precision, device, options["emulation"] == "allow"):
        return reason
    if spec.channels_last and name_of(spec, world_size) == "fsdp":
        return "channels_last: fully_shard takes contiguous weights only (torch 2.13)"
    if options["compile"]:
        return _cannot_compile(spec, world_size)
    return None


def unsupported_by(spec: TrainSpec, trainable: models.Trainable) -> str | None:
    """Why the model that was built cannot be trained as it is asked for, or None."""
    if spec.resolved_options()["activation_checkpointing"] and not layers_of(trainable.network):
        return f"activation_checkpointing: {spec.model} has no layers of one kind that could be computed again"
    return None


def _cannot_compile(spec: TrainSpec, world_size: int) -> str | None:
    if name_of(spec, world_size) == "dp":
        return "compile: DataParallel makes new modules every step, and torch.compile would compile each of them again"
    problem = compiler_problem()
    return f"compile: torch.compile needs a C++ compiler, and none works here ({problem})" if problem else None


def compiler_problem() -> str | None:
    """Why the compiler that torch would take cannot build a program against Python's headers, or None."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        return f"no {', '.join(names)} on PATH"
    command = [found, "-x", "c++", "-fsyntax-only", f"-I{sysconfig.get_paths()['include']}", "-"]
    try:
        done = subprocess.run(
            command, input=_PROGRAM, capture_output=True, text=True, check=False, timeout=_COMPILER_PATIENCE_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{found}: {error}"
    if done.returncode == 0:
        return None
    return f"{found}: {(done.stderr.strip().splitlines() or ['exit code ' + str(done.returncode)])[0]}"
