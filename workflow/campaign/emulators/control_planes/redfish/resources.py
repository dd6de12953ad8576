"""Resource blocks, zones and systems of the emulated service as JSON, and the effects of requests on them (DSP2050)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from campaign.emulators.control_planes.hardware import RackDevice
from campaign.emulators.control_planes.redfish.composition import ComposedSystem, CompositionModel
from campaign.emulators.control_planes.redfish.documents import (
    RESPONSE_HEADERS,
    ROOT_PATH,
    STATUS_OK,
    Document,
    RedfishRefusal,
    build_collection,
    build_not_found_error,
    build_resource,
    make_reference,
    make_references,
)
from campaign.emulators.control_planes.server import HttpRequest, Reply

COMPOSITION_SERVICE_PATH = f"{ROOT_PATH}/CompositionService"
ZONES_PATH = f"{COMPOSITION_SERVICE_PATH}/ResourceZones"
SYSTEMS_PATH = f"{ROOT_PATH}/Systems"
CAPABILITIES_PATH = f"{SYSTEMS_PATH}/Capabilities"
CHASSIS_PATH = f"{ROOT_PATH}/Chassis"
_PART_COLLECTIONS = {"nvme": "Drives", "nic": "EthernetInterfaces"}
_CREATE_PROPERTIES = {"Name", "Description", "Links", "@odata.type"}


class ResourceTree:
    """Resources of the composition service.

    Call `refresh_systems` before each request: it computes once which systems contain each block.
    """

    def __init__(self, composition: CompositionModel) -> None:
        self.composition = composition
        self.variant = composition.variant
        self.blocks_path = f"{COMPOSITION_SERVICE_PATH if composition.variant.composes else ROOT_PATH}/ResourceBlocks"
        self._systems_by_block: dict[str, list[str]] = {}

    def refresh_systems(self) -> None:
        """Compute which systems contain each block, for one request."""
        self._systems_by_block = self.composition.list_systems_by_block()

    def build_root_links(self) -> Document:
        """Build the links of the service root to these resources."""
        composes = {"CompositionService": make_reference(COMPOSITION_SERVICE_PATH)} if self.variant.composes else {}
        return {"Systems": make_reference(SYSTEMS_PATH), "Chassis": make_reference(CHASSIS_PATH)} | (
            composes or {"ResourceBlocks": make_reference(self.blocks_path)}
        )

    def get_allowed_methods(self, path: str) -> str:
        """Return the methods that a path allows besides GET and HEAD, as a suffix of the Allow header."""
        if path == SYSTEMS_PATH:
            return ", POST"
        return ", DELETE" if path.startswith(f"{SYSTEMS_PATH}/") else ""

    def find_resource(self, path: str) -> Document | None:
        """Return the resource of a path, or None if there is none."""
        for parent, build in (
            (self.blocks_path, self._find_block),
            (ZONES_PATH, self._find_zone),
            (SYSTEMS_PATH, self._find_system),
            (CHASSIS_PATH, self._find_chassis),
        ):
            if path == parent or path.startswith(f"{parent}/"):
                return build(path, path.removeprefix(parent).strip("/").split("/"))
        if path != COMPOSITION_SERVICE_PATH or not self.variant.composes:
            return None
        return build_resource(
            path,
            "CompositionService",
            "v1_1_0",
            Status=STATUS_OK,
            ServiceEnabled=True,
            AllowOverprovisioning=False,
            AllowZoneAffinity=False,
            ResourceBlocks=make_reference(self.blocks_path),
            ResourceZones=make_reference(ZONES_PATH),
        )

    def _find_block(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of blocks, one block, or a part of a block."""
        rack = self.composition.rack
        match parts:
            case [""]:
                return self._format_collection(build_collection(path, "ResourceBlock", [*rack.hosts, *rack.devices]))
            case [name] if self.composition.has_block(name):
                return self._build_block(path, name)
            case [name, place, "1"] if name in rack.devices and place == _get_part_collection(rack.devices[name]):
                return self._build_part(path, rack.devices[name], place)
        return None

    def _format_collection(self, document: Document) -> Document:
        """Return a collection, with its members under Links if the variant requires it."""
        if "linked_members" in self.variant.quirks:
            document["Links"] = {"Members": document.pop("Members")}
        return document

    def _build_block(self, path: str, name: str) -> Document:
        """Build the document of a resource block."""
        composition = self.composition
        systems, category, device = (
            self._systems_by_block.get(name, []),
            composition.get_block_type(name),
            composition.rack.devices.get(name),
        )
        chassis = make_references(CHASSIS_PATH, [device.drawer] if device else [])
        body = build_resource(
            path,
            "ResourceBlock",
            "v1_3_3",
            Name=f"block {name}",
            Status=_build_device_status(device),
            Links={"ComputerSystems": make_references(SYSTEMS_PATH, systems), "Chassis": chassis},
        )
        if "untyped" not in self.variant.quirks:
            body["ResourceBlockType"] = category if "scalar_types" in self.variant.quirks else [category]
        if self.variant.composes:
            body["CompositionStatus"] = self._build_composition_status(name, systems)
            body["Links"]["Zones"] = make_references(ZONES_PATH, composition.list_zones(name))
        if device is not None:
            body[_get_part_collection(device)] = [make_reference(f"{path}/{_get_part_collection(device)}/1")]
        return body

    def _build_composition_status(self, name: str, systems: list[str]) -> Document:
        """Build the CompositionStatus of a block."""
        composition, quirks = self.composition, self.variant.quirks
        device = composition.rack.devices.get(name)
        is_attached = bool(systems) or (device is not None and device.attached_to is not None)
        state = composition.states.get(name, "Composed" if is_attached else "Unused")
        is_reserved = name in composition.reserved
        return {
            "CompositionState": "Unused" if "unused_while_composed" in quirks else state,
            "Reserved": str(is_reserved).lower() if "text_reserved" in quirks else is_reserved,
            "SharingCapable": False,
            "SharingEnabled": False,
            "MaxCompositions": 1,
            "NumberOfCompositions": len(systems),
        }

    @staticmethod
    def _build_part(path: str, device: RackDevice, collection_name: str) -> Document:
        """Build the document of the drive, network interface or processor in a block."""
        common = {"Name": device.name, "Status": _build_device_status(device)}
        if collection_name == "EthernetInterfaces":
            mac = ":".join(device.serial[index : index + 2] for index in range(0, 12, 2))
            return build_resource(
                path, "EthernetInterface", "v1_9_0", MACAddress=mac, PermanentMACAddress=mac, **common
            )
        common |= {"Model": device.model, "SerialNumber": device.serial}
        if collection_name == "Drives":
            disk = {"MediaType": "SSD", "Protocol": "NVMe", "CapacityBytes": 960_197_124_096}
            return build_resource(path, "Drive", "v1_16_0", **common, **disk)
        pcie = {"PCIeType": "Gen4", "MaxPCIeType": "Gen4", "LanesInUse": device.width, "MaxLanes": 16}
        link = {"InterfaceType": "PCIe", "PCIe": pcie}
        names = {"ProcessorType": device.kind.upper(), "UUID": device.uuid}
        return build_resource(path, "Processor", "v1_16_0", **common, **names, SystemInterface=link)

    def _find_zone(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of zones, or one zone."""
        composition = self.composition
        match parts:
            case [""]:
                return self._format_collection(build_collection(path, "Zone", composition.zones))
            case [zone] if zone in composition.zones:
                blocks = make_references(self.blocks_path, composition.list_zone_blocks(zone))
                properties = {
                    "ZoneType": "ZoneOfResourceBlocks",
                    "Status": STATUS_OK,
                    "Links": {"ResourceBlocks": blocks},
                }
                return build_resource(path, "Zone", "v1_6_0", **properties) | self._build_capability_links(path)
        return None

    def _build_capability_links(self, zone: str) -> Document:
        """Build the links of a zone to the capabilities of composed systems."""
        offer = {
            "CapabilitiesObject": make_reference(CAPABILITIES_PATH),
            "UseCase": self.variant.use_case,
            "Links": {"TargetCollection": make_reference(SYSTEMS_PATH), "RelatedItem": [make_reference(zone)]},
        }
        kind = "#CollectionCapabilities.v1_4_0.CollectionCapabilities"
        return {"@Redfish.CollectionCapabilities": {"@odata.type": kind, "Capabilities": [offer]}}

    def _find_chassis(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of chassis, or one chassis."""
        drawers = dict.fromkeys(device.drawer for device in self.composition.rack.devices.values())
        if parts == [""]:
            return build_collection(path, "Chassis", drawers)
        exists = len(parts) == 1 and parts[0] in drawers
        return build_resource(path, "Chassis", "v1_23_0", ChassisType="Drawer", Status=STATUS_OK) if exists else None

    def _find_system(self, path: str, parts: list[str]) -> Document | None:
        """Return the collection of systems, its capabilities, or one system."""
        match parts:
            case [""]:
                zone = next(iter(self.composition.zones))
                document = self._format_collection(build_collection(path, "ComputerSystem", self.composition.systems))
                return document | self._build_capability_links(f"{ZONES_PATH}/{zone}")
            case ["Capabilities"] if self.variant.composes:
                return self._build_capabilities(path)
            case [name] if name in self.composition.systems:
                return self._build_system(path, self.composition.systems[name])
        return None

    def _build_capabilities(self, path: str) -> Document:
        """Build the document of the properties that a new system may have."""
        marks = ("Name@Redfish.RequiredOnCreate", "Name@Redfish.SetOnlyOnCreate", "Links@Redfish.RequiredOnCreate")
        return {
            **build_resource(
                path, "ComputerSystem", "v1_20_0", Name="Capabilities of the systems that can be composed"
            ),
            **dict.fromkeys((*marks, "Description@Redfish.OptionalOnCreate"), True),
            "Links": {"ResourceBlocks@Redfish.RequiredOnCreate": True},
            "@Redfish.ResourceBlockLimits": {"MinCompute": 1, "MaxCompute": 1, **self.variant.limits},
        }

    def _build_system(self, path: str, system: ComposedSystem) -> Document:
        """Build the document of a composed system."""
        reset = {"ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}
        body = build_resource(
            path,
            "ComputerSystem",
            "v1_20_0",
            Name=system.name,
            Description=system.description or "a computer system",
            SystemType="Composed",
            PowerState=system.power,
            Status=STATUS_OK,
            Links={"ResourceBlocks": make_references(self.blocks_path, (system.host, *system.devices))},
            Actions={"#ComputerSystem.Reset": {"target": f"{path}/Actions/ComputerSystem.Reset", **reset}},
        )
        if system.power_next is not None:  # The new power state is shown by the next read.
            system.power, system.power_next = system.power_next, None
        return body

    def prepare_change(self, path: str, request: HttpRequest) -> Callable[[], Reply] | None:
        """Return a function that carries out the change of a request, or None if the path does not allow it."""
        body, composes = request.body, self.variant.composes
        if path == SYSTEMS_PATH and request.method == "POST" and composes:
            return lambda: self._create_system(body)
        action = re.fullmatch(rf"{SYSTEMS_PATH}/([^/]+)/Actions/ComputerSystem\.(\w+)", path)
        if action and request.method == "POST":
            return lambda: self._run_action(action[1], action[2], body)
        system = self.composition.systems.get(path.removeprefix(f"{SYSTEMS_PATH}/"))
        if system is not None and composes and request.method == "DELETE":
            return lambda: self._delete_system(system)
        return None

    def _build_created_reply(self, path: str) -> Reply:
        """Build the reply to a POST that created a system, in the form of the variant."""
        self.refresh_systems()
        document, answer_form = self.find_resource(path) or {}, self.variant.creates
        if answer_form == "object":
            return Reply(200, document, RESPONSE_HEADERS)
        is_empty = answer_form == "no_content"
        return Reply(204 if is_empty else 201, None if is_empty else document, RESPONSE_HEADERS | {"Location": path})

    def _create_system(self, body: Document) -> Reply:
        """Create a system from the body of a POST. Raises RedfishRefusal if the body is invalid."""
        _reject_unknown_properties(body, _CREATE_PROPERTIES)
        if "no_description" in self.variant.quirks and "Description" in body:
            raise RedfishRefusal(400, "PropertyUnknown", "no property Description", ("Description",))
        name = body.get("Name")
        if not isinstance(name, str) or not name:
            raise RedfishRefusal(400, "CreateFailedMissingReqProperties", "Name is needed", ("Name",))
        blocks = self._list_requested_blocks(body)
        system = self.composition.compose_system(name, str(body.get("Description") or ""), blocks)
        return self._build_created_reply(f"{SYSTEMS_PATH}/{system.id}")

    def _list_requested_blocks(self, body: Document) -> list[str]:
        """Return the names of the blocks in Links.ResourceBlocks. Raises RedfishRefusal if there is anything else."""
        links = body.get("Links")
        listing = links.get("ResourceBlocks") if isinstance(links, dict) else None
        if not isinstance(listing, list) or not listing:
            raise RedfishRefusal(400, "PropertyMissing", "Links.ResourceBlocks is needed", ("ResourceBlocks",))
        return [self._resolve_block(reference) for reference in listing]

    def _resolve_block(self, reference: Any) -> str:
        """Return the name of the block that a reference points to. Raises RedfishRefusal if there is none."""
        path = str(reference.get("@odata.id") if isinstance(reference, dict) else None)
        parent, _, name = path.rpartition("/")
        if parent != self.blocks_path or not self.composition.has_block(name):
            raise RedfishRefusal(400, "Composition.1.1.ResourceBlockNotFound", f"no block {path}", (path,))
        return name

    def _delete_system(self, system: ComposedSystem) -> Reply:
        """Delete a system."""
        self.composition.decompose_system(system)
        return Reply(204, None, RESPONSE_HEADERS)

    def _run_action(self, system: str, action: str, body: Document) -> Reply:
        """Run a reset action of a system. Raises RedfishRefusal if the action is not supported."""
        composed_system = self.composition.systems.get(system)
        if composed_system is None:
            raise build_not_found_error(f"{SYSTEMS_PATH}/{system}")
        if action != "Reset":
            raise RedfishRefusal(400, "ActionNotSupported", f"no action {action}", (action,))
        power_state = {"On": "On", "ForceOff": "Off"}.get(str(body.get("ResetType")))
        if power_state is None:
            raise RedfishRefusal(400, "ActionParameterNotSupported", "ResetType: On, ForceOff", ("ResetType", action))
        composed_system.power_next = power_state
        return Reply(204, None, RESPONSE_HEADERS)


def _reject_unknown_properties(body: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise RedfishRefusal if the body has properties other than the named ones."""
    if unknown_properties := sorted(set(body) - set(names)):
        raise RedfishRefusal(400, "PropertyUnknown", f"no property {unknown_properties[0]}", unknown_properties)


def _get_part_collection(device: RackDevice) -> str:
    """Return the member of a block that lists parts of this kind."""
    return _PART_COLLECTIONS.get(device.kind, "Processors")


def _build_device_status(device: RackDevice | None) -> Document:
    """Return the Status of a device. It is critical if the device is broken."""
    return {**STATUS_OK, "Health": "Critical"} if device is not None and "broken" in device.quirks else STATUS_OK
