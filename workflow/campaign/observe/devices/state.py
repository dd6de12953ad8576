"""What a device is before and after a check: settings, errors, and who else uses it. Unverified on hardware.

The driver's words are those of `campaign.observe.device_state`; devices of other vendors than NVIDIA have none yet. A process that
uses a device has its file open, or is in NVML's list. What a run has left carries the mark of the lease.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from campaign.fabrics.host_agents.protocol import normal
from campaign.observe.device_state import DeviceState, states_here
from campaign.observe.devices.bench import Bench
from campaign.observe.devices.document import StepResult
from campaign.processes.marked import MARK, live, marked, words_of

_DEVICE_FILES = re.compile(r"/dev/(?:nvidia\d+|kfd|dri/renderD\d+)")
_OWN_MEMORY_MIB = 2048  # a context of CUDA with all its kernels has about a quarter of it


def measure(bench: Bench) -> StepResult:
    """Before anything runs."""
    facts, faults = _seen(bench)
    if bench.own.uuid and bench.uuid and normal(bench.own.uuid) != normal(bench.uuid):
        faults.append(f"the process has device {bench.uuid}, and the composition has {bench.own.uuid}")
    if (facts.get("memory_used_mib") or 0) > _OWN_MEMORY_MIB:
        faults.append(f"{facts['memory_used_mib']:.0f} MiB are in use before anything runs")
    return StepResult(step="state", facts=facts, faults=tuple(faults))


def clean(bench: Bench) -> StepResult:
    """After everything has run; what differs from before is for the verdict to say."""
    facts, faults = _seen(bench)
    return StepResult(step="clean", facts=facts, faults=tuple(faults))


def pcie_of(uuid: str) -> dict[str, Any]:
    """The PCIe link of a device at this moment, as far as it tells."""
    if (state := _state(uuid)) is None:
        return {}
    told = state.settings.document() | {"pcie_generation": state.pcie_generation}
    return {name: value for name, value in told.items() if name.startswith("pcie")}


def _state(uuid: str) -> DeviceState | None:
    return next((state for known, state in states_here().items() if normal(known) == normal(uuid)), None)


def _seen(bench: Bench) -> tuple[dict[str, Any], list[str]]:
    own = f"{MARK}={os.environ.get(MARK, '')}".encode()
    # Processes of this step, on all devices of the host, have the same mark.
    mine = {os.getpid(), *(pid for pid in marked(bench.spec.mark) if own in words_of(pid, "environ"))}
    left = sorted({*marked(bench.spec.mark)} - mine) if bench.place.local_rank == 0 else []
    faults = [f"process {pid} ({_command(pid)}) was left by a run" for pid in left]
    if bench.on_cpu:
        return {}, faults
    facts: dict[str, Any] = {"holders": sorted(_holders(mine))}
    if (state := _state(bench.uuid)) is None:
        return facts, faults
    settings = {name: value for name, value in state.settings.document().items() if name != "pcie_width"}
    facts |= {"settings": settings, "memory_used_mib": state.memory_used_mib, "ecc_corrected": state.ecc_corrected}
    others = (each for each in state.processes or () if each.pid not in mine)
    faults += [f"process {each.pid} ({each.name or 'of somebody else'}) uses the device" for each in others]
    if state.ecc_uncorrected:
        faults.append(f"{state.ecc_uncorrected} uncorrectable ECC errors since the driver was loaded")
    if state.rows_failed:
        faults.append("remapping of a broken row of memory has failed")
    return facts, faults


def _holders(mine: set[int]) -> Iterator[str]:
    """Other processes that have a device's file open: 'pid command: file'."""
    for pid in {*live()} - mine:
        with suppress(OSError):  # it has ended, or is somebody else's
            files = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
            yield from (f"{pid} {_command(pid)}: {name}" for name in files if _DEVICE_FILES.fullmatch(name))


def _command(pid: int) -> str:
    return b" ".join(words_of(pid, "cmdline")).decode(errors="replace").strip()[:80] or "?"
