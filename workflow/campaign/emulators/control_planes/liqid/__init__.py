"""Emulated Liqid Matrix (REST v2) over a rack, with groups, machines and edit modes.

Connections change only when a machine is reprogrammed.

The emulator is strict: every request needs its digest key, objects must be echoed completely, one machine is edited at a
time, and a device is in one place. It is written from the public SDKs (3.2.0 to 3.4), their model of a Matrix and recorded
requests. The schemas of the SDKs are used to test it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.liqid.matrix import (
    COORDINATES,
    DEVICE_INFO_PATHS,
    DEVICE_PATHS,
    FABR_ID,
    LiqidMatrix,
    LiqidRefusal,
    MatrixDevice,
    check_echoed_object,
    device_counts_to_json,
    get_member,
    group_details_to_json,
    group_to_json,
    info_to_json,
    machine_details_to_json,
    machine_to_json,
    predevice_to_json,
    status_to_json,
    to_snake_case,
)
from campaign.emulators.control_planes.server import HttpRequest, Reply

__all__ = ["LiqidEmulator", "open_emulator"]

COMPOSES = ("POST", "*/fabric/reprogram")


BASE_PATH = "/liqid/api/v2/"


@dataclass(frozen=True)
class MatrixBehaviour:
    """Behaviour of the emulated Matrix.

    Attributes:
        user: name of the user.
        password: password of the user.
        groups: names of the existing groups.
        computes: name of each host's compute device.
        error_status: HTTP status of errors.
        async_polls: number of polls after which a commit, answered with 202, is done; 0 to commit at once.
        name_max: length to which longer machine names are cut.
        async_end: result of an asynchronous commit.
    """

    user: str = "campaign"
    password: str = "learn-2-compose"
    groups: tuple[str, ...] = ("campaign",)
    computes: Mapping[str, str] = field(default_factory=dict)
    error_status: int = 200
    async_polls: int = 0
    name_max: int = 64
    async_end: Literal["404", "SUCCESS", "FAILURE"] = "404"


@dataclass
class _DeferredOperation:
    """Change that is applied after a number of polls."""

    work: Callable[[], Any]
    polls: int
    state: str = "Pending"
    message: str = ""


class LiqidEmulator:
    """Emulated Liqid Matrix; see `Emulator`.

    `violations` lists requests that are not allowed on a shared Matrix. `power` lists the power commands of hosts, in order.
    """

    def __init__(self, rack: Rack, **options: Any) -> None:
        """Create the emulated Matrix for a rack.

        Args:
            rack: emulated hardware.
            **options: fields of `MatrixBehaviour`.
        """
        self.rack = rack
        self.behaviour = behaviour = MatrixBehaviour(**options)
        self.matrix = LiqidMatrix(rack, behaviour.computes, behaviour.groups)
        self.violations: list[str] = []
        self.power: list[tuple[str, int, int]] = []
        self._keys: dict[str, str] = {}
        self._digest_count = 0
        self._address = ""
        self._deferred: list[_DeferredOperation] = []

    def expire_sessions(self) -> None:
        """Forget every session, as a restarted director does."""
        self._keys.clear()

    def answer(self, request: HttpRequest) -> Reply:
        """Answer a request of the REST API."""
        self._address = f"{request.scheme}://{request.find_header('Host')}"
        try:
            if not request.path.startswith(BASE_PATH):
                raise LiqidRefusal(f"No such path {request.path}", 404)
            path_parts = request.path.removeprefix(BASE_PATH).split("/")
            if path_parts[0] == "digest" and len(path_parts) == 2:
                return self._build_success_reply([self._handle_digest(request, path_parts[1])])
            if not self._is_authorized(request):
                return self._build_error_reply(LiqidRefusal("Not authorized", 401), 401)
            if path_parts[0] == "async" and len(path_parts) == 2:
                return self._poll_operation(int(path_parts[1]))
            data = (
                self._handle_read(path_parts, request)
                if request.method == "GET"
                else self._handle_change(path_parts, request)
            )
            return data if isinstance(data, Reply) else self._build_success_reply(data)
        except LiqidRefusal as refusal:
            is_unknown_path = refusal.code == 404 and "No such path" in str(refusal)
            return self._build_error_reply(refusal, 404 if is_unknown_path else self.behaviour.error_status)

    def _build_success_reply(self, data: list[Any], status: int = 200) -> Reply:
        """Build the answer to a successful request."""
        return Reply(status, {"response": {"code": 0, "errors": None, "data": data}})

    def _build_error_reply(self, refusal: LiqidRefusal, status: int) -> Reply:
        """Build the answer to a refused request."""
        errors = [{"code": refusal.code, "message": str(refusal), "type": refusal.type}]
        return Reply(status, {"response": {"code": refusal.code, "errors": errors, "data": []}})

    def _handle_digest(self, request: HttpRequest, label: str) -> dict[str, Any]:
        """Create or delete a session, which Liqid calls a digest."""
        if request.basic_credentials != (self.behaviour.user, self.behaviour.password):
            raise LiqidRefusal("Bad credentials", 401)
        if label == "slurm":  # This label is reserved.
            raise LiqidRefusal("Permission denied", 403)
        if request.method == "DELETE":
            if label not in self._keys:
                raise LiqidRefusal(f"No digest {label}", 404)
            del self._keys[label]
            return {"digest_label": label}
        if request.method != "POST" or label in self._keys:
            raise LiqidRefusal(f"Digest {label} exists already")
        self._digest_count += 1
        self._keys[label] = f"key-{label}-{self._digest_count}"
        return {"digest_id": self._digest_count, "digest_key": self._keys[label], "digest_label": label}

    def _is_authorized(self, request: HttpRequest) -> bool:
        """Return True if the request has the key of an open session, and no other authorization."""
        return request.find_header("Authorization") is None and request.find_header("X-API-Key") in self._keys.values()

    def _commit_change(self, work: Callable[[], Any]) -> list[Any] | Reply:
        """Apply a change at once, or answer with an asynchronous operation."""
        if not self.behaviour.async_polls:
            work()
            return [{}]
        self._deferred.append(_DeferredOperation(work, self.behaviour.async_polls))
        # The complete address, because the vendor's client uses it unchanged.
        href = f"{self._address}{BASE_PATH}async/{len(self._deferred) - 1}"
        return self._build_success_reply(
            [{"command_execution_state": "Pending", "links": [{"rel": "status", "href": href}]}], 202
        )

    def _poll_operation(self, number: int) -> Reply:
        """Return the state of an asynchronous operation. The change is applied at the last poll."""
        if number >= len(self._deferred):
            return self._build_error_reply(LiqidRefusal("No such operation", 404), 404)
        operation = self._deferred[number]
        if operation.state == "Pending" and operation.polls <= 0:
            operation.state, operation.message = self._finish_operation(operation)
        operation.polls -= 1
        if operation.state == "SUCCESS" and self.behaviour.async_end == "404":
            return self._build_error_reply(LiqidRefusal("No such operation", 404), 404)
        return self._build_success_reply([{"command_execution_state": operation.state, "message": operation.message}])

    def _finish_operation(self, operation: _DeferredOperation) -> tuple[str, str]:
        """Apply the change of an asynchronous operation, and return its final state and message."""
        if self.behaviour.async_end == "FAILURE":
            return "FAILURE", "the switch did not answer"
        try:
            operation.work()
        except LiqidRefusal as refusal:
            return "FAILURE", str(refusal)
        return "SUCCESS", ""

    def _handle_read(self, path_parts: list[str], request: HttpRequest) -> list[Any]:
        """Return the data of a GET request. Raises LiqidRefusal for an unknown path."""
        matrix, query = self.matrix, request.query
        match path_parts:
            case ["group"]:
                return [group_to_json(group) for group in matrix.groups.values()]
            case ["group", "nextid"]:
                return [max(matrix.groups, default=0) + 1]
            case ["group", "mapper"]:
                return [item.number for item in matrix.groups.values() if item.name == query.get("group-name")]
            case ["group", "details", number]:
                return [group_details_to_json(matrix.find_group(_parse_number(number)), matrix)]
            case ["machine"]:
                return _filter_by_query([machine_to_json(item) for item in matrix.machines.values()], query)
            case ["machine", "nextid"]:
                return [str(next(n for n in range(1, len(matrix.machines) + 2) if n not in matrix.machines))]
            case ["machine", "details", number]:
                return [machine_details_to_json(matrix.find_machine(_parse_number(number)), matrix)]
            case ["predevice"]:
                return _filter_by_query([predevice_to_json(item, matrix) for item in matrix.devices.values()], query)
            case ["status", path] if path in DEVICE_PATHS.values():
                free = query.get("filter", "false").lower() == "true"
                return [
                    status_to_json(item)
                    for item in self._list_devices_by_path(path, DEVICE_PATHS)
                    if not free or item.group is None
                ]
            case ["device", "info", path] if path in DEVICE_INFO_PATHS.values():
                return [info_to_json(item) for item in self._list_devices_by_path(path, DEVICE_INFO_PATHS)]
            case ["status"]:
                return [status_to_json(item) for item in matrix.devices.values()]
            case ["devices", "count"]:
                return [device_counts_to_json(matrix)]
            case ["digest"]:
                return [{"digest_label": label} for label in self._keys]
            case ["version"]:
                return [{"component": "emulator", "version": "3.4"}]
            case ["coordinates", "available"]:
                return [{"coordinates": dict(COORDINATES), "address": "127.0.0.1", "port": 8080}]
            case ["coordinates"]:
                return [dict(COORDINATES)]
            case ["fabric", "id"]:
                return [FABR_ID]
            case _:
                raise LiqidRefusal(f"No such path {request.path}", 404)

    def _list_devices_by_path(self, path: str, paths: Mapping[str, str]) -> list[MatrixDevice]:
        """Return the devices whose type uses this word in its paths."""
        return [device for device in self.matrix.devices.values() if paths[device.dev_type] == path]

    def _handle_change(self, path_parts: list[str], request: HttpRequest) -> list[Any] | Reply:
        """Carry out a request that changes the Matrix, and return its data. Raises LiqidRefusal if it is refused."""
        matrix, body = self.matrix, to_snake_case(request.body)
        match [request.method, *path_parts]:
            case ["POST", "group", "clear"]:
                self.violations.append("POST group/clear")
                raise LiqidRefusal("Permission denied", 403)
            case ["POST", "group"]:
                new_group = matrix.add_group(get_member(body, "grp_id"), get_member(body, "group_name"))
                return [group_to_json(new_group)]
            case ["DELETE", "group", number]:
                matrix.remove_group(_parse_number(number))
            case ["POST", "machine"]:
                names = ("mach_id", "grp_id", "mach_name", "comp_name")
                machine = matrix.add_machine(*(get_member(body, name) for name in names))
                machine.name = machine.name[: self.behaviour.name_max]
                return [machine_to_json(machine)]
            case ["POST", "machine", "p2p"]:
                machine = matrix.find_machine(get_member(body, "mach_id"))
                check_echoed_object({**body, "p2p": machine.p2p}, machine_to_json(machine), "Machine")
                return [machine_to_json(matrix.set_p2p(machine.number, get_member(body, "p2p")))]
            case ["DELETE", "machine", number]:
                return self._commit_change(lambda: matrix.remove_machine(_parse_number(number)))
            case ["POST", "pool", "edit" | "done" | "cancel" as action]:
                return self._handle_pool_edit(action, body)
            case ["POST" | "DELETE" as method, "predevice", path]:
                matrix.change_pool_member(self._check_group(body), self._check_device(path, body), add=method == "POST")
            case ["POST", "fabric", *action] if action in (["edit"], ["edit", "cancel"], ["reprogram"]):
                return self._handle_fabric_edit(action, body)
            case ["POST" | "DELETE" as method, "relate", path]:
                relator, mach_id = (
                    get_member(body, "group_device_relator"),
                    self._check_machine(get_member(body, "machine")),
                )
                self._check_group(relator)
                matrix.relate_device(mach_id, self._check_device(path, relator), add=method == "POST")
            case ["PUT", "power", "start" | "shutdown" | "reboot" | "restart" as action, group, number]:
                if request.text or matrix.find_machine(_parse_number(number)).group != _parse_number(group):
                    raise LiqidRefusal("No body, and the machine's own group, expected")
                self.power.append((action, _parse_number(group), _parse_number(number)))
            case ["PUT" | "DELETE" as method, "device", "udesc", dev_type, dev_id]:
                text = get_member(body, "udesc") if method == "PUT" else ""
                if not isinstance(text, str):
                    raise LiqidRefusal("udesc expected")
                matrix.find_device_by_id(dev_type, dev_id).description = text
                return [{"udesc": text}]
            case _:
                raise LiqidRefusal(f"No such path {request.path}", 404)
        return [{}]

    def _handle_pool_edit(self, action: str, body: Any) -> list[Any] | Reply:
        """Begin or end the edit of a group's pool."""
        number = get_member(body, "grp_id")
        if get_member(body, "coordinates") != COORDINATES or get_member(body, "fabr_id") != FABR_ID:
            raise LiqidRefusal("Coordinates and fabric id of the group expected")
        if action == "edit":
            self.matrix.begin_pool_edit(number)
            return [body]
        return self._commit_change(lambda: self.matrix.finish_pool_edit(number, keep=action == "done"))

    def _handle_fabric_edit(self, action: list[str], body: Any) -> list[Any] | Reply:
        """Begin, cancel or apply the edit of a machine."""
        number = self._check_machine(body)
        if action == ["edit"]:
            self.matrix.begin_machine_edit(number)
        elif action == ["edit", "cancel"]:
            self.matrix.cancel_machine_edit(number)
        else:
            return self._commit_change(lambda: self.matrix.reprogram_machine(number))
        return [body]

    def _check_machine(self, body: Any) -> int:
        """Return the number of an echoed machine. Raises LiqidRefusal if the object is incomplete."""
        machine = self.matrix.find_machine(get_member(body, "mach_id"))
        check_echoed_object(body, machine_to_json(machine), "Machine")
        return machine.number

    def _check_group(self, body: Any) -> int:
        """Return the number of an echoed group. Raises LiqidRefusal if the object is incomplete."""
        group = self.matrix.find_group(get_member(get_member(body, "group"), "grp_id"))
        check_echoed_object(body["group"], group_to_json(group), "Group")
        return group.number

    def _check_device(self, path: str, body: Any) -> str:
        """Return the name of an echoed device. Raises LiqidRefusal if the object is incomplete or of another type."""
        status = get_member(body, "device_status")
        device = self.matrix.find_device(get_member(status, "name"))
        if DEVICE_PATHS[device.dev_type] != path:
            raise LiqidRefusal(f"Device {device.name} is not of type {path}")
        check_echoed_object(status, status_to_json(device), "DeviceStatus")
        return device.name


def _filter_by_query(records: list[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records whose values match all query parameters."""
    return [record for record in records if all(str(record.get(name)) == value for name, value in query.items())]


def _parse_number(text: str) -> int:
    """Parse a decimal or hexadecimal number. Raises LiqidRefusal if the text is not a number."""
    try:
        return int(text, 0)
    except ValueError:
        raise LiqidRefusal(f"{text!r} is not a number") from None


open_emulator = LiqidEmulator
