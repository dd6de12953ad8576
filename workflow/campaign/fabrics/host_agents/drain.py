"""Removal of devices from use on their host, in an order that drivers survive.

GPU: no process computes on it -> persistence mode off -> no file of it is open -> drain -> its device file is removed -> off the
bus. While other GPUs remain, NVIDIA's driver removes it (`nvidia-smi drain -r`). The last GPU cannot be removed as long as the
modules above the driver are loaded: they are unloaded first, then sysfs removes the GPU. In a virtual machine the driver cannot
remove it, so sysfs is always used. Drive: no file system, swap or volume is on it, no file of it is open -> off the bus. Network
card: no address, no route -> off the bus.

A write to sysfs can hang forever in the kernel. It is done in the background and watched; an attempt that hangs is reported, not
repeated. Each completed step is skipped, so an interrupted sequence can be restarted with the same result.

Unverified: the sequence follows NVIDIA's documentation and the practice of operators of composable hosts, and was not run with a
real GPU. The scheduler is not informed, so the caller must first take the host out of its control.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents import parse
from campaign.fabrics.host_agents.parse import DeviceUsage
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice

_EXIT_STILL_RUNNING = 75
_MAX_WATCH_S = 5
_IN_USE_MESSAGES = ("in use", "busy", "non-zero usage")


@dataclass(frozen=True, slots=True)
class HostCommandResult:
    """Result of a command on a host: exit code and output."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def summary(self) -> str:
        """Output of the command on one line, at most 300 characters."""
        return " ".join(f"{self.err} {self.out}".split())[:300] or "(no output)"


RunCommand = Callable[[str, Sequence[str], float], HostCommandResult]
"""Function that runs a command on a host with a timeout in seconds.

Raises FabricError if the command cannot be run or does not end in time.
"""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of a host.

    Attributes:
        sudo: command prefix that provides root privileges.
        virtual_machine: True if the host is a virtual machine.
        detach_s: longest time to wait until a device is released (seconds).
        look_s: timeout of one command (seconds).
        poll_s: interval between two checks (seconds).
        root: root directory of the host's file system.
        processes: path of its /proc.
    """

    sudo: tuple[str, ...] = ()
    virtual_machine: bool = False
    detach_s: float = 120.0
    look_s: float = 30.0
    poll_s: float = 1.0
    root: str = ""
    processes: str = "/proc"


def build_script_command(name: str, *arguments: str) -> tuple[str, ...]:
    """Build the command that runs one of this package's shell scripts on a host without any installation."""
    text = files(__package__).joinpath(f"{name}.sh").read_text(encoding="utf-8")
    return ("sh", "-c", text, f"campaign-{name}", *arguments)


def detach_devices(
    run: RunCommand, settings: HostSettings, host: str, devices: Sequence[HostDevice], *, force: bool = False
) -> None:
    """Remove devices from the bus of their host. Each device needs an address; devices that are already gone are skipped.

    Nothing is changed before all devices are idle. With `force`, processes that use a device are ignored. A drive with a
    mounted file system and the card of the default route are never removed, not even by force.

    Raises HostBusy with the users of a device that is not idle within `settings.detach_s`; changes to other devices remain. A
    failed step raises FabricError.
    """
    detachments = [_BusRemoval(run, settings, host, device, force) for device in devices]
    for detachment in detachments:
        detachment.wait_until_idle()
    for detachment in detachments:
        detachment.remove_from_bus()


class _BusRemoval:
    """Removal of one device from the bus of its host."""

    def __init__(self, run: RunCommand, settings: HostSettings, host: str, device: HostDevice, force: bool) -> None:
        self._run, self._settings, self._host, self._device, self._force = run, settings, host, device, force
        self._address = parse.normalize_pci_address(device.address)
        self._name = f"{host}: {device.kind} {device.identity or self._address} at {self._address}"
        self._bdf = self._address.upper()
        self._deadline_s = time.monotonic() + settings.detach_s

    def wait_until_idle(self) -> None:
        """Wait until the device has no users, and change nothing.

        The open files of a GPU are ignored, because persistence mode keeps them open.
        """

        def list_computing(usage: DeviceUsage) -> tuple[str, ...]:
            """Return the processes that compute on the GPU, unless they are ignored."""
            return () if self._force or usage.draining else usage.computing

        self._wait_until_unused(list_computing if self._device.kind == "gpu" else self._list_users)

    def remove_from_bus(self) -> None:
        """Take the device out of use and remove it from the bus."""
        self._deadline_s = time.monotonic() + self._settings.detach_s
        usage = self._read_usage()
        if usage.driver != "nvidia":  # It is a drive, a card, or a GPU whose modules an earlier attempt unloaded.
            self._remove_with_sysfs(self._wait_until_unused(self._list_users))
            return
        if not usage.draining and usage.persistent:
            self._run_checked("nvidia-smi", "-i", self._device.identity or self._bdf, "-pm", "0")
        usage = self._wait_until_unused(self._list_users)
        if not usage.draining:
            self._drain_gpu()
        for file in usage.nodes:
            self._run_checked("rm", "-f", file)
        usage = self._wait_until_unused(self._list_users)  # A process may have started between the check and the drain.
        other_gpus = [address for address in usage.gpus if address != self._address]
        if other_gpus and not self._settings.virtual_machine:
            self._remove_with_driver()
        else:
            self._remove_with_sysfs(usage if other_gpus else self._unload_modules(usage), is_last_gpu=not other_gpus)

    def _drain_gpu(self) -> None:
        """Drain the GPU, so that no new process can use it. Virtual machines may not support this."""
        result = self._run_privileged("nvidia-smi", "drain", "-p", self._bdf, "-m", "1")
        if result.code != 0 and not (self._settings.virtual_machine and "not supported" in result.summary.lower()):
            raise self._build_command_error("nvidia-smi drain -m 1", result)

    def _remove_with_driver(self) -> None:
        """Remove the GPU from the bus with NVIDIA's driver."""
        result = self._run_privileged("nvidia-smi", "drain", "-p", self._bdf, "-r")
        if result.code != 0 and self._read_usage().present:
            raise self._build_command_error("nvidia-smi drain -r", result)
        self._wait_until_gone()

    def _unload_modules(self, usage: DeviceUsage) -> DeviceUsage:
        """Unload the modules above the driver, which use the last GPU as long as they are loaded."""
        while usage.modules:
            failure = self._try_unloading(usage.modules)
            if failure is None or self._force:
                break
            if time.monotonic() >= self._deadline_s:
                raise self._build_busy_error((failure.summary,))
            time.sleep(self._settings.poll_s)
            usage = self._read_usage()
        return usage

    def _try_unloading(self, modules: Sequence[str]) -> HostCommandResult | None:
        """Unload the modules, and return the first failed result, or None if all succeeded."""
        attempts = [self._run_privileged("modprobe", "-r", module) for module in modules]
        return next((result for result in attempts if result.code != 0), None)

    def _remove_with_sysfs(self, usage: DeviceUsage, *, is_last_gpu: bool = False) -> None:
        """Remove the device through sysfs if it is present, and wait until it is gone."""
        if usage.present and not usage.removing:
            file = f"{self._settings.root}/sys/bus/pci/devices/{self._address}/remove"
            watch_s = max(1, int(min(_MAX_WATCH_S, self._deadline_s - time.monotonic())))
            result = self._run_privileged(*build_script_command("remove", file, str(watch_s)))
            if result.code not in (0, _EXIT_STILL_RUNNING) and self._read_usage().present:
                raise self._build_command_error(f"echo 1 > {file}", result)
            if result.code == _EXIT_STILL_RUNNING and is_last_gpu:
                self._try_unloading(self._read_usage().modules)
        if usage.present:
            self._wait_until_gone()

    def _wait_until_gone(self) -> None:
        """Wait until the device is off the bus.

        Raises HostBusy if the device is still on the bus, or still being removed, at the deadline.
        """
        while (usage := self._read_usage()).present or usage.removing:
            if time.monotonic() >= self._deadline_s:
                hang_message = "is still being removed, because the kernel waits for its users,"
                problem = hang_message if usage.removing else "is still on the bus although it was removed,"
                raise self._build_busy_error((*usage.removing, *usage.files), problem)
            time.sleep(self._settings.poll_s)

    def _read_usage(self) -> DeviceUsage:
        """Read the current users of the device on its host."""
        result = self._run_privileged(
            *build_script_command("users", self._settings.root, self._settings.processes, self._address)
        )
        try:
            return parse.parse_usage(result.out)
        except FabricError as error:
            raise FabricError(
                f"{self._name}: the users of the device cannot be listed: {error}; {result.err.strip()[:300]}"
            ) from error

    def _list_users(self, usage: DeviceUsage) -> tuple[str, ...]:
        """Return the users that prevent the removal. With force, these are only users that must never lose the device."""
        if not usage.present:
            return ()
        other_driver = (
            (f"driver {usage.driver}",) if self._device.kind == "gpu" and usage.driver not in ("", "nvidia") else ()
        )
        forceable_users = (*other_driver, *usage.computing, *usage.files, *usage.addresses)
        return usage.claimed if self._force else (*usage.claimed, *forceable_users)

    def _wait_until_unused(self, list_users: Callable[[DeviceUsage], tuple[str, ...]]) -> DeviceUsage:
        """Wait until the device has no users, and return its usage. Raises HostBusy at the deadline."""
        while holders := list_users(usage := self._read_usage()):
            if time.monotonic() >= self._deadline_s:
                raise self._build_busy_error(holders)
            time.sleep(self._settings.poll_s)
        return usage

    def _run_privileged(self, *command: str) -> HostCommandResult:
        """Run a command on the host as root, and return its result."""
        return self._run(self._host, (*self._settings.sudo, *command), self._settings.look_s)

    def _run_checked(self, *command: str) -> None:
        """Run a command on the host as root. Raises an error if it fails."""
        result = self._run_privileged(*command)
        if result.code != 0:
            raise self._build_command_error(" ".join(command), result)

    def _build_command_error(self, command: str, result: HostCommandResult) -> FabricError:
        """Convert a failed command to HostBusy if the device is in use, and to FabricError otherwise."""
        if any(word in result.summary.lower() for word in _IN_USE_MESSAGES):
            return self._build_busy_error((result.summary,))
        return FabricError(
            f"{self._name}: `{command}` ended with exit code {result.code}: {result.summary}; the device stays attached; "
            "solve the problem on the host, then repeat the release"
        )

    def _build_busy_error(self, holders: Sequence[str], problem: str = "is in use") -> HostBusy:
        """Build the error that names the users of the device and what to do about them."""
        advice = "end them on the host, then repeat the release"
        if any("nvidia-persistenced" in holder for holder in holders):
            advice = f"stop nvidia-persistenced (systemctl stop nvidia-persistenced); {advice}"
        users = "; ".join(holders) or "no users were found"
        return HostBusy(
            f"{self._name} {problem} after {self._settings.detach_s:g} s (detach_s). Users: {users}; {advice}", holders
        )
