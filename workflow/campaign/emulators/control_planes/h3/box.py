"""One Falcon box: an inventory and an allocation over HTTP.

The box is slow and does one thing at a time. All values are strings.

Requests that no public client ever sent are refused and recorded in `violations`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from campaign.emulators.control_planes.h3.habits import BROKEN_READS, BoxOptions, Habits
from campaign.emulators.control_planes.hardware import Rack, RackDevice
from campaign.emulators.control_planes.server import HttpRequest, Reply
from campaign.spec.operation_times import Operation

RESOURCES, ALLOCATION = "/h3api/v1/resources", "/h3api/v1/allocation"
PORTS = (0, 48, 16, 32, 64, 80, 96, 112)
"""Numbers of the host ports. The first two were recorded."""
GIDS = (("000500", "000C00", "001300", "001800"), ("000500", "001A00", "002F00", "004200"))
"""Dev_GIDs of the four devices of a box: the later recording, and one from two weeks before."""
KEYS = {"POST": ["gep", "port_gid", "dev_gid"], "DELETE": ["gep", "dev_gid"]}
FORMS = {"gep": r"0", "port_gid": r"[0-9A-F]{2}h", "dev_gid": r"[0-9A-F]{4}00"}
_HEADERS = {"host", "user-agent", "accept", "accept-encoding", "connection"}
_BODY_HEADERS = _HEADERS | {"content-type", "content-length"}
_SHELL = "HTTP/1.1 200 OK\r\n/dev/shm/state: line 3: syntax error: unexpected end of file\r\n\r\n"
_CUT = "HTTP/1.1 200 OK\r\nContent-Ty"


@dataclass(frozen=True)
class Took:
    """One operation of a box with its duration (seconds on a real box, independent of the factor)."""

    box: str
    operation: Operation
    seconds: float
    answer: str = ""


@dataclass(eq=False)
class _Visit:
    """Request in progress."""

    overlapped: bool = False


class EmulatedBox:
    """Emulated box with the devices of one drawer."""

    def __init__(
        self, name: str, number: int, rack: Rack, options: BoxOptions, violations: list[str], took: list[Took]
    ) -> None:
        """Create the box of one drawer.

        Raises ValueError if the drawer has too many hosts, or devices other than GPUs.

        Args:
            name: name of the drawer.
            number: number of the box, from 0.
            rack: emulated hardware.
            options: behaviour of the boxes.
            violations: list of unknown requests, shared by all boxes.
            timed_operations: list of operations, shared by all boxes.
        """
        self.name = name
        self.number = number
        self.rack = rack
        self.options = options
        self.habits = Habits(options, number)
        self.violations = violations
        self.took = took
        hosts = [host.name for host in rack.hosts.values() if name in host.drawers]
        self.ports = dict(zip(hosts, PORTS, strict=False))
        self.devices = [device for device in rack.devices.values() if device.drawer == name]
        self._number(GIDS[0])
        if len(hosts) > len(PORTS):
            raise ValueError(f"{name}: a box has {len(PORTS)} host ports, no room for {', '.join(hosts[len(PORTS) :])}")
        if others := [device.name for device in self.devices if device.kind != "gpu"]:
            raise ValueError(f"{name}: only GPUs are known of an H3 box; {', '.join(others)} are none")
        if options.attached == "all":
            for index, device in enumerate(self.devices):
                if device.attached_to is None and hosts:
                    rack.attach(device.name, hosts[index % len(hosts)])
        self._turn = threading.Condition()
        self._visits: set[_Visit] = set()
        self._allocating = False
        self._just_attached = False
        self._allocations = 0

    def _number(self, gids: Sequence[str]) -> None:
        """Assign Dev_GIDs to the devices of the box."""
        more = [f"{0x60 + 5 * n:04X}00" for n in range(len(self.devices))]
        self.gids = dict(zip([device.name for device in self.devices], [*gids, *more], strict=False))

    @property
    def busy(self) -> bool:
        """State of the box: True while it attaches or detaches a device."""
        return self._allocating

    def renumber(self) -> None:
        """Assign other Dev_GIDs, some of which another device had before.

        This was observed once; the reason is unknown.
        """
        with self.rack.lock:
            self._number(GIDS[1] if GIDS[0][1] in self.gids.values() else GIDS[0][::-1])

    def answer(self, asked: HttpRequest) -> Reply | None:
        """Answer a request, or return None to end the connection. Unknown requests are refused and recorded."""
        if wrong := self._wrong(asked):
            return self._violation(asked, wrong)
        visit = _Visit()
        with self._turn:
            for other in self._visits:
                other.overlapped = True
            visit.overlapped = bool(self._visits)
            self._visits.add(visit)
        try:
            return self._read(visit) if asked.method == "GET" else self._allocate(asked)
        finally:
            with self._turn:
                self._visits.remove(visit)

    def _wrong(self, asked: HttpRequest) -> str:
        """Describe how a request differs from those of all public clients. Returns "" if it does not differ."""
        headers = {name.lower() for name in asked.headers}
        allowed = _HEADERS if asked.method == "GET" else _BODY_HEADERS
        if (asked.method, asked.path) not in (("GET", RESOURCES), ("POST", ALLOCATION), ("DELETE", ALLOCATION)):
            return "no such call"
        if asked.query:
            return "a query"
        if others := sorted(headers - allowed):
            return f"headers {', '.join(others)}"
        if asked.method == "GET":
            return "a body" if asked.text else ""
        if asked.header("Content-Type") != "text/plain":
            return f"Content-Type {asked.header('Content-Type')}, not text/plain"
        try:
            pairs = json.loads(asked.text, object_pairs_hook=list)
        except ValueError:
            return "a body that is no JSON"
        keys = KEYS[asked.method]
        if not isinstance(pairs, list) or [pair[0] if isinstance(pair, tuple) else pair for pair in pairs] != keys:
            return f"a body that has not exactly the keys {', '.join(keys)}, in this order"
        for name, value in pairs:
            if not isinstance(value, str) or not re.fullmatch(FORMS[name], value):
                return f"{name} {value!r}, not a string as {FORMS[name]}"
        return ""

    def _violation(self, asked: HttpRequest, why: str) -> Reply:
        """Record a request that no public client ever sent, and refuse it."""
        self.violations.append(f"{self.name}: {asked.method} {asked.path} {asked.text}: {why}")
        return Reply(400, f"emulator: no public client ever sent this: {why}\n")

    # -- inventory --------------------------------------------------------------------------------------------------------

    def _read(self, visit: _Visit) -> Reply | None:
        """Answer a read of the inventory, after any allocation in progress."""
        with self._turn:
            self._turn.wait_for(lambda: not self._allocating)
            operation: Operation = "read_back" if self._just_attached else "inventory"
            self._just_attached = False
            seconds = self.habits.seconds(operation)
        self._wait(operation, seconds)
        with self._turn, self.rack.lock:
            damage = self.habits.damage(visit.overlapped)
            if damage in BROKEN_READS:
                return None if damage == "eof" else Reply(raw=_SHELL)
            return self._reply(_printed(self._records(damage)))

    def _records(self, damage: str) -> list[dict[str, str]]:
        """Build the records of ports and devices, with the damage to this read."""
        shown = {device.name: device.attached_to for device in self.devices}
        missing = self._damaged(shown, damage)
        records = [{"Port#": str(port), "Port_GID": f"{port:02X}h"} for port in self.ports.values()]
        for device in self.devices:
            if device.name not in missing and (record := self._record(device, shown[device.name])) is not None:
                records.append(record)
        if self.options.strange:
            records = [{**record, "x_health": "OK"} for record in records]
            records += [{"fan": "3", "rpm": "4200"}, {"dev_type": "x_unknown", "Dev_GID": "00FE00", "Host_Port#": "0"}]
            records.append({"dev_type": "GPU", "Dev_GID": "00FD00"})
            self.habits.random.shuffle(records)
        return records

    def _record(self, device: RackDevice, host: str | None) -> dict[str, str] | None:
        """Build the record of a device. Returns None if the box does not list devices without a host."""
        record = {"dev_type": "GPU", "Dev_GID": self.gids[device.name]}
        port = {"empty": "", "dash": "-"}.get(self.options.free_port) if host is None else str(self.ports[host])
        if host is None and self.options.free_port == "no_record":
            return None
        if port is not None:
            record["Host_Port#"] = port
        return {**record, "OB_GPU_GUID": f"GPU-{device.uuid}"}

    def _damaged(self, shown: dict[str, str | None], damage: str) -> set[str]:
        """Change the reported hosts according to the damage, and return the devices to leave out."""
        random = self.habits.random
        held = [name for name, host in shown.items() if host]
        if not damage or not held:
            return set()
        own = random.choice(held)
        if damage == "lacking":
            return {name for name in held if shown[name] == shown[own]}
        others = [name for name in held if shown[name] != shown[own]]
        if others:
            other = random.choice(others)
            was, shown[other] = shown[other], shown[own]
            if damage == "swapped":
                shown[own] = was
        return set()

    # -- allocation -------------------------------------------------------------------------------------------------------

    def _allocate(self, asked: HttpRequest) -> Reply | None:
        """Answer an attach or detach request, after any allocation in progress."""
        with self._turn:
            if self._allocating:
                self._violation(asked, "an allocation while another runs on this box")
            self._turn.wait_for(lambda: not self._allocating)
            self._allocating = True
        try:
            return self._detach(asked) if asked.method == "DELETE" else self._attach(asked)
        finally:
            with self._turn:
                self._allocations += 1
                if self.options.renumber_after and self._allocations % self.options.renumber_after == 0:
                    self.renumber()
                self._allocating = False
                self._turn.notify_all()

    def _detach(self, asked: HttpRequest) -> Reply:
        """Detach a device from its host, and report success."""
        device = self._device(asked)
        if device is None or device.attached_to is None:
            return self._refuse(asked, "no such device here" if device is None else "detaches what nobody has")
        self._wait("detach", self.habits.seconds("detach"), "true")
        self.rack.detach(device.name)
        return self._told("unassign", True)

    def _attach(self, asked: HttpRequest) -> Reply | None:
        """Attach a device to a host, and report the drawn result."""
        device, wanted = self._device(asked), asked.body["port_gid"]
        host = next((name for name, port in self.ports.items() if f"{port:02X}h" == wanted), None)
        if device is None or host is None:
            return self._refuse(asked, f"no such {'device' if device is None else 'port'} here")
        if device.attached_to is not None:
            return self._refuse(asked, f"attaches what {device.attached_to} has")
        if self._full(host):
            return self._cannot(asked)
        said, seconds = self.habits.attach()
        lost = self.habits.loses_attach()
        self._wait("attach", seconds, "true" if said else "false")
        if not lost or self.habits.random.random() < 0.5:
            self.rack.attach(device.name, host)
        self._just_attached = True
        return Reply(raw=_CUT) if lost else self._told("assign", said)

    def _device(self, asked: HttpRequest) -> RackDevice | None:
        """Return the device with the requested Dev_GID, or None."""
        return next((one for one in self.devices if self.gids[one.name] == asked.body["dev_gid"]), None)

    def _full(self, host: str) -> bool:
        """Return True if one more device on this host would exceed the limits of the box."""
        held = [device.attached_to for device in self.devices if device.attached_to is not None]
        devices, hosts = self.options.devices_max or len(self.devices), self.options.hosts_max or len(self.ports)
        return held.count(host) >= devices or len({*held, host}) > hosts

    def _refuse(self, asked: HttpRequest, why: str) -> Reply:
        """Record and refuse an impossible request, which no public client has sent."""
        self._violation(asked, why)
        return self._cannot(asked)

    def _cannot(self, asked: HttpRequest) -> Reply:
        """Build the answer to an impossible request, as configured by `refusal`."""
        action = "unassign" if asked.method == "DELETE" else "assign"
        match self.options.refusal:
            case "status":
                return self._reply("", 409)
            case "text":
                return self._reply("sh: bad number\n")
            case "empty":
                return self._reply(_printed({"action": action, "result": [], "remark": "error"}))
        return self._told(action, self.options.refusal == "true")

    def _told(self, action: str, result: bool) -> Reply:
        """Build the answer to an attach or detach request."""
        text = '{{\n  "action": "{}",\n  "result": [ {} ],\n  "remark": "done"\n}}\n'
        return self._reply(text.format(action, "true" if result else "false"))

    def _reply(self, text: str, status: int = 0) -> Reply:
        """Build a plain text answer."""
        return Reply(status or self.options.status, text, {"Content-Type": "text/plain"})

    def _wait(self, operation: Operation, seconds: float, answer: str = "") -> None:
        """Sleep for the simulated duration of an operation, and record it."""
        time.sleep(self.options.factor * seconds)
        self.took.append(Took(self.name, operation, seconds, answer))


def _printed(document: Any) -> str:
    """Format a document as the box prints JSON."""
    return json.dumps(document, indent=2) + "\n"
