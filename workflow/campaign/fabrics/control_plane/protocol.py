"""A control plane: what an adapter has to say, and no more.

`ControlledFabric` calls it in this order: `view` -> (claims in the state file) -> `attach` -> `view` ... -> (host agents drain)
-> `detach` -> `view`. An adapter never decides what is ours: it is told exact devices, and refuses what the fabric shows otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from pydantic import Field, model_validator

from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.host_agents import AgentOptions
from campaign.fabrics.http.options import Connection
from campaign.fabrics.protocol import Capabilities, Tag
from campaign.spec.hardware import Device, pool_devices
from campaign.spec.site_hardware import PoolSpec

if TYPE_CHECKING:  # a system without a control plane needs no HTTP
    from campaign.fabrics.http.client import Client


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the control plane shows at one moment.

    devices: of the pool, never those built into hosts. `model`: as the fabric calls it. `attached_to`: the host's name in the
    system file, or the fabric's own word for a host that the system file does not know. `holder`: the lease id where the fabric
    carries our tag for it; somebody else's name where it shows one; None where it does not say. A device whose two ends disagree
    is `unknown`, never `free`. One that is shown at several ends is listed once for each, or once with `others`; no lease has it.
    holders: hosts (system file's names) that somebody holds according to the fabric -> lease id, or whoever it is.
    shared_hosts: hosts that several hold -> whoever has them beside their holder; no lease has them.
    movable: devices that are free to be had although they are attached to a host: the system file says so.
    p2p: hosts whose devices the fabric lets reach each other (True) or not (False); without those of which it does not say.
    tags: our leases that the fabric itself carries a mark of; their `devices` are what the fabric shows for them.
    """

    devices: tuple[Device, ...]
    holders: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, Tag] = field(default_factory=dict)
    shared_hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    p2p: Mapping[str, bool] = field(default_factory=dict)
    movable: frozenset[str] = frozenset()

    def device(self, fabric_id: str) -> Device | None:
        return next((device for device in self.devices if device.fabric_id == fabric_id), None)


Remember = Callable[[str, str], None]
"""Told (name, id) of whatever the fabric made for a lease, right after it answered: kept in the state file across crashes."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one lease changes. hosts: fabric ids by host name (system file's), in the order of the selection.

    handles: what `Remember` was told for this lease before, by any process. A host may have no devices: adapters that hold hosts
    on the fabric hold it all the same, others pass over it. p2p: whether devices of a host shall reach each other through the
    fabric; an adapter that does not offer it is never asked.
    """

    tag: Tag
    hosts: Mapping[str, tuple[str, ...]]
    handles: Mapping[str, str] = field(default_factory=dict)
    p2p: bool = False


class ControlPlane(Protocol):
    """One adapter, open. Errors are those of `fabrics.errors`; see each method.

    marks_leases: it carries marks of leases; without them, the state file alone tells whose a device is.
    """

    client: Client
    marks_leases: bool = True

    def capabilities(self) -> Capabilities: ...

    def view(self) -> View:
        """Read everything, from both ends where the adapter has two. Changes nothing.

        Raises ProtocolViolation for what cannot be understood, FabricError for a control plane that is not there.
        """

    def banks(self, view: View) -> Sequence[Bank]:
        """Which hosts can reach which devices (`chassis.Bank`; a device's `location` is `<drawer>/slot<n>`), with their rules."""

    def planned(self, pool: Sequence[PoolSpec], hosts: Sequence[str]) -> tuple[Sequence[Device], Sequence[Bank]]:
        """The pool of the system file and its rules, for plans; asks nobody. hosts: names. Default: no rule is known."""
        devices = pool_devices(pool)
        return devices, open_banks((device.location for device in devices), tuple(hosts))

    def out_of_reach(self) -> Mapping[tuple[str, str], str]:
        """See `fabrics.protocol.Controlled`; after `view`. Default: what `banks` says is so."""
        return {}

    def objection(self, change: Change, view: View) -> str | None:
        """A rule of this fabric that the whole change would break (block limits, modes), in words; None when allowed. Pure."""
        return None

    def attach(self, change: Change, remember: Remember) -> None:
        """Attach what is named; what is attached already under this lease's tag is left as it is (a retry after a crash).

        Marks it with `lease_tag` where the adapter has room, before or with the first change. Raises Busy or Conflict when
        nothing was changed (what was begun is taken back, such as an edit that is cancelled), PartialFailure (itemised),
        Incompatible (the fabric's own refusal), OutcomeUnknown when an answer was lost or says nothing.
        """

    def detach(self, change: Change) -> tuple[str, ...]:
        """Detach what is named and take the marks away; gives the fabric ids that the fabric would not let go.

        Only what is named and is still attached to that host under this tag (or untagged, where the adapter cannot tag); of what is
        detached already only the mark is taken away. Raises Busy (nothing changed), OutcomeUnknown, or PartialFailure where words
        say more about what is stuck (`failed`) than its ids do; everything else is detached by then.
        """

    def close(self) -> None:
        """End sessions; never raises for a control plane that is gone. Default: there is none to end."""
        return


class ControlPlaneOptions(Connection):
    """What every adapter of a control plane is told."""

    hosts: dict[str, str] = Field(
        default_factory=dict, description="the fabric's name or id of a host, where it is not the system file's"
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="the system file's name of a device model, by what the fabric calls it (`NVIDIA A100-PCIE-40GB: a100-40gb`)",
    )
    agent: AgentOptions = Field(
        default=AgentOptions(), description="how the devices of a host are listed and released there"
    )

    def model(self, told: str) -> str:
        """The system file's name of what the fabric calls a model."""
        return self.models.get(told, "-".join(told.lower().split()))


class WithoutLogin(ControlPlaneOptions):
    """A control plane that asks nobody to log in."""

    @model_validator(mode="after")
    def _nobody_asks(self) -> Self:
        given = self.credentials
        if given.password_env or given.file:
            raise ValueError(
                "`credentials` are given, and nobody asks for them: this control plane has no login; remove them"
            )
        return self
