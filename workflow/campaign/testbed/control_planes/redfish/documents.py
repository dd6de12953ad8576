"""The resources of the emulated service that composition is about, as JSON: blocks and their parts, zones, systems. Read-only."""

from __future__ import annotations

from typing import Any

from campaign.testbed.control_planes.hardware import RackDevice
from campaign.testbed.control_planes.redfish.composition import Machine, Made

ROOT = "/redfish/v1"
COMPOSITION = f"{ROOT}/CompositionService"
BLOCKS = f"{COMPOSITION}/ResourceBlocks"
ZONES = f"{COMPOSITION}/ResourceZones"
SYSTEMS = f"{ROOT}/Systems"
CAPABILITIES = f"{SYSTEMS}/Capabilities"

Document = dict[str, Any]


def ref(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def collection(path: str, kind: str, name: str, members: list[str]) -> Document:
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "Name": name,
        "Members": [ref(f"{path}/{member}") for member in members],
        "Members@odata.count": len(members),
    }


class Documents:
    """Of one machine. `begin` is called before each request: what is looked up often is computed once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.blocks_at = BLOCKS if machine.variant.composes else f"{ROOT}/ResourceBlocks"
        self._having: dict[str, list[str]] = {}

    def begin(self) -> None:
        self._having = self.machine.having()

    def find(self, path: str) -> Document | None:
        """A resource under the places named above; None for any other."""
        if path == COMPOSITION and self.machine.variant.composes:
            return self._service()
        for place, build in ((self.blocks_at, self._blocks), (ZONES, self._zones), (SYSTEMS, self._systems)):
            if path == place or path.startswith(f"{place}/"):
                return build(path, path.removeprefix(place).strip("/").split("/"))
        return None

    def _service(self) -> Document:
        return {
            "@odata.id": COMPOSITION,
            "@odata.type": "#CompositionService.v1_1_0.CompositionService",
            "Id": "CompositionService",
            "Name": "Composition Service",
            "Status": {"State": "Enabled", "Health": "OK"},
            "ServiceEnabled": True,
            "AllowOverprovisioning": False,
            "AllowZoneAffinity": self.machine.variant.constrained,
            "ResourceBlocks": ref(self.blocks_at),
            "ResourceZones": ref(ZONES),
        }

    # -- blocks ------------------------------------------------------------------------------------------------------------

    def _blocks(self, path: str, parts: list[str]) -> Document | None:
        rack = self.machine.rack
        match parts:
            case [""]:
                found = collection(path, "ResourceBlock", "Resource Blocks", [*rack.hosts, *rack.devices])
                return _linked(found) if "linked_members" in self.machine.variant.quirks else found
            case [name] if self.machine.known(name):
                return self._block(path, name)
            case [name, place, number] if name in rack.devices and number == "1":
                return self._part(path, rack.devices[name], place)
        return None

    def _block(self, path: str, name: str) -> Document:
        machine, quirks = self.machine, self.machine.variant.quirks
        systems = self._having.get(name, [])
        category = machine.category(name)
        device = machine.rack.devices.get(name)
        broken = device is not None and "broken" in device.quirks
        body: Document = {
            "@odata.id": path,
            "@odata.type": "#ResourceBlock.v1_3_3.ResourceBlock",
            "Id": name,
            "Name": f"block {name}",
            "ResourceBlockType": category if "scalar_types" in quirks else [category],
            "Status": {"State": "Enabled", "Health": "Critical" if broken else "OK"},
        }
        if machine.variant.composes:
            body["CompositionStatus"] = self._status(name, systems)
        body["Links"] = {
            "ComputerSystems": [ref(f"{SYSTEMS}/{one}") for one in systems],
            "Chassis": [ref(f"{ROOT}/Chassis/{device.drawer}")] if device is not None else [],
        }
        if machine.variant.composes:
            body["Links"]["Zones"] = [ref(f"{ZONES}/{zone}") for zone in machine.zones_of(name)]
        for place in _places(device):
            body[place] = [ref(f"{path}/{place}/1")]
        return body

    def _status(self, name: str, systems: list[str]) -> Document:
        machine = self.machine
        device = machine.rack.devices.get(name)
        attached = bool(systems) or (device is not None and device.attached_to is not None)
        state = machine.states.get(name, "Composed" if attached else "Unused")
        if "unused_while_composed" in machine.variant.quirks:
            state = "Unused"
        reserved = name in machine.reserved
        return {
            "CompositionState": state,
            "Reserved": str(reserved).lower() if "text_reserved" in machine.variant.quirks else reserved,
            "SharingCapable": machine.variant.sharing > 1,
            "SharingEnabled": machine.variant.sharing > 1,
            "MaxCompositions": machine.variant.sharing,
            "NumberOfCompositions": len(systems),
        }

    def _part(self, path: str, device: RackDevice, place: str) -> Document | None:
        if place not in _places(device):
            return None
        status = {"State": "Enabled", "Health": "Critical" if "broken" in device.quirks else "OK"}
        common: Document = {"@odata.id": path, "Id": "1", "Name": device.name, "Status": status}
        pcie = {"PCIeType": "Gen4", "MaxPCIeType": "Gen4", "LanesInUse": device.width, "MaxLanes": 16}
        if place == "Processors":
            return common | {
                "@odata.type": "#Processor.v1_16_0.Processor",
                "ProcessorType": device.kind.upper(),
                "Model": device.model,
                "UUID": device.uuid,
                "SerialNumber": device.serial,
                "SystemInterface": {"InterfaceType": "PCIe", "PCIe": pcie},
            }
        if place == "Drives":
            return common | {
                "@odata.type": "#Drive.v1_16_0.Drive",
                "Model": device.model,
                "SerialNumber": device.serial,
                "MediaType": "SSD",
                "Protocol": "NVMe",
                "CapacityBytes": 960_197_124_096,
            }
        mac = ":".join(device.serial[index : index + 2] for index in range(0, 12, 2))
        return common | {
            "@odata.type": "#EthernetInterface.v1_9_0.EthernetInterface",
            "MACAddress": mac,
            "PermanentMACAddress": mac,
        }

    # -- zones -------------------------------------------------------------------------------------------------------------

    def _zones(self, path: str, parts: list[str]) -> Document | None:
        machine = self.machine
        match parts:
            case [""]:
                found = collection(path, "Zone", "Resource Zones", list(machine.zones))
                return _linked(found) if "linked_members" in machine.variant.quirks else found
            case [zone] if zone in machine.zones:
                return {
                    "@odata.id": path,
                    "@odata.type": "#Zone.v1_6_0.Zone",
                    "Id": zone,
                    "Name": f"Resource Zone {zone}",
                    "ZoneType": "ZoneOfResourceBlocks",
                    "Status": {"State": "Enabled", "Health": "OK"},
                    "Links": {"ResourceBlocks": [ref(f"{self.blocks_at}/{name}") for name in machine.members(zone)]},
                    "@Redfish.CollectionCapabilities": self._offers(path),
                }
        return None

    def _offers(self, zone: str) -> Document:
        case = "Constrained" if self.machine.variant.constrained else ""
        return {
            "@odata.type": "#CollectionCapabilities.v1_4_0.CollectionCapabilities",
            "Capabilities": [
                {
                    "CapabilitiesObject": ref(CAPABILITIES),
                    "UseCase": f"ComputerSystem{case}Composition",
                    "Links": {"TargetCollection": ref(SYSTEMS), "RelatedItem": [ref(zone)]},
                }
            ],
        }

    # -- systems -----------------------------------------------------------------------------------------------------------

    def _systems(self, path: str, parts: list[str]) -> Document | None:
        match parts:
            case [""]:
                found = collection(path, "ComputerSystem", "Computer Systems", list(self.machine.systems))
                found["@Redfish.CollectionCapabilities"] = self._offers(
                    next(f"{ZONES}/{zone}" for zone in self.machine.zones)
                )
                return found
            case ["Capabilities"] if self.machine.variant.composes:
                return self._capabilities()
            case [name] if name in self.machine.systems:
                return self._system(path, self.machine.systems[name])
        return None

    def _capabilities(self) -> Document:
        return {
            "@odata.id": CAPABILITIES,
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": "Capabilities",
            "Name": "Capabilities of the systems that can be composed",
            "Name@Redfish.RequiredOnCreate": True,
            "Name@Redfish.SetOnlyOnCreate": True,
            "Description@Redfish.OptionalOnCreate": True,
            "Links@Redfish.RequiredOnCreate": True,
            "Links": {
                "ResourceBlocks@Redfish.RequiredOnCreate": True,
                "ResourceBlocks@Redfish.UpdatableAfterCreate": True,
            },
            "@Redfish.ResourceBlockLimits": {"MinCompute": 1, "MaxCompute": 1, **self.machine.variant.limits},
        }

    def _system(self, path: str, made: Made) -> Document:
        body: Document = {
            "@odata.id": path,
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": made.id,
            "Name": made.name,
            "Description": made.description or "a computer system",
            "SystemType": "Physical" if made.physical else "Composed",
            "PowerState": made.power,
            "Status": {"State": "Enabled", "Health": "OK"},
            "Links": {"ResourceBlocks": [ref(f"{self.blocks_at}/{block}") for block in self.machine.blocks_of(made)]},
            "Actions": {
                "#ComputerSystem.Reset": {
                    "target": f"{path}/Actions/ComputerSystem.Reset",
                    "ResetType@Redfish.AllowableValues": ["On", "ForceOff"],
                }
            },
        }
        if self.machine.variant.actions:
            for verb in ("Add", "Remove"):
                name = f"ComputerSystem.{verb}ResourceBlock"
                body["Actions"][f"#{name}"] = {"target": f"{path}/Actions/{name}"}
        if made.power_next is not None:  # it takes one look longer
            made.power, made.power_next = made.power_next, None
        return body


def _places(device: RackDevice | None) -> tuple[str, ...]:
    if device is None:
        return ()
    return {"nvme": ("Drives",), "nic": ("EthernetInterfaces",)}.get(device.kind, ("Processors",))


def _linked(found: Document) -> Document:
    members = found.pop("Members")
    return found | {"Links": {"Members": members}}
