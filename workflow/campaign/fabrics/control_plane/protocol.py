"""Interface of an adapter for one control plane.

`ControlledFabric` calls it in this order: `read_view` -> (claims in the state file) -> `attach` -> `read_view` ... -> (host
agents drain devices) -> `detach` -> `read_view`. An adapter never decides who owns a device: it receives exact devices, and
refuses changes that contradict the state of the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from pydantic import Field, model_validator

from campaign.fabrics.banks import Bank, build_unlimited_banks
from campaign.fabrics.host_agents import AgentOptions
from campaign.fabrics.http.options import ConnectionOptions
from campaign.fabrics.protocol import Capabilities, Tag
from campaign.spec.hardware import Device, list_pool_devices
from campaign.spec.site_hardware import PoolSpec

if TYPE_CHECKING:  # A system without a control plane does not need HTTP.
    from campaign.fabrics.http.client import HttpClient


@dataclass(frozen=True, slots=True)
class FabricView:
    """State of the fabric that the control plane reports at one moment.

    Attributes:
        devices: devices of the pool, never built-in devices of hosts. `model` is the fabric's name of the model. `attached_to`
            is the name of the host in the system file, or the fabric's name of a host that the system file does not list.
            `holder` is the lease id if the fabric carries our tag for it, the name of another user if the fabric shows one,
            or None if unknown. A device whose two ends disagree has the state `unknown`, never `free`. A device that is shown
            at several ends is listed once per end, or once with `others`; no lease holds it.
        holders: lease id or other holder of each held host, by its name in the system file.
        shared_hosts: further holders of hosts that several users hold; no lease holds these hosts.
        p2p: True for hosts whose devices can reach each other through the fabric, False if they cannot. Hosts for which the
            fabric does not report it are left out.
        tags: our leases that are marked on the fabric; their `devices` are the devices that the fabric shows for them.
        movable: devices that are available although they are attached to a host, because the system file permits it.
    """

    devices: tuple[Device, ...]
    holders: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, Tag] = field(default_factory=dict)
    shared_hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    p2p: Mapping[str, bool] = field(default_factory=dict)
    movable: frozenset[str] = frozenset()

    def find_device(self, fabric_id: str) -> Device | None:
        """Return the device with this fabric id, or None if there is none."""
        return next((device for device in self.devices if device.fabric_id == fabric_id), None)


RememberHandle = Callable[[str, str], None]
"""Function called with (name, id) of an object that the fabric created for a lease, right after the fabric's answer.

The id is kept in the state file, so it survives crashes.
"""


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """Changes of attachments to be made for one lease.

    Attributes:
        tag: mark of the lease.
        hosts: fabric ids of devices by host name (of the system file), in the order of the selection. A host may have no
            devices: adapters that reserve hosts on the fabric also reserve it, other adapters ignore it.
        handles: ids that any process passed to `RememberHandle` for this lease before.
        p2p: True if the devices of a host should reach each other through the fabric. Adapters that cannot provide this never
            receive True.
    """

    tag: Tag
    hosts: Mapping[str, tuple[str, ...]]
    handles: Mapping[str, str] = field(default_factory=dict)
    p2p: bool = False


class ControlPlane(Protocol):
    """Open connection of an adapter to one control plane.

    Errors are those of `fabrics.errors`; see each method. `marks_leases` is True if the fabric carries marks of leases. If it
    is False, only the state file shows who holds a device.
    """

    client: HttpClient
    marks_leases: bool = True

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities and limits of the fabric."""
        ...

    def read_view(self) -> FabricView:
        """Read the state of all devices, from both ends if the adapter has two. Changes nothing.

        Raises ProtocolViolation if the data cannot be interpreted, and FabricError if the control plane cannot be reached.
        """

    def list_banks(self, view: FabricView) -> Sequence[Bank]:
        """Return the banks of the pool: which hosts can reach which devices, with their rules.

        The `location` of a device is `<drawer>/slot<n>`.
        """

    def build_planned_pool(
        self, pool: Sequence[PoolSpec], hosts: Sequence[str]
    ) -> tuple[Sequence[Device], Sequence[Bank]]:
        """Return the devices and banks of the pool in the system file, for plans. Sends no request.

        Default: banks without rules.

        Args:
            pool: pool entries of the system file.
            hosts: names of the hosts.
        """
        devices = list_pool_devices(pool)
        return devices, build_unlimited_banks((device.location for device in devices), tuple(hosts))

    def list_unreachable_drawers(self) -> Mapping[tuple[str, str], str]:
        """Return the reason why a host cannot reach a drawer, by drawer and host.

        See `fabrics.protocol.ControlPlaneAccess`. Call it after `read_view`. Default: all hosts reach the drawers that
        `list_banks` returns for them.
        """
        return {}

    def find_rule_violation(self, change: LeaseChange, view: FabricView) -> str | None:
        """Describe the rule of the fabric (block limits, modes) that the whole change would break. Pure function.

        Returns None if the change is allowed.
        """
        return None

    def attach(self, change: LeaseChange, remember: RememberHandle) -> None:
        """Attach the devices of the change. Devices that are already attached under the tag of this lease are left as they are.

        The lease is marked with `lease_tag` before or with the first change, if the fabric has room for a mark. Repeating the
        call after a crash is safe.

        Raises Busy or Conflict if nothing was changed; unfinished steps are undone, such as an edit that is cancelled. Raises
        PartialFailure with the devices that failed, Incompatible if the fabric refuses the change, and OutcomeUnknown if an
        answer was lost or gives no result.

        Args:
            change: devices by host, with the tag of the lease.
            remember: function called with the id of each object that the fabric created.
        """

    def detach(self, change: LeaseChange) -> tuple[str, ...]:
        """Detach the devices of the change, remove their marks, and return the fabric ids that the fabric did not release.

        Only devices that are still attached to the given host under this tag are detached (or untagged devices, if the
        adapter cannot tag). If a device is already detached, only its mark is removed.

        Raises Busy if nothing was changed, OutcomeUnknown, or PartialFailure if a message explains the remaining devices
        (`failed_ids`) better than their ids; all other devices are then detached.
        """

    def close(self) -> None:
        """End open sessions. Never raises an error if the control plane is gone. Default: there is no session."""
        return


class ControlPlaneOptions(ConnectionOptions):
    """Options of every adapter of a control plane."""

    hosts: dict[str, str] = Field(
        default_factory=dict,
        description="name or id of each host on the fabric, if it differs from the name in the system file",
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="name of a device model in the system file, by its name on the fabric (`NVIDIA A100-PCIE-40GB: a100-40gb`)",
    )
    agent: AgentOptions = Field(
        default=AgentOptions(), description="host agent, which lists the devices of a host and takes them out of use"
    )

    def map_model(self, fabric_model: str) -> str:
        """Convert the fabric's name of a device model to the name in the system file."""
        return self.models.get(fabric_model, "-".join(fabric_model.lower().split()))


class OptionsWithoutLogin(ControlPlaneOptions):
    """Options of a control plane that has no login."""

    @model_validator(mode="after")
    def _reject_credentials(self) -> Self:
        """Reject credentials, because the control plane has no login."""
        credentials = self.credentials
        if credentials.password_env or credentials.file:
            raise ValueError("this control plane has no login; remove `credentials`")
        return self
