"""What every fabric offers.

A fabric is asked in this order: `inventory` -> `select` (pure) -> `compose` -> `read_back` -> `host_sees` -> ... ->
`release`. Nothing is believed because a call returned: what a lease holds is what `read_back` and `host_sees` say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from campaign.documents.cell import Configuration
from campaign.fabrics.banks import Bank
from campaign.fabrics.hardware import Composition, Inventory

AttachMode = Literal["hot", "powered_off", "reboot"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, by whom. `allowed_hosts` empty: any host of the system. links: (lanes, generation) expected, by model.

    epoch: the campaign and which of its compositions; devices that stayed attached since a lease of the same epoch are in place for
    this one. Compositions are replicates, so what an earlier one attached is attached anew. Empty: nothing is in place, or stays.
    """

    lease_id: str
    campaign: str
    owner: str
    configuration: Configuration
    allowed_hosts: tuple[str, ...] = ()
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    epoch: str = ""


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
class Capabilities:
    """What a caller may expect.

    max_devices_per_host: 0 where no limit is known. gives_host_id: the fabric tells what a host calls a device. verified: run
    against the real product, as against written from its documentation. atomic: composing is one step, so that a process that is
    killed in it leaves nothing half composed. read_only: why nothing can be composed at all; empty where it can.
    """

    attach_mode: AttachMode = "hot"
    max_devices_per_host: int = 0
    gives_host_id: bool = False
    verified: bool = False
    atomic: bool = False
    note: str = ""
    read_only: str = ""


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


@dataclass(frozen=True, slots=True)
class Survey:
    """What a control plane shows beyond what its adapter knows, in words, and all that it shows as a document without names,
    addresses and identities."""

    unknown: Sequence[str]
    document: Mapping[str, Any]


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

    def survey(self) -> Survey | None:
        """None where the adapter knows everything that its control plane may show."""

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

    def leave(self, lease_id: str) -> tuple[str, ...]:
        """As `release`, but devices may stay attached where they are: free for every lease, in place for the next of the epoch.

        Default: nothing stays.
        """
        return self.release(lease_id)

    def clear(self, epochs: str = "") -> tuple[str, ...]:
        """Detach what stayed attached after leases whose epoch begins so; gives the fabric ids. Raises as `release` does.

        Default: nothing ever stays.
        """
        return ()

    def held(self) -> Mapping[str, Tag]:
        """Leases of this program on the fabric, by id; what others hold is not in it."""

    def host_sees(self, composition: Composition) -> frozenset[str]:
        """Fabric ids out of the composition that its hosts enumerate now, or that are not looked for. Default: all."""
        return frozenset(device.fabric_id for device in composition.devices)

    def looked_for(self, composition: Composition) -> frozenset[str]:
        """Fabric ids out of the composition that somebody looks for on the hosts. Default: none."""
        return frozenset()

    def rescan(self, composition: Composition) -> None:
        """Make the hosts look again for devices, once, before a device is declared missing. Default: nothing to do."""
        return

    def inventory_planned(self) -> Inventory:
        """The system with nobody in it; a fabric that is far away answers from the system file alone.

        Default: the inventory with everybody gone.
        """
        return self.inventory().freed()

    def select_planned(self, request: Request, inventory: Inventory | None = None) -> Selection:
        """As `select`, on the planned inventory, or on the one that is given (such as `inventory_planned` with what stays).

        A fabric that is far away answers from the system file alone. Default: `select`.
        """
        return self.select(request, self.inventory_planned() if inventory is None else inventory)

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
