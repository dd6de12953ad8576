"""Hosts and devices of a system at one moment, and the hosts and devices of a composition.

A device has two ids. `fabric_id` is that of the fabric, by which the device is released. `host_id` is that of the host, such as a
GPU UUID, the serial number of a drive, or a MAC address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from campaign.spec.cell import Configuration
from campaign.spec.launch_prefix import Launch
from campaign.spec.site_hardware import HostSpec, PoolSpec

DeviceState = Literal["free", "reserved", "composing", "in_use", "failed", "unavailable", "unknown"]
Health = Literal["ok", "warning", "critical"]

STORAGE_KIND = "nvme"
NETWORK_KIND = "nic"
_MOMENTARY_FIELDS = ("holder", "state", "attached_to", "others", "called", "movable")
"""Fields of a device that may change at any time. They are not stored in records."""


def get_device_noun(kind: str) -> str:
    """Return the noun for a device of this kind in a composition, such as 'drive' or 'device'."""
    return {STORAGE_KIND: "drive", NETWORK_KIND: "network card"}.get(kind, "device")


@dataclass(frozen=True, slots=True)
class Link:
    """PCIe link of a device.

    Attributes:
        width: number of lanes in use.
        gen: PCIe generation in use.
        width_max: number of lanes that the slot and the device support.
        gen_max: PCIe generation that the slot and the device support.
    """

    width: int
    gen: int
    width_max: int
    gen_max: int

    @property
    def is_degraded(self) -> bool:
        """True if the link runs below its maximum width or generation."""
        return self.width < self.width_max or self.gen < self.gen_max

    @property
    def description(self) -> str:
        """Description of the current and the maximum width and generation."""
        return f"link x{self.width} gen {self.gen}, x{self.width_max} gen {self.gen_max} possible"


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        fabric_id: id on the fabric, `<drawer>/slot<n>` if the fabric does not name its devices (`list_pool_devices`).
        kind: kind of device, such as 'gpu', 'nvme' or 'nic'.
        model: model as named in the system file.
        host_id: id that the host reports, or None if it is unknown.
        location: place in the fabric, or the name of the host.
        local: True if the device is built into a host and cannot move.
        attached_to: host that the device is attached to, or None.
        holder: id of the lease that holds the device, or another holder.
        launch: command prefix and variables for remote devices and parts of devices, or None for an attached device.
        others: further holders according to the fabric.
        called: model as named by the fabric, if it differs from the system file.
        movable: True if the device can be taken although it is attached to a host.
    """

    fabric_id: str
    kind: str
    model: str
    host_id: str | None
    location: str
    local: bool
    attached_to: str | None = None
    holder: str | None = None
    state: DeviceState = "free"
    health: Health = "ok"
    link: Link | None = None
    launch: Launch | None = None
    others: tuple[str, ...] = ()
    called: str = ""
    movable: bool = False

    @property
    def can_compute(self) -> bool:
        """True if runs can compute on the device. False for drives and network cards."""
        return self.noun == "device"

    @property
    def noun(self) -> str:
        """Noun for the device in a composition."""
        return get_device_noun(self.kind)

    @property
    def physical_id(self) -> str:
        """Name of the physical device, also for a part of it."""
        return self.launch.device if self.launch else self.fabric_id

    def document(self) -> dict[str, Any]:
        """Return the device as a document for a record, without its holder and state.

        So equal compositions have equal documents.
        """
        omitted_fields = (*_MOMENTARY_FIELDS, *(("launch",) if self.launch is None else ()))
        return {name: value for name, value in asdict(self).items() if name not in omitted_fields}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Device:
        """Build a device with the state `in_use` from its document. Raises TypeError or KeyError if the document is invalid."""
        link, launch = document["link"], document.get("launch")
        nested_fields = {"link": link and Link(**link), "launch": launch and Launch.from_document(launch)}
        return cls(**{**document, **nested_fields, "state": "in_use"})


@dataclass(frozen=True, slots=True)
class Host:
    """One host. A lease holds whole hosts, because runs on the same host disturb each other."""

    name: str
    cores: int
    memory_gib: float
    ports: tuple[str, ...] = ()
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All hosts and devices of a system at one moment."""

    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]

    def find_device(self, fabric_id: str) -> Device | None:
        """Return the device with this id, or None if there is none."""
        return next((device for device in self.devices if device.fabric_id == fabric_id), None)

    def release_all(self) -> Inventory:
        """Return a copy of the inventory with all hosts and devices free, to test whether a configuration can ever fit."""
        return Inventory(
            tuple(replace(host, holder=None) for host in self.hosts),
            tuple(
                replace(
                    device,
                    holder=None,
                    state="failed" if device.health == "critical" else "free",
                    attached_to=device.attached_to if device.local else None,
                    movable=False,
                )
                for device in self.devices
            ),
        )


@dataclass(frozen=True, slots=True)
class ComposedHost:
    """One host of a composition.

    Attributes:
        p2p: True if its devices reach each other through the fabric, or None if the fabric does not report it.
    """

    name: str
    cores: int
    memory_gib: float
    devices: tuple[Device, ...] = ()
    storage: tuple[Device, ...] = ()
    p2p: bool | None = None

    @property
    def ordered_devices(self) -> tuple[Device, ...]:
        """Devices in the order in which runs use them, local devices first."""
        return tuple(sorted(self.devices, key=lambda device: not device.local))

    def document(self) -> dict[str, Any]:
        """Return the host as a document. Values that the fabric does not report are left out."""
        host_fields = {"name": self.name, "cores": self.cores, "memory_gib": self.memory_gib}
        parts = {"devices": [d.document() for d in self.devices], "storage": [d.document() for d in self.storage]}
        return {**host_fields, **parts, **({} if self.p2p is None else {"p2p": self.p2p})}


@dataclass(frozen=True, slots=True)
class Composition:
    """Obtained hardware, as read back from the fabric.

    Attributes:
        doubts: pairs of a host or device and the reason why it does not count as obtained.
    """

    hosts: tuple[ComposedHost, ...]
    doubts: tuple[tuple[str, str], ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of all hosts, including storage."""
        return tuple(device for host in self.hosts for device in (*host.devices, *host.storage))

    def document(self) -> dict[str, Any]:
        """Return the composition as a document, which is equal for two leases of the same hardware."""
        return {"hosts": [host.document() for host in self.hosts]}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Composition:
        """Build a composition from its document. Raises TypeError or KeyError if the document is invalid."""

        def devices(documents: Sequence[Mapping[str, Any]]) -> tuple[Device, ...]:
            return tuple(Device.from_document(device) for device in documents)

        return cls(
            tuple(
                ComposedHost(**{**host, "devices": devices(host["devices"]), "storage": devices(host["storage"])})
                for host in document["hosts"]
            )
        )

    def list_shortfalls(self, configuration: Configuration) -> tuple[str, ...]:
        """List the shortfalls that prevent the configuration from being measured. Lesser differences are only flagged."""
        shortfalls: list[str] = []
        if len(self.hosts) != configuration.hosts:
            shortfalls.append(f"{len(self.hosts)} hosts obtained, {configuration.hosts} requested")
        count = configuration.devices_per_host
        for host in self.hosts[: configuration.hosts]:
            if len(host.devices) < count:
                shortfalls.append(f"{host.name}: {len(host.devices)} devices obtained, {count} requested")
            if configuration.storage != "local" and not host.storage:
                shortfalls.append(f"{host.name}: no {configuration.storage} storage obtained")
            if configuration.p2p and not host.p2p:
                shortfalls.append(f"{host.name}: peer-to-peer through the fabric is off")
        return (*shortfalls, *(f"{name}: {words}" for name, words in self.doubts))

    def list_mismatches(
        self, configuration: Configuration, links: Mapping[str, tuple[int, int]] | None = None
    ) -> tuple[str, ...]:
        """List every difference between the obtained and the requested hardware; empty if they are equal.

        Args:
            configuration: requested hardware.
            links: expected (lanes, generation) of the PCIe link by device model.
        """
        mismatches = list(self.list_shortfalls(configuration))
        for host in self.hosts[: configuration.hosts]:
            if len(host.devices) > configuration.devices_per_host:
                mismatches.append(
                    f"{host.name}: {len(host.devices)} devices obtained, {configuration.devices_per_host} requested"
                )
            if (local := sum(device.local for device in host.devices)) != configuration.local_devices_per_host:
                mismatches.append(
                    f"{host.name}: {local} local devices obtained, {configuration.local_devices_per_host} requested"
                )
            mismatches.extend(
                f"{host.name}: {device.fabric_id} is {device.model!r}, {configuration.device!r} requested"
                for device in host.devices
                if device.model != configuration.device
            )
        for host in self.hosts:
            mismatches.extend(
                f"{host.name}: {device.fabric_id} is {'local' if device.local else 'on the fabric'}, "
                f"storage {configuration.storage} requested"
                for device in host.storage
                if device.local != (configuration.storage == "nvme")
            )
        if not configuration.p2p:
            mismatches.extend(f"{host.name}: peer-to-peer is on but not requested" for host in self.hosts if host.p2p)
        mismatches.extend(
            f"{device.fabric_id}: health {device.health}" for device in self.devices if device.health != "ok"
        )
        device_links = [(device, device.link) for device in self.devices if device.link is not None]
        mismatches.extend(
            f"{device.fabric_id}: {link.description}" for device, link in device_links if link.is_degraded
        )
        for device, link in device_links:
            # The link is as good as both ends allow, but worse than the site expects of the model.
            width, gen = (links or {}).get(device.model, (0, 0))
            if not link.is_degraded and (link.width < width or link.gen < gen):
                expectation = f"x{width} gen {gen} expected of {device.model!r}"
                mismatches.append(f"{device.fabric_id}: link x{link.width} gen {link.gen}, {expectation}")
        return tuple(mismatches)


DEFAULT_DRAWER = "pool"
"""Drawer of devices whose entry in the system file has none."""


def list_built_in_devices(host: HostSpec) -> tuple[Device, ...]:
    """List the devices built into a host, with ids like `host1/gpu0`, numbered per kind."""
    devices: list[Device] = []
    numbers: Counter[str] = Counter()
    for spec in host.devices:
        for _ in range(spec.count):
            name = f"{host.name}/{spec.kind}{numbers[spec.kind]}"
            numbers[spec.kind] += 1
            devices.append(Device(name, spec.kind, spec.model, None, host.name, local=True, attached_to=host.name))
    return tuple(devices)


def list_pool_devices(pool: Iterable[PoolSpec]) -> tuple[Device, ...]:
    """List the devices of the pool, with the id and location `<drawer>/slot<n>`."""
    devices: list[Device] = []
    slots: Counter[str] = Counter()
    for spec in pool:
        drawer = spec.drawer or DEFAULT_DRAWER
        for _ in range(spec.count):
            slots[drawer] += 1
            location = f"{drawer}/slot{slots[drawer]}"
            devices.append(Device(location, spec.kind, spec.model, None, location, local=False))
    return tuple(devices)


def normalize_identity(identity: str) -> str:
    """Normalise a device id, so that the spellings of different tools compare equal.

    The result is in lower case, without the prefix `GPU-` and the separators of a MAC address. PCI domains have four digits.
    """
    text = identity.strip().lower().removeprefix("gpu-").removeprefix("uuid:")
    if text.count(":") == 2 and "." in text:  # PCI: domain:bus:device.function
        domain, rest = text.split(":", 1)
        return f"{domain[-4:]}:{rest}"
    return text.replace(":", "").replace("-", "")
