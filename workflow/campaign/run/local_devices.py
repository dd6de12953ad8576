"""Devices of this machine for local runs: list them, compare them with the composition, and name them for device masks."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from campaign.common.accelerators import DetectedDevice
from campaign.common.errors import LaunchError
from campaign.common.files import make_directory
from campaign.common.processes.command import run_command
from campaign.slurm.verify_devices import (
    DeviceMismatchError,
    build_devices_script,
    compare_devices,
    find_device_kind,
    list_physical_devices,
)
from campaign.spec.hardware import ComposedHost, Composition, list_built_in_devices
from campaign.spec.system_file import SystemFile

_TIMEOUT_S = 120.0  # the first query of an unused GPU loads its driver


def verify_local_devices(system: SystemFile, composition: Composition, directory: Path) -> Composition:
    """Verify that this machine has the devices of a composition, and return the composition with the machine's device names.

    Names are added as `host_id` if the fabric does not report them. The list is kept in `directory`/devices.txt. Cores that
    represent devices are neither listed nor named. Raises DeviceMismatchError if this machine has fewer or other devices, and
    LaunchError if they cannot be listed.
    """
    devices = tuple(device for host in composition.hosts for device in host.devices)
    if all(find_device_kind(system, device) == "cpu" for device in devices):
        return composition
    # All hosts of the composition are names of this machine.
    machine = ComposedHost(platform.node() or "this machine", 0, 0.0, devices)
    command, is_identified = build_devices_script(system, Composition((machine,)))
    try:
        answer = run_command(["sh", "-c", command], _TIMEOUT_S)
    except OSError as error:
        raise LaunchError(f"the devices of {machine.name} could not be listed: {error}") from error
    make_directory(directory)
    (directory / "devices.txt").write_text(answer.out, encoding="utf-8")
    comparison = compare_devices(
        system, Composition((machine,)), {machine.name: tuple(answer.out.splitlines())}, is_identified=is_identified
    )
    if (
        system.fabric["kind"] == "simulated"
        and comparison.missing_devices
        and not any(d.host_id and d not in comparison.missing_devices for d in devices)
    ):
        # The simulated fabric invents device names, but its devices are those of this machine.
        return verify_local_devices(system, _with_device_names(composition, {}), directory)
    for problem in comparison.problems.values():
        message = f"the devices of {machine.name} differ from the composition: {problem}. Nothing was measured"
        raise DeviceMismatchError(message, missing_devices=comparison.missing_devices)
    names = _match_names(system, composition, machine, comparison.hosts[machine.name])
    return _with_device_names(
        composition, {device.fabric_id: device.host_id or names.get(device.fabric_id) for device in devices}
    )


def _with_device_names(composition: Composition, names: Mapping[str, str | None]) -> Composition:
    """Return the composition with its devices named as in `names`, which maps fabric ids to names."""
    hosts = (
        replace(host, devices=tuple(replace(d, host_id=names.get(d.fabric_id)) for d in host.devices))
        for host in composition.hosts
    )
    return replace(composition, hosts=tuple(hosts))


def _match_names(
    system: SystemFile, composition: Composition, machine: ComposedHost, detected: tuple[DetectedDevice, ...]
) -> dict[str, str]:
    """Return device names by fabric id.

    The built-in devices of a host are numbered in the order in which they are listed. Other devices can be identified only if
    the machine has exactly as many as the composition.
    """
    specs = {spec.name: spec for entry in system.hosts for spec in entry.split_hosts()}
    hosts = [specs[host.name] for host in composition.hosts if host.name in specs]
    local_ids = [device.fabric_id for host in hosts for device in list_built_in_devices(host) if device.can_compute]
    expected_devices = list_physical_devices(machine)
    if all(device.fabric_id in local_ids for device in expected_devices):
        order = local_ids
    elif len(detected) == len(expected_devices):
        order = [device.fabric_id for device in expected_devices]
    else:
        order = []
    return {
        name: detected_device.identity
        for name, detected_device in zip(order, detected, strict=False)
        if detected_device.identity
    }
