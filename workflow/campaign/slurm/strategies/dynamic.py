"""Strategy `dynamic`: hosts are dynamic nodes that are registered again with their current devices.

The Gres of a registered host cannot be changed: Slurm accepts the number, but starts jobs without devices. A host whose devices
change is therefore drained, its slurmd is stopped, its node is deleted, and its slurmd is started with the new devices. The host
is reserved for the lease before and after these steps, but not in between, because a reserved node cannot be deleted.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from campaign.common.errors import ConfigError, HostFailed
from campaign.slurm.strategies.controller import Controller, Node, make_reservation_name
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SlurmdCommands, SystemFile

_COMMAND_TIMEOUT_S = 300.0
_MAX_PARALLEL_COMMANDS = 16


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Numbers of a host's compute devices, in total and behind the fabric."""

    devices: int
    fabric_devices: int = 0


class DynamicStrategy:
    """Strategy that registers hosts again after each recomposition (see `SlurmStrategy`).

    `registration_timeout_s` is the time in seconds that the slurmd of a host gets to register after its start.
    """

    composed_by_slurm = False

    def __init__(self, system: SystemFile, controller: Controller) -> None:
        self.controller = controller
        self.slurmd = _read_commands(system)
        self.gres = system.slurm.gres
        self.registration_timeout_s = 120.0
        self.own_device_counts = {
            name: sum(entry.count for entry in group.devices if entry.kind == "gpu")
            for group in system.hosts
            for name in group.list_names()
        }

    def begin(self, hosts: Collection[str], lease_id: str) -> None:
        # A host whose node a dead process has deleted cannot be reserved, and no job can start on it.
        nodes = self.controller.query_nodes(hosts)
        if nodes:
            if self.controller.reserve_hosts(lease_id, nodes):
                self._refuse_drained(nodes, lease_id)
            self.controller.wait_until_empty(nodes, lease_id)

    def announce(self, composition: Composition, lease_id: str) -> None:
        counts_by_host = {}
        for host in composition.hosts:
            fabric_count = sum(not device.local and device.can_compute for device in host.devices)
            counts_by_host[host.name] = DeviceCounts(self._count_own_devices(host.name) + fabric_count, fabric_count)
        self._refuse_drained(self.controller.query_nodes(counts_by_host), lease_id)
        self._register_hosts(counts_by_host, lease_id)
        self.controller.reserve_hosts(lease_id, counts_by_host)
        self._undrain(counts_by_host, lease_id)
        # Another job may have started between registration and reservation.
        self.controller.wait_until_empty(counts_by_host, lease_id, cancel_lease_jobs=False)

    def end(self, hosts: Collection[str], lease_id: str) -> None:
        self._register_hosts({host: DeviceCounts(self._count_own_devices(host)) for host in hosts}, lease_id)
        self.controller.unreserve(lease_id)
        self._undrain(hosts, lease_id)

    def options(self, lease_id: str) -> Mapping[str, str]:
        return {"reservation": make_reservation_name(lease_id)}

    def _count_own_devices(self, host: str) -> int:
        if host not in self.own_device_counts:
            reason = "the system file no longer lists this host, so the number of its built-in devices is unknown"
            raise HostFailed(
                f"{host}: {reason}; add it to the system file until the campaign has released it", {host: reason}
            )
        return self.own_device_counts[host]

    def _register_hosts(self, counts_by_host: Mapping[str, DeviceCounts], lease_id: str) -> None:
        """Register hosts again until all are registered with exactly these devices."""
        nodes, reason = self.controller.query_settled_nodes(counts_by_host), _format_drain_reason(lease_id)
        # A dead process of this lease drained these hosts to register them, so it is unknown whether their slurmd still runs.
        drained_hosts = {host for host, node in nodes.items() if node.is_drained and node.reason == reason}
        changing = {
            host: counts
            for host, counts in counts_by_host.items()
            if host in drained_hosts or not self._has_devices(nodes.get(host), counts)
        }
        if not changing:
            return
        registered_nodes = {host: nodes[host] for host in changing if host in nodes}
        self.controller.drain_hosts([host for host, node in registered_nodes.items() if not node.is_drained], reason)
        self.controller.wait_until_empty(registered_nodes, lease_id)
        if unchanged_hosts := counts_by_host.keys() - changing:
            self.controller.reserve_hosts(lease_id, sorted(unchanged_hosts))
        else:
            self.controller.unreserve(lease_id)
        self._run_on_each_host(self.slurmd.stop, "stopped", changing)
        self.controller.delete_hosts(changing)
        self._run_on_each_host(self.slurmd.start, "started", changing)
        self._wait_for_registration(changing)
        for host, node in registered_nodes.items():
            if node.is_drained and node.reason != reason:  # somebody else drained the host before
                self.controller.drain_hosts([host], node.reason)

    def _wait_for_registration(self, counts_by_host: Mapping[str, DeviceCounts]) -> None:
        until_s = time.monotonic() + self.registration_timeout_s
        while True:
            nodes = self.controller.query_nodes(counts_by_host)
            missing_hosts = [
                host for host in counts_by_host if not self._has_devices(nodes.get(host), counts_by_host[host])
            ]
            if not missing_hosts or time.monotonic() > until_s:
                break
            time.sleep(0.25)
        late = f"its slurmd did not register within {self.registration_timeout_s:g} s of its start"
        _raise_if_failed(
            {
                host: f"registered as {nodes[host].description}, not with {self._format_gres(counts_by_host[host])}"
                if host in nodes
                else late
                for host in missing_hosts
            }
        )

    def _run_on_each_host(
        self, command: tuple[str, ...], action: str, counts_by_host: Mapping[str, DeviceCounts]
    ) -> None:
        """Run the site's command for every host, several at a time.

        Raises HostFailed with the hosts on which it failed.
        """
        with ThreadPoolExecutor(_MAX_PARALLEL_COMMANDS) as pool:
            complaints = pool.map(lambda host: self._run_command(command, host, counts_by_host[host]), counts_by_host)
        host_complaints = zip(counts_by_host, complaints, strict=True)
        _raise_if_failed(
            {host: f"slurmd could not be {action}: {complaint}" for host, complaint in host_complaints if complaint}
        )

    def _run_command(self, command: tuple[str, ...], host: str, counts: DeviceCounts) -> str:
        """Run the site's command for one host and return the error message, or an empty string on success."""
        words = {"host": host, "gres": self._format_gres(counts), **asdict(counts)}
        argv = [word.format(**words) for word in command]
        # The output goes to a file, because a pipe would wait for a daemon that keeps the output open.
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=_COMMAND_TIMEOUT_S,
                    process_group=0,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
        if process.returncode == 0:
            return ""
        return f"'{' '.join(argv)}' exited with code {process.returncode}: {lines[-1] if lines else 'no output'}"

    def _format_gres(self, counts: DeviceCounts) -> str:
        return f"{self.gres}:{counts.devices}"

    def _has_devices(self, node: Node | None, counts: DeviceCounts) -> bool:
        return node is not None and node.is_serving and node.count_devices(self.gres) == counts.devices

    def _refuse_drained(self, nodes: Mapping[str, Node], lease_id: str) -> None:
        drained_nodes = {
            host: node
            for host, node in nodes.items()
            if node.is_drained and node.reason != _format_drain_reason(lease_id)
        }
        _raise_if_failed({host: f"drained: {node.reason}" for host, node in drained_nodes.items()}, " is ")

    def _undrain(self, hosts: Collection[str], lease_id: str) -> None:
        nodes = self.controller.query_nodes(hosts)
        drained_hosts = [
            host for host, node in nodes.items() if node.is_drained and node.reason == _format_drain_reason(lease_id)
        ]
        self.controller.resume_hosts(drained_hosts)


def _raise_if_failed(failures: Mapping[str, str], separator: str = ": ") -> None:
    if failures:
        raise HostFailed("; ".join(f"{host}{separator}{reason}" for host, reason in failures.items()), dict(failures))


def _read_commands(system: SystemFile) -> SlurmdCommands:
    commands = system.slurm.slurmd
    if commands is None:
        raise ConfigError(
            f"system {system.name}: 'strategy: dynamic' needs slurm.slurmd.stop and slurm.slurmd.start to register hosts again"
        )
    for word in (*commands.stop, *commands.start):
        try:
            word.format(host="", gres="", **asdict(DeviceCounts(0)))
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"system {system.name}: slurm.slurmd: '{word}': {error}; the placeholders are {{host}}, {{devices}}, {{gres}} and "
                "{fabric_devices}; double all other braces"
            ) from error
    return commands


def _format_drain_reason(lease_id: str) -> str:
    """Return the drain reason for a lease, short enough for Slurm to report it in full."""
    return f"devices change: campaign {lease_id}"[:200]
