"""Devices of a composition that each run uses, in order of use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from campaign.common.accelerators import ACCELERATORS, Accelerator, AcceleratorKind
from campaign.common.errors import LaunchError
from campaign.spec.hardware import Composition, Device
from campaign.spec.launch_prefix import Given, given
from campaign.spec.system_file import DeviceModel, SystemFile
from campaign.workloads.protocol import Step


class UsedDevices:
    """Devices of one composition by host, in the order in which runs use them.

    system: system file with the kinds of the devices.
    """

    def __init__(self, composition: Composition, system: SystemFile | None = None) -> None:
        self.by_host = {host.name: list(host.in_order) for host in composition.hosts}
        self._models = {} if system is None else system.devices

    def of(self, step: Step) -> dict[str, list[Device]]:
        """Return the devices that a step uses, by host."""
        return {host: self.by_host.get(host, [])[:count] for host, count in step.ranks_by_host.items()}

    def given(self, step: Step) -> list[Given]:
        """Build the device environment of each process of a step, from its devices' launch rules.

        Raises LaunchError if one program cannot use these devices.
        """
        if not step.takes_devices or not any(device.launch for each in self.of(step).values() for device in each):
            return [Given()] * step.processes
        if step.per_rank:
            return [
                given([device.launch for device in self.by_host.get(host, [])[local : local + 1]], host)
                for host, local in step.ranks
            ]
        (first, *others) = self.of(step).items()
        if others:
            raise LaunchError(
                f"{step.argv[0]}: is one program on {first[0]}, and its devices on {', '.join(host for host, _ in others)} need a "
                "prefix or an environment of their own; start it once per rank"
            )
        try:
            return [given([device.launch for device in first[1]], first[0])]
        except ValueError as error:
            raise LaunchError(f"{step.argv[0]}: {error}; start it once per rank") from error

    def named(self, step: Step) -> tuple[Accelerator | None, dict[str, Sequence[str]]]:
        """Return the kind of a step's devices and their names by host, for a device mask.

        Returns (None, {}) unless all devices have names that a mask can use. Without a mask, a run gets any of the host's
        devices.
        """
        used = self.of(step)
        every = [device for devices in used.values() for device in devices]
        kinds = {self.runs_on(device) for device in every}
        if (
            not step.takes_devices
            or len(kinds) != 1
            or not all(device.host_id and not device.launch for device in every)
        ):
            return None, {}
        kind = ACCELERATORS[kinds.pop()]
        if not kind.make_mask([str(device.host_id) for device in every]):
            return None, {}
        return kind, {host: [str(device.host_id) for device in devices] for host, devices in used.items()}

    def masked(
        self, step: Step, kind: Accelerator, named: Mapping[str, Sequence[str]], given: Sequence[Given]
    ) -> list[Given]:
        """Return the environment of each process with a device mask added.

        The mask holds the devices of the host, among which ranks choose by LOCAL_RANK. If the kind of device needs it, the mask
        holds only the rank's own device.

        Args:
            step: the step.
            kind: kind of the devices.
            names_by_host: device names by host, as `named_devices` returns them.
            environments: environment of each process without the mask.
        """
        if not step.per_rank:
            names = [list(next(iter(named.values())))]
        elif kind.mask_per_rank:
            names = [list(named[host][local : local + 1]) for host, local in step.ranks]
        else:
            names = [list(named[host]) for host, _ in step.ranks]
        return [
            replace(each, environment={**kind.make_mask(own), **each.environment})
            for each, own in zip(given, names, strict=False)
        ]

    def runs_on(self, device: Device) -> AcceleratorKind:
        return self._models.get(device.model, DeviceModel()).runs_on
