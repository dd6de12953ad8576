"""What the fabric manager shows and answers, and which of it is which lease's. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.hardware import Health
from campaign.fabrics.http.client import Answer
from campaign.fabrics.http.json_values import Json, at, mapping, mappings
from campaign.fabrics.state_file import Holding

ASKED, REFUSED = "?", ""
"""What is remembered of a unit in place of its resource: asked for (with the Unix time) and not answered; refused."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One device on a machine. serial: a GPU's UUID; operation: `res_op_status`, whose first digit counts. None: not told."""

    uuid: str
    type: str
    model: str | None
    serial: str | None
    operation: str

    @property
    def health(self) -> Health:
        """0 is ok, 1 usable with a warning, 2 critical (and attached all the same); anything else is not known to be well."""
        known: dict[str, Health] = {"0": "ok", "1": "warning", "2": "critical"}
        return known.get(self.operation[:1], "warning")


@dataclass(frozen=True, slots=True)
class Machine:
    uuid: str
    name: str
    fabric: str
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class Owned:
    """Whose a resource is: a lease's, as the unit that it claimed, or beyond what it asked for (`unit` None)."""

    lease_id: str
    unit: str | None


@dataclass(frozen=True, slots=True)
class Known:
    """Machines as the system file calls them (else by their own name), and whose their resources are, by UUID."""

    machines: Mapping[str, Machine] = field(default_factory=dict)
    owned: Mapping[str, Owned] = field(default_factory=dict)

    def of_unit(self, unit: str) -> tuple[str, Resource] | None:
        """(host, resource) that a unit stands for at present."""
        for host, machine in self.machines.items():
            for resource in machine.resources:
                owner = self.owned.get(resource.uuid)
                if (owner is not None and owner.unit == unit) or (resource.uuid == unit):
                    return host, resource
        return None


def machines(body: Any, types: Iterable[str]) -> tuple[Machine, ...]:
    """Out of GET machines, with devices of the named types only. Raises ProtocolViolation for what is no such list."""
    listed = at(body, "data", "machines")
    if not isinstance(listed, list):
        raise ProtocolViolation(f"fabric manager: a list data.machines was expected, got: {str(body)[:200]}")
    return tuple(_machine(mapping(one), set(types)) for one in listed)


def _machine(body: Json, types: set[str]) -> Machine:
    uuid, number = _uuid(body, "a machine", "mach_uuid"), body.get("fabric_id")
    found = [
        _resource(one)
        for one in mappings(body, "resources")
        if str(one.get("res_type")) in types and at(one, "tags", "is_bootstorage") is not True
    ]
    fabric = "fabric" if number is None else f"fabric{number}"
    return Machine(uuid, str(body.get("mach_name") or uuid), fabric, tuple(found))


def _resource(body: Json) -> Resource:
    spec = mapping(body.get("res_spec") or body.get("res_spcec"))  # some releases write `res_spcec`
    models = [one for one in mappings(spec, "condition") if str(one.get("column")) in ("model", "gpu_model")]
    return Resource(
        _uuid(body, "a resource", "res_uuid"),
        str(body.get("res_type")),
        str(models[0].get("value")) if models else None,
        str(body["res_serial_num"]) if body.get("res_serial_num") else None,
        str(body.get("res_op_status", "0")),
    )


def _uuid(body: Json, what: str, name: str) -> str:
    uuid = body.get(name)
    if not isinstance(uuid, str) or not uuid:
        raise ProtocolViolation(f"fabric manager: {what} without {name}: {str(body)[:200]}")
    return uuid


def words(answer: Answer) -> str:
    """{"status", "detail": {"code", "message": text or object}}, in words; what else came, as it is."""
    detail = at(answer.body, "detail")
    if not isinstance(detail, dict):
        return answer.words()
    message = detail.get("message")
    text = message if isinstance(message, str) else json.dumps(message)
    return f"HTTP {answer.status} {detail.get('code', '')} {text}".replace("  ", " ")


def attached_by(answer: Answer, types: Collection[str]) -> list[str]:
    """UUIDs of the resources of the named types in the answer to an update; none where it is something else.

    Some answers have all of the machine in them, its processors too.
    """
    resources = [one for machine in mappings(answer.body, "data", "machines") for one in mappings(machine, "resources")]
    return [str(one["res_uuid"]) for one in resources if one.get("res_uuid") and one.get("res_type") in types]


def before(host: str) -> str:
    """Handle with what was on a host's machine before a lease asked for anything."""
    return f"before {host}"


def also(uuid: str) -> str:
    """Handle of what the fabric attached beyond what was asked for."""
    return f"also {uuid}"


def owned(machines_by_host: Mapping[str, Machine], leases: Mapping[str, Holding]) -> dict[str, Owned]:
    """Whose each resource is, by what the leases remember.

    A resource that appeared on the machine of a lease that waits for an answer is what it had asked for: of that model, if there is
    one.
    """
    found: dict[str, Owned] = {}
    for lease_id, holding in leases.items():
        for name, handle in holding.handles.items():
            if name == also(handle):
                found[handle] = Owned(lease_id, None)
            elif not name.startswith("before ") and handle != REFUSED and not handle.startswith(ASKED):
                found[handle] = Owned(lease_id, name)
    for lease_id, holding in leases.items():
        for host in holding.hosts:
            machine = machines_by_host.get(host.name)
            units = [*host.devices, *host.storage]
            waiting = [unit for unit in units if holding.handles.get(unit, REFUSED).startswith(ASKED)]
            if machine is None or not waiting:
                continue
            was_there = holding.handles.get(before(host.name), "").split()
            appeared = [one for one in machine.resources if one.uuid not in found and one.uuid not in was_there]
            for unit, one in _matched(waiting, appeared, machine.fabric):
                found[one.uuid] = Owned(lease_id, unit)
    return found


def _matched(waiting: Sequence[str], appeared: Sequence[Resource], fabric: str) -> list[tuple[str, Resource]]:
    left, matched = list(appeared), []
    for unit in waiting[: len(appeared)]:
        chosen = next((one for one in left if unit.startswith(f"{fabric}/{one.model}-")), left[0])
        left.remove(chosen)
        matched.append((unit, chosen))
    return matched


def free_units(prefix: str, units: int, taken: set[str]) -> list[str]:
    """Names of so many free devices: the first numbers that no attached one has."""
    return list(islice((name for number in count(1) if (name := f"{prefix}-{number}") not in taken), units))
