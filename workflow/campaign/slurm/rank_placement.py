"""Placement of ranks on the hosts of an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.common.errors import LaunchError
from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED, links_document, rates_of
from campaign.emulators.hosts.topology import INTERFACE, far_side
from campaign.plan.used_devices import UsedDevices
from campaign.slurm.srun_step import StepPlacement
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile
from campaign.workloads.protocol import Step

_LOOPBACK = "127.0.0.1"


class SlurmPlacement:
    """Placement of ranks on the hosts of one composition.

    Args:
        system: system file.
        composition: hosts and devices.
        cluster: emulated cluster of the hosts; None for real hosts.
    """

    def __init__(self, system: SystemFile, composition: Composition, cluster: Cluster | None) -> None:
        self._cluster, self._system = cluster, system
        self._used = UsedDevices(composition, system)
        self._devices = self._used.by_host
        self.links: Mapping[str, Any] | None = None
        if system.emulation is not None and cluster is not None:
            self.links = links_document(cluster.spec.rates, "root")
        elif system.emulation is not None:
            reason = (
                "the hosts of this Slurm are not emulated; start a cluster on emulated hosts with `campaign cluster up`"
            )
            self.links = links_document(rates_of(system.emulation, system.links), None, reason)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._devices)

    @property
    def on_cpu(self) -> bool:
        """True if devices are processes on CPU cores."""
        return any(self._used.runs_on(device) == "cpu" for devices in self._devices.values() for device in devices)

    def of(self, step: Step, port: int) -> StepPlacement:
        """Return the placement of the ranks of a step. Raises LaunchError if a rank has no device.

        Args:
            step: step to place.
            port: free port, on the first host as far as this can be known.
        """
        places = self._places(step)
        prefixes = {
            rank: self._prefix(host, port_of_rank)
            for rank, (host, port_of_rank) in enumerate(places)
            if port_of_rank and (step.per_rank or rank == 0)
        }
        kind, named = self._used.named(step)
        given = self._used.given(step)
        if kind and kind.mask_per_rank:
            given = self._used.masked(step, kind, named, given)
        alone = len(set(places)) == 1
        interface = {"GLOO_SOCKET_IFNAME": "lo" if alone else INTERFACE} if self._cluster else {}
        return StepPlacement(
            _LOOPBACK if alone else self._address(*places[0]),
            port,
            prefixes,
            {host: ",".join(names) for host, names in named.items()} if kind and not kind.mask_per_rank else {},
            # A site says its own interface in `slurm.environment`.
            {name: value for name, value in interface.items() if name not in self._system.slurm.environment},
            {rank: each for rank, each in enumerate(given) if each.prefix or each.environment},
            kind.mask_variables if kind else (),
        )

    def flags(self, step: Step) -> tuple[str, ...]:
        """Return the flags for the record of a step."""
        crossed = step.per_rank or self._cluster is None or len(set(self._places(step))) == 1
        return () if crossed else (NOT_CROSSED,)

    def _places(self, step: Step) -> list[tuple[str, str]]:
        """Return host and port of each rank; the port is empty for a local device without a link and on real hosts."""
        return [(host, self._port(host, number)) for host, number in step.ranks]

    def _port(self, host: str, number: int) -> str:
        devices = self._devices.get(host, [])
        if number >= len(devices):
            raise LaunchError(
                f"{host}: the run needs device {number + 1}, but the composition has {len(devices)} there"
            )
        local = sum(device.local for device in devices)
        if self._cluster is None:
            return ""
        if number >= local:
            return far_side(host, "fabric", number - local)
        return far_side(host, "local", number) if self._cluster.spec.rates.local_gb_per_s else ""

    def _prefix(self, host: str, port: str) -> tuple[str, ...]:
        assert self._cluster is not None
        try:
            return self._cluster.port_prefix(port)
        except KeyError as error:
            raise LaunchError(
                f"{host} of the emulated cluster has no port {port}: start it with `campaign cluster up` for this system"
            ) from error

    def _address(self, host: str, port: str) -> str:
        return host if self._cluster is None else self._cluster.addresses[port or host]
