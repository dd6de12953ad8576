"""What every fabric offers, and the words it is said in.

A fabric is asked in this order: `inventory` -> `select` (pure) -> `compose` -> `read_back` -> `host_sees` -> ... ->
`release`. Nothing is believed because a call returned: what a lease holds is what `read_back` and `host_sees` say.
Ids are double: `fabric_id` is the fabric's (to release by), `host_id` the host's (a GPU UUID, a drive's serial, a MAC).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from campaign.documents.cell import Configuration
from campaign.fabrics.launch_prefix import Launch
from campaign.fabrics.placement.banks import Bank

AttachMode = Literal["hot", "powered_off", "reboot"]
DeviceState = Literal["free", "reserved", "composing", "in_use", "failed", "unavailable", "unknown"]
Health = Literal["ok", "warning", "critical"]

STORAGE_KIND = "nvme"
NETWORK_KIND = "nic"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """`count` equal devices that a host has of its own."""

    kind: str
    model: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host as the system file describes it. `ports`: host ports of the fabric it is cabled to, where that is known."""

    name: str
    cores: int
    memory_gib: float
    devices: tuple[DeviceSpec, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """`count` equal devices in the pool, in `drawer` ("drawer2" or "falcon1/drawer2") or in the next free slots."""

    kind: str
    model: str
    count: int
    drawer: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """PCIe link of a device: lanes and generation as trained, and as the slot and the device could do."""

    width: int
    gen: int
    width_max: int
    gen_max: int

    @property
    def degraded(self) -> bool:
        return self.width < self.width_max or self.gen < self.gen_max


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `local`: belongs to a host and cannot move. `holder`: a lease id, or whoever else holds it.

    launch: what a process needs to use it, where it is not simply there on its host (remote devices, parts of devices).
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

    @property
    def computes(self) -> bool:
        """True for what a configuration's `device` can name; drives and network cards are not that."""
        return self.kind not in (STORAGE_KIND, NETWORK_KIND)

    @property
    def physical(self) -> str:
        """Name of the device that it is, or is a part of."""
        return self.launch.device if self.launch else self.fabric_id

    def document(self) -> dict[str, Any]:
        """What a record keeps: no holder and no state, so equal compositions have equal documents."""
        document = asdict(self)
        for name in ("holder", "state", "attached_to", *(("launch",) if self.launch is None else ())):
            del document[name]
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Device:
        """The device that `document` describes, held by whoever keeps the document."""
        link, launch = document["link"], document.get("launch")
        return cls(
            **{
                **document,
                "link": link and Link(**link),
                "launch": launch and Launch.from_document(launch),
                "state": "in_use",
            }
        )


@dataclass(frozen=True, slots=True)
class Host:
    """One host; a lease holds whole hosts, because runs that share a host disturb each other."""

    name: str
    cores: int
    memory_gib: float
    ports: tuple[str, ...] = ()
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hosts and devices at one moment."""

    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]

    def device(self, fabric_id: str) -> Device | None:
        return next((device for device in self.devices if device.fabric_id == fabric_id), None)

    def freed(self) -> Inventory:
        """The same system with nobody in it: select() on this tells whether a configuration could ever fit."""
        return Inventory(
            tuple(replace(host, holder=None) for host in self.hosts),
            tuple(_freed(device) for device in self.devices),
        )


def _freed(device: Device) -> Device:
    return replace(
        device,
        holder=None,
        state="failed" if device.health == "critical" else "free",
        attached_to=device.attached_to if device.local else None,
    )


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, by whom. `allowed_hosts` empty: any host of the system. links: (lanes, generation) expected, by model."""

    lease_id: str
    campaign: str
    owner: str
    configuration: Configuration
    allowed_hosts: tuple[str, ...] = ()
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostSelection:
    """Exact devices (fabric ids) chosen for one host; `storage` may be the host's own or the fabric's."""

    host: str
    local: tuple[str, ...] = ()
    fabric: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return (*self.local, *self.fabric, *self.storage)


@dataclass(frozen=True, slots=True)
class Selection:
    request: Request
    hosts: tuple[HostSelection, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(fabric_id for host in self.hosts for fabric_id in host.ids)


@dataclass(frozen=True, slots=True)
class ComposedHost:
    name: str
    cores: int
    memory_gib: float
    devices: tuple[Device, ...] = ()
    storage: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Composition:
    """Hardware obtained, as the fabric reads it back."""

    hosts: tuple[ComposedHost, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device of every host, storage included."""
        return tuple(device for host in self.hosts for device in (*host.devices, *host.storage))

    def document(self) -> dict[str, Any]:
        """JSON-able; the same for two leases of the same hardware."""
        return {
            "hosts": [
                {
                    "name": host.name,
                    "cores": host.cores,
                    "memory_gib": host.memory_gib,
                    "devices": [device.document() for device in host.devices],
                    "storage": [device.document() for device in host.storage],
                }
                for host in self.hosts
            ]
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Composition:
        """The composition that `document` describes; TypeError, KeyError: it describes none."""
        return cls(
            tuple(
                ComposedHost(
                    **{
                        **host,
                        "devices": tuple(Device.from_document(device) for device in host["devices"]),
                        "storage": tuple(Device.from_document(device) for device in host["storage"]),
                    }
                )
                for host in document["hosts"]
            )
        )

    def shortfall(self, configuration: Configuration) -> tuple[str, ...]:
        """What is missing so that the configuration cannot be measured at all (as against measured and flagged)."""
        found: list[str] = []
        if len(self.hosts) != configuration.hosts:
            found.append(f"{len(self.hosts)} hosts obtained, {configuration.hosts} requested")
        for host in self.hosts:
            if len(host.devices) < configuration.devices_per_host:
                found.append(
                    f"{host.name}: {len(host.devices)} devices obtained, {configuration.devices_per_host} requested"
                )
            if configuration.storage != "local" and not host.storage:
                found.append(f"{host.name}: no {configuration.storage} storage obtained")
        return tuple(found)

    def mismatches(
        self, configuration: Configuration, links: Mapping[str, tuple[int, int]] | None = None
    ) -> tuple[str, ...]:
        """Every way in which what was obtained differs from what was requested; empty means equal.

        links: (lanes, generation) that the site expects of a model's links, where more than the device itself tells.
        """
        found = list(self.shortfall(configuration))
        for host in self.hosts:
            if len(host.devices) > configuration.devices_per_host:
                found.append(
                    f"{host.name}: {len(host.devices)} devices obtained, {configuration.devices_per_host} requested"
                )
            local = sum(device.local for device in host.devices)
            if local != configuration.local_devices_per_host:
                found.append(
                    f"{host.name}: {local} local devices obtained, {configuration.local_devices_per_host} requested"
                )
            found.extend(
                f"{host.name}: {device.fabric_id} is {device.model!r}, {configuration.device!r} requested"
                for device in host.devices
                if device.model != configuration.device
            )
            found.extend(
                f"{host.name}: {device.fabric_id} is {'local' if device.local else 'on the fabric'}, "
                f"storage {configuration.storage} requested"
                for device in host.storage
                if device.local != (configuration.storage == "nvme")
            )
        found.extend(_blemishes(self.devices))
        found.extend(_below(self.devices, links or {}))
        return tuple(found)


def _below(devices: tuple[Device, ...], links: Mapping[str, tuple[int, int]]) -> list[str]:
    """Links that are as good as their ends can be, and less than the site expects of the model."""
    return [
        f"{device.fabric_id}: link x{device.link.width} gen {device.link.gen}, x{width} gen {gen} expected of {device.model!r}"
        for device in devices
        if device.link is not None and not device.link.degraded and device.model in links
        for width, gen in (links[device.model],)
        if device.link.width < width or device.link.gen < gen
    ]


def _blemishes(devices: tuple[Device, ...]) -> list[str]:
    found = [f"{device.fabric_id}: health {device.health}" for device in devices if device.health != "ok"]
    found.extend(
        f"{device.fabric_id}: link x{device.link.width} gen {device.link.gen}, "
        f"x{device.link.width_max} gen {device.link.gen_max} possible"
        for device in devices
        if device.link is not None and device.link.degraded
    )
    return found


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a caller may expect. `verified`: run against the real thing, as against written from its documentation.

    atomic: composing is one step, so that a process that is killed in it leaves nothing half composed.
    """

    attach_mode: AttachMode
    max_devices_per_host: int
    supports_modify: bool
    exclusive_transaction: bool
    gives_host_id: bool
    verified: bool
    note: str = ""
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Tag:
    """The mark that a lease of this program leaves on the fabric. `since_s` is Unix time."""

    lease_id: str
    campaign: str
    owner: str
    since_s: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One number that a fabric tells of one of its parts. quantity: unit as suffix (`temperature_c`, `errors`, `rx_bytes`)."""

    part: str
    quantity: str
    value: float


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the fabric's log; `cursor` is where to go on reading after it."""

    cursor: str
    time: str
    severity: str
    message: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """One changing request, as it is put on the wire (without what authenticates: such headers are left out, secrets are `***`)."""

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Observed(Protocol):
    """A control plane that also tells how its links and parts are doing."""

    def readings(self) -> tuple[Reading, ...]: ...

    def events(self, after: str | None = None) -> tuple[Event, ...]: ...


class Portable(Protocol):
    """A control plane whose whole allocation can be saved and restored as one document."""

    def export(self) -> dict[str, Any]: ...

    def restore(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Bring the fabric to a saved allocation; gives what was changed, in words. Raises Conflict for what is foreign."""


class Controlled(Protocol):
    """What a fabric behind somebody else's control plane offers beside `Fabric`.

    force: hosts are made to let go of devices that are in use; only a person may set it.
    """

    force: bool

    @property
    def observed(self) -> Observed | None:
        """None where the control plane tells nothing about its links."""

    @property
    def portable(self) -> Portable | None:
        """None where the allocation cannot be saved."""

    @property
    def requests(self) -> int:
        """Requests sent until now."""

    def operation(self) -> AbstractContextManager[None]:
        """Everything asked within it shares one time limit."""

    def banks(self) -> Sequence[Bank]:
        """Which hosts reach which devices, read now."""

    def rehearse(self, selection: Selection) -> tuple[list[Sent], list[Sent]]:
        """The requests that compose and release would send now; none is sent, and nothing is claimed."""


class Fabric(Protocol):
    """One fabric of one system. Every method may raise FabricError; the subclasses in `errors` say what helps.

    An adapter inherits from it. What it does not implement although it may has the default that is written here.
    """

    def capabilities(self) -> Capabilities: ...

    def inventory(self) -> Inventory: ...

    def select(self, request: Request, inventory: Inventory) -> Selection:
        """Choose exact devices; reads nothing but its arguments and the fabric's rules.

        Raises NoMatch, Incompatible (with the rule), Unhealthy, or Conflict naming the holders.
        """

    def compose(self, selection: Selection) -> None:
        """Attach what was selected; the same selection again under the same lease id changes nothing.

        Raises Busy or Conflict (nothing changed), PartialFailure (itemised), OutcomeUnknown (read back).
        """

    def read_back(self, lease_id: str) -> Composition | None:
        """What the fabric says that the lease holds now; None when it knows no such lease."""

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Give back everything the lease holds; gives the fabric ids that could not be released.

        Releasing what is not held is no error. Raises Busy (nothing changed) or OutcomeUnknown (read back).
        """

    def held(self) -> Mapping[str, Tag]:
        """Leases of this program on the fabric, by id; what others hold is not in it."""

    # -- optional ----------------------------------------------------------------------------------------------------------

    def host_sees(self, composition: Composition) -> frozenset[str]:
        """Fabric ids out of the composition that its hosts enumerate now. Default: all; nobody looks on the hosts."""
        return frozenset(device.fabric_id for device in composition.devices)

    def rescan(self, composition: Composition) -> None:
        """Make the hosts look again for devices, once, before a device is declared missing. Default: nothing to do."""
        return

    def select_planned(self, request: Request) -> Selection:
        """As `select`, as if nobody else used the system; a fabric that is far away answers from the system file alone.

        Default: `select` on the inventory with everybody gone.
        """
        return self.select(request, self.inventory().freed())

    def readings(self) -> tuple[Reading, ...]:
        """How links and parts are doing before and after a lease. Default: the fabric does not tell."""
        return ()

    @property
    def controlled(self) -> Controlled | None:
        """What a fabric behind a control plane offers beside. Default: None, there is no control plane."""
        return None

    def close(self) -> None:
        """Default: nothing is open between calls."""
        return
