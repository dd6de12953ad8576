"""Composition over a rack: which systems there are, of which blocks, and what is refused. Knows no HTTP.

Blocks are named as what they are: a host's block as the host, a device's as the device. The rack is the truth of what is attached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.emulators.control_planes.hardware import Rack, RackError
from campaign.emulators.control_planes.redfish.documents import RedfishRefusal

CompositionQuirk = Literal[
    "text_reserved",  # CompositionStatus.Reserved is the text "false" or "true"
    "linked_members",  # blocks and zones list their Members under Links
    "scalar_types",  # ResourceBlockType is one word
    "bare_answers",  # changes are answered by 200 and a bare number, refusals by a bare JSON string, neither with a Location
    "no_description",  # a system with a Description is refused
    "composes_nothing",  # composing answers as if, stores the system, and moves nothing
    "unused_while_composed",  # blocks say Unused whatever they are
    "deletes_nothing",  # DELETE of a system answers 204 and does nothing
    "linked_root",  # the root has its collections under Links
    "untyped",  # blocks say nothing of their types
    "errors_with_200",  # what is missing, or refused, is answered by 200 and a bare 404 or 500
    "double_allocates",  # a block that a system has is composed into another one
]


class Variant(BaseModel):
    """How services differ. page: members a page, 0: all. task_polls: looks at a task before it is done, 0: no tasks.

    limits: `@Redfish.ResourceBlockLimits`. powered_off: systems that are on are not deleted. composes: False has no
    CompositionService, only blocks. use_case: what its zones offer.

    names: a system's Name is as it was asked for, the first 20 characters of that, one for all, or one for all with what was asked
    for as its Id. creates: how a POST is answered: 201, Location and body; 204 and Location; 200 and the body alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str = "campaign"
    password: str = "learn-2-compose"
    auth: bool = True
    sessions_max: int = 16
    page: int = 0
    expand: bool = True
    task_polls: int = 0
    use_case: Literal["ComputerSystemComposition", "ComputerSystemConstrainedComposition"] = "ComputerSystemComposition"
    limits: dict[str, int] = Field(default_factory=dict)
    powered_off: bool = False
    composes: bool = True
    names: Literal["kept", "cut", "own", "as_id"] = "kept"
    creates: Literal["created", "no_content", "object"] = "created"
    quirks: frozenset[CompositionQuirk] = frozenset()


OWN_NAME = "My Computer System"
_INVALID = "Composition.1.1.ResourceBlockInvalid"
CATEGORIES = {"gpu": "Processor", "fpga": "Processor", "nvme": "Storage", "nic": "Network"}


@dataclass
class Made:
    """One system of a host and devices, by name."""

    id: str
    name: str
    description: str
    host: str
    devices: list[str]
    power: str = "On"
    power_next: str | None = None


class Machine:
    """The service's state."""

    def __init__(self, rack: Rack, variant: Variant) -> None:
        self.rack = rack
        self.variant = variant
        self.reserved: set[str] = set()
        self.systems: dict[str, Made] = {}
        self.states: dict[str, str] = {}
        self._number = 0
        reaches = dict.fromkeys(host.drawers for host in rack.hosts.values())
        self.zones = {str(number): reach for number, reach in enumerate(reaches, 1)}

    def category(self, block: str) -> str:
        """ResourceBlockType of a block."""
        if block in self.rack.hosts:
            return "Compute"
        return CATEGORIES.get(self.rack.devices[block].kind, "Expansion")

    def known(self, block: str) -> bool:
        return block in self.rack.hosts or block in self.rack.devices

    def zones_of(self, block: str) -> list[str]:
        """A zone has the hosts of one reach and all devices in the drawers that they reach."""
        host = self.rack.hosts.get(block)
        if host is not None:
            return [zone for zone, reach in self.zones.items() if reach == host.drawers]
        drawer = self.rack.devices[block].drawer
        return [zone for zone, reach in self.zones.items() if drawer in reach]

    def members(self, zone: str) -> list[str]:
        reach = self.zones[zone]
        return [
            *(name for name, host in self.rack.hosts.items() if host.drawers == reach),
            *(name for name, device in self.rack.devices.items() if device.drawer in reach),
        ]

    def having(self) -> dict[str, list[str]]:
        """Ids of the systems that have each block, as the blocks see it."""
        found: dict[str, list[str]] = {}
        for made in self.systems.values():
            for block in (made.host, *made.devices):
                if self._moved(block, made):
                    found.setdefault(block, []).append(made.id)
        return found

    def _moved(self, block: str, made: Made) -> bool:
        """False for a block that only the system lists."""
        if "composes_nothing" in self.variant.quirks:
            return False
        shared = "double_allocates" in self.variant.quirks
        return shared or block in self.rack.hosts or self.rack.devices[block].attached_to == made.host

    def compose(self, name: str, description: str, blocks: Sequence[str]) -> Made:
        """Raises RedfishRefusal with nothing changed."""
        hosts = [block for block in blocks if block in self.rack.hosts]
        if len(hosts) != 1:
            raise RedfishRefusal(400, _INVALID, f"{len(hosts)} compute blocks, 1 is needed", hosts)
        if any(name in (made.id, made.name) for made in self.systems.values()):
            raise RedfishRefusal(
                409, "ResourceAlreadyExists", f"a system {name} is there", ("ComputerSystem", "Name", name)
            )
        devices = [block for block in blocks if block not in hosts]
        self._check(hosts[0], devices)
        if "composes_nothing" not in self.variant.quirks:
            for device in devices:
                if self.rack.devices[device].attached_to is None:  # else the hardware stays where it is
                    self._attach(device, hosts[0])
        self._number += 1
        names = self.variant.names
        made = Made(
            name if names == "as_id" else str(self._number),
            name if names == "kept" else name[:20] if names == "cut" else OWN_NAME,
            description if names == "kept" else "",
            hosts[0],
            devices,
            power="Off" if self.variant.powered_off else "On",
        )
        self.systems[made.id] = made
        return made

    def _attach(self, device: str, host: str) -> None:
        try:
            self.rack.attach(device, host)
        except RackError as error:
            raise RedfishRefusal(409, "Composition.1.1.ResourceBlockInUse", str(error), (device,)) from error

    def _check(self, host: str, devices: Sequence[str]) -> None:
        """Raises RedfishRefusal when these cannot be one system."""
        if len(set(devices)) != len(devices):
            raise RedfishRefusal(400, _INVALID, "a block is named twice", devices)
        zones = set(self.zones_of(host))
        having = self.having()
        for block in (host, *devices):
            if self.states.get(block) in ("Failed", "Unavailable"):
                raise RedfishRefusal(409, _INVALID, f"{block} is {self.states[block]}", (block,))
            attached = block in self.rack.devices and self.rack.devices[block].attached_to is not None
            if (attached or having.get(block)) and "double_allocates" not in self.variant.quirks:
                who = ", ".join(having.get(block, ()))
                raise RedfishRefusal(
                    409, "Composition.1.1.ResourceBlockInUse", f"{block} is in use by {who}", (block, who)
                )
            zones &= set(self.zones_of(block))
        if not zones:
            raise RedfishRefusal(400, "Composition.1.1.IncompatibleZone", "the blocks share no zone", devices)
        for category in ("Processor", "Storage", "Network"):
            count = sum(self.category(block) == category for block in devices)
            if count > self.variant.limits.get(f"Max{category}", count):
                raise RedfishRefusal(
                    400, "ResourceExhaustion", f"{count} blocks of type {category} are too many", (category,)
                )

    def decompose(self, made: Made) -> None:
        """The blocks are free again; that they are Reserved is not changed."""
        if self.variant.powered_off and made.power != "Off":
            raise RedfishRefusal(400, "CampaignEmulator.1.0.MustBeOff", f"system {made.id} is on", (made.id,))
        if "deletes_nothing" in self.variant.quirks:
            return
        for name in made.devices:
            if self.rack.devices[name].attached_to == made.host:
                self.rack.detach(name)
        del self.systems[made.id]
