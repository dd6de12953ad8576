"""Take a device out of use on its host, in the order that drivers survive.

GPU: no process computes on it -> persistence mode off -> no file of it is open -> drain -> its device file is removed -> off the
bus. While other GPUs remain, NVIDIA's driver removes it (`nvidia-smi drain -r`). The last GPU cannot be removed as long as the
modules above the driver are loaded: they are unloaded first, then sysfs removes the GPU. In a virtual machine the driver cannot
remove it, so sysfs is always used. Drive: no file system, swap or volume is on it, no file of it is open -> off the bus. Network
card: no address, no route -> off the bus.

A write to sysfs can hang forever in the kernel. It is done in the background and watched; an attempt that hangs is reported, not
repeated. Each completed step is skipped, so an interrupted sequence can be restarted with the same result.

Unverified: written from NVIDIA's documentation and from the practice of operators of composable hosts; not run against a real
GPU. The scheduler is not informed: the caller must have taken the host out of its control.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents import parse
from campaign.fabrics.host_agents.parse import Usage
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice

_STILL_RUNS = 75
_WATCH_S = 5
_LATE = ("in use", "busy", "non-zero usage")


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command on a host: exit code and output."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def words(self) -> str:
        """Output of the command on one line, at most 300 characters."""
        return " ".join(f"{self.err} {self.out}".split())[:300] or "(no output)"


RunCommand = Callable[[str, Sequence[str], float], Done]
"""Function that runs a command on a host with a timeout in seconds.

Raises FabricError if the command cannot be run or does not end in time.
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a host.

    Attributes:
        sudo: words before a command that needs root.
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


def script(name: str, *arguments: str) -> tuple[str, ...]:
    """Build the command that runs one of this package's shell scripts on a host without any installation."""
    text = files(__package__).joinpath(f"{name}.sh").read_text(encoding="utf-8")
    return ("sh", "-c", text, f"campaign-{name}", *arguments)


def detach(run: RunCommand, terms: Terms, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
    """Remove devices from the bus of their host. Each device needs an address; devices that are already gone are skipped.

    Nothing is changed before all devices are idle. With `force`, processes that use a device are ignored. A drive with a mounted
    file
    system and the card of the default route are never removed, not even by force.

    Raises HostBusy with the users of a device that is not idle within `settings.detach_s`; changes to other devices remain. A
    failed
    step raises FabricError.
    """
    each = [_BusRemoval(run, terms, host, device, force) for device in devices]
    for one in each:
        one.idle()
    for one in each:
        one.remove()


class _BusRemoval:
    """Removal of one device from the bus of its host."""

    def __init__(self, run: RunCommand, terms: Terms, host: str, device: HostDevice, force: bool) -> None:
        self._run, self._terms, self._host, self._device, self._force = run, terms, host, device, force
        self._address = parse.pci_address(device.address)
        self._name = f"{host}: {device.kind} {device.identity or self._address} at {self._address}"
        self._bdf = self._address.upper()
        self._until = time.monotonic() + terms.detach_s

    def idle(self) -> None:
        """Wait until the device has no users, and change nothing.

        The open files of a GPU are ignored, because persistence mode keeps them open.
        """

        def computing(seen: Usage) -> tuple[str, ...]:
            """Return the processes that compute on the GPU, unless they are ignored."""
            return () if self._force or seen.draining else seen.computing

        self._wait(computing if self._device.kind == "gpu" else self._users)

    def remove(self) -> None:
        """Take the device out of use and remove it from the bus."""
        self._until = time.monotonic() + self._terms.detach_s
        seen = self._look()
        if seen.driver != "nvidia":  # a drive, a card, or a GPU whose modules an earlier attempt unloaded
            self._through_sysfs(self._wait(self._users))
            return
        if not seen.draining and seen.persistent:
            self._change("nvidia-smi", "-i", self._device.identity or self._bdf, "-pm", "0")
        seen = self._wait(self._users)
        if not seen.draining:
            self._drain()
        for file in seen.nodes:
            self._change("rm", "-f", file)
        seen = self._wait(self._users)  # a process may have started between the check and the drain
        others = [address for address in seen.gpus if address != self._address]
        if others and not self._terms.virtual_machine:
            self._through_driver()
        else:
            self._through_sysfs(seen if others else self._without_modules(seen), last=not others)

    def _drain(self) -> None:
        """Drain the GPU, so that no new process can use it. Virtual machines may not support this."""
        done = self._try("nvidia-smi", "drain", "-p", self._bdf, "-m", "1")
        if done.code != 0 and not (self._terms.virtual_machine and "not supported" in done.words.lower()):
            raise self._failed("nvidia-smi drain -m 1", done)

    def _through_driver(self) -> None:
        """Remove the GPU from the bus with NVIDIA's driver."""
        done = self._try("nvidia-smi", "drain", "-p", self._bdf, "-r")
        if done.code != 0 and self._look().present:
            raise self._failed("nvidia-smi drain -r", done)
        self._gone()

    def _without_modules(self, seen: Usage) -> Usage:
        """Unload the modules above the driver, which use the last GPU as long as they are loaded."""
        while seen.modules:
            kept = self._unload(seen.modules)
            if kept is None or self._force:
                break
            if time.monotonic() >= self._until:
                raise self._busy((kept.words,))
            time.sleep(self._terms.poll_s)
            seen = self._look()
        return seen

    def _unload(self, modules: Sequence[str]) -> Done | None:
        """Unload the modules, and return the first failed result or None."""
        attempts = [self._try("modprobe", "-r", module) for module in modules]
        return next((done for done in attempts if done.code != 0), None)

    def _through_sysfs(self, seen: Usage, *, last: bool = False) -> None:
        """Remove the device through sysfs if it is present, and wait until it is gone."""
        if seen.present and not seen.removing:
            file = f"{self._terms.root}/sys/bus/pci/devices/{self._address}/remove"
            left_s = max(1, int(min(_WATCH_S, self._until - time.monotonic())))
            done = self._try(*script("remove", file, str(left_s)))
            if done.code not in (0, _STILL_RUNS) and self._look().present:
                raise self._failed(f"echo 1 > {file}", done)
            if done.code == _STILL_RUNS and last:
                self._unload(self._look().modules)
        if seen.present:
            self._gone()

    def _gone(self) -> None:
        """Wait until the device is off the bus.

        Raises HostBusy if the device is still on the bus, or still being removed, at the deadline.
        """
        while (seen := self._look()).present or seen.removing:
            if time.monotonic() >= self._until:
                hangs = "is still being removed: the kernel waits for its users"
                what = hangs if seen.removing else "is still on the bus, although it was removed"
                raise self._busy((*seen.removing, *seen.files), what)
            time.sleep(self._terms.poll_s)

    def _look(self) -> Usage:
        """Read the present users of the device on its host."""
        done = self._try(*script("users", self._terms.root, self._terms.processes, self._address))
        try:
            return parse.usage(done.out)
        except FabricError as error:
            raise FabricError(f"{self._name}: its users cannot be listed: {error}; {done.err.strip()[:300]}") from error

    def _users(self, seen: Usage) -> tuple[str, ...]:
        """Return the users that prevent the removal. With force, these are only users that must never lose the device."""
        if not seen.present:
            return ()
        foreign = (f"driver {seen.driver}",) if self._device.kind == "gpu" and seen.driver not in ("", "nvidia") else ()
        soft = (*foreign, *seen.computing, *seen.files, *seen.addresses)
        return seen.claimed if self._force else (*seen.claimed, *soft)

    def _wait(self, users: Callable[[Usage], tuple[str, ...]]) -> Usage:
        """Wait until the device has no users, and return its usage. Raises HostBusy at the deadline."""
        while holders := users(seen := self._look()):
            if time.monotonic() >= self._until:
                raise self._busy(holders)
            time.sleep(self._terms.poll_s)
        return seen

    def _try(self, *command: str) -> Done:
        """Run a command on the host as root, and return its result."""
        return self._run(self._host, (*self._terms.sudo, *command), self._terms.look_s)

    def _change(self, *command: str) -> None:
        """Run a command on the host as root. Raises an error if it fails."""
        done = self._try(*command)
        if done.code != 0:
            raise self._failed(" ".join(command), done)

    def _failed(self, what: str, done: Done) -> FabricError:
        """Convert a failed command to HostBusy if the device is in use, and to FabricError otherwise."""
        if any(word in done.words.lower() for word in _LATE):
            return self._busy((done.words,))
        return FabricError(
            f"{self._name}: `{what}` ended with {done.code}: {done.words}; the fabric keeps the device until the host lets it go: "
            "see to it on the host, then release again"
        )

    def _busy(self, holders: Sequence[str], what: str = "is in use") -> HostBusy:
        """Build the error that names the users of the device and what to do about them."""
        advice = "end them on the host, then release again"
        if any("nvidia-persistenced" in holder for holder in holders):
            advice = f"stop nvidia-persistenced (systemctl stop nvidia-persistenced); {advice}"
        who = "; ".join(holders) or "nobody was found"
        return HostBusy(f"{self._name} {what} after {self._terms.detach_s:g} s (detach_s): {who}; {advice}", holders)
