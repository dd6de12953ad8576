"""Fujitsu CDI, emulated: the identity service and the fabric manager, which chooses devices by a condition.

Source: public clients of the fabric manager and their mocks.
"""

from __future__ import annotations

import json
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from campaign.emulators.control_planes.hardware import Rack, RackDevice
from campaign.emulators.control_planes.server import Asked, Reply

TYPES = {"gpu": "gpu", "nvme": "storage", "nic": "network"}
FABRIC = {"fabric_uuid": "58f4c0f8-6c74-4e86-a560-95ed13daaa46", "fabric_id": 1}
_MACHINES = "/fabric_manager/api/v1/machines"


def name_uuid(name: str) -> str:
    """The UUID that a host or device of the rack has here; the same every time."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


@dataclass
class FabricManager:
    """A fabric manager over a rack; machines are called as the hosts are, with UUIDs of their own.

    token_s: how long a token is good. operation: `res_op_status` by device; wrong: so many attaches choose another model; brief:
    the list tells neither models nor serials; misspelt: `res_spcec`; whole: an attach is answered with everything on the machine.
    """

    rack: Rack
    tenant: str = "b3b65e79-ad41-4367-89d6-e4e7315141ef"
    realm: str = "cdi"
    user: str = "campaign"
    password: str = "learn-2-compose"
    token_s: float = 300.0
    operation: Mapping[str, str] = field(default_factory=dict)
    wrong: int = 0
    brief: bool = False
    misspelt: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        self._tokens: dict[str, float] = {}
        self._machines = {name_uuid(host): host for host in self.rack.hosts}

    def answer(self, asked: Asked) -> Reply:
        if asked.path == f"/id_manager/realms/{self.realm}/protocol/openid-connect/token":
            return self._token(asked)
        if not asked.path.startswith(_MACHINES):
            return _error(404, "E020001", f"no {asked.path}")
        bearer = (asked.header("Authorization") or "").removeprefix("Bearer ")
        if self._tokens.get(bearer, 0.0) <= time.time():
            return _error(401, "E020401", "the token is not valid")
        if asked.query.get("tenant_uuid") != self.tenant:
            return _error(403, "E020403", "tenant_uuid: no such tenant, or not yours")
        match asked.method, asked.path.removeprefix(_MACHINES).strip("/").split("/"):
            case "GET", [""]:
                return self._listed([self._machine(name, brief=self.brief) for name in self._machines])
            case "GET", [name] if name in self._machines:
                return self._listed([self._machine(name)])
            case "GET", [name, "available-reserved-resources"] if name in self._machines:
                return self._available(asked.query)
            case (("PATCH" | "DELETE"), [name, "update"]) if name in self._machines:
                return self._update(asked, name)
        return _error(404, "E020404", "no such machine")

    def _token(self, asked: Asked) -> Reply:
        form = {name: values[-1] for name, values in parse_qs(asked.text, keep_blank_values=True).items()}
        fixed = {"grant_type": "password", "scope": "openid"}
        wanted = {"client_id", "client_secret", "username", "password", "response_type", *fixed}
        if asked.method != "POST" or set(form) != wanted or not fixed.items() <= form.items():
            return Reply(400, {"error": "invalid_request"})
        if (form["username"], form["password"]) != (self.user, self.password):
            return Reply(401, {"error": "invalid_grant", "error_description": "Invalid user credentials"})
        until = time.time() + self.token_s
        parts = [json.dumps(part).encode() for part in ({"alg": "none"}, {"exp": until, "jti": len(self._tokens)})]
        token = ".".join([*(urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "none"])
        self._tokens[token] = until
        # Longer than the token's own end, which is what counts.
        return Reply(200, {"access_token": token, "expires_in": 10 * self.token_s + 3600, "token_type": "Bearer"})

    @staticmethod
    def _listed(found: list[dict[str, Any]]) -> Reply:
        return Reply(200, {"data": {"machines": found}})

    def _machine(self, name: str, *, brief: bool = False, only: list[RackDevice] | None = None) -> dict[str, Any]:
        devices = self.rack.attached(self._machines[name]) if only is None else only
        built_in = _resource("compute", name_uuid(f"compute {name}"), "compute")
        resources = [self._resource(device, brief=brief) for device in devices]
        return {
            **FABRIC,
            "mach_uuid": name,
            "mach_id": list(self._machines).index(name) + 1,
            "mach_name": self._machines[name],
            "tenant_uuid": self.tenant,
            "resources": resources if only is not None else [built_in, *resources],
        }

    def _resource(self, device: RackDevice, *, brief: bool = False) -> dict[str, Any]:
        status = self.operation.get(device.name, "20" if "broken" in device.quirks else "0")
        found = _resource(device.name, name_uuid(device.name), TYPES[device.kind], status)
        if brief:
            return found
        condition = [{"column": "model", "operator": "eq", "value": device.model}]
        return found | {
            "res_serial_num": f"GPU-{device.uuid}" if device.kind == "gpu" else device.serial,
            "res_spcec" if self.misspelt else "res_spec": {"condition": condition},
        }

    def _free(self, type_: str, model: str | None) -> list[RackDevice]:
        return [
            device
            for device in self.rack.devices.values()
            if device.attached_to is None and TYPES[device.kind] == type_ and model in (None, device.model)
        ]

    def _available(self, query: Mapping[str, str]) -> Reply:
        try:
            model = _model([json.loads(query.get("condition", ""))])
        except ValueError:
            model = None
        if model is None or "res_type" not in query:
            return _error(400, "E020400", "res_type and condition are needed")
        count = len(self._free(query["res_type"], model))
        return Reply(200, {**FABRIC, "reserved_res_num_per_fabric": count})

    def _update(self, asked: Asked, name: str) -> Reply:
        try:
            tenant = asked.body["tenants"]
            (machine,) = tenant["machines"]
            (resources,) = machine["resources"]
            (wanted,) = resources["res_specs"]
            wanted = dict(wanted)
            whole = tenant["tenant_uuid"] == self.tenant and machine["mach_uuid"] == name and wanted["res_num"] == 1
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            return _error(400, "E020400", "the body is not that of an update of this machine")
        return self._attach(name, wanted) if asked.method == "PATCH" else self._detach(name, wanted)

    def _attach(self, name: str, wanted: Mapping[str, Any]) -> Reply:
        if set(wanted) != {"res_type", "res_spec", "res_num"}:
            return _error(400, "E020400", "res_type, res_spec and res_num are needed, and nothing else")
        spec = wanted["res_spec"]
        model = _model(spec.get("condition") if isinstance(spec, dict) else None)
        host = self._machines[name]
        free = self._free(wanted["res_type"], model)
        if model is None or not free:
            return _error(404, "E020410", f"not enough resources: {model}")
        if self.wrong > 0:
            self.wrong -= 1
            free = [one for one in self._free(wanted["res_type"], None) if one.model != model] or free
        self.rack.attach(free[0].name, host)
        return self._listed([self._machine(name, only=None if self.whole else free[:1])])

    def _detach(self, name: str, wanted: Mapping[str, Any]) -> Reply:
        if set(wanted) != {"res_type", "res_uuid", "res_num"}:
            return _error(400, "E020400", "res_type, res_uuid and res_num are needed, and nothing else")
        there = {name_uuid(device.name): device for device in self.rack.attached(self._machines[name])}
        device = there.get(wanted["res_uuid"])
        if device is None or TYPES[device.kind] != wanted["res_type"]:
            return _error(404, "E020411", "no such resource on this machine")
        self.rack.detach(device.name)
        return Reply(204)


def _error(status: int, code: str, message: str) -> Reply:
    return Reply(status, {"status": status, "detail": {"code": code, "message": message, "data": {}}})


def _resource(name: str, id_: str, type_: str, status: str = "0") -> dict[str, Any]:
    return {"res_uuid": id_, "res_name": name, "res_type": type_, "res_status": 4, "res_op_status": status}


def _model(conditions: Any) -> str | None:
    """The model that one condition asks for; None for anything else, which is all that the fabric manager understands."""
    match conditions:
        case [{"column": "model", "operator": "eq", "value": value, **rest}] if not rest:
            return str(value)
    return None


COMPOSES = ("PATCH", "*/update")
open_emulator = FabricManager
