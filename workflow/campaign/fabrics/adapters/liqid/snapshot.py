"""What a Matrix answers, understood: the envelope, and lists of devices. Pure.

Everything comes as {"response": {"code", "errors", "data": [...]}}, errors too, and errors often with HTTP 200.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.http.response import at
from campaign.fabrics.protocol import Tag
from campaign.spec.hardware import Health

Raw = Mapping[str, Any]
"""An object as the Matrix gave it: it is echoed whole, with what is not known here."""

PATHS = {"comp": "compute", "cpu": "compute", "gpu": "gpu", "targ": "storage", "ssd": "storage", "fpga": "fpga"}
PATHS |= dict.fromkeys(("link", "nic", "eth", "iba", "infi", "fibr"), "network")
"""Part of the addresses status/, predevice/ and relate/, by `dev_type`. Others (memory, switches) are not composed."""
KINDS = {"gpu": "gpu", "storage": "nvme", "network": "nic", "fpga": "fpga"}
INFO = {"compute": "cpu", "gpu": "gpu", "storage": "ssd", "network": "link", "fpga": "fpga"}
"""Part of the address device/info/, where both SDKs have words of their own."""
DESCRIBED = {"compute": "comp", "gpu": "gpu", "storage": "targ", "network": "link", "fpga": "fpga"}
"""Type in the address of a device's user description."""
COUNTED = {
    "gpu": "gpu-count",
    "storage": "storage-drive-count",
    "network": "network-adapter-count",
    "fpga": "fpga-count",
}
_BETWEEN = " | "
_NAME = re.compile(r"cc[0-9a-f]{14}")
_BUSY = re.compile(r"already (being|in) edit|being edited|\bin edit mode by|\bbusy\b|in progress", re.IGNORECASE)
_BROKEN = re.compile(r"fail|fault|error|offline|missing", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Envelope:
    """code: 0 is success; errors: their messages; data: what was asked for, always a list."""

    code: int
    errors: tuple[str, ...]
    data: tuple[Any, ...]

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.errors

    @property
    def words(self) -> str:
        return "; ".join(self.errors) or f"code {self.code}"


def envelope(body: object) -> Envelope | None:
    """The envelope that an answer is; None for whatever else came."""
    response = at(body, "response")
    if not isinstance(response, Mapping):
        return None
    data = tuple(each for each in _listed(response.get("data")) if each is not None)
    return Envelope(number(response.get("code")) or 0, tuple(map(_message, _listed(response.get("errors")))), data)


def _listed(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _message(error: object) -> str:
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("type") or f"code {error.get('code')}")
    return str(error)


def is_busy(message: str) -> bool:
    """True for a refusal that says that somebody edits: "Machine 0x0001 is already being edited"."""
    return _BUSY.search(message) is not None


def numbers(message: str) -> tuple[int, ...]:
    """The numbers in a message, hexadecimal or decimal."""
    return tuple(int(each, 0) for each in re.findall(r"0[xX][0-9a-fA-F]+|\b[1-9][0-9]*\b", message))


def number(value: object) -> int | None:
    """3, "3" and "0x3" as a number; None for "n/a" and everything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value) if isinstance(value, int) else int(value.strip(), 16 if "x" in value.lower() else 10)
    except ValueError:
        return None


def first_number(data: Iterable[Any]) -> int | None:
    """The number that a list is about: [3], ["0x3"] or [{"mach_id": 3}]."""
    for each in data:
        values = each.values() if isinstance(each, Mapping) else [each]
        for value in values:
            if (found := number(value)) is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class LiqidDevice:
    """One device as the Matrix shows it. group, machine: None in the free pool of the system, of the group.

    path: "gpu", "compute", ...; text: the user description, as it is.
    """

    name: str
    path: str
    device_id: str = ""
    model: str = ""
    serial: str = ""
    text: str = ""
    rack: int = 0
    shelf: int = 0
    group: int | None = None
    group_name: str = ""
    machine: int | None = None
    machine_name: str = ""
    health: Health = "ok"

    @property
    def computes(self) -> bool:
        return self.path == "compute"

    @property
    def tag(self) -> Tag | None:
        return unmarked(self.text)[1]


def machine_name(lease_id: str, host: str) -> str:
    """The name of a lease's machine for a host: letters and digits only, the same every time."""
    return f"cc{hashlib.sha256(f'{lease_id}/{host}'.encode()).hexdigest()[:14]}"


def is_machine_name(name: object) -> bool:
    """True for what some lease of this program may have named."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def marked(text: str, tag: Tag) -> str:
    """A user description with our mark; what somebody wrote there before stays in front of it."""
    own, _ = unmarked(text)
    return f"{own}{_BETWEEN}{lease_tag.encode(tag)}" if own else lease_tag.encode(tag)


def unmarked(text: str) -> tuple[str, Tag | None]:
    """What somebody wrote, and our mark where there is one."""
    own, _, last = text.rpartition(_BETWEEN)
    tag = lease_tag.decode(last)
    return (text, None) if tag is None else (own, tag)


def seen(predevice: Raw, info: Raw | None) -> LiqidDevice | None:
    """A device out of both lists that tell of it; None for a type that cannot be composed (switches, enclosures)."""
    path = PATHS.get(str(at(predevice, "dev_type")).lower())
    name = at(predevice, "name")
    if path is None or not isinstance(name, str) or not name:
        return None
    location = at(info, "location")
    pci = [_text(at(info, each)) for each in ("pci_vendor", "pci_device")]
    group = number(at(predevice, "grp_id"))
    return LiqidDevice(
        name,
        path,
        # An id is a hexadecimal number; 0 is what the SDKs make of one that is missing or not readable.
        device_id=_text(at(info, "dev_id")) if number(at(info, "dev_id")) else "",
        model=_text(at(info, "model")) or (":".join(pci) if all(pci) else ""),
        serial=_text(at(info, "serial_num")),
        text=_text(at(info, "udesc")),
        rack=number(at(location, "rack")) or 0,
        shelf=number(at(location, "shelf")) or 0,
        group=group if group is not None and group > 0 else None,
        group_name=_text(at(predevice, "gname")),
        machine=number(at(predevice, "mach_id")) or None,
        machine_name=_text(at(predevice, "mname")),
        health="critical" if _BROKEN.search(_text(at(info, "device_state"))) else "ok",
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.lower() not in ("n/a", "null", "none") else ""


def state_of(data: Iterable[Any]) -> str:
    """How far what was begun has come: "Pending", "SUCCESS", "FAILURE", or "" where the answer does not say."""
    return next((str(found) for each in data if (found := at(each, "command_execution_state"))), "")


def link_of(data: Iterable[Any]) -> str | None:
    """Where to ask how far it has come."""
    for each in data:
        for link in _listed(at(each, "links")):
            if isinstance(href := at(link, "href"), str) and href:
                return href
    return None


@dataclass(frozen=True)
class Snapshot:
    """devices: by name; machines: by number, as they came; odd: devices whose two ends disagree; hosts: by their compute device."""

    devices: Mapping[str, LiqidDevice]
    groups: tuple[Raw, ...] = ()
    machines: Mapping[int, Raw] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)

    def group(self, name: str) -> Raw | None:
        return next((group for group in self.groups if at(group, "group_name") == name), None)

    def machine(self, name: str) -> Raw | None:
        return next((each for each in self.machines.values() if at(each, "mach_name") == name), None)

    def compute_of(self, host: str) -> str:
        """The name of a host's compute device, whether the Matrix has it or not."""
        return next((compute for compute, name in self.hosts.items() if name == host), host)

    @cached_property
    def _inside(self) -> dict[int, list[LiqidDevice]]:
        found: dict[int, list[LiqidDevice]] = {}
        for device in self.devices.values():
            if device.machine is not None:
                found.setdefault(device.machine, []).append(device)
        return found

    def inside(self, machine: int) -> tuple[LiqidDevice, ...]:
        return tuple(self._inside.get(machine, ()))

    def hosts_in(self, machine: int) -> list[str]:
        """Hosts (system file's names; the Matrix's where that has none) in a machine; one, if all is well."""
        return [self.hosts.get(device.name, device.name) for device in self.inside(machine) if device.computes]

    def lease_of(self, machine: int) -> str | None:
        """The lease that a machine was made for: one that marks something in it, and would name it so. None: foreign."""
        return self._leases.get(machine)

    @cached_property
    def _leases(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for machine in self._inside:
            hosts, name = self.hosts_in(machine), self.name_of(machine)
            for device in self.inside(machine):
                tag = device.tag
                if tag is not None and name in {machine_name(tag.lease_id, host) for host in hosts}:
                    found.setdefault(machine, tag.lease_id)
        return found

    def name_of(self, machine: int) -> str:
        found = at(self.machines.get(machine), "mach_name")
        return found if isinstance(found, str) else f"0x{machine:04x}"

    def holder(self, device: LiqidDevice) -> str | None:
        """Who has a device: a lease by its mark, unless the device is in what somebody else made; None: nobody, or nobody says."""
        tag = device.tag
        if device.machine is not None:
            lease = self.lease_of(device.machine)
            if lease is None:
                return f"machine {self.name_of(device.machine)}"
            return lease if tag is not None else None
        if tag is not None:
            return tag.lease_id
        return None if device.group is None else f"group {device.group_name or device.group}"


def assemble(
    groups: Sequence[Any],
    machines: Mapping[int, Raw],
    predevices: Iterable[Any],
    infos: Mapping[str, Sequence[Any]],
    details: Mapping[int, Raw | None],
    hosts: Mapping[str, str],
) -> Snapshot:
    """The snapshot out of what was listed. Raises ProtocolViolation when two devices have one name."""
    by_name = {path: {str(at(each, "name")): each for each in listed} for path, listed in infos.items()}
    devices: dict[str, LiqidDevice] = {}
    for each in predevices:
        bare = seen(each, None)
        if bare is None:
            continue
        if bare.name in devices:
            raise ProtocolViolation(f"the Matrix lists two devices named {bare.name}")
        devices[bare.name] = seen(each, by_name.get(bare.path, {}).get(bare.name)) or bare
    whole = tuple(group for group in groups if isinstance(group, Mapping))
    return Snapshot(devices, whole, machines, _odd(devices, machines, details), hosts)


def _odd(
    devices: Mapping[str, LiqidDevice], machines: Mapping[int, Raw], details: Mapping[int, Raw | None]
) -> frozenset[str]:
    """Devices of which the list of devices and the machine itself tell different things, or that one list does not know."""
    odd = {device.name for device in devices.values() if not device.device_id}
    for device in devices.values():
        if device.machine is None:
            continue
        machine = machines.get(device.machine)
        named = device.machine_name in ("", at(machine, "mach_name"))
        if machine is None or number(at(machine, "grp_id")) != device.group or not named:
            odd.add(device.name)
    for machine_id, told in details.items():
        for path, counter in COUNTED.items():
            there = [d.name for d in devices.values() if d.machine == machine_id and d.path == path]
            count = number(at(told, counter))
            if told is None or (count is not None and count != len(there)):
                odd.update(there)
    return frozenset(odd)
