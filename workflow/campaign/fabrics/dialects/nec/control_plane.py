"""Requests to CDIM: reading, and one `layout-apply` at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.nec.layout import ENDS, Layout, Operation, layout, procedures
from campaign.fabrics.dialects.nec.options import Options
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.json_values import Json, at, mapping, text
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile

RUNNING = ("IN_PROGRESS", "CANCELING")
APPLY = "apply"
ASKED, ENDED = "?", ""
"""What is remembered of a lease's apply, besides its id: asked for and not answered; over."""


class Plane(ControlPlane):
    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        self.client = Client(options)
        self._options = options
        self._hosts = tuple(host.name for host in hosts)
        self._layout = Layout(())

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_devices_per_host=max(1, len(self._layout.devices)),
            note="written from the public API reference of CDIM and a client of it, never run against one; it has no field for a "
            "tag, so that only the state file says whose a device is; it does not tell the UUID of a GPU",
        )

    def view(self) -> View:
        resources = self._read("/resources", {"detail": "true"})
        nodes = self._read("/nodes", {"detail": "true"})
        self._layout = layout(resources, nodes, self._options, self._hosts)
        return View(self._layout.devices)

    def _read(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        answer = self.client.get(self._options.prefix + path, params)
        if not answer.ok:
            raise FabricError(f"GET {self.client.base}{self._options.prefix}{path}: {answer.words()}")
        return answer.members()

    def banks(self, view: View) -> Sequence[Bank]:
        """One pool that every host reaches: CDIM does not tell of any limit."""
        return open_banks((device.location for device in view.devices), self._hosts)

    def objection(self, change: Change, view: View) -> str | None:
        for host, names in change.hosts.items():
            if names and host not in self._layout.interfaces:
                kind = ENDS[self._options.api][0]
                return (
                    f"interfaces: CDIM lists no {kind} for host {host} (node {self._options.hosts.get(host, host)}); "
                    "name it in `interfaces`, or its node in `hosts`"
                )
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
            running = self._read("/layout-apply", {"status": RUNNING[0]}).get("applyResults") or []
            if running:
                raise Busy(f"{change.tag.lease_id}: CDIM runs an apply that may be this lease's own", ("CDIM",))
        else:
            self._finish(number)
        self.view()

    def _steps(self, operation: Operation, hosts: Mapping[str, Sequence[str]], change: Change) -> list[dict[str, Any]]:
        wanted = {host: names for host, names in hosts.items() if names}
        if unknown := [host for host in wanted if host not in self._layout.interfaces]:
            rule = self.objection(change, View(self._layout.devices)) or f"interfaces: none is known of {unknown[0]}"
            raise Incompatible(f"{change.tag.lease_id}: {rule}", rule)
        return procedures(operation, wanted, self._layout.interfaces, self._options.api)

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
        if status.get("status") == "SUSPENDED" or status.get("rollbackStatus") == "SUSPENDED":
            self._cancel(number)  # it would block everybody's applies, the one that gives back included
        remember(APPLY, ENDED)
        if status.get("status") != "COMPLETED":
            self._failed(number, status, steps)

    def _post(self, steps: list[dict[str, Any]]) -> Answer:
        path = f"{self._options.prefix}/layout-apply"
        return self.client.change("POST", path, {"procedures": steps}, assumed={"applyID": "(given by CDIM)"})

    def _cancel(self, number: str) -> None:
        path = f"{self._options.prefix}/layout-apply/{number}?action=cancel"
        answer = self.client.change("PUT", path)
        if answer.status >= 500:
            raise OutcomeUnknown(f"apply {number} is suspended and could not be cancelled: {answer.words()}")

    def _accepted(self, answer: Answer) -> None:
        """Raise what an answer to a layout-apply refuses; a 2xx is no evidence of anything."""
        if answer.ok:
            return
        where = f"POST {self.client.base}{self._options.prefix}/layout-apply"
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
                status = self._read(f"/layout-apply/{number}")
            except FabricError as error:
                raise OutcomeUnknown(f"apply {number}: its result cannot be read ({error})") from error
            if status.get("status") not in RUNNING and status.get("rollbackStatus") != "IN_PROGRESS":
                return status
            if self.client.left_s() <= self._options.poll_s:
                raise OutcomeUnknown(
                    f"apply {number}: still {status.get('status')} after {self._options.operation_s:g} s (operation_s)"
                )
            self.client.sleep(self._options.poll_s)

    def _failed(self, number: str, status: Json, steps: list[dict[str, Any]]) -> None:
        """Raise what an apply that did not complete comes to, by what CDIM shows now."""
        words = f"apply {number}: {status.get('status')}"
        rollback = status.get("rollbackStatus")
        if rollback == "COMPLETED":
            raise Conflict(f"{words} by another client, and rolled back: nothing was changed", ("CDIM",))
        attached = {device.fabric_id: device.attached_to is not None for device in self.view().devices}
        destination = ENDS[self._options.api][2]
        done = [s[destination] for s in steps if attached.get(s[destination], False) == (s["operation"] == "connect")]
        failed = [step[destination] for step in steps if step[destination] not in done]
        raise PartialFailure(f"{words}, rollback {rollback or 'none'}: not done: {', '.join(failed)}", done, failed)
