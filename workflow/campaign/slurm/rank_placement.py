"""Placement of ranks on the hosts of an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.common.errors import LaunchError
from campaign.common.wording import pluralize
from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED, build_link_rates, describe_links
from campaign.emulators.hosts.topology import HOST_INTERFACE, make_device_namespace
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
            self.links = describe_links(cluster.spec.rates, "root")
        elif system.emulation is not None:
            reason = "the hosts of this Slurm cluster are not emulated; `campaign cluster up` starts a cluster on emulated hosts"
            self.links = describe_links(build_link_rates(system.emulation, system.links), None, reason)

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(self._devices)

    @property
    def on_cpu(self) -> bool:
        """True if devices are processes on CPU cores."""
        return any(self._used.device_kind(device) == "cpu" for devices in self._devices.values() for device in devices)

    def place_step(self, step: Step, port: int) -> StepPlacement:
        """Return the placement of the ranks of a step. Raises LaunchError if a rank has no device.

        Args:
            step: step to place.
            port: port that is free on the first host, as far as this can be determined.
        """
        places = self._locate_ranks(step)
        prefixes = {
            rank: self._build_prefix(host, port_of_rank)
            for rank, (host, port_of_rank) in enumerate(places)
            if port_of_rank and (step.per_rank or rank == 0)
        }
        kind, names_by_host = self._used.named_devices(step)
        device_environments = self._used.build_environments(step)
        if kind and kind.mask_per_rank:
            device_environments = self._used.mask_environments(step, kind, names_by_host, device_environments)
        is_single_place = len(set(places)) == 1
        interface = {"GLOO_SOCKET_IFNAME": "lo" if is_single_place else HOST_INTERFACE} if self._cluster else {}
        return StepPlacement(
            _LOOPBACK if is_single_place else self._find_address(*places[0]),
            port,
            prefixes,
            {host: ",".join(names) for host, names in names_by_host.items()} if kind and not kind.mask_per_rank else {},
            # A site sets its own interface in `slurm.environment`.
            {name: value for name, value in interface.items() if name not in self._system.slurm.environment},
            {
                rank: device_environment
                for rank, device_environment in enumerate(device_environments)
                if device_environment.prefix or device_environment.environment
            },
            kind.mask_variables if kind else (),
        )

    def record_flags(self, step: Step) -> tuple[str, ...]:
        """Return the flags for the record of a step."""
        crosses_links = step.per_rank or self._cluster is None or len(set(self._locate_ranks(step))) == 1
        return () if crosses_links else (NOT_CROSSED,)

    def _locate_ranks(self, step: Step) -> list[tuple[str, str]]:
        """Return host and port of each rank. The port is an empty string on real hosts and for a local device without a link."""
        return [(host, self._find_port(host, number)) for host, number in step.rank_locations]

    def _find_port(self, host: str, number: int) -> str:
        devices = self._devices.get(host, [])
        if number >= len(devices):
            raise LaunchError(
                f"{host}: the run needs device {number + 1}, but the composition has only {pluralize(len(devices), 'device')} "
                "on this host"
            )
        local = sum(device.local for device in devices)
        if self._cluster is None:
            return ""
        if number >= local:
            return make_device_namespace(host, "fabric", number - local)
        return make_device_namespace(host, "local", number) if self._cluster.spec.rates.local_gb_per_s else ""

    def _build_prefix(self, host: str, port: str) -> tuple[str, ...]:
        assert self._cluster is not None
        try:
            return self._cluster.build_port_prefix(port)
        except KeyError as error:
            raise LaunchError(
                f"{host}: this host of the emulated cluster has no port {port}; start the cluster for this system with "
                "`campaign cluster up`"
            ) from error

    def _find_address(self, host: str, port: str) -> str:
        return host if self._cluster is None else self._cluster.addresses[port or host]
