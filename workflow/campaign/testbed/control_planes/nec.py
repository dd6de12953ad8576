"""NEC CDIM, emulated: resources, nodes, and one `layout-apply` at a time, whose time is counted in reads.

Source: the API reference of project CDIM 0.2 (statuses, error codes, cancel and resume) and a public client of the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.testbed.control_planes.hardware import Rack, RackDevice, RackError
from campaign.testbed.control_planes.server import Asked, Reply

PREFIX = "/cdim/api/v1"
TYPES = {"gpu": "GPU", "nvme": "storage", "nic": "networkInterface"}
_BUSY = {"code": "E40010", "message": "Already running. Cannot start multiple instances."}


@dataclass
class Apply:
    """One layout-apply. looks: so many reads go by before it is done; done: its steps that were, in order."""

    number: str
    steps: list[dict[str, Any]]
    looks: int
    status: str = "IN_PROGRESS"
    rollback: str | None = None
    done: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        results = [{"operationID": step["operationID"], "status": "COMPLETED"} for step in self.done]
        found = {"applyID": self.number, "status": self.status, "procedures": self.steps, "applyResult": results}
        return found if self.rollback is None else found | {"rollbackStatus": self.rollback, "executeRollback": True}


@dataclass
class Cdim:
    """CDIM over a rack. nodes: CDIM's id of a host, where it is not the host's name; looks: so many reads go by
    before an apply is done.

    busy: so many applies are refused as if another ran. ends: status in which the next `times` applies end (-1: all) after `after`
    of their steps, other than COMPLETED: FAILED, SUSPENDED or CANCELED; rollback: what became of taking them back.
    """

    rack: Rack
    api: Literal["eeio", "cpu"] = "eeio"
    nodes: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    looks: int = 0
    busy: int = 0
    ends: str = "COMPLETED"
    after: int = 0
    rollback: str | None = None
    times: int = 1
    applies: dict[str, Apply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = {host: host for host in self.rack.hosts} | dict(self.nodes)
        self._link = "eeio" if self.api == "eeio" else "CPU"
        self._interfaces = {f"{self._link.lower()}-{node}": host for host, node in self._nodes.items()}
        own = ("sourceDeviceID", "destinationDeviceID") if self.api == "eeio" else ("targetCPUID", "targetDeviceID")
        self._source, self._destination = own

    def answer(self, asked: Asked) -> Reply:
        if not asked.path.startswith(f"{PREFIX}/"):
            return Reply(404, {"code": "E40099", "message": f"no {asked.path}"})
        if asked.method == "GET":
            for apply in self.applies.values():
                if apply.status == "IN_PROGRESS":
                    apply.looks -= 1
                    if apply.looks < 0:
                        self._run(apply)
        match asked.method, asked.path.removeprefix(f"{PREFIX}/").split("/"):
            case "GET", ["resources"]:
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
        host = device.attached_to
        return {
            "annotation": {"available": True},
            "detected": True,
            "device": {
                "deviceID": device.uuid,
                "type": TYPES[device.kind],
                "model": device.model,
                "serialNumber": device.serial,
                "status": {"health": "Critical" if "broken" in device.quirks else "OK", "state": "Enabled"},
                "links": [{"type": self._link, "deviceID": f"{self._link.lower()}-{self._nodes[host]}"}]
                if host
                else [],
            },
            "nodeIDs": [self._nodes[host]] if host else [],
            "resourceGroupIDs": ["00000000-0000-7000-8000-000000000000"],
        }

    def _resource_of_host(self, host: str) -> dict[str, Any]:
        links = [{"type": TYPES[device.kind], "deviceID": device.uuid} for device in self.rack.attached(host)]
        status = {"health": "OK", "state": "Enabled"}
        device = {
            "deviceID": f"{self._link.lower()}-{self._nodes[host]}",
            "type": self._link,
            "status": status,
            "links": links,
        }
        return {"annotation": {"available": True}, "detected": True, "device": device, "nodeIDs": [self._nodes[host]]}

    def _node(self, host: str) -> dict[str, Any]:
        parts = [self._resource_of_host(host), *(self._resource(device) for device in self.rack.attached(host))]
        return {"id": self._nodes[host], "resources": parts}

    def _start(self, body: Any) -> Reply:
        if self.busy > 0:
            self.busy -= 1
            return Reply(409, _BUSY)
        for apply in self.applies.values():
            if apply.status in ("IN_PROGRESS", "CANCELING") or apply.rollback == "IN_PROGRESS":
                return Reply(409, _BUSY)
            if "SUSPENDED" in (apply.status, apply.rollback):
                words = f"Suspended data exist. Please resume layoutapply. applyID:[{apply.number}]"
                return Reply(409, {"code": "E40027", "message": words})
        steps = body.get("procedures") if isinstance(body, dict) else None
        if (wrong := self._wrong(steps)) is not None:
            return Reply(400, {"code": "E40001", "message": wrong})
        number = f"{len(self.applies) + 1:010x}"
        self.applies[number] = Apply(number, list(steps or ()), self.looks)
        return Reply(202, {"applyID": number})

    def _wrong(self, steps: Any) -> str | None:
        """What the schema of the request forbids; None for a request that can be started."""
        if not isinstance(steps, list):
            return "'procedures' is a required property"
        source, destination = self._source, self._destination
        numbers = [step.get("operationID") for step in steps if isinstance(step, dict)]
        for step in steps:
            if not isinstance(step, dict) or step.get("operation") not in ("connect", "disconnect"):
                return f"{step!r} is not a procedure"
            if set(step) != {"operationID", "operation", source, destination, "dependencies"}:
                return f"{step!r}: properties must be operationID, operation, {source}, {destination}, dependencies"
            after = step["dependencies"]
            if (
                not isinstance(after, list)
                or numbers.count(step["operationID"]) != 1
                or any(n not in numbers for n in after)
            ):
                return f"{step!r}: operationIDs must be unique, and dependencies among them"
        return None

    def _run(self, apply: Apply) -> None:
        fails = self.ends != "COMPLETED" and self.times != 0
        limit = self.after if fails else len(apply.steps)
        waiting = list(apply.steps)
        while waiting and len(apply.done) < limit:
            finished = {step["operationID"] for step in apply.done}
            step = next((step for step in waiting if set(step["dependencies"]) <= finished), None)
            if step is None or not self._do(step):
                apply.status = "FAILED"
                return
            waiting.remove(step)
            apply.done.append(step)
        if not fails:
            apply.status = "COMPLETED"
            return
        self.times -= 1
        apply.status = self.ends
        apply.rollback = self.rollback
        if self.rollback == "COMPLETED":
            self._undo(apply)

    def _do(self, step: Mapping[str, Any], *, undo: bool = False) -> bool:
        """One step on the hardware; False for what it cannot do."""
        host = self._interfaces.get(step[self._source])
        device = next((d for d in self.rack.devices.values() if d.uuid == step[self._destination]), None)
        if host is None or device is None:
            return False
        attaching = (step["operation"] == "connect") != undo
        if device.attached_to != (None if attaching else host):
            return False
        try:
            self.rack.attach(device.name, host) if attaching else self.rack.detach(device.name)
        except RackError:
            return False
        return True

    def _undo(self, apply: Apply) -> None:
        for step in reversed(apply.done):
            self._do(step, undo=True)
        apply.done.clear()

    def _cancel(self, apply: Apply, query: Mapping[str, str]) -> Reply:
        if query.get("action") != "cancel":
            return Reply(400, {"code": "E40001", "message": "action: only cancel is emulated"})
        if apply.status == "SUSPENDED":
            apply.status = "FAILED"
        elif apply.rollback == "SUSPENDED":
            apply.rollback = "FAILED"
        elif apply.status == "IN_PROGRESS":
            apply.status = "CANCELED"
            if query.get("rollbackOnCancel") == "true":
                self._undo(apply)
                apply.rollback = "COMPLETED"
        else:
            return Reply(409, {"code": "E40022", "message": "This layoutapply has already executed."})
        return Reply(202, {"status": apply.status})


COMPOSES = ("POST", "*/layout-apply")
open_dialect = Cdim
