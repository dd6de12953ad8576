"""NEC CDIM, emulated: resources, nodes, and one `layout-apply` at a time, whose time is counted in reads.

Source: the API reference and code of project CDIM 0.1 and 0.2 (services, schema, statuses, error codes, cancel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from campaign.emulators.control_planes.hardware import Rack, RackDevice, RackError
from campaign.emulators.control_planes.server import Asked, Reply, Server, Wire

PREFIX = "/cdim/api/v1"
SERVICES = {"configuration-manager": ("resources", "nodes"), "layout-apply": ("layout-apply",)}
"""Services, and the first words of the addresses that each has."""
TYPES = {"gpu": "GPU", "nvme": "storage", "nic": "networkInterface"}
NEEDED: dict[str, tuple[str, ...]] = {
    "connect": ("targetCPUID", "targetDeviceID"),
    "disconnect": ("targetCPUID", "targetDeviceID"),
    "boot": ("targetDeviceID",),
    "shutdown": ("targetDeviceID",),
    "start": ("targetCPUID", "targetRequestInstanceID"),
    "stop": ("targetCPUID", "targetRequestInstanceID"),
}
"""What a step of each operation must have, besides its id and its dependencies (layout-apply 0.1.1)."""
_KNOWN = {"operationID", "operation", "dependencies", "targetCPUID", "targetDeviceID", "targetRequestInstanceID"}
_BUSY = {"code": "E40010", "message": "Already running. Cannot start multiple instances."}


@dataclass
class Apply:
    """One layout-apply. looks: so many reads go by before it is done; done: its steps that were, in order."""

    number: str
    steps: list[dict[str, Any]]
    looks: int
    status: str = "IN_PROGRESS"
    done: list[dict[str, Any]] = field(default_factory=list)
    dead: bool = False

    def document(self) -> dict[str, Any]:
        results = [{"operationID": step["operationID"], "status": "COMPLETED"} for step in self.done]
        return {"applyID": self.number, "status": self.status, "procedures": self.steps, "applyResult": results}


@dataclass
class Cdim:
    """CDIM over a rack. nodes: CDIM's id of a host, where it is not the host's name; looks: so many reads go by
    before an apply is done; lag: so many lists go by before one shows what an apply has done.

    Its services have an address each, and ask nobody who he is.

    busy: so many applies are refused as if another ran. ends: status in which the next `times` applies end (-1: all) after `after`
    of their steps, other than COMPLETED: FAILED, SUSPENDED or CANCELED.
    """

    rack: Rack
    nodes: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    looks: int = 0
    lag: int = 0
    busy: int = 0
    ends: str = "COMPLETED"
    after: int = 0
    times: int = 1
    applies: dict[str, Apply] = field(default_factory=dict)
    wire: Wire = field(default=Wire(parts=tuple(SERVICES)), init=False)

    def __post_init__(self) -> None:
        self._nodes = {host: host for host in self.rack.hosts} | dict(self.nodes)
        self._interfaces = {f"cpu-{node}": host for host, node in self._nodes.items()}
        self._listed = self._hardware()
        self._stale = 0

    def _hardware(self) -> dict[str, str | None]:
        return {name: device.attached_to for name, device in self.rack.devices.items()}

    def _look(self) -> None:
        """One more list is asked for: after `lag` of them, lists show what is."""
        if self._stale > 0:
            self._stale -= 1
        else:
            self._listed = self._hardware()

    def answer(self, asked: Asked) -> Reply:
        below = asked.path.removeprefix(f"{PREFIX}/")
        if below == asked.path or below.partition("/")[0] not in SERVICES[asked.part]:
            return Reply(404, {"detail": f"Not Found: {asked.path}"})
        if asked.method == "GET":
            for apply in self.applies.values():
                if apply.status == "IN_PROGRESS":
                    apply.looks -= 1
                    if apply.looks < 0:
                        self._run(apply)
        match asked.method, below.split("/"):
            case "GET", ["resources"]:
                self._look()
                resources = [self._resource(device) for device in self.rack.devices.values()]
                resources += [self._resource_of_host(host) for host in self.rack.hosts]
                return Reply(200, {"count": len(resources), "resources": resources})
            case "GET", ["nodes"]:
                nodes = [self._node(host) for host in self.rack.hosts]
                return Reply(200, {"count": len(nodes), "nodes": nodes})
            case "POST", ["layout-apply"]:
                return self._start(asked.body)
            case "GET", ["layout-apply"]:
                listed = [apply.document() for apply in self.applies.values()]
                listed = [one for one in listed if asked.query.get("status", one["status"]) == one["status"]]
                return Reply(200, {"count": len(listed), "totalCount": len(listed), "applyResults": listed})
            case "GET", ["layout-apply", number] if number in self.applies:
                return Reply(200, self.applies[number].document())
            case "PUT", ["layout-apply", number] if number in self.applies:
                return self._cancel(self.applies[number], asked.query)
        return Reply(404, {"code": "E40020", "message": "Specified ID is not found."})

    def _resource(self, device: RackDevice) -> dict[str, Any]:
        host = self._listed[device.name]
        return {
            "annotation": {"available": True},
            "detected": True,
            "device": {
                "deviceID": device.uuid,
                "type": TYPES[device.kind],
                "model": device.model,
                "serialNumber": device.serial,
                "status": {"health": "Critical" if "broken" in device.quirks else "OK", "state": "Enabled"},
                "links": [{"type": "CPU", "deviceID": f"cpu-{self._nodes[host]}"}] if host else [],
            },
            "nodeIDs": [self._nodes[host]] if host else [],
            "resourceGroupIDs": ["00000000-0000-7000-8000-000000000000"],
        }

    def _resource_of_host(self, host: str) -> dict[str, Any]:
        """The end of a host: its processor."""
        links = [{"type": TYPES[device.kind], "deviceID": device.uuid} for device in self._there(host)]
        device = {
            "deviceID": f"cpu-{self._nodes[host]}",
            "type": "CPU",
            "links": links,
            "status": {"health": "OK", "state": "Enabled"},
        }
        return {"annotation": {"available": True}, "detected": True, "device": device, "nodeIDs": [self._nodes[host]]}

    def _there(self, host: str) -> list[RackDevice]:
        return [one for one in self.rack.devices.values() if host in (self._listed[one.name], one.also)]

    def _node(self, host: str) -> dict[str, Any]:
        parts = [self._resource_of_host(host), *(self._resource(device) for device in self._there(host))]
        return {"id": self._nodes[host], "resources": parts}

    def _start(self, body: Any) -> Reply:
        if self.busy > 0:
            self.busy -= 1
            return Reply(409, _BUSY)
        for apply in self.applies.values():
            if apply.status == "IN_PROGRESS":
                return Reply(409, _BUSY)
            if apply.status == "SUSPENDED":
                words = f"Suspended data exist. Please resume layoutapply. applyID:[{apply.number}]"
                return Reply(409, {"code": "E40027", "message": words})
        steps = body.get("procedures") if isinstance(body, dict) else None
        if (wrong := self._wrong(steps)) is not None:
            return Reply(400, {"code": "E40001", "message": wrong})
        number = f"{len(self.applies) + 1:010x}"
        self.applies[number] = Apply(number, list(steps or ()), self.looks)
        return Reply(202, {"applyID": number})

    def _wrong(self, steps: Any) -> str | None:
        """What the schema of the request forbids; None for a request that can be started. It allows more keys than it needs."""
        if not isinstance(steps, list):
            return "'procedures' is a required property"
        for step in steps:
            if not isinstance(step, dict):
                return f"{step!r} is not of type 'object'"
            ends = NEEDED.get(str(step.get("operation")))
            if ends is None:
                return f"{step.get('operation')!r} is not one of {list(NEEDED)}"
            if lacking := [name for name in ("operationID", *ends, "dependencies") if name not in step]:
                return f"{lacking[0]!r} is a required property"
            after = step["dependencies"]
            if not isinstance(after, list) or not all(_is_int(number) for number in (step["operationID"], *after)):
                return f"{step!r}: operationID and dependencies must be integers"
            if wrong := [name for name in ends if not isinstance(step[name], str) or not step[name]]:
                return f"{step[wrong[0]]!r} is no device id ({wrong[0]})"
        return None

    def _run(self, apply: Apply) -> None:
        # A key that the worker does not know ends it, and its apply is not ended by anybody.
        apply.dead = any(set(step) - _KNOWN for step in apply.steps)
        if apply.dead:
            return
        self._stale = self.lag
        fails = self.ends != "COMPLETED" and self.times != 0
        limit = self.after if fails else len(apply.steps)
        waiting = list(apply.steps)
        while waiting and len(apply.done) < limit:
            finished = {step["operationID"] for step in apply.done}
            step = next((step for step in waiting if set(step["dependencies"]) <= finished), None)
            if step is None:
                return  # what it waits for never comes, and nobody looked
            if not self._do(step):
                apply.status = "FAILED"
                return
            waiting.remove(step)
            apply.done.append(step)
        if not fails:
            apply.status = "COMPLETED"
            return
        self.times -= 1
        apply.status = self.ends

    def _do(self, step: Mapping[str, Any]) -> bool:
        """One step on the hardware; False for what it cannot do."""
        if step["operation"] not in ("connect", "disconnect"):
            return True  # power, which a rack does not have
        host = self._interfaces.get(step["targetCPUID"])
        device = next((d for d in self.rack.devices.values() if d.uuid == step["targetDeviceID"]), None)
        if host is None or device is None:
            return False
        attaching = step["operation"] == "connect"
        if device.attached_to != (None if attaching else host):
            return False
        try:
            self.rack.attach(device.name, host) if attaching else self.rack.detach(device.name)
        except RackError:
            return False
        return True

    def _cancel(self, apply: Apply, query: Mapping[str, str]) -> Reply:
        if query.get("action") != "cancel":
            return Reply(400, {"code": "E40001", "message": "action: only cancel is emulated"})
        if apply.dead:
            return Reply(409, {"code": "E40028", "message": "The process of this layoutapply is gone."})
        if apply.status != "SUSPENDED":
            return Reply(409, {"code": "E40022", "message": "This layoutapply has already executed."})
        apply.status = "FAILED"
        return Reply(202, {"status": apply.status})


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


COMPOSES = ("POST", "*/layout-apply")
open_emulator = Cdim


def address(server: Server) -> dict[str, Any]:
    """Where its services are, as a system file says it."""
    lists, applies = (server.urls[name] for name in ("configuration-manager", "layout-apply"))
    ca = {"ca_file": str(server.ca_file.resolve())} if server.ca_file else {}
    return {"url": lists, "layout_apply_url": applies, **ca}
