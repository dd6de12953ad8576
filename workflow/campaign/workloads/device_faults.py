"""Whether a run failed for its devices, from what it printed: then the apparatus failed, and not the subject. Pure text work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.spec.record import Status
from campaign.workloads.failures import described
from campaign.workloads.log_reader import Log

DOUBTFUL: frozenset[Status] = frozenset({"crashed", "comm_error", "comm_timeout", "time_limit", "incomplete"})
"""What a lost device may look like; running out of memory, a loss that is not a number and the like have causes of their own."""
NOT_SEEN = "was asked for, and "
"""Words of our own ranks that get no device (`trainer.rank_device`)."""
SIGNS = (
    b"Torch not compiled", b"GPUs are available", b"devices are available", b"capable device", b"NVIDIA driver on your system",
    b"driver version is insufficient", b"version mismatch", b"not yet initialized", b"_NOT_READY", b"NotReady", b"no kernel image",
    b"_NO_DEVICE", b"NoDevice", b"DevicesUnavailable", b"was asked for", b"uncorrectable", b"Uncorrectable", b"_UNCORRECTABLE",
    b"NotCorrectable", b"off the bus", b"is lost", b"IS_LOST", b"Xid (PCI", b"illegal memory access", b"llegalAddress", b"ILLEGAL_",
    b"launch failure", b"LaunchFailure", b"LAUNCH_FAILED", b"illegal instruction", b"llegalInstruction", b"isaligned",
    b"hardware stack", b"HardwareStack", b"by GPU node", b"DEVICE_LOST",
)  # fmt: skip
"""Bytes of which every line that is looked for holds at least one."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """kind: a device failed; none could be used at all; one failed, or the program is wrong. rank: that says so, if it is named."""

    kind: Literal["fault", "unavailable", "suspicion"]
    evidence: str
    rank: int | None


def device_fault(runs_on: AcceleratorKind, status: Status, log: Log, processes: int) -> DeviceFault | None:
    """What a failed run says of its devices; None where it says nothing, or failed for something else."""
    kind = ACCELERATORS[runs_on]
    if status not in DOUBTFUL or kind.torch_type == "cpu":
        return None
    text = log.excerpt(SIGNS)
    # What surely is a fault counts, also where a program's complaint about it came before.
    patterns: tuple[tuple[Literal["fault", "unavailable", "suspicion"], tuple[str, ...]], ...] = (
        ("fault", kind.device_faults),
        ("unavailable", (*kind.unavailable, rf"device {runs_on} {NOT_SEEN}")),
        ("suspicion", kind.device_suspicions),
    )
    for which, each in patterns:
        if each and (match := re.search("|".join(each), text)):
            return DeviceFault(which, *described(text, match, processes))
    return None
