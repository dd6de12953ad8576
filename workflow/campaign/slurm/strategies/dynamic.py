"""Strategy `dynamic`, in which hosts are dynamic nodes that are registered again with their current devices.

The Gres of a registered host cannot be changed: Slurm accepts the number and starts jobs without devices. A host whose
devices change is therefore drained, its slurmd stopped, its node deleted, and its slurmd started with the new devices. It is
reserved for the lease before and after; not in between, because a reserved node cannot be deleted.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from campaign.common.errors import ConfigError, HostFailed
from campaign.slurm.strategies.controller import Controller, Node, reservation_name
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SlurmdCommands, SystemFile

_COMMAND_S = 300.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class WantedDevices:
    """Numbers of compute devices of a host, in total and behind the fabric."""

    devices: int
    fabric_devices: int = 0


class Dynamic:
    """Strategy that registers hosts again after each recomposition (see `SlurmStrategy`).

    `registers_s` is the time in seconds that the slurmd of a host gets to register after its start.
    """

    composed_by_slurm = False

    def __init__(self, system: SystemFile, controller: Controller) -> None:
        self.controller = controller
        self.slurmd = _checked(system)
        self.gres = system.slurm.gres
        self.registers_s = 120.0
        self.own = {
            name: sum(entry.count for entry in group.devices if entry.kind == "gpu")
            for group in system.hosts
            for name in group.names()
        }

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        # A host that a dead process left deleted cannot be reserved, and nobody's job can start there.
        known = self.controller.nodes(hosts)
        if known:
            if self.controller.reserve(lease_id, known):
                self._refuse_drained(known, lease_id)
            self.controller.emptied(known, lease_id)

    def announce(self, composition: Composition, lease_id: str) -> None:
        wanted = {}
        for host in composition.hosts:
            attached = sum(not device.local and device.computes for device in host.devices)
            wanted[host.name] = WantedDevices(self._own(host.name) + attached, attached)
        self._refuse_drained(self.controller.nodes(wanted), lease_id)
        self._register(wanted, lease_id)
        self.controller.reserve(lease_id, wanted)
        self._undrain(wanted, lease_id)
        # Between registration and reservation somebody may have been quicker.
        self.controller.emptied(wanted, lease_id, own=False)

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        self._register({host: WantedDevices(self._own(host)) for host in hosts}, lease_id)
        self.controller.unreserve(lease_id)
        self._undrain(hosts, lease_id)

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {"reservation": reservation_name(lease_id)}

    def _own(self, host: str) -> int:
        if host not in self.own:
            why = "it is not in the system file any more, so its own devices are not known"
            raise HostFailed(
                f"{host}: {why}; add it to the system file until the campaign has released it", {host: why}
            )
        return self.own[host]

    def _register(self, wanted: Mapping[str, WantedDevices], lease_id: str) -> None:
        """Register hosts again until all are registered with exactly these devices."""
        known, reason = self.controller.nodes_heard(wanted), _reason(lease_id)
        # Drained by us: a dead process was about to register it, and whether its slurmd still runs is not known.
        begun = {host for host, node in known.items() if node.drained and node.reason == reason}
        changing = {host: w for host, w in wanted.items() if host in begun or not self._offers(known.get(host), w)}
        if not changing:
            return
        there = {host: known[host] for host in changing if host in known}
        self.controller.drain([host for host, node in there.items() if not node.drained], reason)
        self.controller.emptied(there, lease_id)
        if staying := wanted.keys() - changing:
            self.controller.reserve(lease_id, sorted(staying))
        else:
            self.controller.unreserve(lease_id)
        self._on_each(self.slurmd.stop, "stopped", changing)
        self.controller.forget(changing)
        self._on_each(self.slurmd.start, "started", changing)
        self._await(changing)
        for host, node in there.items():
            if node.drained and node.reason != reason:  # by somebody else, before
                self.controller.drain([host], node.reason)

    def _await(self, wanted: Mapping[str, WantedDevices]) -> None:
        until_s = time.monotonic() + self.registers_s
        while True:
            known = self.controller.nodes(wanted)
            missing = [host for host in wanted if not self._offers(known.get(host), wanted[host])]
            if not missing or time.monotonic() > until_s:
                break
            time.sleep(0.25)
        late = f"its slurmd did not register within {self.registers_s:g} s of its start"
        _raise_failed(
            {
                host: f"registered as {known[host].words}, not with {self._gres(wanted[host])}"
                if host in known
                else late
                for host in missing
            }
        )

    def _on_each(self, command: tuple[str, ...], done: str, wanted: Mapping[str, WantedDevices]) -> None:
        """Run the site's command for every host, several at a time.

        Raises HostFailed with the hosts on which it failed.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            complaints = pool.map(lambda host: self._run(command, host, wanted[host]), wanted)
        said = zip(wanted, complaints, strict=True)
        _raise_failed({host: f"slurmd could not be {done}: {complaint}" for host, complaint in said if complaint})

    def _run(self, command: tuple[str, ...], host: str, wanted: WantedDevices) -> str:
        """Run the site's command for one host and return the error message, or an empty text on success."""
        words = {"host": host, "gres": self._gres(wanted), **asdict(wanted)}
        argv = [word.format(**words) for word in command]
        # A file, not a pipe: a daemon that keeps its starter's output open would be waited for.
        with tempfile.TemporaryFile() as output:
            try:
                ended = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_COMMAND_S, process_group=0
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            output.seek(0)
            said = output.read().decode(errors="replace").strip().splitlines()
        if ended.returncode == 0:
            return ""
        return f"'{' '.join(argv)}' exited with {ended.returncode}: {said[-1] if said else 'no output'}"

    def _gres(self, wanted: WantedDevices) -> str:
        return f"{self.gres}:{wanted.devices}"

    def _offers(self, node: Node | None, wanted: WantedDevices) -> bool:
        return node is not None and node.serves and node.devices(self.gres) == wanted.devices

    def _refuse_drained(self, known: Mapping[str, Node], lease_id: str) -> None:
        others = {host: node for host, node in known.items() if node.drained and node.reason != _reason(lease_id)}
        _raise_failed({host: f"drained: {node.reason}" for host, node in others.items()}, " is ")

    def _undrain(self, hosts: Collection[str], lease_id: str) -> None:
        known = self.controller.nodes(hosts)
        ours = [host for host, node in known.items() if node.drained and node.reason == _reason(lease_id)]
        self.controller.resume(ours)


def _raise_failed(failed: Mapping[str, str], between: str = ": ") -> None:
    if failed:
        raise HostFailed("; ".join(f"{host}{between}{why}" for host, why in failed.items()), dict(failed))


def _checked(system: SystemFile) -> SlurmdCommands:
    commands = system.slurm.slurmd
    if commands is None:
        raise ConfigError(
            f"system {system.name}: 'strategy: dynamic' registers hosts again and needs slurm.slurmd.stop and slurm.slurmd.start"
        )
    for word in (*commands.stop, *commands.start):
        try:
            word.format(host="", gres="", **asdict(WantedDevices(0)))
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"system {system.name}: slurm.slurmd: '{word}': {error}; {{host}}, {{devices}}, {{gres}} and "
                "{fabric_devices} are replaced; write other braces twice"
            ) from error
    return commands


def _reason(lease_id: str) -> str:
    """Return the drain reason of a lease, short enough for Slurm to return it whole."""
    return f"devices change: campaign {lease_id}"[:200]
