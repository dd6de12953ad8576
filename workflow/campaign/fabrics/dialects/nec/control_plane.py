"""Requests to CDIM: reading, and one `layout-apply` at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.nec.layout import ENDS, Layout, Operation, layout, procedures
from campaign.fabrics.dialects.nec.options import LoginService, Options
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.json_values import Json, at, mapping, mappings, text
from campaign.fabrics.http.openid import Tokens
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile

RUNNING = ("IN_PROGRESS", "CANCELING")
APPLY = "apply"
ASKED, ENDED = "?", ""
"""What is remembered of a lease's apply, besides its id: asked for and not answered; over."""


class Plane(ControlPlane):
    """`client` asks layout-apply, which does what changes; the lists are the configuration-manager's, elsewhere at some sites."""

    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        apart = options.layout_apply_url
        self.client = Client(options if apart is None else options.model_copy(update={"url": apart}))
        self._lists = self.client if apart is None else Client(options, beside=self.client)
        prefix = options.prefix if options.layout_apply_prefix is None else options.layout_apply_prefix
        self._applies = f"{prefix}/layout-apply"
        self._tokens = None if options.login is None else self._login(options, options.login)
        self._options = options
        self._destination = ENDS[options.api][2]
        self._hosts = tuple(host.name for host in hosts)
        self._layout = Layout(())

    def _login(self, options: Options, login: LoginService) -> Tokens:
        at = options if login.url is None else options.model_copy(update={"url": login.url})
        self._service = Client(at, beside=self.client)
        realm, clients = f"/realms/{login.realm}", dict.fromkeys((self.client, self._lists))
        return Tokens(self._service, realm, login.client_id, login.client_secret_env, *clients)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_devices_per_host=max(1, len(self._layout.devices)),
            note="follows the public API reference and code of CDIM, never run against one; it has no field for a "
            "tag, so that only the state file says whose a device is; it does not tell the UUID of a GPU",
        )

    def view(self) -> View:
        resources = self._read(self._lists, f"{self._options.prefix}/resources", {"detail": "true"})
        nodes = self._read(self._lists, f"{self._options.prefix}/nodes", {"detail": "true"})
        self._layout = layout(resources, nodes, self._options, self._hosts)
        return View(self._layout.devices)

    def _read(self, client: Client, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        answer = self._asked(lambda: client.get(path, params))
        if not answer.ok:
            why = " (see `login`)" if answer.status in (401, 403) else " (see `prefix`)" if answer.status == 404 else ""
            raise FabricError(f"GET {client.base}{path}: {answer.words()}{why}")
        return answer.members()

    def _asked(self, send: Callable[[], Answer]) -> Answer:
        """What is answered to who is logged in, where one has to be; who is not known any more logs in again, once."""
        if self._tokens is None:
            return send()
        self._tokens.authorize()
        answer = send()
        if answer.status == 401 and not self.client.rehearses:
            self._tokens.authorize(again=True)
            answer = send()
        return answer

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
            running = self._read(self.client, self._applies, {"status": RUNNING[0]}).get("applyResults") or []
            if running:
                raise Busy(f"{change.tag.lease_id}: CDIM runs an apply that may be this lease's own", ("CDIM",))
            names = [name for names in change.hosts.values() for name in names]
            self._shown([{self._destination: name, "operation": "connect"} for name in names])
        else:
            status = self._finish(number)
            self._shown(_carried_out(status, mappings(status, "procedures")))

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
        self._shown(_carried_out(status, steps))
        if status.get("status") != "COMPLETED":
            self._failed(number, status, steps)

    def _shown(self, steps: Sequence[Json]) -> None:
        """Wait until the lists show steps that were done: they lag behind by minutes. Reading back decides what came of them."""
        until = time.monotonic() + self._options.settle_s
        while True:
            attached = {device.fabric_id for device in self.view().devices if device.attached_to is not None}
            late = [
                step
                for step in steps
                if (step.get(self._destination) in attached) != (step.get("operation") == "connect")
            ]
            pause_s = min(self._options.poll_s, until - time.monotonic())
            if not late or pause_s <= 0 or self.client.left_s() <= pause_s:
                return
            self.client.sleep(pause_s)

    def _post(self, steps: list[dict[str, Any]]) -> Answer:
        body, assumed = {"procedures": steps}, {"applyID": "(given by CDIM)"}
        return self._asked(lambda: self.client.change("POST", self._applies, body, assumed=assumed))

    def _cancel(self, number: str) -> None:
        path = f"{self._applies}/{number}?action=cancel"
        answer = self._asked(lambda: self.client.change("PUT", path))
        if answer.status >= 500:
            raise OutcomeUnknown(f"apply {number} is suspended and could not be cancelled: {answer.words()}")

    def _accepted(self, answer: Answer) -> None:
        """Raise what an answer to a layout-apply refuses; a 2xx is no evidence of anything."""
        if answer.ok:
            return
        where = f"POST {self.client.base}{self._applies}"
        code, message = mapping(answer.body).get("code", ""), str(at(answer.body, "message") or answer.words())
        if answer.status == 409:
            hint = "; resume or cancel it in CDIM, it blocks all others" if code == "E40027" else ""
            raise Busy(f"{where}: {code} {message}{hint}", ("CDIM",))
        if answer.status >= 500:
            raise OutcomeUnknown(f"{where}: {answer.words()}")
        if answer.status in (401, 403):
            raise FabricError(f"{where}: {answer.words()} (see `login`)")
        raise Incompatible(f"{where}: HTTP {answer.status} {code} {message}", f"CDIM refuses it: {message}")

    def _finish(self, number: str) -> Json:
        """The status of an apply that has ended. Raises OutcomeUnknown when that is not learnt within the operation's time."""
        while True:
            try:
                status = self._read(self.client, f"{self._applies}/{number}")
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
        end = self._destination
        done = [s[end] for s in steps if attached.get(s[end], False) == (s["operation"] == "connect")]
        failed = [step[end] for step in steps if step[end] not in done]
        raise PartialFailure(f"{words}, rollback {rollback or 'none'}: not done: {', '.join(failed)}", done, failed)

    def close(self) -> None:
        self._lists.close()
        if self._tokens is not None:
            self._service.close()


def _carried_out(status: Json, steps: Sequence[Json]) -> list[Json]:
    """Those steps of an apply that has ended which were done, and not taken back."""
    if status.get("rollbackStatus") == "COMPLETED":
        return []
    done = {one.get("operationID") for one in mappings(status, "applyResult") if one.get("status") == "COMPLETED"}
    return [step for step in steps if status.get("status") == "COMPLETED" or step.get("operationID") in done]
