"""Emulated Liqid Matrix (REST v2) over a rack, with groups, machines and edit modes.

Connections change only when a machine is reprogrammed.

The emulator is strict: every request needs its digest key, objects must be echoed completely, one machine is edited at a time,
and
a device is in one place. It is written from the public SDKs (3.2.0 to 3.4), their model of a Matrix and recorded requests. The
schemas of the SDKs are used to test it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.liqid.matrix import (
    COORDINATES,
    FABR_ID,
    INFO_PATHS,
    PATHS,
    LiqidMatrix,
    LiqidRefusal,
    MatrixDevice,
    counters_json,
    details_json,
    echoed,
    group_details_json,
    group_json,
    info_json,
    machine_json,
    member,
    predevice_json,
    snaked,
    status_json,
)
from campaign.emulators.control_planes.server import HttpRequest, Reply

__all__ = ["LiqidEmulator", "open_emulator"]

COMPOSES = ("POST", "*/fabric/reprogram")


BASE = "/liqid/api/v2/"


@dataclass(frozen=True)
class MatrixBehaviour:
    """Behaviour of the emulated Matrix.

    Attributes:
        user: name of the user.
        password: password of the user.
        groups: names of the existing groups.
        computes: name of each host's compute device.
        error_status: HTTP status of errors.
        async_polls: commits answer 202 and are done after this number of polls; 0: at once.
        name_max: longer names of machines are cut to this length.
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
class _Later:
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
        """Create the emulated Matrix of a rack.

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
        self._made = 0
        self._address = ""
        self._later: list[_Later] = []

    def expire(self) -> None:
        """Forget every session, as a restarted director does."""
        self._keys.clear()

    def answer(self, asked: HttpRequest) -> Reply:
        """Answer a request of the REST API."""
        self._address = f"{asked.scheme}://{asked.header('Host')}"
        try:
            if not asked.path.startswith(BASE):
                raise LiqidRefusal(f"No such path {asked.path}", 404)
            words = asked.path.removeprefix(BASE).split("/")
            if words[0] == "digest" and len(words) == 2:
                return self._data([self._digest(asked, words[1])])
            if not self._known(asked):
                return self._error(LiqidRefusal("Not authorized", 401), 401)
            if words[0] == "async" and len(words) == 2:
                return self._polled(int(words[1]))
            data = self._get(words, asked) if asked.method == "GET" else self._change(words, asked)
            return data if isinstance(data, Reply) else self._data(data)
        except LiqidRefusal as refusal:
            found = refusal.code == 404 and "No such path" in str(refusal)
            return self._error(refusal, 404 if found else self.behaviour.error_status)

    def _data(self, data: list[Any], status: int = 200) -> Reply:
        """Build the answer to a successful request."""
        return Reply(status, {"response": {"code": 0, "errors": None, "data": data}})

    def _error(self, refusal: LiqidRefusal, status: int) -> Reply:
        """Build the answer to a refused request."""
        errors = [{"code": refusal.code, "message": str(refusal), "type": refusal.type}]
        return Reply(status, {"response": {"code": refusal.code, "errors": errors, "data": []}})

    def _digest(self, asked: HttpRequest, label: str) -> dict[str, Any]:
        """Create or delete a session, which Liqid calls a digest."""
        if asked.basic != (self.behaviour.user, self.behaviour.password):
            raise LiqidRefusal("Bad credentials", 401)
        if label == "slurm":  # reserved
            raise LiqidRefusal("Permission denied", 403)
        if asked.method == "DELETE":
            if label not in self._keys:
                raise LiqidRefusal(f"No digest {label}", 404)
            del self._keys[label]
            return {"digest_label": label}
        if asked.method != "POST" or label in self._keys:
            raise LiqidRefusal(f"Digest {label} exists already")
        self._made += 1
        self._keys[label] = f"key-{label}-{self._made}"
        return {"digest_id": self._made, "digest_key": self._keys[label], "digest_label": label}

    def _known(self, asked: HttpRequest) -> bool:
        """Return True if the request has the key of an open session, and no other authorization."""
        return asked.header("Authorization") is None and asked.header("X-API-Key") in self._keys.values()

    def _commit(self, work: Callable[[], Any]) -> list[Any] | Reply:
        """Apply a change at once, or answer with an asynchronous operation."""
        if not self.behaviour.async_polls:
            work()
            return [{}]
        self._later.append(_Later(work, self.behaviour.async_polls))
        # The complete address, because the vendor's client uses it unchanged.
        href = f"{self._address}{BASE}async/{len(self._later) - 1}"
        return self._data([{"command_execution_state": "Pending", "links": [{"rel": "status", "href": href}]}], 202)

    def _polled(self, number: int) -> Reply:
        """Return the state of an asynchronous operation. The change is applied at the last poll."""
        if number >= len(self._later):
            return self._error(LiqidRefusal("No such operation", 404), 404)
        later = self._later[number]
        if later.state == "Pending" and later.polls <= 0:
            later.state, later.message = self._done(later)
        later.polls -= 1
        if later.state == "SUCCESS" and self.behaviour.async_end == "404":
            return self._error(LiqidRefusal("No such operation", 404), 404)
        return self._data([{"command_execution_state": later.state, "message": later.message}])

    def _done(self, later: _Later) -> tuple[str, str]:
        """Apply the change of an asynchronous operation, and return its final state and message."""
        if self.behaviour.async_end == "FAILURE":
            return "FAILURE", "the switch did not answer"
        try:
            later.work()
        except LiqidRefusal as refusal:
            return "FAILURE", str(refusal)
        return "SUCCESS", ""

    def _get(self, words: list[str], asked: HttpRequest) -> list[Any]:
        """Return the data of a GET request. Raises LiqidRefusal for an unknown path."""
        matrix, query = self.matrix, asked.query
        match words:
            case ["group"]:
                return [group_json(group) for group in matrix.groups.values()]
            case ["group", "nextid"]:
                return [max(matrix.groups, default=0) + 1]
            case ["group", "mapper"]:
                return [each.number for each in matrix.groups.values() if each.name == query.get("group-name")]
            case ["group", "details", number]:
                return [group_details_json(matrix.group(_number(number)), matrix)]
            case ["machine"]:
                return _filtered([machine_json(each) for each in matrix.machines.values()], query)
            case ["machine", "nextid"]:
                return [str(next(n for n in range(1, len(matrix.machines) + 2) if n not in matrix.machines))]
            case ["machine", "details", number]:
                return [details_json(matrix.machine(_number(number)), matrix)]
            case ["predevice"]:
                return _filtered([predevice_json(each, matrix) for each in matrix.devices.values()], query)
            case ["status", path] if path in PATHS.values():
                free = query.get("filter", "false").lower() == "true"
                return [status_json(each) for each in self._of(path, PATHS) if not free or each.group is None]
            case ["device", "info", path] if path in INFO_PATHS.values():
                return [info_json(each) for each in self._of(path, INFO_PATHS)]
            case ["status"]:
                return [status_json(each) for each in matrix.devices.values()]
            case ["devices", "count"]:
                return [counters_json(matrix)]
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
                raise LiqidRefusal(f"No such path {asked.path}", 404)

    def _of(self, path: str, paths: Mapping[str, str]) -> list[MatrixDevice]:
        """Return the devices whose type has this word in its paths."""
        return [device for device in self.matrix.devices.values() if paths[device.dev_type] == path]

    def _change(self, words: list[str], asked: HttpRequest) -> list[Any] | Reply:
        """Carry out a request that changes the Matrix, and return its data. Raises LiqidRefusal if it is refused."""
        matrix, body = self.matrix, snaked(asked.body)
        match [asked.method, *words]:
            case ["POST", "group", "clear"]:
                self.violations.append("POST group/clear")
                raise LiqidRefusal("Permission denied", 403)
            case ["POST", "group"]:
                made = matrix.add_group(member(body, "grp_id"), member(body, "group_name"))
                return [group_json(made)]
            case ["DELETE", "group", number]:
                matrix.remove_group(_number(number))
            case ["POST", "machine"]:
                names = ("mach_id", "grp_id", "mach_name", "comp_name")
                machine = matrix.add_machine(*(member(body, name) for name in names))
                machine.name = machine.name[: self.behaviour.name_max]
                return [machine_json(machine)]
            case ["POST", "machine", "p2p"]:
                machine = matrix.machine(member(body, "mach_id"))
                echoed({**body, "p2p": machine.p2p}, machine_json(machine), "Machine")
                return [machine_json(matrix.join(machine.number, member(body, "p2p")))]
            case ["DELETE", "machine", number]:
                return self._commit(lambda: matrix.remove_machine(_number(number)))
            case ["POST", "pool", "edit" | "done" | "cancel" as what]:
                return self._pool_edit(what, body)
            case ["POST" | "DELETE" as method, "predevice", path]:
                matrix.pool(self._group(body), self._device(path, body), add=method == "POST")
            case ["POST", "fabric", *what] if what in (["edit"], ["edit", "cancel"], ["reprogram"]):
                return self._fabric_edit(what, body)
            case ["POST" | "DELETE" as method, "relate", path]:
                relator, mach_id = member(body, "group_device_relator"), self._machine(member(body, "machine"))
                self._group(relator)
                matrix.relate(mach_id, self._device(path, relator), add=method == "POST")
            case ["PUT", "power", "start" | "shutdown" | "reboot" | "restart" as what, group, number]:
                if asked.text or matrix.machine(_number(number)).group != _number(group):
                    raise LiqidRefusal("No body, and the machine's own group, expected")
                self.power.append((what, _number(group), _number(number)))
            case ["PUT" | "DELETE" as method, "device", "udesc", dev_type, dev_id]:
                text = member(body, "udesc") if method == "PUT" else ""
                if not isinstance(text, str):
                    raise LiqidRefusal("udesc expected")
                matrix.described(dev_type, dev_id).text = text
                return [{"udesc": text}]
            case _:
                raise LiqidRefusal(f"No such path {asked.path}", 404)
        return [{}]

    def _pool_edit(self, what: str, body: Any) -> list[Any] | Reply:
        """Begin or end the edit of a group's pool."""
        number = member(body, "grp_id")
        if member(body, "coordinates") != COORDINATES or member(body, "fabr_id") != FABR_ID:
            raise LiqidRefusal("Coordinates and fabric id of the group expected")
        if what == "edit":
            self.matrix.edit_pool(number)
            return [body]
        return self._commit(lambda: self.matrix.finish_pool(number, keep=what == "done"))

    def _fabric_edit(self, what: list[str], body: Any) -> list[Any] | Reply:
        """Begin, cancel or apply the edit of a machine."""
        number = self._machine(body)
        if what == ["edit"]:
            self.matrix.edit_machine(number)
        elif what == ["edit", "cancel"]:
            self.matrix.cancel_machine(number)
        else:
            return self._commit(lambda: self.matrix.reprogram(number))
        return [body]

    def _machine(self, body: Any) -> int:
        """Return the number of an echoed machine. Raises LiqidRefusal if the object is incomplete."""
        machine = self.matrix.machine(member(body, "mach_id"))
        echoed(body, machine_json(machine), "Machine")
        return machine.number

    def _group(self, body: Any) -> int:
        """Return the number of an echoed group. Raises LiqidRefusal if the object is incomplete."""
        group = self.matrix.group(member(member(body, "group"), "grp_id"))
        echoed(body["group"], group_json(group), "Group")
        return group.number

    def _device(self, path: str, body: Any) -> str:
        """Return the name of an echoed device. Raises LiqidRefusal if the object is incomplete or of another type."""
        status = member(body, "device_status")
        device = self.matrix.device(member(status, "name"))
        if PATHS[device.dev_type] != path:
            raise LiqidRefusal(f"Device {device.name} is not of type {path}")
        echoed(status, status_json(device), "DeviceStatus")
        return device.name


def _filtered(found: list[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records whose values match all query parameters."""
    return [each for each in found if all(str(each.get(name)) == value for name, value in query.items())]


def _number(text: str) -> int:
    """Parse a decimal or hexadecimal number. Raises LiqidRefusal if the text is not a number."""
    try:
        return int(text, 0)
    except ValueError:
        raise LiqidRefusal(f"{text!r} is not a number") from None


open_emulator = LiqidEmulator
