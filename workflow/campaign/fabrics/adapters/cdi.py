"""Fujitsu CDI (Fsas), through its fabric manager: a machine is sent a condition, and the fabric chooses the device.

Source: public clients of the fabric manager and their mocks. Free devices have no names there: the fabric tells how many of a
model are left. So a device of the pool is named by its place in that count, such as `fabric1/a100-3`, and stands for whichever
resource the fabric attaches when it is asked for one. Which one that was, is in the state file (`handles`) as soon as it is known;
where the answer was lost, it is the resource that appeared on the machine since. What came back is what was obtained, of whatever
model.

The fabric has no field for a tag, so that the claims in the state file are the only mark. What was on a machine before is foreign.

Unverified: every request, against a real fabric manager. Its sibling, the cluster manager (`resize` to an absolute count), is not
spoken to: two clients that resize at one time lose one another's update.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Annotated, Any

from pydantic import Field

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, ControlPlaneOptions, Remember, View
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.hardware import Device, Health, HostSpec, PoolSpec
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.openid import Tokens
from campaign.fabrics.http.response import Json, at, mapping, mappings
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.registry import Example, FabricKind
from campaign.fabrics.state_file import Holding, StateFile


class CdiOptions(ControlPlaneOptions):
    """Fujitsu CDI: `hosts` gives the fabric manager's name or UUID of each machine, `models` its names of models."""

    tenant: str = Field(description="UUID of the tenant whose machines and devices are used", min_length=1)
    realm: str = Field(description="realm of the identity service that gives tokens", pattern=r"^[A-Za-z0-9_.-]+$")
    client_id: str = Field(description="client that asks for tokens", min_length=1)
    client_secret_env: str | None = Field(
        default=None, description="environment variable that has the client's secret; default: the client has none"
    )
    request_s: Annotated[float, Field(gt=0)] = Field(
        default=180.0, description="seconds that one request may take; attaching is one"
    )
    settle_s: Annotated[float, Field(ge=0)] = Field(
        default=60.0,
        description="seconds for which a request without an answer may still take effect",
    )


KINDS = {"gpu": "gpu", "storage": "nvme"}
"""Kind of a device in the system file, by the fabric manager's type."""
ASKED, REFUSED = "?", ""
"""What is remembered of a unit in place of its resource: asked for (with the Unix time) and not answered; refused."""


@dataclass(frozen=True, slots=True)
class CdiResource:
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
class CdiMachine:
    uuid: str
    name: str
    fabric: str
    resources: tuple[CdiResource, ...]


@dataclass(frozen=True, slots=True)
class KnownMachines:
    """Machines as the system file calls them (else by their own name), and the units that leases claimed, by UUID of resource."""

    machines: Mapping[str, CdiMachine] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)

    def of_unit(self, unit: str) -> tuple[str, CdiResource] | None:
        """(host, resource) that a unit stands for at present."""
        for host, machine in self.machines.items():
            for resource in machine.resources:
                if unit in (self.units.get(resource.uuid), resource.uuid):
                    return host, resource
        return None


def machines(body: Any) -> tuple[CdiMachine, ...]:
    """Out of GET machines, with devices of known kinds only. Raises ProtocolViolation for what is no such list."""
    listed = at(body, "data", "machines")
    if not isinstance(listed, list):
        raise ProtocolViolation(f"fabric manager: a list data.machines was expected, got: {str(body)[:200]}")
    return tuple(_machine(mapping(one)) for one in listed)


def _machine(body: Json) -> CdiMachine:
    uuid, number = _uuid(body, "a machine", "mach_uuid"), body.get("fabric_id")
    found = [
        _resource(one)
        for one in mappings(body, "resources")
        if str(one.get("res_type")) in KINDS and at(one, "tags", "is_bootstorage") is not True
    ]
    fabric = "fabric" if number is None else f"fabric{number}"
    return CdiMachine(uuid, str(body.get("mach_name") or uuid), fabric, tuple(found))


def _resource(body: Json) -> CdiResource:
    spec = mapping(body.get("res_spec") or body.get("res_spcec"))  # some releases write `res_spcec`
    models = [one for one in mappings(spec, "condition") if str(one.get("column")) in ("model", "gpu_model")]
    return CdiResource(
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


def attached_by(answer: Answer) -> list[str]:
    """UUIDs of the resources of known kinds in the answer to an update; none where it is something else.

    Some answers have all of the machine in them, its processors too.
    """
    resources = [one for machine in mappings(answer.body, "data", "machines") for one in mappings(machine, "resources")]
    return [str(one["res_uuid"]) for one in resources if one.get("res_uuid") and one.get("res_type") in KINDS]


def before(host: str) -> str:
    """Handle with what was on a host's machine before a lease asked for anything."""
    return f"before {host}"


def claimed(machines_by_host: Mapping[str, CdiMachine], leases: Mapping[str, Holding]) -> dict[str, str]:
    """Which unit each resource stands for, by what the leases remember.

    A resource that appeared on the machine of a lease that waits for an answer is what it had asked for: of that model, if there is
    one.
    """
    found: dict[str, str] = {}
    for holding in leases.values():
        for name, handle in holding.handles.items():
            if not name.startswith("before ") and handle != REFUSED and not handle.startswith(ASKED):
                found[handle] = name
    for holding in leases.values():
        for host in holding.hosts:
            machine = machines_by_host.get(host.name)
            units = [*host.devices, *host.storage]
            waiting = [unit for unit in units if holding.handles.get(unit, REFUSED).startswith(ASKED)]
            if machine is None or not waiting:
                continue
            was_there = holding.handles.get(before(host.name), "").split()
            appeared = [one for one in machine.resources if one.uuid not in found and one.uuid not in was_there]
            for unit, one in _matched(waiting, appeared, machine.fabric):
                found[one.uuid] = unit
    return found


def _matched(waiting: Sequence[str], appeared: Sequence[CdiResource], fabric: str) -> list[tuple[str, CdiResource]]:
    left, matched = list(appeared), []
    for unit in waiting[: len(appeared)]:
        chosen = next((one for one in left if unit.startswith(f"{fabric}/{one.model}-")), left[0])
        left.remove(chosen)
        matched.append((unit, chosen))
    return matched


def free_units(prefix: str, units: int, taken: set[str]) -> list[str]:
    """Names of so many free devices: the first numbers that no attached one has."""
    return list(islice((name for number in count(1) if (name := f"{prefix}-{number}") not in taken), units))


MACHINES = "/fabric_manager/api/v1/machines"
CHOSEN = "(chosen by the fabric)"
UNITS_MAX = 100_000
SETTLE_POLL_S = 1.0


class CdiPlane(ControlPlane):
    def __init__(
        self, options: CdiOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        self.client = Client(options)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._state = state
        realm = f"/id_manager/realms/{options.realm}"
        self._tokens = Tokens(self.client, realm, options.client_id, options.client_secret_env)
        self._count = sum(spec.count for spec in pool)
        self._asked_for = self._models(pool)
        self._known = KnownMachines()
        self._units: dict[str, tuple[str, str]] = {}

    def _models(self, pool: Sequence[PoolSpec]) -> tuple[tuple[str, str], ...]:
        """(type, model) as the fabric calls them, of everything that the system file's pool has."""
        types = {kind: name for name, kind in KINDS.items()}
        found: dict[tuple[str, str], None] = {}
        for spec in pool:
            theirs = [name for name, ours in self._options.models.items() if ours == spec.model] or [spec.model]
            found.update(dict.fromkeys((types[spec.kind], name) for name in theirs if spec.kind in types))
        return tuple(found)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_devices_per_host=max(1, self._count),
            gives_host_id=True,
            note="written from public clients of the fabric manager, never run against one; the fabric chooses the devices; it has "
            "no field for a tag, so that only the state file says whose a device is",
        )

    def view(self) -> View:
        devices = self._devices()
        # Machines and what is free are read one after the other: a device that is attached in between is in neither.
        if len(devices) < self._count:
            devices = self._devices()
        return View(tuple(sorted(devices, key=_by_place)))

    def _devices(self) -> list[Device]:
        shown = self._shown()
        self._known = KnownMachines(shown, claimed(shown, self._state.read().leases))
        self._units = {}
        devices = [self._attached(host, one) for host, machine in shown.items() for one in machine.resources]
        attached = {device.fabric_id for device in devices}
        fabrics = {machine.fabric: machine for machine in reversed(list(shown.values()))}
        for fabric, machine in sorted(fabrics.items()):
            for type_, model in self._asked_for:
                names = self._names(machine, type_, model, attached)
                devices += [self._device(name, fabric, type_, model) for name in names]
        return devices

    def _shown(self) -> dict[str, CdiMachine]:
        """Machines by host; read one by one only where the list does not tell what is on them."""
        told = machines(self._read(MACHINES))
        names = {self._options.hosts.get(host, host): host for host in self._hosts}
        found: dict[str, CdiMachine] = {}
        for machine in told:
            if any(one.serial is None or one.model is None for one in machine.resources):
                whole = machines(self._read(f"{MACHINES}/{machine.uuid}"))
                machine = next((one for one in whole if one.uuid == machine.uuid), machine)
            host = names.get(machine.uuid) or names.get(machine.name)
            if host in found:
                raise FabricError(f"{self.client.base}: two machines have the name {host}; give its UUID in `hosts`")
            found[host or (machine.uuid if machine.name in found else machine.name)] = machine
        return found

    def _names(self, machine: CdiMachine, type_: str, model: str, taken: set[str]) -> list[str]:
        condition = {"column": "model", "operator": "eq", "value": model}
        path = f"{MACHINES}/{machine.uuid}/available-reserved-resources"
        told = self._read(path, {"res_type": type_, "condition": json.dumps(condition)})
        count = told.get("reserved_res_num_per_fabric")
        if not isinstance(count, int) or not 0 <= count <= UNITS_MAX:
            raise FabricError(f"{self.client.base}{path}: no reserved_res_num_per_fabric in {str(told)[:200]}")
        return free_units(f"{machine.fabric}/{model}", count, taken)

    def _attached(self, host: str, one: CdiResource) -> Device:
        unit = self._known.units.get(one.uuid, one.uuid)
        device = self._device(unit, self._known.machines[host].fabric, one.type, one.model or "unknown")
        return replace(
            device,
            host_id=one.serial,
            attached_to=host,
            state="in_use",
            health=one.health,
        )

    def _device(self, unit: str, fabric: str, type_: str, model: str) -> Device:
        """A free device. The fabric does not tell where it is: its place is one by which units can be told apart."""
        self._units[unit] = (type_, model)
        place = 0
        for index, (_, asked_for) in enumerate(self._asked_for):
            number = unit.removeprefix(f"{fabric}/{asked_for}-")
            if number != unit and number.isdigit():
                place = int(number) + 1000 * index
        kind, location = KINDS[type_], f"{fabric}/slot{place}"
        return Device(unit, kind, model, None, location, local=False)

    def banks(self, view: View) -> Sequence[Bank]:
        """One bank a fabric, reached by its machines; there is no limit to how many share it."""
        machines = self._known.machines
        return open_banks(
            (device.location for device in view.devices),
            lambda fabric: tuple(host for host in self._hosts if host in machines and machines[host].fabric == fabric),
        )

    def objection(self, change: Change, view: View) -> str | None:
        for host, names in change.hosts.items():
            if names and host not in self._known.machines:
                return (
                    f"machines: tenant {self._options.tenant} has no machine {self._options.hosts.get(host, host)} for host "
                    f"{host}; name it in `hosts`"
                )
        return None

    def attach(self, change: Change, remember: Remember) -> None:
        self._settle(change)
        done: list[str] = []
        units = [(host, unit) for host, names in change.hosts.items() for unit in names]
        for host in dict.fromkeys(host for host, _ in units):
            if before(host) not in change.handles:
                there = (one.uuid for one in self._machine(host).resources)
                remember(before(host), " ".join(there))
        for host, unit in units:
            if self._known.of_unit(unit) is None:
                self._attach(host, unit, remember, done, [name for _, name in units])
            done.append(unit)

    def _attach(self, host: str, unit: str, remember: Remember, done: list[str], units: list[str]) -> None:
        type_, model = self._units[unit]
        condition = {"column": "model", "operator": "eq", "value": model}
        wanted = {"res_type": type_, "res_spec": {"condition": [condition]}, "res_num": 1}
        remember(unit, f"{ASKED}{time.time():.3f}")
        answer = self._update("PATCH", self._machine(host), wanted)
        if 400 <= answer.status < 500:
            remember(unit, REFUSED)
            what = f"{unit} for {host}: {words(answer)}"
            if done:
                failed = [name for name in units if name not in done]
                raise PartialFailure(f"{what}; attached: {', '.join(done)}", done, failed)
            if not self._names(self._machine(host), type_, model, set()):
                raise Conflict(f"{what}; the fabric has no {model} left: another client took it", ("the fabric",))
            raise Incompatible(what, f"the fabric refuses it: {what}")
        if not answer.ok:
            raise OutcomeUnknown(f"{unit} for {host}: {words(answer)}")
        there = {one.uuid for machine in self._known.machines.values() for one in machine.resources}
        new = [uuid for uuid in attached_by(answer) if uuid not in there]
        if self.client.rehearses or not new:
            return  # an answer that says nothing: what appears on the machine is it
        # Known from now on, so that the next answer is not taken to mean them.
        machine = self._machine(host)
        added = (*machine.resources, *(CdiResource(uuid, "", None, None, "0") for uuid in new))
        machines = {**self._known.machines, host: replace(machine, resources=added)}
        self._known = KnownMachines(machines, self._known.units)
        remember(unit, new[0])

    def detach(self, change: Change) -> tuple[str, ...]:
        self._settle(change)
        done: list[str] = []
        refused: dict[str, str] = {}
        unknown: dict[str, str] = {}
        for host, unit in ((host, unit) for host, names in change.hosts.items() for unit in names):
            found = self._known.of_unit(unit)
            if self.client.rehearses:
                found = (host, CdiResource(CHOSEN, self._units[unit][0], None, None, "0"))
            if found is None or found[0] != host:
                continue
            wanted = {"res_type": found[1].type, "res_uuid": found[1].uuid, "res_num": 1}
            try:
                answer = self._update("DELETE", self._machine(host), wanted)
            except OutcomeUnknown as error:
                unknown[unit] = str(error)
                continue
            if answer.ok or answer.status == 404:
                done.append(unit)
            else:
                (refused if answer.status < 500 else unknown)[unit] = words(answer)
        items = "; ".join(f"{unit}: {text}" for unit, text in (unknown | refused).items())
        if unknown:
            raise OutcomeUnknown(f"{change.tag.lease_id}: detaching {items}")
        if refused:
            raise PartialFailure(f"{change.tag.lease_id}: not detached: {items}", done, refused)
        return ()

    def _settle(self, change: Change) -> None:
        """Wait until nothing more is to be expected of requests of this lease whose answer was lost."""
        for unit, handle in change.handles.items():
            if not handle.startswith(ASKED) or self.client.rehearses:
                continue
            settle_s = self._options.settle_s
            # Of another process's clock, perhaps: nobody waits longer than a request of now would.
            left_s = min(settle_s, float(handle[1:] or 0) + settle_s - time.time())
            until_s = time.monotonic() + left_s
            while self._known.of_unit(unit) is None and time.monotonic() < until_s:
                self.client.sleep(min(SETTLE_POLL_S, max(0.01, until_s - time.monotonic())))
                self.view()

    def _machine(self, host: str) -> CdiMachine:
        machine = self._known.machines.get(host)
        if machine is None:
            rule = f"machines: host {host} has no machine; name it in `hosts`"
            raise Incompatible(rule, rule)
        return machine

    def _update(self, method: str, machine: CdiMachine, wanted: Mapping[str, Any]) -> Answer:
        tenant = {
            "tenant_uuid": self._options.tenant,
            "machines": [{"mach_uuid": machine.uuid, "resources": [{"res_specs": [wanted]}]}],
        }
        return self._ask(method, f"{MACHINES}/{machine.uuid}/update", {}, {"tenants": tenant})

    def _read(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        answer = self._ask("GET", path, params or {})
        if not answer.ok:
            raise FabricError(f"GET {self.client.base}{path}: {words(answer)}")
        return answer.members()

    def _ask(self, method: str, path: str, params: Mapping[str, str], body: Any = None) -> Answer:
        query = {"tenant_uuid": self._options.tenant, **params}
        if method == "GET":
            return self._tokens.asked(lambda: self.client.get(path, query))
        return self._tokens.asked(lambda: self.client.change(method, path, body, params=query, assumed={}))


def _by_place(device: Device) -> tuple[str, int]:
    fabric, _, place = device.location.rpartition("/slot")
    return fabric, int(place)


open_fabric = opening(CdiPlane, "cdi")

FABRIC = FabricKind(
    "Fujitsu CDI, fabric manager",
    CdiOptions,
    open_fabric,
    unverified="a real fabric manager; requests follow public clients of it",
    tested="its emulator alone; no client or schema of others has judged that",
    emulator="campaign.emulators.control_planes.cdi",
    example=Example({"tenant": "b3b65e79-ad41-4367-89d6-e4e7315141ef", "realm": "cdi", "client_id": "campaign"}),
)
