"""Detection of device faults in the output of failed runs.

A run that failed because of a device is a failure of the hardware, not of the workload. This module only searches text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.spec.record import Status
from campaign.workloads.failures import locate_evidence
from campaign.workloads.log_reader import Log

STATUSES_OF_LOST_DEVICES: frozenset[Status] = frozenset(
    {"crashed", "comm_error", "comm_timeout", "time_limit", "incomplete"}
)
"""Statuses of runs that may have failed because of a lost device. Others, such as `oom_device` or `nan`, have other causes."""
DEVICE_NOT_AVAILABLE = "is not available: "
"""Part of the message that our own ranks print if they get no device (`trainer.rank_device`)."""
DEVICE_FAULT_SIGNS = (
    b"Torch not compiled", b"GPUs are available", b"devices are available", b"capable device", b"NVIDIA driver on your system",
    b"driver version is insufficient", b"version mismatch", b"not yet initialized", b"_NOT_READY", b"NotReady", b"no kernel image",
    b"_NO_DEVICE", b"NoDevice", b"DevicesUnavailable", b"is not available: ", b"uncorrectable", b"Uncorrectable", b"_UNCORRECTABLE",
    b"NotCorrectable", b"off the bus", b"is lost", b"IS_LOST", b"Xid (PCI", b"illegal memory access", b"llegalAddress", b"ILLEGAL_",
    b"launch failure", b"LaunchFailure", b"LAUNCH_FAILED", b"illegal instruction", b"llegalInstruction", b"isaligned",
    b"hardware stack", b"HardwareStack", b"by GPU node", b"DEVICE_LOST",
)  # fmt: skip
"""Byte strings at least one of which occurs in every line that can indicate a device fault."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """Sign of a device fault in the output of a run.

    Attributes:
        kind: `fault` if a device failed, `unavailable` if no device could be used, `suspicion` if either a device or the
            program is faulty.
        evidence: line of the output that shows the fault.
        rank: rank that the line names, or None.
    """

    kind: Literal["fault", "unavailable", "suspicion"]
    evidence: str
    rank: int | None


def find_device_fault(runs_on: AcceleratorKind, status: Status, log: Log, processes: int) -> DeviceFault | None:
    """Search the output of a failed run for a device fault.

    Returns None if the output shows no device fault, or if a device fault cannot have caused the status.
    """
    kind = ACCELERATORS[runs_on]
    if status not in STATUSES_OF_LOST_DEVICES or kind.torch_type == "cpu":
        return None
    text = log.read_excerpt(DEVICE_FAULT_SIGNS)
    # A certain fault counts even if the program printed a less certain message before it.
    patterns: tuple[tuple[Literal["fault", "unavailable", "suspicion"], tuple[str, ...]], ...] = (
        ("fault", kind.device_faults),
        ("unavailable", (*kind.unavailable, rf"device {runs_on} {DEVICE_NOT_AVAILABLE}")),
        ("suspicion", kind.device_suspicions),
    )
    for fault_kind, alternatives in patterns:
        if alternatives and (match := re.search("|".join(alternatives), text)):
            return DeviceFault(fault_kind, *locate_evidence(text, match, processes))
    return None
