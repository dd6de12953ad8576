"""Kinds of devices, as a system file names them (`runs_on`): one table, one module a vendor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from campaign.accelerators.accelerator import Accelerator, Seen
from campaign.accelerators.amd import ROCM
from campaign.accelerators.intel import XPU
from campaign.accelerators.nvidia import CUDA
from campaign.accelerators.processor import CPU

__all__ = ["ACCELERATORS", "Accelerator", "Kind", "Seen"]

Kind = Literal["cuda", "rocm", "xpu", "cpu"]

ACCELERATORS: Mapping[Kind, Accelerator] = {"cuda": CUDA, "rocm": ROCM, "xpu": XPU, "cpu": CPU}
