"""First step of every allocation: each host lists its devices, and the lists are compared with the composition.

The list of a host is more reliable than the reports of the fabric and of Slurm. After a change of Gres in place, Slurm 22.05
runs jobs with fewer devices or none. Nothing is measured before the devices of all hosts have been verified.
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
from campaign.slurm.run_on_hosts import build_device_options, merge_answers, run_script_on_hosts
from campaign.spec.hardware import ComposedHost, Composition, Device, normalize_identity
from campaign.spec.system_file import DeviceModel, SystemFile

_DEVICE_PREFIX, _EXIT_PREFIX = "device ", "exit "
# Prints the devices that Slurm granted, one line per device. A step that requests more than the host has is refused or gets none.
_GRANTED_DEVICES_SCRIPT = """IFS=,
for device in {granted}; do
  test "$device" = NoDevFiles || echo "device $device"
done
echo "exit 0"
"""
_MASKS = [mask for each in ACCELERATORS.values() for mask in each.mask_variables[:1]]
_LIST_DEVICES_SCRIPT = """said=$({command} 2>&1)
code=$?
printf '%s\\n' "$said" | while IFS= read -r line; do echo "device $line"; done
echo "exit $code"
"""
_TIMEOUT_S = 120.0  # the first query of an unused GPU loads its driver


class DeviceMismatchError(HostFailed):
    """Error for hosts whose devices differ from the composition.

    Args:
        message: text for the user.
        hosts: problem by host.
        missing_devices: devices of the composition that a host does not list; stored as `lost`.
    """

    def __init__(
        self, message: str, hosts: Mapping[str, str] | None = None, missing_devices: Sequence[Device] = ()
    ) -> None:
        super().__init__(message, hosts)
        self.missing_devices = tuple(missing_devices)


@dataclass(frozen=True, slots=True)
class DeviceVerification:
    """Result of the comparison of the listed devices with the composition.

    Args:
        hosts: listed devices by host.
        problems: problem by host.
        lost: devices of the composition that a host does not list.
    """

    hosts: Mapping[str, tuple[DetectedDevice, ...]]
    problems: Mapping[str, str]
    missing_devices: tuple[Device, ...] = ()


def verify_devices_of_hosts(system: SystemFile, composition: Composition, directory: Path) -> DeviceVerification:
    """Make every host of the composition list its devices, and compare the lists with the composition.

    The lists are kept in `directory`/devices.txt. Raises DeviceMismatchError if a host has fewer or other devices than the
    composition, and HostFailed if a host does not answer.
    """
    hosts = [host.name for host in composition.hosts]
    command, is_identified = build_devices_script(system, composition)
    counts = {host.name: len(list_physical_devices(host)) for host in composition.hosts}
    if len(set(counts.values())) > 1:
        # Hosts have different numbers of devices, but --gres sets the same number on all hosts. Each task requests its devices.
        host_groups = [[host for host in hosts if counts[host] == count] for count in dict.fromkeys(counts.values())]
        answers = merge_answers(
            run_script_on_hosts(
                group,
                command,
                device_options=build_device_options(system.slurm.gres, counts[group[0]]),
                timeout_s=_TIMEOUT_S,
            )
            for group in host_groups
        )
    else:
        max_count = max(counts.values(), default=0)
        gres = f"{system.slurm.gres}:{max_count}" if system.slurm.gres and max_count else "none"
        # The step sees all devices of the job, because Slurm could grant it devices outside of the composition otherwise.
        answers = run_script_on_hosts(
            hosts, command, device_options=() if is_identified else (f"--gres={gres}",), timeout_s=_TIMEOUT_S
        )
    make_directory(directory)
    lines_to_write = [f"{host}: {line}\n" for host, lines in answers.lines.items() for line in lines]
    (directory / "devices.txt").write_text("".join(lines_to_write) + answers.messages, encoding="utf-8")
    if answers.failed:
        problem_text = "; ".join(f"{host}: {reason}" for host, reason in answers.failed.items())
        raise HostFailed(f"the devices of a host could not be queried: {problem_text}", answers.failed)
    if answers.problem:
        raise LaunchError(f"the devices of {', '.join(hosts)} could not be queried: {answers.problem}")
    verification = compare_devices(system, composition, answers.lines, is_identified=is_identified)
    if verification.problems:
        problem_text = "; ".join(f"{host}: {problem}" for host, problem in verification.problems.items())
        raise DeviceMismatchError(
            f"the devices differ from the composition: {problem_text}. Nothing was measured; check the output of `scontrol show "
            f"node` and how Slurm learns of devices (slurm.strategy: {system.slurm.strategy})",
            verification.problems,
            verification.missing_devices,
        )
    return verification


def build_devices_script(system: SystemFile, composition: Composition) -> tuple[str, bool]:
    """Build the shell script that lists the devices of a host.

    The second result is True if the output identifies the devices, and False if the devices can only be counted.
    """
    command = system.slurm.devices_command or find_accelerator(system, composition.hosts).list_command
    if not command:
        variables = "".join(f"${{{mask}-" for mask in _MASKS) + "}" * len(_MASKS)
        return _GRANTED_DEVICES_SCRIPT.replace("{granted}", variables), False
    return _LIST_DEVICES_SCRIPT.replace("{command}", shlex.join(command)), True


def find_accelerator(system: SystemFile, hosts: Sequence[ComposedHost]) -> Accelerator:
    """Return the accelerator of a composition, or the one for CPU processes if it has no other."""
    kinds = [ACCELERATORS[find_device_kind(system, device)] for host in hosts for device in list_physical_devices(host)]
    return next((kind for kind in kinds if kind.list_command), ACCELERATORS["cpu"])


def compare_devices(
    system: SystemFile, composition: Composition, lines: Mapping[str, tuple[str, ...]], *, is_identified: bool
) -> DeviceVerification:
    """Compare the output lines of the hosts with the composition. Pure.

    Args:
        system: system file with the device models.
        composition: composition that the hosts should have.
        lines: output lines by host.
        is_identified: True if the lines identify devices; otherwise devices are only counted, if Slurm grants devices at all.
    """
    parse = (
        parse_identity_and_model
        if system.slurm.devices_command
        else find_accelerator(system, composition.hosts).parse_devices
    )
    devices_by_host: dict[str, tuple[DetectedDevice, ...]] = {}
    problems: dict[str, str] = {}
    missing_devices: list[Device] = []
    for host in composition.hosts:
        host_lines = lines.get(host.name, ())
        exit_code = next(
            (line.removeprefix(_EXIT_PREFIX) for line in host_lines if line.startswith(_EXIT_PREFIX)), "unknown"
        )
        texts = [line.removeprefix(_DEVICE_PREFIX) for line in host_lines if line.startswith(_DEVICE_PREFIX)]
        devices_by_host[host.name] = (
            parse(texts) if is_identified else tuple(DetectedDevice() for text in texts if text.strip())
        )
        # Slurm sets a variable with the devices of a step for GPUs only.
        comparable = is_identified or system.slurm.gres.partition(":")[0] == "gpu"
        if exit_code != "0":
            words = f"the command that lists its devices failed (exit code {exit_code}): {' '.join(texts)[:200]}"
            problems[host.name] = words
        elif comparable and (
            problem := _describe_difference(system, host, devices_by_host[host.name], is_identified=is_identified)
        ):
            problems[host.name] = problem
            missing_devices += _find_missing_devices(system, host, devices_by_host[host.name]) if is_identified else ()
    return DeviceVerification(devices_by_host, problems, tuple(missing_devices))


def _describe_difference(
    system: SystemFile, host: ComposedHost, listed_devices: tuple[DetectedDevice, ...], *, is_identified: bool
) -> str | None:
    """Describe how the listed devices of a host differ from the composition, or return None if they match.

    Additional devices do no harm, because each run gets a list of its own devices.
    """
    composed_devices = list_physical_devices(host)
    if len(listed_devices) < len(composed_devices):
        return f"only {len(listed_devices)} of {len(composed_devices)} devices found"
    if not is_identified:
        return None
    if missing_devices := [
        f"{device.fabric_id} ({device.host_id})" for device in _find_missing_devices(system, host, listed_devices)
    ]:
        listed_identities = ", ".join(sorted({device.identity for device in listed_devices}))
        return f"missing: {', '.join(missing_devices)}; listed: {listed_identities}"
    models = {device.identity: device.model for device in listed_devices}
    for model in dict.fromkeys(device.model for device in composed_devices):
        reported_model = system.devices.get(model, DeviceModel()).reported_as
        if reported_model is None or not any(models.values()):  # amd-smi lists no models
            continue
        count = sum(device.model == model for device in composed_devices)
        match_count = (
            sum(listed_model == reported_model for listed_model in models.values())
            if len(models) == len(listed_devices)
            else 0
        )
        if match_count < count:
            other_models = (
                ", ".join(sorted({listed_model for listed_model in models.values() if listed_model != reported_model}))
                or "nothing"
            )
            return f"{match_count} of {count} {model} devices report '{reported_model}'; the host lists {other_models}"
    return None


def _find_missing_devices(
    system: SystemFile, host: ComposedHost, listed_devices: Sequence[DetectedDevice]
) -> list[Device]:
    """Return the devices of a host that are missing from its list, among those whose names on the host are known."""
    # Fabrics and hosts write the same identity in different ways.
    identities = {
        normalize_identity(name) for device in listed_devices for name in (device.identity, device.address) if name
    }
    return [
        device
        for device in list_physical_devices(host)
        # The host's tools do not list emulated devices by this id, and a number or `card.tile` does not identify a device.
        if device.host_id
        and find_device_kind(system, device) != "cpu"
        and not device.host_id.replace(".", "", 1).isdecimal()
        if normalize_identity(device.host_id) not in identities
    ]


def list_physical_devices(host: ComposedHost) -> tuple[Device, ...]:
    """Return the physical devices of a host, with one entry for all parts of a device.

    Remote devices are left out, because the host does not list them.
    """
    devices: dict[str, Device] = {}
    for device in host.devices:
        if device.launch is None or device.local:
            devices.setdefault(device.physical_id, device)
    return tuple(devices.values())


def find_device_kind(system: SystemFile, device: Device) -> AcceleratorKind:
    """Return the kind of a device, as the system file defines it for the model."""
    return system.devices.get(device.model, DeviceModel()).runs_on
