"""What frameworks print when work that a device was to do runs on the CPU: the run is slow, and looks like any other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from campaign.accelerators import ACCELERATORS, Accelerator

SIGNS = (
    b"fallback from",
    b"alling back to",
    b"all back to run",
    b"egistering GPU devices",
    b"initialization:",
    b"no usable GPU",
)
"""Bytes of which every such line holds at least one."""

_FRAMEWORKS = (
    # JAX; its word for the processor changed its case.
    r"[Ff]alling back to (?:cpu|CPU)\b",
    r"is not currently supported on the \w+ backend and will fall back to run on the CPU",  # torch, MPS and devices of others
    r"Skipping registering GPU devices",  # TensorFlow
    r"UserWarning: (?:CUDA|HIP|XPU) initialization:",  # torch, whose is_available() is then False
    r"no usable GPU found",  # llama.cpp
)
TORCH_WARNINGS = "|".join(pattern for each in ACCELERATORS.values() for pattern in each.fallbacks)
"""What torch warns of; one who silences its warnings has to leave these."""


def fallback_in(accelerator: Accelerator, lines_with: Callable[[tuple[bytes, ...]], Iterable[str]]) -> str:
    """The first line that reports a fallback, stripped; empty for none. lines_with: lines of a log that hold one of some bytes."""
    if accelerator.torch_type == "cpu":
        return ""
    pattern = re.compile("|".join((*accelerator.fallbacks, *_FRAMEWORKS)))
    return next((line.strip() for line in lines_with(SIGNS) if pattern.search(line)), "")
