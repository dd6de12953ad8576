"""How a device is taken out of use on its host, in the order that drivers survive.

A GPU: nothing computes on it -> persistence off -> no file of it is open -> drain -> its device file is gone -> off the bus.
While other GPUs remain, NVIDIA's driver takes it off (`nvidia-smi drain -r`). The last one would not go as long as the modules
above the driver are loaded: they go first, then sysfs takes it off. In a virtual machine the driver cannot: sysfs always.
A drive: no file system, swap or volume is on it, no file of it is open -> off the bus. A network card: no address, no route -> off.

Writing to sysfs can hang for ever, in the kernel. It is done in the background and watched; an attempt that hangs is named, not
repeated. Each step is skipped when it is done already, so that stopping anywhere and beginning again ends the same.

Unverified: written from NVIDIA's documentation and from what operators of composable hosts do; not run against a real GPU.
The scheduler is not told: whoever asks has taken the host out of its hands.
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
    """How a command ended."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def words(self) -> str:
        """What it said, on one line."""
        return " ".join(f"{self.err} {self.out}".split())[:300] or "(no output)"


RunCommand = Callable[[str, Sequence[str], float], Done]
"""Runs a command on a host, for at most so many seconds. Raises FabricError when it could not be run, or did not end."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a host is like. sudo: put before what needs root; root: where its file system begins; processes: its /proc."""

    sudo: tuple[str, ...] = ()
    virtual_machine: bool = False
    detach_s: float = 120.0
    look_s: float = 30.0
    poll_s: float = 1.0
    root: str = ""
    processes: str = "/proc"


def script(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs one of the scripts beside this module on a host that has nothing of ours."""
    text = files(__package__).joinpath(f"{name}.sh").read_text(encoding="utf-8")
    return ("sh", "-c", text, f"campaign-{name}", *arguments)


def detach(run: RunCommand, terms: Terms, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
    """Take devices off the bus of their host; each has an address. Those that are not there are done.

    Nothing is changed before all of them are idle. Raises HostBusy when one is not so within `terms.detach_s`: whoever uses it is
    named, and what was done to others stays. force: do not ask whether processes use it. A drive with a file system on it, and the
    card of the default route, are not taken by force either. Raises FabricError when a step fails.
    """
    each = [_BusRemoval(run, terms, host, device, force) for device in devices]
    for one in each:
        one.idle()
    for one in each:
        one.remove()


class _BusRemoval:
    """The removal of one device from its bus."""

    def __init__(self, run: RunCommand, terms: Terms, host: str, device: HostDevice, force: bool) -> None:
        self._run, self._terms, self._host, self._device, self._force = run, terms, host, device, force
        self._address = parse.pci_address(device.address)
        self._name = f"{host}: {device.kind} {device.identity or self._address} at {self._address}"
        self._bdf = self._address.upper()
        self._until = time.monotonic() + terms.detach_s

    def idle(self) -> None:
        """Wait for whoever uses it, and change nothing. A GPU's files are not looked at: persistence keeps them open."""

        def computing(seen: Usage) -> tuple[str, ...]:
            return () if self._force or seen.draining else seen.computing

        self._wait(computing if self._device.kind == "gpu" else self._users)

    def remove(self) -> None:
        self._until = time.monotonic() + self._terms.detach_s
        seen = self._look()
        if seen.driver != "nvidia":  # a drive, a card, or a GPU whose modules went in an earlier attempt
            self._through_sysfs(self._wait(self._users))
            return
        if not seen.draining and seen.persistent:
            self._change("nvidia-smi", "-i", self._device.identity or self._bdf, "-pm", "0")
        seen = self._wait(self._users)
        if not seen.draining:
            self._drain()
        for file in seen.nodes:
            self._change("rm", "-f", file)
        seen = self._wait(self._users)  # whoever came between the look and the drain
        others = [address for address in seen.gpus if address != self._address]
        if others and not self._terms.virtual_machine:
            self._through_driver()
        else:
            self._through_sysfs(seen if others else self._without_modules(seen), last=not others)

    def _drain(self) -> None:
        done = self._try("nvidia-smi", "drain", "-p", self._bdf, "-m", "1")
        if done.code != 0 and not (self._terms.virtual_machine and "not supported" in done.words.lower()):
            raise self._failed("nvidia-smi drain -m 1", done)

    def _through_driver(self) -> None:
        done = self._try("nvidia-smi", "drain", "-p", self._bdf, "-r")
        if done.code != 0 and self._look().present:
            raise self._failed("nvidia-smi drain -r", done)
        self._gone()

    def _without_modules(self, seen: Usage) -> Usage:
        """Unload what is above the driver: as long as it is there, it uses the last GPU."""
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
        """How the first attempt that failed ended."""
        attempts = [self._try("modprobe", "-r", module) for module in modules]
        return next((done for done in attempts if done.code != 0), None)

    def _through_sysfs(self, seen: Usage, *, last: bool = False) -> None:
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
        """Raises HostBusy when it is still on the bus, or still being removed, when its time is over."""
        while (seen := self._look()).present or seen.removing:
            if time.monotonic() >= self._until:
                hangs = "is still being removed: the kernel waits for its users"
                what = hangs if seen.removing else "is still on the bus, although it was removed"
                raise self._busy((*seen.removing, *seen.files), what)
            time.sleep(self._terms.poll_s)

    def _look(self) -> Usage:
        done = self._try(*script("users", self._terms.root, self._terms.processes, self._address))
        try:
            return parse.usage(done.out)
        except FabricError as error:
            raise FabricError(f"{self._name}: its users cannot be listed: {error}; {done.err.strip()[:300]}") from error

    def _users(self, seen: Usage) -> tuple[str, ...]:
        if not seen.present:
            return ()
        foreign = (f"driver {seen.driver}",) if self._device.kind == "gpu" and seen.driver not in ("", "nvidia") else ()
        soft = (*foreign, *seen.computing, *seen.files, *seen.addresses)
        return seen.claimed if self._force else (*seen.claimed, *soft)

    def _wait(self, users: Callable[[Usage], tuple[str, ...]]) -> Usage:
        while holders := users(seen := self._look()):
            if time.monotonic() >= self._until:
                raise self._busy(holders)
            time.sleep(self._terms.poll_s)
        return seen

    def _try(self, *command: str) -> Done:
        return self._run(self._host, (*self._terms.sudo, *command), self._terms.look_s)

    def _change(self, *command: str) -> None:
        done = self._try(*command)
        if done.code != 0:
            raise self._failed(" ".join(command), done)

    def _failed(self, what: str, done: Done) -> FabricError:
        if any(word in done.words.lower() for word in _LATE):
            return self._busy((done.words,))
        return FabricError(
            f"{self._name}: `{what}` ended with {done.code}: {done.words}; the fabric keeps the device until the host lets it go: "
            "see to it on the host, then release again"
        )

    def _busy(self, holders: Sequence[str], what: str = "is in use") -> HostBusy:
        advice = "end them on the host, then release again"
        if any("nvidia-persistenced" in holder for holder in holders):
            advice = f"stop nvidia-persistenced (systemctl stop nvidia-persistenced); {advice}"
        who = "; ".join(holders) or "nobody was found"
        return HostBusy(f"{self._name} {what} after {self._terms.detach_s:g} s (detach_s): {who}; {advice}", holders)
