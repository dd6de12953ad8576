"""Requests to the fabric manager: machines, how many devices are left, and one device attached or detached at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.cdi.machines import (
    ASKED,
    REFUSED,
    Known,
    Machine,
    Resource,
    also,
    attached_by,
    before,
    free_units,
    machines,
    owned,
    words,
)
from campaign.fabrics.dialects.cdi.options import Options
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import Device, HostSpec, PoolSpec
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.openid import Tokens
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile

MACHINES = "/fabric_manager/api/v1/machines"
CHOSEN = "(chosen by the fabric)"
UNITS_MAX = 100_000
SETTLE_POLL_S = 1.0


class Plane(ControlPlane):
    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        self.client = Client(options)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._state = state
        realm = f"/id_manager/realms/{options.realm}"
        self._tokens = Tokens(self.client, realm, options.client_id, options.client_secret_env, self.client)
        self._count = sum(spec.count for spec in pool)
        self._asked_for = self._models(pool)
        self._known = Known()
        self._units: dict[str, tuple[str, str]] = {}

    def _models(self, pool: Sequence[PoolSpec]) -> tuple[tuple[str, str], ...]:
        """(type, model) as the fabric calls them, of everything that the system file's pool has."""
        types = {kind: name for name, kind in self._options.types.items()}
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
        self._known = Known(shown, owned(shown, self._state.read().leases))
        self._units = {}
        devices = [self._attached(host, one) for host, machine in shown.items() for one in machine.resources]
        attached = {device.fabric_id for device in devices}
        fabrics = {machine.fabric: machine for machine in reversed(list(shown.values()))}
        for fabric, machine in sorted(fabrics.items()):
            for type_, model in self._asked_for:
                names = self._names(machine, type_, model, attached)
                devices += [self._device(name, fabric, type_, model) for name in names]
        return devices

    def _shown(self) -> dict[str, Machine]:
        """Machines by host; read one by one only where the list does not tell what is on them."""
        told = machines(self._read(MACHINES), self._options.types)
        names = {self._options.hosts.get(host, host): host for host in self._hosts}
        found: dict[str, Machine] = {}
        for machine in told:
            if any(one.serial is None or one.model is None for one in machine.resources):
                whole = machines(self._read(f"{MACHINES}/{machine.uuid}"), self._options.types)
                machine = next((one for one in whole if one.uuid == machine.uuid), machine)
            host = names.get(machine.uuid) or names.get(machine.name)
            if host in found:
                raise FabricError(f"{self.client.base}: two machines have the name {host}; give its UUID in `hosts`")
            found[host or (machine.uuid if machine.name in found else machine.name)] = machine
        return found

    def _names(self, machine: Machine, type_: str, model: str, taken: set[str]) -> list[str]:
        condition = {"column": self._options.model_column, "operator": "eq", "value": model}
        path = f"{MACHINES}/{machine.uuid}/available-reserved-resources"
        told = self._read(path, {"res_type": type_, "condition": json.dumps(condition)})
        count = told.get("reserved_res_num_per_fabric")
        if not isinstance(count, int) or not 0 <= count <= UNITS_MAX:
            raise FabricError(f"{self.client.base}{path}: no reserved_res_num_per_fabric in {str(told)[:200]}")
        return free_units(f"{machine.fabric}/{model}", count, taken)

    def _attached(self, host: str, one: Resource) -> Device:
        owner = self._known.owned.get(one.uuid)
        unit = owner.unit if owner is not None and owner.unit is not None else one.uuid
        device = self._device(unit, self._known.machines[host].fabric, one.type, one.model or "unknown")
        return replace(
            device,
            host_id=one.serial,
            attached_to=host,
            holder=owner.lease_id if owner is not None and owner.unit is None else None,
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
        kind, location = self._options.types[type_], f"{fabric}/slot{place}"
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
        condition = {"column": self._options.model_column, "operator": "eq", "value": model}
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
        new = [uuid for uuid in attached_by(answer, self._options.types) if uuid not in there]
        if self.client.rehearses or not new:
            return  # an answer that says nothing: what appears on the machine is it
        # Known from now on, so that the next answer is not taken to mean them.
        machine = self._machine(host)
        added = (*machine.resources, *(Resource(uuid, "", None, None, "0") for uuid in new))
        machines = {**self._known.machines, host: replace(machine, resources=added)}
        self._known = Known(machines, self._known.owned)
        remember(unit, new[0])
        for uuid in new[1:]:
            remember(also(uuid), uuid)

    def detach(self, change: Change) -> tuple[str, ...]:
        self._settle(change)
        done: list[str] = []
        refused: dict[str, str] = {}
        unknown: dict[str, str] = {}
        for host, unit in ((host, unit) for host, names in change.hosts.items() for unit in names):
            found = self._known.of_unit(unit)
            if self.client.rehearses:
                found = (host, Resource(CHOSEN, self._units[unit][0], None, None, "0"))
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

    def _machine(self, host: str) -> Machine:
        machine = self._known.machines.get(host)
        if machine is None:
            rule = f"machines: host {host} has no machine; name it in `hosts`"
            raise Incompatible(rule, rule)
        return machine

    def _update(self, method: str, machine: Machine, wanted: Mapping[str, Any]) -> Answer:
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
        """With a token; once more with a new one when it is refused, which means that nothing was done."""
        query = {"tenant_uuid": self._options.tenant, **params}
        for again in (False, True):
            self._tokens.authorize(again=again)
            if method == "GET":
                answer = self.client.get(path, query)
            else:
                answer = self.client.change(method, path, body, params=query, assumed={})
            if answer.status not in (401, 403):
                break
        return answer


def _by_place(device: Device) -> tuple[str, int]:
    fabric, _, place = device.location.rpartition("/slot")
    return fabric, int(place)
