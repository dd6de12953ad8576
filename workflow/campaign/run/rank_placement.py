"""Placement of ranks: on this machine or its emulated hosts, or on the hosts of an allocation; and the devices that each uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from campaign.common.accelerators import ACCELERATORS, Accelerator, Kind
from campaign.common.errors import LaunchError
from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED, emulation_of, links_document, rates_of
from campaign.emulators.hosts.network import EmulatedHosts, EmulationUnavailable, emulated
from campaign.emulators.hosts.topology import INTERFACE, far_side
from campaign.slurm.srun_step import StepPlacement
from campaign.spec.hardware import Composition, Device
from campaign.spec.launch_prefix import Given, given
from campaign.spec.system_file import DeviceModel, SystemFile
from campaign.workloads.protocol import Step
from campaign.workloads.rank_launchers import free_port

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Environment of one process, the namespaces to enter before it starts, and the words before its command."""

    environment: Mapping[str, str]
    namespaces: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


class LocalPlacement:
    """The hosts of one composition on this machine: names that share its loopback, or each emulated with a link per device.

    links: see `Launcher.links`.
    """

    def __init__(
        self,
        composition: Composition,
        emulation: EmulatedHosts | None,
        links: Mapping[str, Any] | None,
        close: Callable[[], None],
    ) -> None:
        self.links = links
        self.close = close
        self._emulation = emulation
        counts = [len(host.devices) for host in composition.hosts]
        # The first devices of a host are used first, and local ones come before those on the fabric.
        self._devices = {
            host.name: range(start, start + count)
            for host, start, count in zip(composition.hosts, accumulate(counts, initial=0), counts, strict=False)
        }

    def of(self, step: Step) -> list[ProcessPlace]:
        """One place per rank, or one for a step of a single process. LaunchError: a rank has no device."""
        ranks, world = step.ranks, str(len(step.ranks))
        if not step.per_rank:
            environment = {"CAMPAIGN_RANKS": world, "CAMPAIGN_HOSTS": ",".join(step.ranks_by_host)}
            return [ProcessPlace(environment, self._namespaces(*ranks[0]))]
        namespaces = [self._namespaces(*rank) for rank in ranks]
        # Ranks that share all they have need no address, and a program may ask whether it is alone.
        alone = len(set(namespaces)) == 1
        shared = {"WORLD_SIZE": world, "MASTER_PORT": str(free_port("127.0.0.1")), "MASTER_ADDR": "127.0.0.1"}
        if self._emulation is not None:
            shared |= {} if alone else {"MASTER_ADDR": self._emulation.address(self._device(*ranks[0]))}
            shared |= {"GLOO_SOCKET_IFNAME": "lo" if alone else INTERFACE}
        found = []
        for rank, ((host, local), paths) in enumerate(zip(ranks, namespaces, strict=True)):
            environment = {"RANK": str(rank), "CAMPAIGN_HOST": host, "CAMPAIGN_HOST_RANK": str(local), **shared}
            # On one machine a rank's device is numbered through; hosts are only names here.
            one_host = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": world}
            emulated_host = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(step.ranks_by_host[host])}
            found.append(ProcessPlace(environment | (emulated_host if self._emulation else one_host), paths))
        return found

    def flags(self, step: Step) -> tuple[str, ...]:
        """Flags for the record of a step."""
        used = {self._namespaces(*rank) for rank in step.ranks}
        return (NOT_CROSSED,) if not step.per_rank and len(used) > 1 else ()

    def stand(self) -> bool:
        """False when the emulated hosts have ended."""
        return self._emulation is None or Path(self._emulation.namespace_paths(0)[-1]).exists()

    def _namespaces(self, host: str, local: int) -> tuple[str, ...]:
        return () if self._emulation is None else self._emulation.namespace_paths(self._device(host, local))

    def _device(self, host: str, local: int) -> int:
        devices = self._devices.get(host, range(0))
        if local >= len(devices):
            raise LaunchError(f"{host}: the run needs device {local + 1}, but the composition has {len(devices)} there")
        return devices[local]


def open_placement(system: SystemFile, composition: Composition) -> LocalPlacement:
    """The hosts of a composition, emulated if the system file asks for it and this machine is able to."""
    hosts, emulation, links = ExitStack(), None, None
    if system.emulation is not None:
        rates = rates_of(system.emulation, system.links)
        try:
            emulation = hosts.enter_context(emulated(emulation_of(system.emulation, system.links, composition)))
            links = links_document(rates, emulation.mode)
        except EmulationUnavailable as error:
            links = links_document(rates, None, str(error))
    return LocalPlacement(composition, emulation, links, hosts.close)


class SlurmPlacement:
    """The hosts of one composition. cluster: the emulated cluster that they belong to; None for real hosts."""

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
        """Whether each device is a process on a CPU core."""
        return any(self._used.runs_on(device) == "cpu" for devices in self._devices.values() for device in devices)

    def of(self, step: Step, port: int) -> StepPlacement:
        """The placement of a step; LaunchError: a rank has no device.

        port: a free one, on the first host as far as can be known.
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
            kind.masks if kind else (),
        )

    def flags(self, step: Step) -> tuple[str, ...]:
        """Flags for the record of a step."""
        crossed = step.per_rank or self._cluster is None or len(set(self._places(step))) == 1
        return () if crossed else (NOT_CROSSED,)

    def _places(self, step: Step) -> list[tuple[str, str]]:
        """Host and port of each rank; port empty: a local device without a link, or a real host."""
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


class UsedDevices:
    """Devices of one composition, by host, in the order in which runs use them. system: says of which kind they are."""

    def __init__(self, composition: Composition, system: SystemFile | None = None) -> None:
        self.by_host = {host.name: list(host.in_order) for host in composition.hosts}
        self._models = {} if system is None else system.devices

    def of(self, step: Step) -> dict[str, list[Device]]:
        """The devices that a step uses, by host."""
        return {host: self.by_host.get(host, [])[:count] for host, count in step.ranks_by_host.items()}

    def given(self, step: Step) -> list[Given]:
        """What each rank, or the one program, is given for its devices. LaunchError: one program cannot use these devices."""
        if not step.takes_devices or not any(device.launch for each in self.of(step).values() for device in each):
            return [Given()] * step.processes
        if step.per_rank:
            return [
                given([device.launch for device in self.by_host.get(host, [])[local : local + 1]], host)
                for host, local in step.ranks
            ]
        (first, *others) = self.of(step).items()
        if others:
            raise LaunchError(
                f"{step.argv[0]}: is one program on {first[0]}, and its devices on {', '.join(host for host, _ in others)} need a "
                "prefix or an environment of their own; start it once per rank"
            )
        try:
            return [given([device.launch for device in first[1]], first[0])]
        except ValueError as error:
            raise LaunchError(f"{step.argv[0]}: {error}; start it once per rank") from error

    def named(self, step: Step) -> tuple[Accelerator | None, dict[str, Sequence[str]]]:
        """The kind of the run's devices and their names by host, where all are known by names that a mask can use; else a run would
        get any of the host's."""
        used = self.of(step)
        every = [device for devices in used.values() for device in devices]
        kinds = {self.runs_on(device) for device in every}
        if (
            not step.takes_devices
            or len(kinds) != 1
            or not all(device.host_id and not device.launch for device in every)
        ):
            return None, {}
        kind = ACCELERATORS[kinds.pop()]
        if not kind.visible([str(device.host_id) for device in every]):
            return None, {}
        return kind, {host: [str(device.host_id) for device in devices] for host, devices in used.items()}

    def masked(
        self, step: Step, kind: Accelerator, named: Mapping[str, Sequence[str]], given: Sequence[Given]
    ) -> list[Given]:
        """What processes are given, with a mask of devices: those of the host, among which ranks choose by LOCAL_RANK, or only a
        rank's own where its kind of device needs that."""
        if not step.per_rank:
            names = [list(next(iter(named.values())))]
        elif kind.mask_per_rank:
            names = [list(named[host][local : local + 1]) for host, local in step.ranks]
        else:
            names = [list(named[host]) for host, _ in step.ranks]
        return [
            replace(each, environment={**kind.visible(own), **each.environment})
            for each, own in zip(given, names, strict=False)
        ]

    def runs_on(self, device: Device) -> Kind:
        return self._models.get(device.model, DeviceModel()).runs_on
