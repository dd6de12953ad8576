"""First step of every allocation, in which each host lists its devices and the lists are compared with the composition.

The list of a host counts more than the reports of the fabric and of Slurm: Slurm 22.05 runs jobs with fewer devices or none
after a change of Gres in place. Nothing is measured before the devices of all hosts have been verified.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.common.accelerators import ACCELERATORS, Accelerator, AcceleratorKind, DetectedDevice
from campaign.common.accelerators.accelerator import parse_identity_and_model
from campaign.common.errors import HostFailed, LaunchError
from campaign.common.files import make_directory
from campaign.slurm.run_on_hosts import ask_hosts, devices_of_tasks, together
from campaign.spec.hardware import ComposedHost, Composition, Device, normal
from campaign.spec.system_file import DeviceModel, SystemFile

_DEVICE, _END = "device ", "exit "
# Slurm's grant, one line a device; a step that asks for more than the host has is refused, or gets an empty list.
_GRANTED = """IFS=,
for device in {granted}; do
  test "$device" = NoDevFiles || echo "device $device"
done
echo "exit 0"
"""
_MASKS = [mask for each in ACCELERATORS.values() for mask in each.mask_variables[:1]]
_REPORTED = """said=$({command} 2>&1)
code=$?
printf '%s\\n' "$said" | while IFS= read -r line; do echo "device $line"; done
echo "exit $code"
"""
_TIMEOUT_S = 120.0  # the first query of a GPU that nobody uses loads its driver


class DevicesDiffer(HostFailed):
    """Error for hosts whose devices differ from the composition.

    Args:
        message: text for the user.
        hosts: problem by host.
        lost: devices of the composition that a host does not list.
    """

    def __init__(self, message: str, hosts: Mapping[str, str] | None = None, lost: Sequence[Device] = ()) -> None:
        super().__init__(message, hosts)
        self.lost = tuple(lost)


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of the comparison of the listed devices with the composition.

    Args:
        hosts: listed devices by host.
        problems: problem by host.
        lost: devices of the composition that a host does not list.
    """

    hosts: Mapping[str, tuple[DetectedDevice, ...]]
    problems: Mapping[str, str]
    lost: tuple[Device, ...] = ()


def verify(system: SystemFile, composition: Composition, directory: Path) -> Verified:
    """Have every host of the composition list its devices, and compare the lists with the composition.

    The lists are kept in `directory`/devices.txt. Raises DevicesDiffer if a host has fewer or other devices than the
    composition,
    and HostFailed if a host does not answer.
    """
    hosts = [host.name for host in composition.hosts]
    command, identified = devices_script(system, composition)
    counts = {host.name: len(on_host(host)) for host in composition.hosts}
    if len(set(counts.values())) > 1:
        # The job requested no number, and --gres sets the same number on all hosts. Each task requests its devices instead.
        alike = [[host for host in hosts if counts[host] == count] for count in dict.fromkeys(counts.values())]
        answers = together(
            ask_hosts(each, command, devices=devices_of_tasks(system.slurm.gres, counts[each[0]]), timeout_s=_TIMEOUT_S)
            for each in alike
        )
    else:
        most = max(counts.values(), default=0)
        gres = f"{system.slurm.gres}:{most}" if system.slurm.gres and most else "none"
        # Devices are identified among all that the job has: a grant of as many as were composed might be of the others.
        answers = ask_hosts(hosts, command, devices=() if identified else (f"--gres={gres}",), timeout_s=_TIMEOUT_S)
    make_directory(directory)
    told = [f"{host}: {line}\n" for host, lines in answers.lines.items() for line in lines]
    (directory / "devices.txt").write_text("".join(told) + answers.words, encoding="utf-8")
    if answers.failed:
        said = "; ".join(f"{host}: {why}" for host, why in answers.failed.items())
        raise HostFailed(f"the devices of a host could not be queried: {said}", answers.failed)
    if answers.problem:
        raise LaunchError(f"the devices of {', '.join(hosts)} could not be queried: {answers.problem}")
    found = checked(system, composition, answers.lines, identified=identified)
    if found.problems:
        said = "; ".join(f"{host}: {what}" for host, what in found.problems.items())
        raise DevicesDiffer(
            f"devices differ from the composition: {said}. Nothing was measured; check how Slurm learns of devices "
            f"(slurm.strategy: {system.slurm.strategy}), and `scontrol show node`",
            found.problems,
            found.lost,
        )
    return found


def devices_script(system: SystemFile, composition: Composition) -> tuple[str, bool]:
    """Build the shell script that lists the devices of a host.

    The second result is True if the output identifies the devices, and False if the devices can only be counted.
    """
    command = system.slurm.devices_command or kind_of(system, composition.hosts).list_command
    if not command:
        granted = "".join(f"${{{mask}-" for mask in _MASKS) + "}" * len(_MASKS)
        return _GRANTED.replace("{granted}", granted), False
    return _REPORTED.replace("{command}", shlex.join(command)), True


def kind_of(system: SystemFile, hosts: Sequence[ComposedHost]) -> Accelerator:
    """Return the kind of accelerator in a composition, or that of CPU processes if it has no other."""
    kinds = [ACCELERATORS[runs_on(system, device)] for host in hosts for device in on_host(host)]
    return next((kind for kind in kinds if kind.list_command), ACCELERATORS["cpu"])


def checked(
    system: SystemFile, composition: Composition, lines: Mapping[str, tuple[str, ...]], *, identified: bool
) -> Verified:
    """Compare the output lines of the hosts with the composition. Pure.

    Args:
        system: system file with the device models.
        composition: composition that the hosts should have.
        lines: output lines by host.
        identified: True if the lines identify devices; otherwise devices are only counted, if Slurm grants devices at all.
    """
    parse = (
        parse_identity_and_model if system.slurm.devices_command else kind_of(system, composition.hosts).parse_devices
    )
    seen: dict[str, tuple[DetectedDevice, ...]] = {}
    problems: dict[str, str] = {}
    lost: list[Device] = []
    for host in composition.hosts:
        said = lines.get(host.name, ())
        ended = next((line.removeprefix(_END) for line in said if line.startswith(_END)), "unknown")
        texts = [line.removeprefix(_DEVICE) for line in said if line.startswith(_DEVICE)]
        seen[host.name] = parse(texts) if identified else tuple(DetectedDevice() for text in texts if text.strip())
        # Slurm tells a step its devices by a variable for GPUs only.
        comparable = identified or system.slurm.gres.partition(":")[0] == "gpu"
        if ended != "0":
            words = f"the command that lists its devices failed (exit code {ended}): {' '.join(texts)[:200]}"
            problems[host.name] = words
        elif comparable and (problem := _difference(system, host, seen[host.name], identified=identified)):
            problems[host.name] = problem
            lost += _lost(system, host, seen[host.name]) if identified else ()
    return Verified(seen, problems, tuple(lost))


def _difference(
    system: SystemFile, host: ComposedHost, seen: tuple[DetectedDevice, ...], *, identified: bool
) -> str | None:
    """Describe how the listed devices of a host differ from the composition, or return None if they match.

    Additional devices do no harm, because each run gets the list of its own.
    """
    wanted = on_host(host)
    if len(seen) < len(wanted):
        return f"{len(seen)} devices found, {len(wanted)} composed"
    if not identified:
        return None
    if lost := [f"{device.fabric_id} ({device.host_id})" for device in _lost(system, host, seen)]:
        return f"{', '.join(lost)} not among {', '.join(sorted({device.identity for device in seen}))}"
    models = {device.identity: device.model for device in seen}
    for model in dict.fromkeys(device.model for device in wanted):
        called = system.devices.get(model, DeviceModel()).reported_as
        if called is None or not any(models.values()):  # amd-smi lists no models
            continue
        count = sum(device.model == model for device in wanted)
        fitting = sum(each == called for each in models.values()) if len(models) == len(seen) else 0
        if fitting < count:
            others = ", ".join(sorted({each for each in models.values() if each != called})) or "nothing"
            return f"{fitting} of {count} {model} report '{called}'; found {others}"
    return None


def _lost(system: SystemFile, host: ComposedHost, seen: Sequence[DetectedDevice]) -> list[Device]:
    """Return the devices of a host whose names on the host are known but are missing from its list."""
    # Fabrics and hosts write one identity in more ways than one.
    there = {normal(name) for device in seen for name in (device.identity, device.address) if name}
    return [
        device
        for device in on_host(host)
        # The host's tools do not know an emulated device by the fabric's host id, and a number or `card.tile` identifies none.
        if device.host_id and runs_on(system, device) != "cpu" and not device.host_id.replace(".", "", 1).isdecimal()
        if normal(device.host_id) not in there
    ]


def on_host(host: ComposedHost) -> tuple[Device, ...]:
    """Return the physical devices of a host, with one entry for all parts of a device.

    Remote devices are left out, because a run reaches them in other ways.
    """
    found: dict[str, Device] = {}
    for device in host.devices:
        if device.launch is None or device.local:
            found.setdefault(device.physical, device)
    return tuple(found.values())


def runs_on(system: SystemFile, device: Device) -> AcceleratorKind:
    """Return the kind of a device, as the system file states it for the model."""
    return system.devices.get(device.model, DeviceModel()).runs_on
