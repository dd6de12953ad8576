"""Composition over a rack: the systems, their blocks, and the rules for refusing a request. Independent of HTTP.

The block of a host has the name of the host, and the block of a device that of the device. The rack is the reference for
attachments.
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
    "linked_members",  # collections of blocks and zones list their Members under Links
    "scalar_types",  # ResourceBlockType is one word
    "bare_answers",  # changes are answered by 200 and a number, refusals by a JSON string, both without Location
    "no_description",  # a system with a Description is refused
    "composes_nothing",  # composing reports success and stores the system, but attaches nothing
    "unused_while_composed",  # blocks always report Unused
    "deletes_nothing",  # DELETE of a system answers 204 and does nothing
    "linked_root",  # the root has its collections under Links
    "untyped",  # blocks do not report their types
    "errors_with_200",  # missing resources and refusals are answered by 200 and the text 404 or 500
    "double_allocates",  # a block of one system can be composed into another one
]


class ServiceVariant(BaseModel):
    """Differences between Redfish services.

    Attributes:
        user: name of the account.
        password: password of the account.
        auth: requests must be authenticated.
        sessions_max: maximum number of sessions.
        page: members per page; 0 for all.
        expand: $expand is supported.
        task_polls: polls until a task is done; 0 for no tasks.
        use_case: use case that the zones offer.
        limits: `@Redfish.ResourceBlockLimits`.
        powered_off: systems are created powered off, and cannot be deleted while they are on.
        composes: False for a service without CompositionService, which has only blocks.
        names: Name of a system: as requested, its first 20 characters, a fixed name, or a fixed name with the requested name as
            Id.
        creates: answer to a POST: 201 with Location and body, 204 with Location, or 200 with the body only.
        quirks: deviations from the specification.
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


FIXED_SYSTEM_NAME = "My Computer System"
_INVALID_BLOCK_MESSAGE = "Composition.1.1.ResourceBlockInvalid"
BLOCK_TYPES = {"gpu": "Processor", "fpga": "Processor", "nvme": "Storage", "nic": "Network"}


@dataclass
class ComposedSystem:
    """One composed system with its host and devices, by name."""

    id: str
    name: str
    description: str
    host: str
    devices: list[str]
    power: str = "On"
    power_next: str | None = None


class CompositionModel:
    """State of the emulated service: systems, zones and reserved blocks."""

    def __init__(self, rack: Rack, variant: ServiceVariant) -> None:
        self.rack = rack
        self.variant = variant
        self.reserved: set[str] = set()
        self.systems: dict[str, ComposedSystem] = {}
        self.states: dict[str, str] = {}
        self._number = 0
        reaches = dict.fromkeys(host.drawers for host in rack.hosts.values())
        self.zones = {str(number): reach for number, reach in enumerate(reaches, 1)}

    def get_block_type(self, block: str) -> str:
        """Return the ResourceBlockType of a block."""
        if block in self.rack.hosts:
            return "Compute"
        return BLOCK_TYPES.get(self.rack.devices[block].kind, "Expansion")

    def has_block(self, block: str) -> bool:
        """Return True if the rack has a host or device with this name."""
        return block in self.rack.hosts or block in self.rack.devices

    def list_zones(self, block: str) -> list[str]:
        """Return the zones of a block.

        A zone has all hosts that reach the same drawers, and all devices in these drawers.
        """
        host = self.rack.hosts.get(block)
        if host is not None:
            return [zone for zone, reach in self.zones.items() if reach == host.drawers]
        drawer = self.rack.devices[block].drawer
        return [zone for zone, reach in self.zones.items() if drawer in reach]

    def list_zone_blocks(self, zone: str) -> list[str]:
        """Return the names of the hosts and devices in a zone."""
        reach = self.zones[zone]
        return [
            *(name for name, host in self.rack.hosts.items() if host.drawers == reach),
            *(name for name, device in self.rack.devices.items() if device.drawer in reach),
        ]

    def list_systems_by_block(self) -> dict[str, list[str]]:
        """Return the ids of the systems that each block reports, by block."""
        systems_by_block: dict[str, list[str]] = {}
        for system in self.systems.values():
            for block in (system.host, *system.devices):
                if self._reports_system(block, system):
                    systems_by_block.setdefault(block, []).append(system.id)
        return systems_by_block

    def _reports_system(self, block: str, system: ComposedSystem) -> bool:
        """Return True if the block itself reports the system. It is False if only the system lists the block."""
        if "composes_nothing" in self.variant.quirks:
            return False
        can_share = "double_allocates" in self.variant.quirks
        return can_share or block in self.rack.hosts or self.rack.devices[block].attached_to == system.host

    def compose_system(self, name: str, description: str, blocks: Sequence[str]) -> ComposedSystem:
        """Compose a system from one host and its devices.

        Raises RedfishRefusal if the blocks or the name cannot be used. In that case, nothing is changed.
        """
        hosts = [block for block in blocks if block in self.rack.hosts]
        if len(hosts) != 1:
            raise RedfishRefusal(400, _INVALID_BLOCK_MESSAGE, f"{len(hosts)} compute blocks, 1 is needed", hosts)
        if any(name in (system.id, system.name) for system in self.systems.values()):
            raise RedfishRefusal(
                409, "ResourceAlreadyExists", f"a system {name} is there", ("ComputerSystem", "Name", name)
            )
        devices = [block for block in blocks if block not in hosts]
        self._check_composable(hosts[0], devices)
        if "composes_nothing" not in self.variant.quirks:
            for device in devices:
                if self.rack.devices[device].attached_to is None:  # An attached device stays where it is.
                    self._attach_device(device, hosts[0])
        self._number += 1
        names = self.variant.names
        system = ComposedSystem(
            name if names == "as_id" else str(self._number),
            name if names == "kept" else name[:20] if names == "cut" else FIXED_SYSTEM_NAME,
            description if names == "kept" else "",
            hosts[0],
            devices,
            power="Off" if self.variant.powered_off else "On",
        )
        self.systems[system.id] = system
        return system

    def _attach_device(self, device: str, host: str) -> None:
        """Attach a device to a host in the rack. Raises RedfishRefusal if the rack refuses it."""
        try:
            self.rack.attach(device, host)
        except RackError as error:
            raise RedfishRefusal(409, "Composition.1.1.ResourceBlockInUse", str(error), (device,)) from error

    def _check_composable(self, host: str, devices: Sequence[str]) -> None:
        """Check that a host and devices can form one system. Raises RedfishRefusal if they cannot."""
        if len(set(devices)) != len(devices):
            raise RedfishRefusal(400, _INVALID_BLOCK_MESSAGE, "a block is named twice", devices)
        zones = set(self.list_zones(host))
        systems_by_block = self.list_systems_by_block()
        for block in (host, *devices):
            if self.states.get(block) in ("Failed", "Unavailable"):
                raise RedfishRefusal(409, _INVALID_BLOCK_MESSAGE, f"{block} is {self.states[block]}", (block,))
            is_attached = block in self.rack.devices and self.rack.devices[block].attached_to is not None
            if (is_attached or systems_by_block.get(block)) and "double_allocates" not in self.variant.quirks:
                holders = ", ".join(systems_by_block.get(block, ()))
                raise RedfishRefusal(
                    409, "Composition.1.1.ResourceBlockInUse", f"{block} is in use by {holders}", (block, holders)
                )
            zones &= set(self.list_zones(block))
        if not zones:
            raise RedfishRefusal(400, "Composition.1.1.IncompatibleZone", "the blocks share no zone", devices)
        for block_type in ("Processor", "Storage", "Network"):
            count = sum(self.get_block_type(block) == block_type for block in devices)
            if count > self.variant.limits.get(f"Max{block_type}", count):
                raise RedfishRefusal(
                    400, "ResourceExhaustion", f"{count} blocks of type {block_type} are too many", (block_type,)
                )

    def decompose_system(self, system: ComposedSystem) -> None:
        """Delete a system and detach its devices. Reserved marks of its blocks are kept."""
        if self.variant.powered_off and system.power != "Off":
            raise RedfishRefusal(400, "CampaignEmulator.1.0.MustBeOff", f"system {system.id} is on", (system.id,))
        if "deletes_nothing" in self.variant.quirks:
            return
        for name in system.devices:
            if self.rack.devices[name].attached_to == system.host:
                self.rack.detach(name)
        del self.systems[system.id]
