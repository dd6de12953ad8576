"""Client of a Redfish service: resources, collections with paging and $expand, logins and tasks (DSP0266).

The client is independent of composition, and all code that uses Redfish is built on it. Paths are those of the service
(`/redfish/v1/...`), with or without a host.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.redfish.answers import (
    Missing,
    listed,
    local,
    meant,
    needs_login,
    next_page,
    not_changed,
    outcome,
    refusal,
    retry_after_s,
    task_of,
    uri,
)
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation, Refused
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.options import Login, login
from campaign.fabrics.http.response import Json, at, mapping

ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"
PAGES_MAX = 10_000
Authentication = Literal["session", "basic", "none"]


class RedfishOptions(ControlPlaneOptions):
    """Options of a Redfish service with resource blocks.

    `hosts`: Id or Name of the compute block of a host. It may also be a block that is not marked as a host.
    """

    auth: Literal["session", "basic"] = Field(
        default="session", description="how to log in: a session, which is ended at close, or Basic with every request"
    )
    attach_mode: Literal["hot", "powered_off"] = Field(
        default="hot",
        description="`powered_off`: hosts are forced off before devices change, and switched on after (ComputerSystem.Reset)",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="seconds between two polls of a task or a power state, where the service does not say"
    )


class Service:
    """Client of one Redfish service.

    It logs in before the first request other than the service root, and once more when the session is not valid any more.
    """

    def __init__(self, client: Client, auth: Authentication = "session", *, poll_s: float = 1.0) -> None:
        """Create the client, which sends nothing yet.

        Args:
            client: HTTP client of the service.
            auth: kind of login.
            poll_s: poll interval of a task in seconds, if the service sends no Retry-After header.
        """
        self.client = client
        self._auth = auth
        self._open = False
        self._session: str | None = None
        self._poll_s = poll_s
        self._root: dict[str, Any] | None = None
        self._expands = 2

    def root(self) -> dict[str, Any]:
        """Return the Redfish service root, which is read once.

        It is the only resource that needs no session, except on services that demand one for it too.
        """
        if self._root is None:
            answer = meant(self.client.get(ROOT))
            if needs_login(answer) and not self._open:
                self._log_in({})
                answer = meant(self.client.get(ROOT))
            try:
                root = self._read(answer, ROOT)
            except Missing as error:
                raise Refused(f"{error}; no Redfish service is at this address (`fabric: url`)") from error
            self._root = {**mapping(root, "Links"), **root}  # some services have their collections there
        return self._root

    def get(self, path: str) -> dict[str, Any]:
        """Return a Redfish resource as a JSON object.

        Raises ResourceMissingError (404), FabricError for any other refusal, ProtocolViolation if the answer is not a JSON
        object.
        """
        path = local(path)
        return self._read(self._get(path), path)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return a Redfish resource as a JSON object, or None if the service does not have it."""
        try:
            return self.get(path)
        except Missing:
            return None

    def collection(self, resource: Json, name: str) -> list[dict[str, Any]]:
        """Return the members of the Redfish collection that a property of a resource refers to.

        The list is empty if the property or the collection is missing.

        Args:
            resource: resource with the property.
            name: name of the property.
        """
        path = uri(resource.get(name))
        with suppress(Missing):
            return self.members(path) if path else []
        return []

    def members(self, path: str, *, levels: int = 1) -> list[dict[str, Any]]:
        """Return the complete members of a Redfish collection, from all its pages.

        If the service supports $expand, one request reads a whole page. Members may be at the top of a page or under `Links`, as
        on some services. Raises ProtocolViolation if the collection has too many pages.

        Args:
            path: path of the collection.
            levels: 2 also expands references of the members outside of `Links`, if the service can; otherwise they stay
                references.
        """
        query = self._expansion(levels)
        found: list[dict[str, Any]] = []
        page: str | None = local(path) + query
        for _ in range(PAGES_MAX):
            if page is None:
                return found
            answer = self._get(page)
            if query and not found and answer.status in (400, 501):
                # $expand is advertised but refused. Fewer levels may work, and a plain read always does.
                self._expands = 1 if "levels" in query else 0
                return self.members(path, levels=levels)
            body = self._read(answer, page)
            found.extend(whole for member in listed(body) if (whole := self._whole(member)) is not None)
            page = next_page(body)
        raise ProtocolViolation(f"{self.client.base}{path}: the collection has no end after {PAGES_MAX} pages")

    def _whole(self, member: Json) -> dict[str, Any] | None:
        """Return a complete member of a Redfish collection, or None if it was deleted since the collection was read.

        A member that the service did not expand is read.
        """
        path = uri(member)
        if path is None:
            raise ProtocolViolation(f"a member without @odata.id: {str(member)[:200]}")
        if set(member) - {"@odata.id", "@odata.type"}:
            return dict(member)
        return self.find(path)

    def _expansion(self, levels: int) -> str:
        """Build the query that makes the service expand members, or "" if the service does not advertise it."""
        can = mapping(self.root(), "ProtocolFeaturesSupported", "ExpandQuery")
        sign = "." if can.get("NoLinks") is True else "*" if can.get("ExpandAll") is True else None
        if not self._expands or sign is None:
            return ""
        deepest = can.get("MaxLevels")
        deep = (
            can.get("Levels") is True
            and min(levels, self._expands) > 1
            and (not isinstance(deepest, int) or deepest >= levels)
        )
        return f"?$expand={sign}($levels={levels})" if deep else f"?$expand={sign}"

    def _get(self, path: str) -> Answer:
        """Send a GET request, with a login if necessary, and return the answer."""
        return self._asked(lambda: self.client.get(path))

    def _asked(self, send: Callable[[], Answer]) -> Answer:
        """Send a request, and log in before it or again after it if the session is not valid."""
        if not self._open:
            self._log_in(self.root())
        answer = meant(send())
        if needs_login(answer):
            self._log_in(self.root())
            answer = meant(send())
        return answer

    def _read(self, answer: Answer, path: str) -> dict[str, Any]:
        """Return the JSON object in the answer to a GET request.

        Raises ResourceMissingError if the object is an error, and the error of a refusal.
        """
        what = f"GET {self.client.base}{path}"
        if not answer.ok:
            raise not_changed(answer, what)
        body = answer.members()
        if "error" in body and uri(body) is None:
            raise Missing(f"{what}: {answer.words()}")
        return body

    def change(self, method: str, path: str, body: Any = None, *, assumed: Any = None) -> Answer:
        """Send a change to the Redfish service, wait until it is done, and return its final answer (2xx).

        If the operation ran as a task, the final answer is that of the operation, not of the task. A service that demands a
        version for a deletion (428) is sent `If-Match: *`. A 2xx is no evidence of a change. Raises the error of a refusal (see
        `answers`), or OutcomeUnknown if the answer or the task was lost.

        Args:
            method: HTTP method.
            path: path of the resource.
            body: JSON value.
            rehearsal_body: body of the answer in a rehearsal.
        """
        path = local(path)
        answer = self._send(method, path, body, {}, assumed)
        if answer.status == 428:
            answer = self._send(method, path, body, {"If-Match": "*"}, assumed)
        if answer.status == 202:
            return self._wait(answer, f"{method} {self.client.base}{path}")
        if not answer.ok:
            raise refusal(answer, f"{method} {self.client.base}{path}")
        return answer

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str], assumed: Any) -> Answer:
        """Send a changing request once, with a login if necessary, and return the answer."""
        return self._asked(lambda: self.client.change(method, path, body, headers=headers, assumed=assumed))

    def _wait(self, accepted: Answer, what: str) -> Answer:
        """Follow a Redfish task to its end and return the final answer of the operation.

        The operation was accepted, so every problem from here on is OutcomeUnknown.

        Args:
            first_answer: answer that accepted the operation (202).
            operation: method and address of the request, for messages.
        """
        monitor = task_of(accepted)
        if monitor is None:
            raise OutcomeUnknown(f"{what}: accepted (202), but the answer does not say where its task is")
        answer = accepted
        while True:
            pause_s = retry_after_s(answer, self._poll_s)
            if self.client.left_s() <= pause_s:
                raise OutcomeUnknown(f"{what}: its task {monitor} was not done in time (operation_s)")
            self.client.sleep(pause_s)
            try:
                answer = self._get(monitor)
            except FabricError as error:
                # A request that ends at the time limit of the operation is no fault of the service.
                ending = "cannot be followed" if self.client.left_s() > 0 else "was not done in time (operation_s)"
                raise OutcomeUnknown(f"{what}: its task {monitor} {ending} ({error})") from error
            done = outcome(answer, what, monitor)
            if done is not None:
                return done

    def _log_in(self, root: Json) -> None:
        """Log in to the Redfish service with the configured kind of authentication. An earlier session is replaced.

        Raises ConfigError if credentials are missing, Busy if the service has no session left, FabricError if it refuses the
        login.

        Args:
            root: service root, which has the address of the sessions.
        """
        found = None if self._auth == "none" else login(self.client.connection)
        if found is not None:  # otherwise there is no account: some services have no authentication, others answer 401
            if self._auth == "basic":
                word = b64encode(f"{found.user}:{found.password}".encode()).decode()
                self.client.authorization = {"Authorization": f"Basic {word}"}
            else:
                self._begin_session(found, root)
        self._open = True

    def _begin_session(self, found: Login, root: Json) -> None:
        """Open a Redfish session and use its token from now on. Raises FabricError if the service refuses the login."""
        where = self.client.base
        if self.client.rehearses:
            raise FabricError(f"{where}: the session has ended during the rehearsal; start it again")
        self.client.authorization = {}
        path = at(root, "Links", "Sessions", "@odata.id")
        try:
            body = {"UserName": found.user, "Password": found.password}
            answer = self.client.change("POST", path if isinstance(path, str) else SESSIONS, body, secret=True)
        except OutcomeUnknown as error:
            # The outcome of the change is not unknown: it was not sent, because there was no session.
            raise FabricError(f"{where}: cannot log in ({error})") from error
        token, what = answer.header("X-Auth-Token"), f"{where}: logging in as a session"
        if answer.ok and not token:
            raise FabricError(f"{what}: the answer has no X-Auth-Token; try `auth: basic`")
        if answer.status in (401, 403):
            raise Refused(f"{what}: user or password is refused (HTTP {answer.status}); see `credentials`")
        if not answer.ok or not token:
            raise not_changed(answer, what)
        location = answer.header("Location")
        session = at(answer.body, "@odata.id") if location is None else location
        self._session = local(session) if isinstance(session, str) else None
        self.client.authorization = {"X-Auth-Token": token}

    def close(self) -> None:
        """End the Redfish session, because services have few of them. Never raises an error.

        A service that cannot be reached ends the session by its own timeout.
        """
        session, self._session, self._open = self._session, None, False
        if session is not None and not self.client.rehearses:
            with suppress(FabricError):
                self.client.change("DELETE", session)
        self.client.authorization = {}
