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

from campaign.emulators.control_planes.h3.habits import BROKEN_READ_COUNTS, BoxBehaviour, BoxOptions
from campaign.emulators.control_planes.hardware import Rack, RackDevice
from campaign.emulators.control_planes.server import HttpRequest, Reply
from campaign.spec.operation_times import Operation

RESOURCES_PATH, ALLOCATION_PATH = "/h3api/v1/resources", "/h3api/v1/allocation"
HOST_PORT_NUMBERS = (0, 48, 16, 32, 64, 80, 96, 112)
"""Numbers of the host ports. The first two were recorded."""
DEVICE_GIDS = (("000500", "000C00", "001300", "001800"), ("000500", "001A00", "002F00", "004200"))
"""Dev_GIDs of the four devices of a box: the later recording, and one from two weeks before."""
BODY_KEYS = {"POST": ["gep", "port_gid", "dev_gid"], "DELETE": ["gep", "dev_gid"]}
VALUE_PATTERNS = {"gep": r"0", "port_gid": r"[0-9A-F]{2}h", "dev_gid": r"[0-9A-F]{4}00"}
_READ_HEADERS = {"host", "user-agent", "accept", "accept-encoding", "connection"}
_BODY_HEADERS = _READ_HEADERS | {"content-type", "content-length"}
_SHELL_ERROR_RESPONSE = "HTTP/1.1 200 OK\r\n/dev/shm/state: line 3: syntax error: unexpected end of file\r\n\r\n"
_CUT_OFF_RESPONSE = "HTTP/1.1 200 OK\r\nContent-Ty"


@dataclass(frozen=True)
class SimulatedOperation:
    """One operation of a box with its duration (seconds on a real box, independent of the factor)."""

    box: str
    operation: Operation
    seconds: float
    answer: str = ""


@dataclass(eq=False)
class _ActiveRequest:
    """Request in progress."""

    overlapped: bool = False


class EmulatedBox:
    """Emulated box with the devices of one drawer."""

    def __init__(
        self,
        name: str,
        number: int,
        rack: Rack,
        options: BoxOptions,
        violations: list[str],
        timed_operations: list[SimulatedOperation],
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
        self.behaviour = BoxBehaviour(options, number)
        self.violations = violations
        self.timed_operations = timed_operations
        hosts = [host.name for host in rack.hosts.values() if name in host.drawers]
        self.ports = dict(zip(hosts, HOST_PORT_NUMBERS, strict=False))
        self.devices = [device for device in rack.devices.values() if device.drawer == name]
        self._assign_gids(DEVICE_GIDS[0])
        if len(hosts) > len(HOST_PORT_NUMBERS):
            raise ValueError(
                f"{name}: a box has only {len(HOST_PORT_NUMBERS)} host ports; remove {', '.join(hosts[len(HOST_PORT_NUMBERS) :])}"
            )
        if other_devices := [device.name for device in self.devices if device.kind != "gpu"]:
            raise ValueError(f"{name}: emulated H3 boxes contain only GPUs; remove {', '.join(other_devices)}")
        if options.attached == "all":
            for index, device in enumerate(self.devices):
                if device.attached_to is None and hosts:
                    rack.attach(device.name, hosts[index % len(hosts)])
        self._condition = threading.Condition()
        self._active_requests: set[_ActiveRequest] = set()
        self._allocating = False
        self._just_attached = False
        self._allocation_count = 0

    def _assign_gids(self, gids: Sequence[str]) -> None:
        """Assign Dev_GIDs to the devices of the box."""
        further_gids = [f"{0x60 + 5 * n:04X}00" for n in range(len(self.devices))]
        self.gids = dict(zip([device.name for device in self.devices], [*gids, *further_gids], strict=False))

    @property
    def is_busy(self) -> bool:
        """True while the box attaches or detaches a device."""
        return self._allocating

    def renumber_devices(self) -> None:
        """Assign other Dev_GIDs, some of which another device had before.

        This was observed once; the reason is unknown.
        """
        with self.rack.lock:
            self._assign_gids(DEVICE_GIDS[1] if DEVICE_GIDS[0][1] in self.gids.values() else DEVICE_GIDS[0][::-1])

    def answer(self, request: HttpRequest) -> Reply | None:
        """Answer a request, or return None to close the connection. Unknown requests are refused and recorded."""
        if problem := self._find_violation(request):
            return self._record_violation(request, problem)
        new_request = _ActiveRequest()
        with self._condition:
            for active_request in self._active_requests:
                active_request.overlapped = True
            new_request.overlapped = bool(self._active_requests)
            self._active_requests.add(new_request)
        try:
            return self._handle_read(new_request) if request.method == "GET" else self._handle_allocation(request)
        finally:
            with self._condition:
                self._active_requests.remove(new_request)

    def _find_violation(self, request: HttpRequest) -> str:
        """Describe how a request differs from those of all public clients. Return an empty string if it does not differ."""
        headers = {name.lower() for name in request.headers}
        allowed_headers = _READ_HEADERS if request.method == "GET" else _BODY_HEADERS
        if (request.method, request.path) not in (
            ("GET", RESOURCES_PATH),
            ("POST", ALLOCATION_PATH),
            ("DELETE", ALLOCATION_PATH),
        ):
            return "the method or path is unknown"
        if request.query:
            return "the request has a query"
        if extra_headers := sorted(headers - allowed_headers):
            return f"the request has unknown headers: {', '.join(extra_headers)}"
        if request.method == "GET":
            return "the request has a body" if request.text else ""
        if request.find_header("Content-Type") != "text/plain":
            return f"the Content-Type is {request.find_header('Content-Type')} instead of text/plain"
        try:
            pairs = json.loads(request.text, object_pairs_hook=list)
        except ValueError:
            return "the body is not JSON"
        keys = BODY_KEYS[request.method]
        if not isinstance(pairs, list) or [pair[0] if isinstance(pair, tuple) else pair for pair in pairs] != keys:
            return f"the keys of the body are not {', '.join(keys)}, in this order"
        for name, value in pairs:
            if not isinstance(value, str) or not re.fullmatch(VALUE_PATTERNS[name], value):
                return f"the value {value!r} of {name} does not match {VALUE_PATTERNS[name]}"
        return ""

    def _record_violation(self, request: HttpRequest, reason: str) -> Reply:
        """Record a request that no public client ever sent, and refuse it."""
        self.violations.append(f"{self.name}: {request.method} {request.path} {request.text}: {reason}")
        return Reply(400, f"emulator: no public client sends such a request: {reason}\n")

    # -- inventory --------------------------------------------------------------------------------------------------------

    def _handle_read(self, active_request: _ActiveRequest) -> Reply | None:
        """Answer a read of the inventory, once any allocation in progress has finished."""
        with self._condition:
            self._condition.wait_for(lambda: not self._allocating)
            operation: Operation = "read_back" if self._just_attached else "inventory"
            self._just_attached = False
            seconds = self.behaviour.draw_duration_s(operation)
        self._simulate_duration(operation, seconds)
        with self._condition, self.rack.lock:
            damage = self.behaviour.draw_damage(active_request.overlapped)
            if damage in BROKEN_READ_COUNTS:
                return None if damage == "eof" else Reply(raw=_SHELL_ERROR_RESPONSE)
            return self._build_text_reply(_format_json(self._build_records(damage)))

    def _build_records(self, damage: str) -> list[dict[str, str]]:
        """Build the records of ports and devices, with the damage drawn for this read."""
        hosts_by_device = {device.name: device.attached_to for device in self.devices}
        omitted_devices = self._apply_damage(hosts_by_device, damage)
        records = [{"Port#": str(port), "Port_GID": f"{port:02X}h"} for port in self.ports.values()]
        for device in self.devices:
            if (
                device.name not in omitted_devices
                and (record := self._build_record(device, hosts_by_device[device.name])) is not None
            ):
                records.append(record)
        if self.options.strange:
            records = [{**record, "x_health": "OK"} for record in records]
            records += [{"fan": "3", "rpm": "4200"}, {"dev_type": "x_unknown", "Dev_GID": "00FE00", "Host_Port#": "0"}]
            records.append({"dev_type": "GPU", "Dev_GID": "00FD00"})
            self.behaviour.random.shuffle(records)
        return records

    def _build_record(self, device: RackDevice, host: str | None) -> dict[str, str] | None:
        """Build the record of a device. Returns None if the box does not list devices without a host."""
        record = {"dev_type": "GPU", "Dev_GID": self.gids[device.name]}
        port = {"empty": "", "dash": "-"}.get(self.options.free_port) if host is None else str(self.ports[host])
        if host is None and self.options.free_port == "no_record":
            return None
        if port is not None:
            record["Host_Port#"] = port
        return {**record, "OB_GPU_GUID": f"GPU-{device.uuid}"}

    def _apply_damage(self, hosts_by_device: dict[str, str | None], damage: str) -> set[str]:
        """Change the reported hosts according to the damage, and return the devices to leave out."""
        random = self.behaviour.random
        attached_devices = [name for name, host in hosts_by_device.items() if host]
        if not damage or not attached_devices:
            return set()
        changed_device = random.choice(attached_devices)
        if damage == "lacking":
            return {name for name in attached_devices if hosts_by_device[name] == hosts_by_device[changed_device]}
        candidates = [name for name in attached_devices if hosts_by_device[name] != hosts_by_device[changed_device]]
        if candidates:
            candidate = random.choice(candidates)
            original_host, hosts_by_device[candidate] = hosts_by_device[candidate], hosts_by_device[changed_device]
            if damage == "swapped":
                hosts_by_device[changed_device] = original_host
        return set()

    # -- allocation -------------------------------------------------------------------------------------------------------

    def _handle_allocation(self, request: HttpRequest) -> Reply | None:
        """Answer an attach or detach request, once any allocation in progress has finished."""
        with self._condition:
            if self._allocating:
                self._record_violation(request, "another allocation is running on this box")
            self._condition.wait_for(lambda: not self._allocating)
            self._allocating = True
        try:
            return self._handle_detach(request) if request.method == "DELETE" else self._handle_attach(request)
        finally:
            with self._condition:
                self._allocation_count += 1
                if self.options.renumber_after and self._allocation_count % self.options.renumber_after == 0:
                    self.renumber_devices()
                self._allocating = False
                self._condition.notify_all()

    def _handle_detach(self, request: HttpRequest) -> Reply:
        """Detach a device from its host, and report success."""
        device = self._find_device(request)
        if device is None or device.attached_to is None:
            return self._refuse_unknown_request(
                request, "the device does not exist" if device is None else "the device is not attached"
            )
        self._simulate_duration("detach", self.behaviour.draw_duration_s("detach"), "true")
        self.rack.detach(device.name)
        return self._build_result_reply("unassign", True)

    def _handle_attach(self, request: HttpRequest) -> Reply | None:
        """Attach a device to a host, and report the randomly drawn result."""
        device, port_gid = self._find_device(request), request.body["port_gid"]
        host = next((name for name, port in self.ports.items() if f"{port:02X}h" == port_gid), None)
        if device is None or host is None:
            return self._refuse_unknown_request(request, f"the {'device' if device is None else 'port'} does not exist")
        if device.attached_to is not None:
            return self._refuse_unknown_request(request, f"the device is attached to {device.attached_to}")
        if self._is_full(host):
            return self._build_refusal(request)
        reported_result, seconds = self.behaviour.draw_attach()
        is_lost = self.behaviour.draw_lost_attach()
        self._simulate_duration("attach", seconds, "true" if reported_result else "false")
        if not is_lost or self.behaviour.random.random() < 0.5:
            self.rack.attach(device.name, host)
        self._just_attached = True
        return Reply(raw=_CUT_OFF_RESPONSE) if is_lost else self._build_result_reply("assign", reported_result)

    def _find_device(self, request: HttpRequest) -> RackDevice | None:
        """Return the device with the requested Dev_GID, or None if there is none."""
        return next((device for device in self.devices if self.gids[device.name] == request.body["dev_gid"]), None)

    def _is_full(self, host: str) -> bool:
        """Return True if one more device on this host would exceed the limits of the box."""
        attached_hosts = [device.attached_to for device in self.devices if device.attached_to is not None]
        max_devices, max_hosts = (
            self.options.devices_max or len(self.devices),
            self.options.hosts_max or len(self.ports),
        )
        return attached_hosts.count(host) >= max_devices or len({*attached_hosts, host}) > max_hosts

    def _refuse_unknown_request(self, request: HttpRequest, reason: str) -> Reply:
        """Record and refuse an impossible request that no public client has ever sent."""
        self._record_violation(request, reason)
        return self._build_refusal(request)

    def _build_refusal(self, request: HttpRequest) -> Reply:
        """Build the answer to an impossible request, as configured by `refusal`."""
        action = "unassign" if request.method == "DELETE" else "assign"
        match self.options.refusal:
            case "status":
                return self._build_text_reply("", 409)
            case "text":
                return self._build_text_reply("sh: bad number\n")
            case "empty":
                return self._build_text_reply(_format_json({"action": action, "result": [], "remark": "error"}))
        return self._build_result_reply(action, self.options.refusal == "true")

    def _build_result_reply(self, action: str, result: bool) -> Reply:
        """Build the answer to an attach or detach request."""
        text = '{{\n  "action": "{}",\n  "result": [ {} ],\n  "remark": "done"\n}}\n'
        return self._build_text_reply(text.format(action, "true" if result else "false"))

    def _build_text_reply(self, text: str, status: int = 0) -> Reply:
        """Build a plain text answer."""
        return Reply(status or self.options.status, text, {"Content-Type": "text/plain"})

    def _simulate_duration(self, operation: Operation, seconds: float, answer: str = "") -> None:
        """Sleep for the simulated duration of an operation, and record it."""
        time.sleep(self.options.factor * seconds)
        self.timed_operations.append(SimulatedOperation(self.name, operation, seconds, answer))


def _format_json(document: Any) -> str:
    """Format a document as the box prints JSON."""
    return json.dumps(document, indent=2) + "\n"
