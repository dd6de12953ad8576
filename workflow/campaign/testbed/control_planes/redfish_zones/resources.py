"""The chassis as a tree of Redfish resources. Every path gives a resource, or None where there is none."""

from __future__ import annotations

from campaign.testbed.control_planes.hardware import RackDevice
from campaign.testbed.control_planes.redfish_zones import shapes
from campaign.testbed.control_planes.redfish_zones.options import Options
from campaign.testbed.control_planes.redfish_zones.shapes import (
    FABRIC,
    GEN,
    ROOT,
    Json,
    collection,
    link,
    resource,
)
from campaign.testbed.control_planes.redfish_zones.switching import Port, Switching

_VENDORS = {"gpu": "0x10DE", "nvme": "0x144D", "nic": "0x15B3"}
_CLASSES = {"gpu": "0x030200", "nvme": "0x010802", "nic": "0x020000"}
_ENTITIES = {"gpu": "Processor", "nvme": "Drive", "nic": "NetworkController"}


def hostport(port: Port, falcon: bool) -> str:
    """The id of a host port's endpoint, which has a number that says nothing."""
    return f"hostport{port.number + 1}_{port.name}" if falcon else port.name


class Resources:
    """The tree over a chassis. Devices stand in the switch and the chassis of their drawer, or of `pool` where there are none."""

    def __init__(self, switching: Switching, options: Options) -> None:
        self.switching = switching
        self.options = options
        self.falcon = bool(switching.drawers)
        self.groups = switching.drawers or ["pool"]
        self._at = {(self.group(device), _slot(device)): device for device in switching.rack.devices.values()}

    def get(self, path: str) -> Json | None:
        """The resource at a path without a slash at its end."""
        parts = path.removeprefix(ROOT).strip("/").split("/")
        match parts:
            case [""]:
                return self._root()
            case ["Fabrics"]:
                return collection(path, "Fabric", ["PCIe", *self.options.others])
            case ["Fabrics", name] if name in ("PCIe", *self.options.others):
                return self._fabric(path)
            case ["Fabrics", name, "Zones" | "Endpoints" | "Switches" as kind] if name in self.options.others:
                return collection(path, {"Zones": "Zone", "Endpoints": "Endpoint", "Switches": "Switch"}[kind], [])
            case ["Fabrics", "PCIe", *rest]:
                return self._in_fabric(path, rest)
            case ["Chassis", *rest]:
                return self._in_chassis(path, rest)
            case ["Managers", *rest]:
                return self._in_managers(path, rest)
            case ["Systems"]:
                return collection(path, "ComputerSystem", self.switching.rack.hosts)
            case ["Systems", name] if name in self.switching.rack.hosts:
                return resource(path, "ComputerSystem", "v1_20_0", SystemType="Physical", HostName=name)
        return None

    def _root(self) -> Json:
        path = f"{ROOT}/"
        found = resource(
            path, "ServiceRoot", "v1_15_0", RedfishVersion="1.18.0", UUID="92384634-2938-2342-8820-489239905423"
        )
        found |= {"Id": "RootService", "Name": "Root Service", "Product": "Composable chassis (emulated)"}
        for name in ("Fabrics", "Chassis", "Managers", "Systems", "SessionService"):
            found[name] = link(f"{ROOT}/{name}")
        found["Tasks"] = link(f"{ROOT}/TaskService")
        found["Links"] = {"Sessions": link(f"{ROOT}/SessionService/Sessions")}
        if self.options.expand:
            expand = {"ExpandAll": True, "Levels": True, "Links": True, "NoLinks": True, "MaxLevels": 1}
            found["ProtocolFeaturesSupported"] = {"ExpandQuery": expand}
        if self.options.rsd_version is not None:
            found["Nodes"] = link(f"{ROOT}/Nodes")
            found["Oem"] = {"Intel_RackScale": {"ApiVersion": self.options.rsd_version, "Nodes": link(f"{ROOT}/Nodes")}}
        return found

    def _fabric(self, path: str) -> Json:
        parts = {name: link(f"{path}/{name}") for name in ("Zones", "Endpoints", "Switches")}
        return resource(
            path, "Fabric", "v1_3_0", FabricType="PCIe", Status={"State": "Enabled", "Health": "OK"}, **parts
        )

    # -- the fabric --------------------------------------------------------------------------------------------------------

    def _in_fabric(self, path: str, rest: list[str]) -> Json | None:
        ports, devices = self.switching.ports, self.switching.rack.devices
        match rest:
            case ["Zones"]:
                return collection(path, "Zone", [port.zone for port in ports.values()])
            case ["Zones", name]:
                port = next((port for port in ports.values() if port.zone == name), None)
                return None if port is None else self.zone(port)
            case ["Endpoints"]:
                return collection(
                    path, "Endpoint", [*(hostport(port, self.falcon) for port in ports.values()), *devices]
                )
            case ["Endpoints", name] if name in devices:
                return self._device(path, devices[name])
            case ["Endpoints", name]:
                port = self.port_at(name)
                return None if port is None else self._hostport(path, port)
            case ["Switches"]:
                return collection(path, "Switch", self.groups)
            case ["Switches", group, *more] if group in self.groups:
                return self._in_switch(path, group, more)
        return None

    def port_at(self, endpoint: str) -> Port | None:
        """The port that an endpoint's id is that of."""
        return next((p for p in self.switching.ports.values() if hostport(p, self.falcon) == endpoint), None)

    def zone(self, port: Port) -> Json:
        members = [hostport(port, self.falcon), *(device.name for device in self.switching.zones()[port.name])]
        links = {"Endpoints": [link(f"{FABRIC}/Endpoints/{name}") for name in members]}
        return resource(
            f"{FABRIC}/Zones/{port.zone}",
            "Zone",
            "v1_6_1",
            Description=port.description,
            ZoneType="ZoneOfEndpoints",
            Status={"State": "Enabled", "Health": "OK"},
            Links={**links, "InvolvedSwitches": [link(f"{FABRIC}/Switches/{group}") for group in self.groups]},
        )

    def _hostport(self, path: str, port: Port) -> Json:
        entity: Json = {"EntityType": "RootComplex", "EntityRole": "Initiator"}
        if port.host and self.options.tells_hosts:
            entity["EntityLink"] = link(f"{ROOT}/Systems/{port.host}")
        switches = [group for group in self.groups if not self.falcon or port.name in self.switching.reaching(group)]
        return resource(
            path,
            "Endpoint",
            "v1_8_0",
            EndpointProtocol="PCIe",
            ConnectedEntities=[entity],
            Status={"State": "Enabled" if port.host else "StandbyOffline", "Health": "OK"},
            Links=self._ends(port, [f"{FABRIC}/Switches/{group}/Ports/{port.name}" for group in switches]),
        )

    def _device(self, path: str, device: RackDevice) -> Json:
        entity: Json = {
            "EntityType": _ENTITIES.get(device.kind, "PCIDevice"),
            "EntityRole": "Target",
            "EntityPciId": {
                "VendorId": _VENDORS.get(device.kind, "0x1234"),
                "ClassCode": _CLASSES.get(device.kind, "0xFF0000"),
            },
        }
        durable = (device.uuid, "UUID") if device.kind == "gpu" else (device.serial, "NSID")
        entity["Identifiers"] = [{"DurableName": durable[0], "DurableNameFormat": durable[1]}]
        group = self.group(device)
        if self.options.details:
            entity["EntityLink"] = link(f"{ROOT}/Chassis/{group}/PCIeDevices/{device.name}")
        health = "Critical" if "broken" in device.quirks else "OK"
        return resource(
            path,
            "Endpoint",
            "v1_8_0",
            Name=device.model,
            EndpointProtocol="PCIe",
            ConnectedEntities=[entity],
            Status={"State": "Enabled", "Health": health},
            Links=self._ends(self.switching.port_of(device), [f"{FABRIC}/Switches/{group}/Ports/{_slot(device)}"]),
        )

    def _ends(self, port: Port | None, ports: list[str]) -> Json:
        links: Json = {"ConnectedPorts": [link(path) for path in ports]}
        if self.options.both_ends:
            links["Zones"] = [] if port is None else [link(f"{FABRIC}/Zones/{port.zone}")]
        return links

    def group(self, device: RackDevice) -> str:
        return device.drawer if self.falcon else self.groups[0]

    def _devices(self, group: str) -> list[RackDevice]:
        return [device for device in self.switching.rack.devices.values() if self.group(device) == group]

    # -- switches and their ports ------------------------------------------------------------------------------------------

    def _in_switch(self, path: str, group: str, rest: list[str]) -> Json | None:
        up = [p for p in self.switching.ports if not self.falcon or p in self.switching.reaching(group)]
        match rest:
            case []:
                return resource(
                    path,
                    "Switch",
                    "v1_9_0",
                    SwitchType="PCIe",
                    Status={"State": "Enabled", "Health": "OK"},
                    Ports=link(f"{path}/Ports"),
                    Links={"Chassis": link(f"{ROOT}/Chassis/{group}")},
                )
            case ["Ports"]:
                return collection(path, "Port", [*up, *(_slot(device) for device in self._devices(group))])
            case ["Ports", name, *more] if name in up and more in ([], ["Metrics"]):
                port = self.switching.ports[name]
                if more:
                    return shapes.metrics(path, f"{group} {name}", (0, 0))
                ends = [f"{FABRIC}/Endpoints/{hostport(port, self.falcon)}"]
                return shapes.port(path, "UpstreamPort", 16 if port.host else 0, ends)
            case ["Ports", name, *more] if more in ([], ["Metrics"]):
                device = self._at.get((group, name))
                if device is None:
                    return None
                if more:
                    return shapes.metrics(path, device.name, self.switching.errors.get(device.name, (0, 0)))
                return shapes.port(path, "DownstreamPort", device.width, [f"{FABRIC}/Endpoints/{device.name}"])
        return None

    # -- enclosures --------------------------------------------------------------------------------------------------------

    def _in_chassis(self, path: str, rest: list[str]) -> Json | None:
        match rest:
            case []:
                return collection(path, "Chassis", [*(["falcon"] if self.falcon else []), *self.groups])
            case ["falcon"] if self.falcon:
                contains = [link(f"{ROOT}/Chassis/{group}") for group in self.groups]
                return resource(
                    path,
                    "Chassis",
                    "v1_22_0",
                    ChassisType="Enclosure",
                    Model="Emulated 4016",
                    Links={"Contains": contains},
                )
            case [group, *more] if group in self.groups:
                return self._in_group(path, group, more)
        return None

    def _in_group(self, path: str, group: str, rest: list[str]) -> Json | None:
        match rest:
            case []:
                found = resource(path, "Chassis", "v1_22_0", ChassisType="Drawer" if self.falcon else "Shelf")
                found |= {name: link(f"{path}/{name}") for name in ("PCIeDevices", "Thermal")}
                if self.falcon:
                    found["Links"] = {"ContainedBy": link(f"{ROOT}/Chassis/falcon")}
                    if self.options.tells_modes:
                        found["Oem"] = {"Composer": {"Mode": self.switching.modes[group]}}
                return found
            case ["Thermal"]:
                celsius = 30 + len(group) % 7 + len([d for d in self._devices(group) if d.attached_to])
                sensor = {
                    "@odata.id": f"{path}#/Temperatures/0",
                    "MemberId": "0",
                    "Name": "Inlet",
                    "ReadingCelsius": celsius,
                }
                return resource(path, "Thermal", "v1_7_1", Temperatures=[sensor])
            case ["PCIeDevices"]:
                return collection(path, "PCIeDevice", [device.name for device in self._devices(group)])
            case ["PCIeDevices", name]:
                device = self.switching.rack.devices.get(name)
                return None if device is None or self.group(device) != group else self._card(path, device)
        return None

    def _card(self, path: str, device: RackDevice) -> Json:
        found = resource(
            path,
            "PCIeDevice",
            "v1_12_0",
            Model=device.model,
            SerialNumber=device.serial,
            PCIeInterface={"LanesInUse": device.width, "MaxLanes": 16, "PCIeType": GEN, "MaxPCIeType": GEN},
        )
        if self.falcon:
            place = {"LocationType": "Slot", "LocationOrdinalValue": device.slot, "ServiceLabel": f"Slot {device.slot}"}
            found["Slot"] = {"Lanes": 16, "Location": {"PartLocation": place, "PartLocationContext": device.drawer}}
        return found

    # -- the log -----------------------------------------------------------------------------------------------------------

    def _in_managers(self, path: str, rest: list[str]) -> Json | None:
        match rest:
            case []:
                return collection(path, "Manager", ["bmc"])
            case ["bmc"]:
                return resource(path, "Manager", "v1_18_0", ManagerType="BMC", LogServices=link(f"{path}/LogServices"))
            case ["bmc", "LogServices"]:
                return collection(path, "LogService", ["Events"])
            case ["bmc", "LogServices", "Events"]:
                return resource(path, "LogService", "v1_5_0", Entries=link(f"{path}/Entries"), LogEntryType="Event")
            case ["bmc", "LogServices", "Events", "Entries"]:
                # Newest first, as several services have it.
                return collection(path, "LogEntry", [str(entry.number) for entry in reversed(self.switching.log)])
            case ["bmc", "LogServices", "Events", "Entries", number]:
                entry = next((entry for entry in self.switching.log if str(entry.number) == number), None)
                return None if entry is None else shapes.entry(path, entry)
        return None


def _slot(device: RackDevice) -> str:
    return f"slot{device.slot}"
