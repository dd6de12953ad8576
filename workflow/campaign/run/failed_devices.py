"""Attribution of failed runs to the workload or to a device; devices that failed are fenced."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from campaign.common.errors import LaunchError
from campaign.lease.fenced_devices import Fence, FencedDevices
from campaign.run.local_devices import verify_here
from campaign.slurm.verify_devices import DevicesDiffer, verify
from campaign.spec.hardware import Composition, Device
from campaign.spec.record import Failure
from campaign.spec.system_file import SystemFile
from campaign.workloads.device_faults import DOUBTFUL, DeviceFault, device_fault
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run, Step


@dataclass(frozen=True)
class FailedDevices:
    """Fault handling for the devices of one composition during the runs of a campaign.

    Args:
        system: system file.
        composition: hosts and devices in use.
        fenced: fences of the system.
        campaign: name of the campaign.
        work: working directory for lists of devices.
    """

    system: SystemFile
    composition: Composition
    fenced: FencedDevices
    campaign: str
    work: Path

    def judged(self, run: Run, step: Step, ended: Ended, outcome: Outcome, log: Log) -> Outcome:
        """Return the outcome of a run if the workload is responsible for it.

        Raises LaunchError if devices failed or could not be used. Failed devices are fenced.
        """
        fault = device_fault(run.runs_on, outcome.status, log, len(ended.codes))
        if fault is None:
            if outcome.status in DOUBTFUL and run.runs_on != "cpu":
                self._look(run)
            return outcome
        if fault.kind == "unavailable":
            raise LaunchError(f"{_name(run)}: its devices could not be used: {fault.evidence}; the run has no record")
        device = _device(run, step, fault)
        if fault.kind == "suspicion":
            return self._suspected(run, device, fault, outcome)
        if device is None:
            words = "which of its devices is not known, so that none is fenced"
            raise LaunchError(f"{_name(run)}: a device failed: {fault.evidence}; {words}; the run has no record")
        raise self._fenced(run, device, fault.evidence, suspected=False)

    def _suspected(self, run: Run, device: Device | None, fault: DeviceFault, outcome: Outcome) -> Outcome:
        """Return the outcome if the run failed the same way before or its workload failed on two devices; otherwise fence the
        device.
        """
        failure = Failure(reason="a fault of the program on the device", evidence=fault.evidence, rank=fault.rank)
        found = replace(outcome, status="crashed", failure=failure)
        if device is None:
            return found
        mine = [
            each
            for each in self.fenced.read_all()
            if each.suspected and (each.campaign, each.workload) == (self.campaign, run.cell.workload)
        ]
        before = [each for each in mine if each.run == _name(run)]
        if not before and not any(each.lifted for each in mine):
            raise self._fenced(run, device, fault.evidence, suspected=True)
        self.fenced.lift_fences(lambda fence: fence in before, f"{_name(run)} failed alike on {device.fabric_id}")
        others = {each.device for each in before} - {device.physical}
        flags = [f"failed alike on {', '.join(sorted(others))}"] if others else []
        return replace(found, flags=(*outcome.flags, *flags))

    def _look(self, run: Run) -> None:
        """Verify the devices of the composition on their hosts, because a device that left the bus need not report an error.

        Raises LaunchError if the devices differ. Lost devices are fenced.
        """
        look = verify_here if self.system.launcher == "local" else verify
        try:
            look(self.system, self.composition, self.work)
        except DevicesDiffer as error:
            for device in error.lost:
                self._fenced(run, device, "its host does not list it any more", suspected=False)
            raise

    def _fenced(self, run: Run, device: Device, why: str, *, suspected: bool) -> LaunchError:
        """Fence a device and return the error that reports it."""
        hosts = (
            host.name for host in self.composition.hosts if device.fabric_id in {d.fabric_id for d in host.devices}
        )
        fence = Fence(
            device=device.physical,
            uuid=device.host_id or "",
            model=device.model,
            host=next(hosts, ""),
            why=why,
            campaign=self.campaign,
            workload=run.cell.workload,
            run=_name(run),
            suspected=suspected,
            time_s=time.time(),
        )
        self.fenced.add_fence(fence)
        where = "on another device" if suspected else "without it"
        return LaunchError(f"{_name(run)}: {fence.describe()}; it is fenced, and the run is repeated {where}")


def _name(run: Run) -> str:
    """Return the name of a run, CELL.NUMBER."""
    return f"{run.cell.id}.{run.repetition}"


def _device(run: Run, step: Step, fault: DeviceFault) -> Device | None:
    """Return the device of the rank that reports a fault.

    The result is None if the device cannot be identified, e.g. if one process uses several devices.
    """
    if len(run.devices) == 1:
        return run.devices[0]
    if fault.rank is None or fault.rank >= len(run.devices) or (step.preload and not step.per_rank):
        return None
    return run.devices[fault.rank]
