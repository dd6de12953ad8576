"""Placement of ranks on the hosts of an allocation, which are real or those of an emulated cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.config.system_file import DeviceModel, SystemFile
from campaign.errors import LaunchError
from campaign.fabrics.hardware import Composition, Device
from campaign.launch.emulation.cluster_spec import Cluster
from campaign.launch.emulation.topology import INTERFACE, far_side
from campaign.launch.emulation_plan import NOT_CROSSED, links_document, rates_of
from campaign.launch.rank_devices import UsedDevices
from campaign.launch.srun_step import StepPlacement
from campaign.workloads.protocol import Step

_LOOPBACK = "127.0.0.1"


class SlurmPlacement:
    """The hosts of one composition. cluster: the emulated cluster that they belong to; None for real hosts."""

    def __init__(self, system: SystemFile, composition: Composition, cluster: Cluster | None) -> None:
        self._cluster, self._system = cluster, system
        self._used = UsedDevices(composition)
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
        """Whether each device is a process on a CPU core."""
        return any(self._runs_on(device) == "cpu" for devices in self._devices.values() for device in devices)

    def of(self, step: Step, port: int) -> StepPlacement:
        """The placement of a step; LaunchError: a rank has no device.

        port: a free one, on the first host as far as can be known.
        """
        places = self._places(step)
        prefixes = {
            rank: self._prefix(host, fabric_port)
            for rank, (host, fabric_port) in enumerate(places)
            if fabric_port is not None and (step.per_rank or rank == 0)
        }
        given = {rank: each for rank, each in enumerate(self._used.given(step)) if each.prefix or each.environment}
        alone = len(set(places)) == 1
        interface = {"GLOO_SOCKET_IFNAME": "lo" if alone else INTERFACE} if self._cluster else {}
        return StepPlacement(
            _LOOPBACK if alone else self._address(*places[0]),
            port,
            prefixes,
            self._named(step),
            # A site says its own interface in `slurm.environment`.
            {name: value for name, value in interface.items() if name not in self._system.slurm.environment},
            given,
        )

    def flags(self, step: Step) -> tuple[str, ...]:
        """Flags for the record of a step."""
        crossed = step.per_rank or self._cluster is None or len(set(self._places(step))) == 1
        return () if crossed else (NOT_CROSSED,)

    def _places(self, step: Step) -> list[tuple[str, int | None]]:
        """Host and fabric port of each rank; port None: a local device, or a real host."""
        return [
            (host, self._fabric_port(host, number))
            for host, count in step.ranks_by_host.items()
            for number in range(count)
        ]

    def _fabric_port(self, host: str, number: int) -> int | None:
        devices = self._devices.get(host, [])
        if number >= len(devices):
            raise LaunchError(
                f"{host}: the run needs device {number + 1}, but the composition has {len(devices)} there"
            )
        local = sum(device.local for device in devices)
        return None if self._cluster is None or number < local else number - local

    def _prefix(self, host: str, port: int) -> tuple[str, ...]:
        assert self._cluster is not None
        try:
            return self._cluster.fabric_prefix(host, port)
        except KeyError as error:
            raise LaunchError(
                f"{host} of the emulated cluster has no fabric port {port}: start it with `campaign cluster up` for this system"
            ) from error

    def _address(self, host: str, port: int | None) -> str:
        if self._cluster is None:
            return host
        return self._cluster.addresses[host if port is None else far_side(host, port)]

    def _named(self, step: Step) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES by host, where the fabric says what the host calls each device: Slurm would give any of them."""
        used = self._used.of(step)
        every = [device for devices in used.values() for device in devices]
        if not every or not all(
            device.host_id and not device.launch and self._runs_on(device) == "cuda" for device in every
        ):
            return {}
        return {host: ",".join(str(device.host_id) for device in devices) for host, devices in used.items()}

    def _runs_on(self, device: Device) -> str:
        return self._system.devices.get(device.model, DeviceModel()).runs_on
