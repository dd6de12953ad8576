"""What every fabric offers.

A fabric is asked in this order: `inventory` -> `select` (pure) -> `compose` -> `read_back` -> `host_sees` -> ... ->
`release`. Nothing is believed because a call returned: what a lease holds is what `read_back` and `host_sees` say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from campaign.fabrics.banks import Bank
from campaign.spec.cell import Configuration
from campaign.spec.hardware import Composition, Inventory

AttachMode = Literal["hot", "powered_off", "reboot"]


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
class Capabilities:
    """What a caller may expect.

    max_devices_per_host: 0 where no limit is known. gives_host_id: the fabric tells what a host calls a device. verified: run
    against the real product, as against written from its documentation. tells_models: the fabric tells what its devices are; where
    it does not, the system file claims it. atomic: composing is one step, so that a process that is
    killed in it leaves nothing half composed. read_only: why nothing can be composed at all; empty where it can.
    """

    attach_mode: AttachMode = "hot"
    max_devices_per_host: int = 0
    gives_host_id: bool = False
    tells_models: bool = True
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
class Sent:
    """One changing request, as it is put on the wire (without what authenticates: such headers are left out, secrets are `***`)."""

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request and its answer, as they were. at: origin that it went to; status: None where no answer came, for `error`.

    body: parsed JSON, None where `text` is none.
    """

    at: str
    method: str
    target: str
    sent: bytes
    seconds: float
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    text: str = ""
    error: str = ""


class Controlled(Protocol):
    """What a fabric behind somebody else's control plane offers beside `Fabric`.

    force: hosts are made to let go of devices that are in use; only a person may set it.
    """

    force: bool

    @property
    def requests(self) -> int:
        """Requests sent until now."""

    def operation(self) -> AbstractContextManager[None]:
        """Everything asked within it shares one time limit."""

    def banks(self) -> Sequence[Bank]:
        """Which hosts reach which devices, read now."""

    def out_of_reach(self) -> Mapping[tuple[str, str], str]:
        """By drawer and host, why the host does not reach it although the system file says so; as of the last reading."""

    def host_devices(self, host: str) -> Sequence[tuple[str, str]] | None:
        """Identity and model of what a host lists now; None where nobody looks. Raises FabricError for one that cannot be asked."""

    def recording(self) -> AbstractContextManager[list[RecordedRequest]]:
        """Within, every request is kept with its answer."""

    def scrub(self, text: str) -> str:
        """The text without what the control plane was told in confidence."""

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

    def away(self) -> Mapping[str, str]:
        """Host by fabric id of devices that leases found there and took; no lease has them or their host. Default: none."""
        return {}

    def bring_home(self) -> Mapping[str, str]:
        """Attach what is `away` to its host again, as each release does; gives what it attached, as `away` does.

        Raises as `compose` does. Default: nothing is away.
        """
        return {}

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

    def select_planned(self, request: Request) -> Selection:
        """Select on the planned inventory, as `select` does; a fabric that is far away answers from the system file alone."""
        return self.select(request, self.inventory_planned())

    @property
    def controlled(self) -> Controlled | None:
        """What a fabric behind a control plane offers beside. Default: None, there is no control plane."""
        return None

    def close(self) -> None:
        """Default: nothing is open between calls."""
        return
