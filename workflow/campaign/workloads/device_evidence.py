"""Evidence from ranks that their work was on the devices of the run. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from campaign.documents.record import Failure
from campaign.fabrics.host_agents.pairing import normal
from campaign.workloads.protocol import Run
from campaign.workloads.trainer.rank_interface import RankResult

_UUID = re.compile(r"[0-9a-f]{32}")


def ran_on(results: Sequence[RankResult]) -> tuple[str, ...]:
    """By rank, what it says its work was on: torch's devices, and the UUID where torch tells it; empty where no rank says it."""
    told = (" ".join((*result.work_on, result.device_uuid or "")).strip() for result in results if result.work_on)
    return tuple(told)


def other_devices(run: Run, results: Sequence[RankResult]) -> Failure | None:
    """Why these are not the devices that the run was given, one for each rank; None where nothing says so.

    Parts of devices and remote ones are left out: what they show as their UUID is no evidence. The names that a composition gives
    count under Slurm, where they were found on the host before anything ran.
    """
    if any(device.launch for device in run.devices):
        return None
    uuids = {result.rank: normal(result.device_uuid) for result in results if result.device_uuid}
    if twice := [uuid for uuid, count in Counter(uuids.values()).items() if count > 1]:
        ranks = ", ".join(str(rank) for rank, uuid in uuids.items() if uuid == twice[0])
        return Failure(reason="several ranks used one device", evidence=f"ranks {ranks} report the device {twice[0]}")
    names = [normal(device.host_id or "") for device in run.devices]
    if run.launcher != "slurm" or run.runs_on != "cuda" or not all(map(_UUID.fullmatch, names)):
        return None
    for rank, uuid in uuids.items():
        if uuid not in names:
            evidence = f"rank {rank} reports the device {uuid}; the run was given {', '.join(names)}"
            return Failure(reason="a rank used a device that is not of the run", evidence=evidence, rank=rank)
    return None
