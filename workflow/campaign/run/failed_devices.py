"""Attribution of failed runs to the workload or to a device. Devices that failed are fenced."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from campaign.common.errors import LaunchError
from campaign.lease.fenced_devices import Fence, FencedDevices
from campaign.run.local_devices import verify_local_devices
from campaign.slurm.verify_devices import DeviceMismatchError, verify_devices_of_hosts
from campaign.spec.hardware import Composition, Device
from campaign.spec.record import Failure
from campaign.spec.run_numbers import format_run_number
from campaign.spec.system_file import SystemFile
from campaign.workloads.device_faults import STATUSES_OF_LOST_DEVICES, DeviceFault, find_device_fault
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Run, Step, StepEnd


@dataclass(frozen=True)
class DeviceFaultHandler:
    """Fault handler for the devices of one composition during the runs of a campaign.

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

    def judge_outcome(self, run: Run, step: Step, ended: StepEnd, outcome: Outcome, log: Log) -> Outcome:
        """Return the outcome of a run if the workload is responsible for it.

        Raises LaunchError if devices failed or could not be used. Failed devices are fenced.
        """
        fault = find_device_fault(run.runs_on, outcome.status, log, len(ended.codes))
        if fault is None:
            if outcome.status in STATUSES_OF_LOST_DEVICES and run.runs_on != "cpu":
                self._verify_devices(run)
            return outcome
        if fault.kind == "unavailable":
            raise LaunchError(
                f"{_describe_run(run)}: its devices could not be used: {fault.evidence}; the run has no record"
            )
        device = _find_faulty_device(run, step, fault)
        if fault.kind == "suspicion":
            return self._judge_suspicion(run, device, fault, outcome)
        if device is None:
            raise LaunchError(
                f"{_describe_run(run)}: a device failed: {fault.evidence}; it is unknown which one, so none is fenced; the run has "
                "no record"
            )
        raise self._fence_device(run, device, fault.evidence, is_suspected=False)

    def _judge_suspicion(self, run: Run, device: Device | None, fault: DeviceFault, outcome: Outcome) -> Outcome:
        """Return the outcome if the program is probably at fault, otherwise fence the device.

        The program is at fault if the run failed in the same way before, or if its workload failed on two devices.
        """
        failure = Failure(reason="a fault of the program on the device", evidence=fault.evidence, rank=fault.rank)
        crashed_outcome = replace(outcome, status="crashed", failure=failure)
        if device is None:
            return crashed_outcome
        workload_fences = [
            prior_fence
            for prior_fence in self.fenced.read_all()
            if prior_fence.suspected
            and (prior_fence.campaign, prior_fence.workload) == (self.campaign, run.cell.workload)
        ]
        run_fences = [prior_fence for prior_fence in workload_fences if prior_fence.run == _run_name(run)]
        if not run_fences and not any(prior_fence.lifted for prior_fence in workload_fences):
            raise self._fence_device(run, device, fault.evidence, is_suspected=True)
        self.fenced.lift_fences(
            lambda fence: fence in run_fences, f"{_run_name(run)} failed in the same way on {device.fabric_id}"
        )
        other_devices = {prior_fence.device for prior_fence in run_fences} - {device.physical_id}
        flags = [f"failed alike on {', '.join(sorted(other_devices))}"] if other_devices else []
        return replace(crashed_outcome, flags=(*outcome.flags, *flags))

    def _verify_devices(self, run: Run) -> None:
        """Verify the devices of the composition on their hosts, because a device may leave the bus without an error.

        Raises LaunchError if the devices differ. Missing devices are fenced.
        """
        verify_on_hosts = verify_local_devices if self.system.launcher == "local" else verify_devices_of_hosts
        try:
            verify_on_hosts(self.system, self.composition, self.work)
        except DeviceMismatchError as error:
            for device in error.missing_devices:
                self._fence_device(run, device, "its host no longer lists it", is_suspected=False)
            raise

    def _fence_device(self, run: Run, device: Device, reason: str, *, is_suspected: bool) -> LaunchError:
        """Fence a device and return the error that reports it."""
        hosts = (
            host.name for host in self.composition.hosts if device.fabric_id in {d.fabric_id for d in host.devices}
        )
        fence = Fence(
            device=device.physical_id,
            uuid=device.host_id or "",
            model=device.model,
            host=next(hosts, ""),
            why=reason,
            campaign=self.campaign,
            workload=run.cell.workload,
            run=_run_name(run),
            suspected=is_suspected,
            time_s=time.time(),
        )
        self.fenced.add_fence(fence)
        repetition_place = "on another device" if is_suspected else "without it"
        return LaunchError(
            f"{_describe_run(run)}: {fence.describe()}; the device is fenced, and the run is repeated {repetition_place}"
        )


def _run_name(run: Run) -> str:
    """Return the name of a run in the form CELL.NUMBER."""
    return f"{run.cell.id}.{run.repetition}"


def _describe_run(run: Run) -> str:
    """Describe a run for readers by its cell, composition and number."""
    return f"{run.cell.id}, {format_run_number(run.repetition)}"


def _find_faulty_device(run: Run, step: Step, fault: DeviceFault) -> Device | None:
    """Return the device of the rank that reports a fault.

    The result is None if the device cannot be identified, for example if one process uses several devices.
    """
    if len(run.devices) == 1:
        return run.devices[0]
    if fault.rank is None or fault.rank >= len(run.devices) or (step.preload and not step.per_rank):
        return None
    return run.devices[fault.rank]
