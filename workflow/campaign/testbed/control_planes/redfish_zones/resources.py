"""The chassis as a tree of Redfish resources, and the changes of its zones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from campaign.testbed.control_planes.hardware import RackDevice
from campaign.testbed.control_planes.redfish_service.documents import (
    HEADERS,
    ROOT,
    WELL,
    Document,
    Refused,
    collection,
    etag,
    ref,
    refs,
    resource,
)
from campaign.testbed.control_planes.redfish_zones.switching import Port, Switching
from campaign.testbed.control_planes.server import Asked, Reply

FABRIC = f"{ROOT}/Fabrics/PCIe"
ENDPOINTS, ZONES, SWITCHES = f"{FABRIC}/Endpoints", f"{FABRIC}/Zones", f"{FABRIC}/Switches"
_GT_PER_S, _GEN = 16.0, "Gen4"
_KINDS = {
    "gpu": ("Processor", "0x10DE", "0x030200"),
    "nvme": ("Drive", "0x144D", "0x010802"),
    "nic": ("NetworkController", "0x15B3", "0x020000"),
}
"""EntityType, vendor and class by the rack's kind."""
_COLLECTIONS = {"Zones": "Zone", "Endpoints": "Endpoint", "Switches": "Switch"}


class Resources:
    """See `service.Tree`. Devices stand in the switch and the chassis of their drawer, or of `pool` where there are none."""

    def __init__(self, switching: Switching) -> None:
        self.switching = switching
        self.options = switching.options
        self.falcon = bool(switching.drawers)
        self.groups = switching.drawers or ["pool"]
        self._at = {(self._group(device), _slot(device)): device for device in switching.rack.devices.values()}

    def root(self) -> Document:
        found: Document = {name: ref(f"{ROOT}/{name}") for name in ("Fabrics", "Chassis", "Managers", "Systems")}
        if self.options.rsd_version is not None:
            nodes = {"Nodes": ref(f"{ROOT}/Nodes")}
            found |= nodes | {"Oem": {"Intel_RackScale": {"ApiVersion": self.options.rsd_version, **nodes}}}
        return found

    def allowed(self, path: str) -> str:
        return ", PATCH" if path.startswith(f"{ZONES}/") else ""

    def find(self, path: str) -> Document | None:
        others = self.options.others
        match path.removeprefix(ROOT).strip("/").split("/"):
            case ["Fabrics"]:
                return collection(path, "Fabric", ["PCIe", *others])
            case ["Fabrics", name] if name in ("PCIe", *others):
                links = {kind: ref(f"{path}/{kind}") for kind in _COLLECTIONS}
                return resource(path, "Fabric", "v1_3_0", FabricType="PCIe", Status=WELL, **links)
            case ["Fabrics", name, kind] if name in others and kind in _COLLECTIONS:
                return collection(path, _COLLECTIONS[kind], [])
            case ["Fabrics", "PCIe", "Switches", group, *rest] if group in self.groups:
                return self._in_switch(path, group, rest)
            case ["Fabrics", "PCIe", *rest]:
                return self._in_fabric(path, rest)
            case ["Chassis", group, *rest] if group in self.groups:
                return self._in_group(path, group, rest)
            case ["Chassis", *rest]:
                return self._chassis(path, rest)
            case ["Managers", *rest]:
                return self._in_managers(path, rest)
            case ["Systems"]:
                return collection(path, "ComputerSystem", self.switching.rack.hosts)
            case ["Systems", name] if name in self.switching.rack.hosts:
                return resource(path, "ComputerSystem", "v1_20_0", SystemType="Physical", HostName=name)
        return None

    def _in_fabric(self, path: str, rest: list[str]) -> Document | None:
        ports, devices = (
            {self._hostport(port): port for port in self.switching.ports.values()},
            self.switching.rack.devices,
        )
        match rest:
            case ["Zones"]:
                return collection(path, "Zone", [port.zone for port in ports.values()])
            case ["Zones", name]:
                return next((self._zone(port) for port in ports.values() if port.zone == name), None)
            case ["Endpoints"]:
                return collection(path, "Endpoint", [*ports, *devices])
            case ["Endpoints", name] if name in devices:
                return self._device(path, devices[name])
            case ["Endpoints", name] if name in ports:
                return self._host_endpoint(path, ports[name])
            case ["Switches"]:
                return collection(path, "Switch", self.groups)
        return None

    def _hostport(self, port: Port) -> str:
        """The id of a host port's endpoint, which has a number that says nothing."""
        return f"hostport{port.number + 1}_{port.name}" if self.falcon else port.name

    def _zone(self, port: Port) -> Document:
        members = [self._hostport(port), *(device.name for device in self.switching.zones()[port.name])]
        return resource(
            f"{ZONES}/{port.zone}",
            "Zone",
            "v1_6_1",
            Description=port.description,
            ZoneType="ZoneOfEndpoints",
            Status=WELL,
            Links={"Endpoints": refs(ENDPOINTS, members), "InvolvedSwitches": refs(SWITCHES, self.groups)},
        )

    def _host_endpoint(self, path: str, port: Port) -> Document:
        entity: Document = {"EntityType": "RootComplex", "EntityRole": "Initiator"}
        if port.host and self.options.tells_hosts:
            entity["EntityLink"] = ref(f"{ROOT}/Systems/{port.host}")
        switches = [group for group in self.groups if port.name in self._upstream(group)]
        ends = [f"{group}/Ports/{port.name}" for group in switches]
        return self._endpoint(path, entity, port, ends, {**WELL, "State": "Enabled" if port.host else "StandbyOffline"})

    def _device(self, path: str, device: RackDevice) -> Document:
        kind, vendor, class_code = _KINDS.get(device.kind, ("PCIDevice", "0x1234", "0xFF0000"))
        name, form = (device.uuid, "UUID") if device.kind == "gpu" else (device.serial, "NSID")
        group = self._group(device)
        entity: Document = {
            "EntityType": kind,
            "EntityRole": "Target",
            "EntityPciId": {"VendorId": vendor, "ClassCode": class_code},
            "Identifiers": [{"DurableName": name, "DurableNameFormat": form}],
        }
        if self.options.details:
            entity["EntityLink"] = ref(f"{ROOT}/Chassis/{group}/PCIeDevices/{device.name}")
        status = {**WELL, "Health": "Critical" if "broken" in device.quirks else "OK"}
        found = self._endpoint(path, entity, self.switching.port_of(device), [f"{group}/Ports/{_slot(device)}"], status)
        return found | {"Name": device.model}

    def _endpoint(self, path: str, entity: Document, port: Port | None, ends: list[str], status: Document) -> Document:
        links = {"ConnectedPorts": refs(SWITCHES, ends)}
        if self.options.both_ends:
            links["Zones"] = refs(ZONES, [port.zone] if port else [])
        found = {"EndpointProtocol": "PCIe", "ConnectedEntities": [entity], "Status": status, "Links": links}
        return resource(path, "Endpoint", "v1_8_0", **found)

    def _group(self, device: RackDevice) -> str:
        return device.drawer if self.falcon else self.groups[0]

    def _devices(self, group: str) -> list[RackDevice]:
        return [device for device in self.switching.rack.devices.values() if self._group(device) == group]

    def _upstream(self, group: str) -> list[str]:
        return self.switching.reaching(group) if self.falcon else list(self.switching.ports)

    def _in_switch(self, path: str, group: str, rest: list[str]) -> Document | None:
        match rest:
            case []:
                links = {"Ports": ref(f"{path}/Ports"), "Links": {"Chassis": ref(f"{ROOT}/Chassis/{group}")}}
                return resource(path, "Switch", "v1_9_0", SwitchType="PCIe", Status=WELL, **links)
            case ["Ports"]:
                return collection(path, "Port", [*self._upstream(group), *map(_slot, self._devices(group))])
            case ["Ports", name, *more] if more in ([], ["Metrics"]):
                device = self._at.get((group, name))
                if device is not None:
                    errors = self.switching.errors.get(device.name, (0, 0))
                    return (
                        _metrics(path, device.name, errors) if more else _port(path, "Down", device.width, device.name)
                    )
                if name in self._upstream(group):
                    port = self.switching.ports[name]
                    width = 16 if port.host else 0
                    return _metrics(path, f"{group} {name}") if more else _port(path, "Up", width, self._hostport(port))
        return None

    def _chassis(self, path: str, rest: list[str]) -> Document | None:
        if not rest:
            return collection(path, "Chassis", [*(["falcon"] if self.falcon else []), *self.groups])
        if rest != ["falcon"] or not self.falcon:
            return None
        contains = {"Contains": refs(f"{ROOT}/Chassis", self.groups)}
        return resource(path, "Chassis", "v1_22_0", ChassisType="Enclosure", Model="Emulated 4016", Links=contains)

    def _in_group(self, path: str, group: str, rest: list[str]) -> Document | None:
        devices = {device.name: device for device in self._devices(group)}
        match rest:
            case []:
                parts: Document = {name: ref(f"{path}/{name}") for name in ("PCIeDevices", "Thermal")}
                if self.falcon:
                    parts["Links"] = {"ContainedBy": ref(f"{ROOT}/Chassis/falcon")}
                    if self.options.tells_modes:
                        parts["Oem"] = {"Composer": {"Mode": self.switching.modes[group]}}
                return resource(path, "Chassis", "v1_22_0", ChassisType="Drawer" if self.falcon else "Shelf", **parts)
            case ["Thermal"]:
                celsius = 30 + len(group) % 7 + sum(device.attached_to is not None for device in devices.values())
                sensor = {"@odata.id": f"{path}#/Temperatures/0", "MemberId": "0", "Name": "Inlet"}
                return resource(path, "Thermal", "v1_7_1", Temperatures=[{**sensor, "ReadingCelsius": celsius}])
            case ["PCIeDevices"]:
                return collection(path, "PCIeDevice", devices)
            case ["PCIeDevices", name] if name in devices:
                return self._card(path, devices[name])
        return None

    def _card(self, path: str, device: RackDevice) -> Document:
        link = {"LanesInUse": device.width, "MaxLanes": 16, "PCIeType": _GEN, "MaxPCIeType": _GEN}
        facts: Document = {"Model": device.model, "SerialNumber": device.serial, "PCIeInterface": link}
        if self.falcon:
            place = {"LocationType": "Slot", "LocationOrdinalValue": device.slot, "ServiceLabel": f"Slot {device.slot}"}
            facts["Slot"] = {"Lanes": 16, "Location": {"PartLocation": place, "PartLocationContext": device.drawer}}
        return resource(path, "PCIeDevice", "v1_12_0", **facts)

    def _in_managers(self, path: str, rest: list[str]) -> Document | None:
        match rest:
            case []:
                return collection(path, "Manager", ["bmc"])
            case ["bmc"]:
                return resource(path, "Manager", "v1_18_0", ManagerType="BMC", LogServices=ref(f"{path}/LogServices"))
            case ["bmc", "LogServices"]:
                return collection(path, "LogService", ["Events"])
            case ["bmc", "LogServices", "Events"]:
                return resource(path, "LogService", "v1_5_0", Entries=ref(f"{path}/Entries"), LogEntryType="Event")
            case ["bmc", "LogServices", "Events", "Entries"]:
                # Newest first, as several services have it.
                return collection(path, "LogEntry", map(str, range(len(self.switching.log), 0, -1)))
            case ["bmc", "LogServices", "Events", "Entries", number] if number.isdigit():
                entry = dict(enumerate(self.switching.log, 1)).get(int(number))
                return entry and resource(path, "LogEntry", "v1_15_0", EntryType="Event", **entry)
        return None

    def change(self, path: str, asked: Asked) -> Callable[[], Reply] | None:
        port = next((port for port in self.switching.ports.values() if path == f"{ZONES}/{port.zone}"), None)
        if port is None or asked.method != "PATCH":
            return None
        wanted, description = self._wanted(port, dict(asked.body))
        self.switching.check(port, wanted)
        return lambda: self._put(port, wanted, description)

    def _put(self, port: Port, wanted: Sequence[str], description: str | None) -> Reply:
        self.switching.put(port, wanted, description)
        if self.options.answers == "nothing":
            return Reply(204, None, HEADERS)
        zone = self._zone(port)
        return Reply(200, zone, HEADERS | ({"ETag": etag(zone)} if self.options.etags != "none" else {}))

    def _wanted(self, port: Port, rest: Document) -> tuple[list[str], str | None]:
        """Devices and description that a body asks for. Raises Refused."""
        description = self._described(rest.pop("Description")) if "Description" in rest else None
        if self.options.endpoints == "rsd21":
            listing = rest.pop("Endpoints", None)
        else:
            links = rest.pop("Links", {})
            if not isinstance(links, dict) or set(links) - {"Endpoints"}:
                raise Refused(400, "PropertyNotWritable", "of Links, only Endpoints can be written", ("Links",))
            listing = links.get("Endpoints")
        for name in rest:
            word = "PropertyNotWritable" if name in self._zone(port) else "PropertyUnknown"
            raise Refused(400, word, f"{name} cannot be written", (name,))
        if listing is None:
            return [device.name for device in self.switching.zones()[port.name]], description
        return self._listed(port, listing), description

    def _described(self, text: Any) -> str | None:
        if self.options.description in ("unknown", "read_only"):
            word = {"unknown": "PropertyUnknown", "read_only": "PropertyNotWritable"}[self.options.description]
            raise Refused(400, word, "Description cannot be written", ("Description",))
        if self.options.description == "ignored":
            return None
        if not isinstance(text, str):
            raise Refused(400, "PropertyValueTypeError", "Description must be a string", (str(text), "Description"))
        return text

    def _listed(self, port: Port, listing: Any) -> list[str]:
        own = self._hostport(port)
        if not isinstance(listing, list) or any(not isinstance(member, dict) for member in listing):
            raise Refused(400, "PropertyValueTypeError", "Endpoints must be a list of references", ("Endpoints",))
        paths = [str(member.get("@odata.id")) for member in listing]
        names = [path.removeprefix(f"{ENDPOINTS}/") for path in paths]
        for path, name in zip(paths, names, strict=True):
            if not path.startswith(f"{ENDPOINTS}/") or name not in (own, *self.switching.rack.devices):
                raise Refused(400, "ResourceMissingAtURI", f"{path} is no endpoint for this zone", (path,))
        if len(set(names)) < len(names):
            raise Refused(400, "PropertyValueConflict", "an endpoint is in the list twice", ("Endpoints",))
        if own not in names:
            raise Refused(400, "PropertyValueConflict", f"the host port {own} cannot be removed from its zone", (own,))
        return [name for name in names if name != own]


def _slot(device: RackDevice) -> str:
    return f"slot{device.slot}"


def _port(path: str, way: str, width: int, end: str) -> Document:
    return resource(
        path,
        "Port",
        "v1_11_0",
        PortProtocol="PCIe",
        PortType=f"{way}streamPort",
        LinkStatus="LinkUp" if width else "NoLink",
        CurrentSpeedGbps=width * _GT_PER_S,
        MaxSpeedGbps=16 * _GT_PER_S,
        Width=16,
        ActiveWidth=width,
        Links={"AssociatedEndpoints": refs(ENDPOINTS, [end])},
        Metrics=ref(f"{path}/Metrics"),
    )


def _metrics(path: str, name: str, errors: tuple[int, int] = (0, 0)) -> Document:
    """Counters; traffic is a number that stays the same for the same part."""
    traffic = zlib.crc32(name.encode())
    counts = dict(zip(("CorrectableErrorCount", "NonFatalErrorCount"), errors, strict=True)) | {"FatalErrorCount": 0}
    return resource(path, "PortMetrics", "v1_5_0", RXBytes=traffic, TXBytes=2 * traffic, PCIeErrors=counts)
