"""Devices of a composition that each run uses, in order of use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from campaign.common.accelerators import ACCELERATORS, Accelerator, AcceleratorKind
from campaign.common.errors import LaunchError
from campaign.spec.hardware import Composition, Device
from campaign.spec.launch_prefix import DeviceEnvironment, build_device_environment
from campaign.spec.system_file import DeviceModel, SystemFile
from campaign.workloads.protocol import Step


class UsedDevices:
    """Devices of one composition by host, in the order in which runs use them. The system file gives their kinds."""

    def __init__(self, composition: Composition, system: SystemFile | None = None) -> None:
        self.by_host = {host.name: list(host.ordered_devices) for host in composition.hosts}
        self._models = {} if system is None else system.devices

    def devices_by_host(self, step: Step) -> dict[str, list[Device]]:
        """Return the devices that a step uses, by host."""
        return {host: self.by_host.get(host, [])[:count] for host, count in step.ranks_by_host.items()}

    def build_environments(self, step: Step) -> list[DeviceEnvironment]:
        """Build the device environment of each process of a step, from its devices' launch rules.

        Raises LaunchError if one program cannot use these devices.
        """
        if not step.takes_devices or not any(
            device.launch for devices in self.devices_by_host(step).values() for device in devices
        ):
            return [DeviceEnvironment()] * step.process_count
        if step.per_rank:
            return [
                build_device_environment(
                    [device.launch for device in self.by_host.get(host, [])[local : local + 1]], host
                )
                for host, local in step.rank_locations
            ]
        (first, *other_hosts) = self.devices_by_host(step).items()
        if other_hosts:
            raise LaunchError(
                f"{step.argv[0]}: this program starts once, on {first[0]}, but its devices on "
                f"{', '.join(host for host, _ in other_hosts)} need their own prefix or environment; start it once per rank"
            )
        try:
            return [build_device_environment([device.launch for device in first[1]], first[0])]
        except ValueError as error:
            raise LaunchError(f"{step.argv[0]}: {error}; start it once per rank") from error

    def named_devices(self, step: Step) -> tuple[Accelerator | None, dict[str, Sequence[str]]]:
        """Return the kind of a step's devices and their names by host, for a device mask.

        Returns (None, {}) unless all devices have names that a mask can use. Without a mask, a run gets any of the host's
        devices.
        """
        devices_used = self.devices_by_host(step)
        all_devices = [device for devices in devices_used.values() for device in devices]
        kinds = {self.device_kind(device) for device in all_devices}
        if (
            not step.takes_devices
            or len(kinds) != 1
            or not all(device.host_id and not device.launch for device in all_devices)
        ):
            return None, {}
        kind = ACCELERATORS[kinds.pop()]
        if not kind.make_mask([str(device.host_id) for device in all_devices]):
            return None, {}
        return kind, {host: [str(device.host_id) for device in devices] for host, devices in devices_used.items()}

    def mask_environments(
        self,
        step: Step,
        kind: Accelerator,
        names_by_host: Mapping[str, Sequence[str]],
        environments: Sequence[DeviceEnvironment],
    ) -> list[DeviceEnvironment]:
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
            names = [list(next(iter(names_by_host.values())))]
        elif kind.mask_per_rank:
            names = [list(names_by_host[host][local : local + 1]) for host, local in step.rank_locations]
        else:
            names = [list(names_by_host[host]) for host, _ in step.rank_locations]
        return [
            replace(environment, environment={**kind.make_mask(visible_names), **environment.environment})
            for environment, visible_names in zip(environments, names, strict=False)
        ]

    def device_kind(self, device: Device) -> AcceleratorKind:
        return self._models.get(device.model, DeviceModel()).runs_on
