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
from campaign.slurm.verify_devices import DevicesDiffer, checked, devices_script, on_host, runs_on
from campaign.spec.hardware import ComposedHost, Composition, own_devices
from campaign.spec.system_file import SystemFile

_TIMEOUT_S = 120.0  # the first query of a GPU that nobody uses loads its driver


def verify_here(system: SystemFile, composition: Composition, directory: Path) -> Composition:
    """Verify that this machine has the devices of a composition, and return the composition with the machine's device names.

    Names are added as `host_id` where the fabric does not report them. The list is kept in `directory`/devices.txt. Cores that
    stand
    for devices are neither listed nor named. Raises DevicesDiffer if this machine has fewer or other devices, and LaunchError if
    they
    cannot be listed.
    """
    devices = tuple(device for host in composition.hosts for device in host.devices)
    if all(runs_on(system, device) == "cpu" for device in devices):
        return composition
    # Several hosts are names of this one.
    machine = ComposedHost(platform.node() or "this machine", 0, 0.0, devices)
    command, identified = devices_script(system, Composition((machine,)))
    try:
        answer = run_command(["sh", "-c", command], _TIMEOUT_S)
    except OSError as error:
        raise LaunchError(f"the devices of {machine.name} could not be listed: {error}") from error
    make_directory(directory)
    (directory / "devices.txt").write_text(answer.out, encoding="utf-8")
    found = checked(
        system, Composition((machine,)), {machine.name: tuple(answer.out.splitlines())}, identified=identified
    )
    if (
        system.fabric["kind"] == "simulated"
        and found.lost
        and not any(d.host_id and d not in found.lost for d in devices)
    ):
        # The simulated fabric invents names; its devices are those of this machine.
        return verify_here(system, _named(composition, {}), directory)
    for words in found.problems.values():
        message = f"devices of {machine.name} differ from the composition: {words}. Nothing was measured"
        raise DevicesDiffer(message, lost=found.lost)
    listed = _names(system, composition, machine, found.hosts[machine.name])
    return _named(composition, {device.fabric_id: device.host_id or listed.get(device.fabric_id) for device in devices})


def _named(composition: Composition, names: Mapping[str, str | None]) -> Composition:
    """Return the composition with each device named as in `names`, by fabric id."""
    hosts = (
        replace(host, devices=tuple(replace(d, host_id=names.get(d.fabric_id)) for d in host.devices))
        for host in composition.hosts
    )
    return replace(composition, hosts=tuple(hosts))


def _names(
    system: SystemFile, composition: Composition, machine: ComposedHost, seen: tuple[DetectedDevice, ...]
) -> dict[str, str]:
    """Return device names by fabric id.

    A host's own devices are numbered in the order in which they are listed. Other devices can be identified only if the machine
    has
    exactly as many as the composition.
    """
    specs = {spec.name: spec for entry in system.hosts for spec in entry.split_hosts()}
    hosts = [specs[host.name] for host in composition.hosts if host.name in specs]
    own = [device.fabric_id for host in hosts for device in own_devices(host) if device.computes]
    wanted = on_host(machine)
    if all(device.fabric_id in own for device in wanted):
        order = own
    elif len(seen) == len(wanted):
        order = [device.fabric_id for device in wanted]
    else:
        order = []
    return {name: each.identity for name, each in zip(order, seen, strict=False) if each.identity}
