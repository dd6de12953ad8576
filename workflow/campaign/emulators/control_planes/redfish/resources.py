"""Resource blocks, zones and systems of the emulated service as JSON, and the effects of requests on them (DSP2050)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from campaign.emulators.control_planes.hardware import RackDevice
from campaign.emulators.control_planes.redfish.composition import Machine, Made
from campaign.emulators.control_planes.redfish.documents import (
    HEADERS,
    ROOT,
    WELL,
    Document,
    RedfishRefusal,
    collection,
    missing,
    ref,
    refs,
    resource,
)
from campaign.emulators.control_planes.server import HttpRequest, Reply

COMPOSITION = f"{ROOT}/CompositionService"
ZONES = f"{COMPOSITION}/ResourceZones"
SYSTEMS = f"{ROOT}/Systems"
CAPABILITIES = f"{SYSTEMS}/Capabilities"
CHASSIS = f"{ROOT}/Chassis"
_PLACES = {"nvme": "Drives", "nic": "EthernetInterfaces"}
_CREATE = {"Name", "Description", "Links", "@odata.type"}


class Resources:
    """Resources of the composition service.

    Call `refresh_systems` before each request: it computes once which systems have each block.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.variant = machine.variant
        self.blocks_at = f"{COMPOSITION if machine.variant.composes else ROOT}/ResourceBlocks"
        self._having: dict[str, list[str]] = {}

    def begin(self) -> None:
        """Compute the systems that have each block, for one request."""
        self._having = self.machine.having()

    def root(self) -> Document:
        """Build the links of the service root to these resources."""
        composes = {"CompositionService": ref(COMPOSITION)} if self.variant.composes else {}
        return {"Systems": ref(SYSTEMS), "Chassis": ref(CHASSIS)} | (
            composes or {"ResourceBlocks": ref(self.blocks_at)}
        )

    def allowed(self, path: str) -> str:
        """Return the methods that a path allows besides GET and HEAD, as a suffix of the Allow header."""
        if path == SYSTEMS:
            return ", POST"
        return ", DELETE" if path.startswith(f"{SYSTEMS}/") else ""

    def find(self, path: str) -> Document | None:
        """Return the resource of a path, or None if there is none."""
        for place, build in (
            (self.blocks_at, self._blocks),
            (ZONES, self._zones),
            (SYSTEMS, self._systems),
            (CHASSIS, self._chassis),
        ):
            if path == place or path.startswith(f"{place}/"):
                return build(path, path.removeprefix(place).strip("/").split("/"))
        if path != COMPOSITION or not self.variant.composes:
            return None
        return resource(
            path,
            "CompositionService",
            "v1_1_0",
            Status=WELL,
            ServiceEnabled=True,
            AllowOverprovisioning=False,
            AllowZoneAffinity=False,
            ResourceBlocks=ref(self.blocks_at),
            ResourceZones=ref(ZONES),
        )

    def _blocks(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of blocks, one block, or a part of a block."""
        rack = self.machine.rack
        match parts:
            case [""]:
                return self._listed(collection(path, "ResourceBlock", [*rack.hosts, *rack.devices]))
            case [name] if self.machine.known(name):
                return self._block(path, name)
            case [name, place, "1"] if name in rack.devices and place == _place(rack.devices[name]):
                return self._part(path, rack.devices[name], place)
        return None

    def _listed(self, found: Document) -> Document:
        """Return a collection, with its members under Links if the variant requires it."""
        if "linked_members" in self.variant.quirks:
            found["Links"] = {"Members": found.pop("Members")}
        return found

    def _block(self, path: str, name: str) -> Document:
        """Build the document of a resource block."""
        machine = self.machine
        systems, category, device = self._having.get(name, []), machine.category(name), machine.rack.devices.get(name)
        chassis = refs(CHASSIS, [device.drawer] if device else [])
        body = resource(
            path,
            "ResourceBlock",
            "v1_3_3",
            Name=f"block {name}",
            Status=_status(device),
            Links={"ComputerSystems": refs(SYSTEMS, systems), "Chassis": chassis},
        )
        if "untyped" not in self.variant.quirks:
            body["ResourceBlockType"] = category if "scalar_types" in self.variant.quirks else [category]
        if self.variant.composes:
            body["CompositionStatus"] = self._composition(name, systems)
            body["Links"]["Zones"] = refs(ZONES, machine.zones_of(name))
        if device is not None:
            body[_place(device)] = [ref(f"{path}/{_place(device)}/1")]
        return body

    def _composition(self, name: str, systems: list[str]) -> Document:
        """Build the CompositionStatus of a block."""
        machine, quirks = self.machine, self.variant.quirks
        device = machine.rack.devices.get(name)
        attached = bool(systems) or (device is not None and device.attached_to is not None)
        state = machine.states.get(name, "Composed" if attached else "Unused")
        reserved = name in machine.reserved
        return {
            "CompositionState": "Unused" if "unused_while_composed" in quirks else state,
            "Reserved": str(reserved).lower() if "text_reserved" in quirks else reserved,
            "SharingCapable": False,
            "SharingEnabled": False,
            "MaxCompositions": 1,
            "NumberOfCompositions": len(systems),
        }

    @staticmethod
    def _part(path: str, device: RackDevice, place: str) -> Document:
        """Build the document of the drive, network interface or processor in a block."""
        common = {"Name": device.name, "Status": _status(device)}
        if place == "EthernetInterfaces":
            mac = ":".join(device.serial[index : index + 2] for index in range(0, 12, 2))
            return resource(path, "EthernetInterface", "v1_9_0", MACAddress=mac, PermanentMACAddress=mac, **common)
        common |= {"Model": device.model, "SerialNumber": device.serial}
        if place == "Drives":
            disk = {"MediaType": "SSD", "Protocol": "NVMe", "CapacityBytes": 960_197_124_096}
            return resource(path, "Drive", "v1_16_0", **common, **disk)
        pcie = {"PCIeType": "Gen4", "MaxPCIeType": "Gen4", "LanesInUse": device.width, "MaxLanes": 16}
        link = {"InterfaceType": "PCIe", "PCIe": pcie}
        names = {"ProcessorType": device.kind.upper(), "UUID": device.uuid}
        return resource(path, "Processor", "v1_16_0", **common, **names, SystemInterface=link)

    def _zones(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of zones, or one zone."""
        machine = self.machine
        match parts:
            case [""]:
                return self._listed(collection(path, "Zone", machine.zones))
            case [zone] if zone in machine.zones:
                blocks = refs(self.blocks_at, machine.members(zone))
                found = {"ZoneType": "ZoneOfResourceBlocks", "Status": WELL, "Links": {"ResourceBlocks": blocks}}
                return resource(path, "Zone", "v1_6_0", **found) | self._offers(path)
        return None

    def _offers(self, zone: str) -> Document:
        """Build the links of a zone to the capabilities of composed systems."""
        offer = {
            "CapabilitiesObject": ref(CAPABILITIES),
            "UseCase": self.variant.use_case,
            "Links": {"TargetCollection": ref(SYSTEMS), "RelatedItem": [ref(zone)]},
        }
        kind = "#CollectionCapabilities.v1_4_0.CollectionCapabilities"
        return {"@Redfish.CollectionCapabilities": {"@odata.type": kind, "Capabilities": [offer]}}

    def _chassis(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of chassis, or one chassis."""
        drawers = dict.fromkeys(device.drawer for device in self.machine.rack.devices.values())
        if parts == [""]:
            return collection(path, "Chassis", drawers)
        found = len(parts) == 1 and parts[0] in drawers
        return resource(path, "Chassis", "v1_23_0", ChassisType="Drawer", Status=WELL) if found else None

    def _systems(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of systems, its capabilities, or one system."""
        match parts:
            case [""]:
                zone = next(iter(self.machine.zones))
                listed = self._listed(collection(path, "ComputerSystem", self.machine.systems))
                return listed | self._offers(f"{ZONES}/{zone}")
            case ["Capabilities"] if self.variant.composes:
                return self._capabilities(path)
            case [name] if name in self.machine.systems:
                return self._system(path, self.machine.systems[name])
        return None

    def _capabilities(self, path: str) -> Document:
        """Build the document of the properties that a new system may have."""
        marks = ("Name@Redfish.RequiredOnCreate", "Name@Redfish.SetOnlyOnCreate", "Links@Redfish.RequiredOnCreate")
        return {
            **resource(path, "ComputerSystem", "v1_20_0", Name="Capabilities of the systems that can be composed"),
            **dict.fromkeys((*marks, "Description@Redfish.OptionalOnCreate"), True),
            "Links": {"ResourceBlocks@Redfish.RequiredOnCreate": True},
            "@Redfish.ResourceBlockLimits": {"MinCompute": 1, "MaxCompute": 1, **self.variant.limits},
        }

    def _system(self, path: str, made: Made) -> Document:
        """Build the document of a composed system."""
        reset = {"ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}
        body = resource(
            path,
            "ComputerSystem",
            "v1_20_0",
            Name=made.name,
            Description=made.description or "a computer system",
            SystemType="Composed",
            PowerState=made.power,
            Status=WELL,
            Links={"ResourceBlocks": refs(self.blocks_at, (made.host, *made.devices))},
            Actions={"#ComputerSystem.Reset": {"target": f"{path}/Actions/ComputerSystem.Reset", **reset}},
        )
        if made.power_next is not None:  # the new power state shows at the next read
            made.power, made.power_next = made.power_next, None
        return body

    def change(self, path: str, asked: HttpRequest) -> Callable[[], Reply] | None:
        """Return a function that carries out the change of a request, or None if the path does not allow it."""
        body, composes = asked.body, self.variant.composes
        if path == SYSTEMS and asked.method == "POST" and composes:
            return lambda: self._create(body)
        action = re.fullmatch(rf"{SYSTEMS}/([^/]+)/Actions/ComputerSystem\.(\w+)", path)
        if action and asked.method == "POST":
            return lambda: self._act(action[1], action[2], body)
        made = self.machine.systems.get(path.removeprefix(f"{SYSTEMS}/"))
        if made is not None and composes and asked.method == "DELETE":
            return lambda: self._delete(made)
        return None

    def _created(self, path: str) -> Reply:
        """Build the reply to a POST that created a system, in the form of the variant."""
        self.begin()
        found, how = self.find(path) or {}, self.variant.creates
        if how == "object":
            return Reply(200, found, HEADERS)
        empty = how == "no_content"
        return Reply(204 if empty else 201, None if empty else found, HEADERS | {"Location": path})

    def _create(self, body: Document) -> Reply:
        """Create a system from the body of a POST. Raises RedfishRefusal if the body is invalid."""
        _only(body, _CREATE)
        if "no_description" in self.variant.quirks and "Description" in body:
            raise RedfishRefusal(400, "PropertyUnknown", "no property Description", ("Description",))
        name = body.get("Name")
        if not isinstance(name, str) or not name:
            raise RedfishRefusal(400, "CreateFailedMissingReqProperties", "Name is needed", ("Name",))
        blocks = self._named_blocks(body)
        made = self.machine.compose(name, str(body.get("Description") or ""), blocks)
        return self._created(f"{SYSTEMS}/{made.id}")

    def _named_blocks(self, body: Document) -> list[str]:
        """Return the names of the blocks in Links.ResourceBlocks. Raises RedfishRefusal if there is anything else."""
        links = body.get("Links")
        listing = links.get("ResourceBlocks") if isinstance(links, dict) else None
        if not isinstance(listing, list) or not listing:
            raise RedfishRefusal(400, "PropertyMissing", "Links.ResourceBlocks is needed", ("ResourceBlocks",))
        return [self._named_block(one) for one in listing]

    def _named_block(self, reference: Any) -> str:
        """Return the name of the block that a reference points to. Raises RedfishRefusal if there is none."""
        path = str(reference.get("@odata.id") if isinstance(reference, dict) else None)
        place, _, name = path.rpartition("/")
        if place != self.blocks_at or not self.machine.known(name):
            raise RedfishRefusal(400, "Composition.1.1.ResourceBlockNotFound", f"no block {path}", (path,))
        return name

    def _delete(self, made: Made) -> Reply:
        """Delete a system."""
        self.machine.decompose(made)
        return Reply(204, None, HEADERS)

    def _act(self, system: str, action: str, body: Document) -> Reply:
        """Run a reset action of a system. Raises RedfishRefusal if the action is not supported."""
        made = self.machine.systems.get(system)
        if made is None:
            raise missing(f"{SYSTEMS}/{system}")
        if action != "Reset":
            raise RedfishRefusal(400, "ActionNotSupported", f"no action {action}", (action,))
        wanted = {"On": "On", "ForceOff": "Off"}.get(str(body.get("ResetType")))
        if wanted is None:
            raise RedfishRefusal(400, "ActionParameterNotSupported", "ResetType: On, ForceOff", ("ResetType", action))
        made.power_next = wanted
        return Reply(204, None, HEADERS)


def _only(body: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise RedfishRefusal if the body has properties other than the named ones."""
    if unknown := sorted(set(body) - set(names)):
        raise RedfishRefusal(400, "PropertyUnknown", f"no property {unknown[0]}", unknown)


def _place(device: RackDevice) -> str:
    """Return the member of a block that lists parts of this kind."""
    return _PLACES.get(device.kind, "Processors")


def _status(device: RackDevice | None) -> Document:
    """Return the Status of a device. It is critical if the device is broken."""
    return {**WELL, "Health": "Critical"} if device is not None and "broken" in device.quirks else WELL
