"""NEC CDIM (project CDIM): devices are connected to a host's processor by procedures that one `layout-apply` carries out.

Source: the API reference and the code of project CDIM 0.1 and 0.2. Its services have ports of their own and ask nobody; its
gateway takes tokens of a login in a browser only, so that no program gets past it. A lease is one apply: the fabric runs one at a
time (409 E40010), and one that is suspended blocks all others (409 E40027) until it is resumed or cancelled. Lists lag behind an
apply (`settle_s`). The fabric has no field for a tag, so that the claims in the state file are the only mark.

Unverified: every request, against a real CDIM.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View, WithoutLogin
from campaign.fabrics.errors import Busy, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.hardware import Device, DeviceState, Health, HostSpec, PoolSpec
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.response import Json, at, mapping, mappings, text
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.registry import FabricKind
from campaign.fabrics.state_file import StateFile


class NecOptions(WithoutLogin):
    """CDIM: `hosts` gives the CDIM id of each host (it calls them nodes). `url` is its configuration-manager (port 8280)."""

    layout_apply_url: str | None = Field(
        default=None,
        description="where layout-apply is (`https://cdim.example:8013`); default: `url`",
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="seconds between two polls of an apply that has not finished"
    )
    settle_s: Annotated[float, Field(ge=0)] = Field(
        default=300.0, description="seconds that CDIM's lists may take to show what an apply has done"
    )


Operation = Literal["connect", "disconnect"]
API = "/cdim/api/v1"
APPLIES = f"{API}/layout-apply"
KINDS = {"GPU": "gpu", "storage": "nvme", "networkInterface": "nic"}
DRAWER = "cdim"
DEVICE = "targetDeviceID"
"""Name of a device in a procedure."""
PROCESSOR = "CPU"
"""Type of a host's own end of a link."""
_HEALTH: dict[str, Health] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}


@dataclass(frozen=True, slots=True)
class CdimLayout:
    """What CDIM shows: devices, and by host (the system file's name) the id of its end of every link."""

    devices: tuple[Device, ...]
    interfaces: Mapping[str, str] = field(default_factory=dict)


def layout(resources: Any, nodes: Any, options: NecOptions, hosts: Sequence[str]) -> CdimLayout:
    """Out of GET /resources and GET /nodes, both with details. Raises ProtocolViolation for lists that are none."""
    names = {options.hosts.get(host, host): host for host in hosts}
    parts: dict[str, set[str]] = {}
    interfaces: dict[str, str] = {}
    ends: dict[str, str] = {}
    for node in _listed(nodes, "nodes"):
        host = names.get(str(node.get("id")), str(node.get("id")))
        for part in _listed(node, "resources"):
            device = mapping(part.get("device"))
            parts.setdefault(str(device.get("deviceID")), set()).add(host)
            if device.get("type") == PROCESSOR:
                end = str(device.get("deviceID"))
                interfaces.setdefault(host, end)
                ends[end] = host
    movable = [  # what can be taken out of its host
        resource
        for resource in _listed(resources, "resources")
        if str(at(resource, "device", "type")) in KINDS
        and not at(resource, "device", "constraints", "nonRemovableDevices")
    ]
    movable.sort(key=lambda resource: str(at(resource, "device", "deviceID")))
    devices = (_device(one, slot, parts, ends) for slot, one in enumerate(movable, start=1))
    return CdimLayout(tuple(devices), interfaces)


def _device(resource: Json, slot: int, parts: Mapping[str, set[str]], ends: Mapping[str, str]) -> Device:
    device = mapping(resource, "device")
    name = str(device.get("deviceID") or "")
    if not name:
        raise ProtocolViolation(f"resources: a {device.get('type')} without deviceID")
    links = [str(link.get("deviceID")) for link in _listed(device, "links", ()) if link.get("type") == PROCESSOR]
    linked = {ends.get(link, f"{PROCESSOR} {link}") for link in links}
    listed = parts.get(name, set())
    status = mapping(device, "status")
    health = _HEALTH.get(str(status.get("health")), "warning")
    agree = linked == listed and len(linked) <= 1
    return Device(
        name,
        KINDS[str(device.get("type"))],
        str(device.get("model") or "unknown"),
        # A drive and a card are seen by their serial on their host; a GPU's UUID is not told.
        str(device["serialNumber"]) if device.get("type") != "GPU" and device.get("serialNumber") else None,
        f"{DRAWER}/slot{slot}",
        local=False,
        attached_to=min(linked or listed, default=None),
        state=_state(resource, status, health, bool(linked)) if agree else "unknown",
        health=health,
    )


def _state(resource: Json, status: Json, health: Health, linked: bool) -> DeviceState:
    """Free is what is detected, enabled, well, offered by its administrator, and linked to no host."""
    if linked:
        return "in_use"
    if health == "critical":
        return "failed"
    offered = mapping(resource, "annotation").get("available", True) is True and resource.get("detected") is True
    return "free" if offered and status.get("state") == "Enabled" and health == "ok" else "unavailable"


def _listed(body: Any, name: str, otherwise: Any = None) -> list[Json]:
    members = mapping(body).get(name, otherwise)
    if not isinstance(members, (list, tuple)):
        raise ProtocolViolation(f"CDIM: a list {name!r} was expected, got {str(body)[:200]}")
    return [mapping(member) for member in members]


def procedures(
    operation: Operation,
    hosts: Mapping[str, Sequence[str]],
    interfaces: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The steps of one apply: those of one host one after the other (a host enumerates one at a time), hosts side by side."""
    found: list[dict[str, Any]] = []
    for host, names in hosts.items():
        for index, name in enumerate(names):
            step = {
                "operationID": len(found) + 1,
                "operation": operation,
                "targetCPUID": interfaces[host],
                DEVICE: name,
            }
            found.append(step | {"dependencies": [len(found)] if index else []})
    return found


RUNNING = ("IN_PROGRESS", "CANCELING")
APPLY = "apply"
ASKED, ENDED = "?", ""
"""What is remembered of a lease's apply, besides its id: asked for and not answered; over."""


class NecPlane(ControlPlane):
    """`client` asks layout-apply, which does what changes; the lists are the configuration-manager's, elsewhere at some sites."""

    def __init__(
        self, options: NecOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        apart = options.layout_apply_url
        self.client = Client(options if apart is None else options.model_copy(update={"url": apart}))
        self._lists = self.client if apart is None else Client(options, beside=self.client)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._layout = CdimLayout(())

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_devices_per_host=max(1, len(self._layout.devices)),
            note="follows the public API reference and code of CDIM, never run against one; it has no field for a "
            "tag, so that only the state file says whose a device is; it does not tell the UUID of a GPU",
        )

    def view(self) -> View:
        resources = self._read(self._lists, f"{API}/resources", {"detail": "true"})
        nodes = self._read(self._lists, f"{API}/nodes", {"detail": "true"})
        self._layout = layout(resources, nodes, self._options, self._hosts)
        return View(self._layout.devices)

    def _read(self, client: Client, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        answer = client.get(path, params)
        if not answer.ok:
            raise FabricError(f"GET {client.base}{path}: {answer.words()}")
        return answer.members()

    def banks(self, view: View) -> Sequence[Bank]:
        """One pool that every host reaches: CDIM does not tell of any limit."""
        return open_banks((device.location for device in view.devices), self._hosts)

    def objection(self, change: Change, view: View) -> str | None:
        for host, names in change.hosts.items():
            if names and host not in self._layout.interfaces:
                node = self._options.hosts.get(host, host)
                return f"CDIM lists no {PROCESSOR} for host {host} (node {node}); name its node in `hosts`"
        return None

    def attach(self, change: Change, remember: Remember) -> None:
        there = {device.fabric_id: device.attached_to for device in self._layout.devices}
        missing = {host: [n for n in names if there.get(n) is None] for host, names in change.hosts.items()}
        if steps := self._steps("connect", missing, change):
            self._apply(steps, change, remember)

    def detach(self, change: Change) -> tuple[str, ...]:
        self._settle(change)
        there = {device.fabric_id: device.attached_to for device in self._layout.devices}
        held = {
            host: [n for n in names if self.client.rehearses or there.get(n) == host]
            for host, names in change.hosts.items()
        }
        if steps := self._steps("disconnect", held, change):
            self._apply(steps, change, lambda name, handle: None)
        return ()

    def _settle(self, change: Change) -> None:
        """See the end of an apply of this lease whose end was never seen: it could still attach what is thought to be free."""
        number = change.handles.get(APPLY, ENDED)
        if number == ENDED or self.client.rehearses:
            return
        if number == ASKED:
            running = self._read(self.client, APPLIES, {"status": RUNNING[0]}).get("applyResults") or []
            if running:
                raise Busy(f"{change.tag.lease_id}: CDIM runs an apply that may be this lease's own", ("CDIM",))
            names = [name for names in change.hosts.values() for name in names]
            self._shown([{DEVICE: name, "operation": "connect"} for name in names])
        else:
            status = self._finish(number)
            self._shown(_carried_out(status, mappings(status, "procedures")))

    def _steps(self, operation: Operation, hosts: Mapping[str, Sequence[str]], change: Change) -> list[dict[str, Any]]:
        wanted = {host: names for host, names in hosts.items() if names}
        if unknown := [host for host in wanted if host not in self._layout.interfaces]:
            rule = (
                self.objection(change, View(self._layout.devices)) or f"CDIM lists no {PROCESSOR} for host {unknown[0]}"
            )
            raise Incompatible(f"{change.tag.lease_id}: {rule}", rule)
        return procedures(operation, wanted, self._layout.interfaces)

    def _apply(self, steps: list[dict[str, Any]], change: Change, remember: Remember) -> None:
        """Have the steps carried out and wait for their end."""
        remember(APPLY, ASKED)
        answer = self._post(steps)
        earlier, told = change.handles.get(APPLY), str(at(answer.body, "message"))
        if answer.status == 409 and at(answer.body, "code") == "E40027" and earlier and earlier in told:
            # The suspended apply that blocks ours is an earlier one of this very lease.
            self._cancel(earlier)
            answer = self._post(steps)
        if 400 <= answer.status < 500:
            remember(APPLY, ENDED)
        self._accepted(answer)
        number = text(answer.body, "applyID")
        if self.client.rehearses or number is None:
            return  # an answer that says nothing: reading back decides
        remember(APPLY, number)
        status = self._finish(number)
        if status.get("status") == "SUSPENDED":
            self._cancel(number)  # it would block everybody's applies, the one that gives back included
        remember(APPLY, ENDED)
        self._shown(_carried_out(status, steps))
        if status.get("status") != "COMPLETED":
            self._failed(number, status, steps)

    def _shown(self, steps: Sequence[Json]) -> None:
        """Wait until the lists show steps that were done: they lag behind by minutes. Reading back decides what came of them."""
        until = time.monotonic() + self._options.settle_s
        while True:
            attached = {device.fabric_id for device in self.view().devices if device.attached_to is not None}
            late = [step for step in steps if (step.get(DEVICE) in attached) != (step.get("operation") == "connect")]
            pause_s = min(self._options.poll_s, until - time.monotonic())
            if not late or pause_s <= 0 or self.client.left_s() <= pause_s:
                return
            self.client.sleep(pause_s)

    def _post(self, steps: list[dict[str, Any]]) -> Answer:
        body, assumed = {"procedures": steps}, {"applyID": "(given by CDIM)"}
        return self.client.change("POST", APPLIES, body, assumed=assumed)

    def _cancel(self, number: str) -> None:
        answer = self.client.change("PUT", f"{APPLIES}/{number}?action=cancel")
        if answer.status >= 500:
            raise OutcomeUnknown(f"apply {number} is suspended and could not be cancelled: {answer.words()}")

    def _accepted(self, answer: Answer) -> None:
        """Raise what an answer to a layout-apply refuses; a 2xx is no evidence of anything."""
        if answer.ok:
            return
        where = f"POST {self.client.base}{APPLIES}"
        code, message = mapping(answer.body).get("code", ""), str(at(answer.body, "message") or answer.words())
        if answer.status == 409:
            hint = "; resume or cancel it in CDIM, it blocks all others" if code == "E40027" else ""
            raise Busy(f"{where}: {code} {message}{hint}", ("CDIM",))
        if answer.status >= 500:
            raise OutcomeUnknown(f"{where}: {answer.words()}")
        raise Incompatible(f"{where}: HTTP {answer.status} {code} {message}", f"CDIM refuses it: {message}")

    def _finish(self, number: str) -> Json:
        """The status of an apply that has ended. Raises OutcomeUnknown when that is not learnt within the operation's time."""
        while True:
            try:
                status = self._read(self.client, f"{APPLIES}/{number}")
            except FabricError as error:
                raise OutcomeUnknown(f"apply {number}: its result cannot be read ({error})") from error
            if status.get("status") not in RUNNING:
                return status
            if self.client.left_s() <= self._options.poll_s:
                raise OutcomeUnknown(
                    f"apply {number}: still {status.get('status')} after {self._options.operation_s:g} s (operation_s)"
                )
            self.client.sleep(self._options.poll_s)

    def _failed(self, number: str, status: Json, steps: list[dict[str, Any]]) -> None:
        """Raise what an apply that did not complete comes to, by what CDIM shows now."""
        attached = {device.fabric_id: device.attached_to is not None for device in self.view().devices}
        done = [s[DEVICE] for s in steps if attached.get(s[DEVICE], False) == (s["operation"] == "connect")]
        failed = [step[DEVICE] for step in steps if step[DEVICE] not in done]
        raise PartialFailure(f"apply {number}: {status.get('status')}: not done: {', '.join(failed)}", done, failed)

    def close(self) -> None:
        self._lists.close()


def _carried_out(status: Json, steps: Sequence[Json]) -> list[Json]:
    """Those steps of an apply that has ended which were done."""
    done = {one.get("operationID") for one in mappings(status, "applyResult") if one.get("status") == "COMPLETED"}
    return [step for step in steps if status.get("status") == "COMPLETED" or step.get("operationID") in done]


open_fabric = opening(NecPlane, "nec")

FABRIC = FabricKind(
    "NEC CDIM",
    NecOptions,
    open_fabric,
    unverified="a real CDIM",
    tested="its emulator. The schema of project CDIM's layout-apply 0.1.1, written down as data, confirms the procedures, and what "
    "the emulator refuses",
    emulator="campaign.emulators.control_planes.nec",
)
