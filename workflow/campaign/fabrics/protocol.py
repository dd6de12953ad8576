"""The interface that every fabric implements.

Callers use a fabric in this order: `read_inventory` -> `select_devices` (pure) -> `compose` -> `read_back` ->
`find_visible_devices` -> ... -> `release`. A call that returns proves nothing: a lease holds the devices that `read_back` and
`find_visible_devices` report.
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
class LeaseRequest:
    """A request for the hosts and devices of one configuration, made by one lease.

    `allowed_hosts` restricts the hosts; if it is empty, any host of the system may be used. `links` holds the expected link
    (lanes, generation) by device model.
    """

    lease_id: str
    campaign: str
    owner: str
    configuration: Configuration
    allowed_hosts: tuple[str, ...] = ()
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostSelection:
    """Devices (fabric ids) chosen for one host.

    `storage` may belong to the host or to the fabric.
    """

    host: str
    local: tuple[str, ...] = ()
    fabric: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()

    @property
    def fabric_ids(self) -> tuple[str, ...]:
        """Fabric ids of all devices chosen for the host: its own, those of the fabric, and storage."""
        return (*self.local, *self.fabric, *self.storage)


@dataclass(frozen=True, slots=True)
class Selection:
    """Hosts and devices chosen for a request."""

    request: LeaseRequest
    hosts: tuple[HostSelection, ...]

    @property
    def fabric_ids(self) -> tuple[str, ...]:
        """Fabric ids of the devices chosen for all hosts."""
        return tuple(fabric_id for host in self.hosts for fabric_id in host.fabric_ids)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities and limits of a fabric.

    Attributes:
        max_devices_per_host: 0 if no limit is known.
        gives_host_id: the fabric reports the identity that a host uses for a device.
        tells_models: the fabric reports the models of its devices; if not, they are taken from the system file.
        verified: the adapter was run against the real product, not only written from its documentation.
        atomic: composing is a single step, so a process that is killed leaves nothing half composed.
        read_only: reason why nothing can be composed; empty if composing is possible.
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
    """Mark that a lease of this program leaves on the fabric.

    `since_s` is Unix time in seconds.
    """

    lease_id: str
    campaign: str
    owner: str
    since_s: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """One request that changes the fabric, as it would be sent.

    Authentication headers are left out, and secrets are replaced by `***`.
    """

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One recorded HTTP request with its answer.

    `origin` is the scheme, host and port that received the request. `status` is None if no answer came; `error` then holds the
    reason. `body` is the parsed JSON answer, or None if `text` is not JSON.
    """

    origin: str
    method: str
    target: str
    request_body: bytes
    seconds: float
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    text: str = ""
    error: str = ""


class ControlPlaneAccess(Protocol):
    """Operations beyond `Fabric` that a fabric with an external control plane offers.

    If `force` is True, hosts release devices that are in use. Only a person may set it.
    """

    force: bool

    @property
    def request_count(self) -> int:
        """Number of requests sent so far."""

    def limit_time(self) -> AbstractContextManager[None]:
        """Apply one common time limit to all requests inside the block."""

    def read_banks(self) -> Sequence[Bank]:
        """Read which hosts can reach which devices."""

    def list_unreachable_drawers(self) -> Mapping[tuple[str, str], str]:
        """Return the reason why a host cannot reach a drawer that the system file assigns to it, by drawer and host.

        The result reflects the last reading of the control plane.
        """

    def list_host_devices(self, host: str) -> Sequence[tuple[str, str]] | None:
        """Return (identity, model) of each device that the host lists now.

        Returns None if no host agent is configured. Raises FabricError if the host cannot be queried.
        """

    def record_requests(self) -> AbstractContextManager[list[RecordedRequest]]:
        """Record every request with its answer inside the block."""

    def redact_secrets(self, text: str) -> str:
        """Remove the secrets of the control plane from a text."""

    def preview_requests(self, selection: Selection) -> tuple[list[OutgoingRequest], list[OutgoingRequest]]:
        """Return the requests that composing and releasing the selection would send now.

        Nothing is sent or claimed.
        """


class Fabric(Protocol):
    """One fabric of one system.

    Every method may raise FabricError; its subclasses in `errors` correspond to the possible remedies. Adapters inherit from
    this class. Methods with a body are optional: an adapter that does not override them gets the default defined here.
    """

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities and limits of the fabric."""
        ...

    def read_inventory(self) -> Inventory:
        """Read the hosts and devices of the system with their current holders."""
        ...

    def select_devices(self, request: LeaseRequest, inventory: Inventory) -> Selection:
        """Choose the devices for a request.

        Only the arguments and the rules of the fabric are used; nothing is read. Raises NoMatch, Incompatible (with the
        rule), Unhealthy, or Conflict (with the holders).
        """

    def compose(self, selection: Selection) -> None:
        """Attach the selected devices to their hosts.

        Repeating the call with the same selection and lease id changes nothing. Raises Busy or Conflict if nothing was changed,
        PartialFailure with the devices that failed, or OutcomeUnknown if the state must be read back.
        """

    def read_back(self, lease_id: str) -> Composition | None:
        """Return the composition that the fabric reports for the lease now, or None if it has no such lease."""

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Release all devices of the lease and return the fabric ids of those that could not be released.

        Releasing a lease that holds nothing is not an error. Raises Busy if nothing was changed, or OutcomeUnknown if the
        state must be read back.
        """

    def probe(self) -> str | None:
        """Send one request that changes nothing to whatever attaches devices, and return its answer in words.

        `campaign check` sends it for fabrics whose inventory is read without a request. Raises FabricError if nothing answers.
        Default: None, because nothing is asked.
        """
        return None

    def list_displaced_devices(self) -> Mapping[str, str]:
        """Return the original host of each displaced device, by fabric id.

        A device is displaced if a lease detached it from the host where it was found, and no lease holds the device or that
        host any more. Default: none.
        """
        return {}

    def return_displaced_devices(self) -> Mapping[str, str]:
        """Attach displaced devices to their original hosts again, and return these hosts by fabric id.

        Each release does the same. Raises the errors of `compose`. Default: no device is displaced.
        """
        return {}

    def list_lease_tags(self) -> Mapping[str, Tag]:
        """Return the tags of this program's leases on the fabric, by lease id.

        Resources of other users are not included.
        """

    def find_visible_devices(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices in the composition that their hosts list now.

        Devices that are not verified on hosts count as visible. Default: all devices.
        """
        return frozenset(device.fabric_id for device in composition.devices)

    def list_devices_to_verify(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices in the composition that are verified on their hosts. Default: none."""
        return frozenset()

    def rescan_hosts(self, composition: Composition) -> None:
        """Make the hosts scan for devices once, before a device is declared missing. Default: do nothing."""
        return

    def build_planned_inventory(self) -> Inventory:
        """Build the inventory of the system without any holders.

        A fabric with a remote control plane builds it from the system file alone. Default: the current inventory with all
        holders removed.
        """
        return self.read_inventory().release_all()

    def select_planned_devices(self, request: LeaseRequest) -> Selection:
        """Choose devices from the planned inventory, by the rules of `select_devices`.

        A fabric with a remote control plane uses the system file alone.
        """
        return self.select_devices(request, self.build_planned_inventory())

    @property
    def control_plane_access(self) -> ControlPlaneAccess | None:
        """Operations beyond `Fabric` that a fabric with a control plane offers; None without a control plane (default)."""
        return None

    def close(self) -> None:
        """Close open connections. Default: do nothing, because nothing is open between calls."""
        return
