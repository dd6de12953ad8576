"""A Redfish service: resources, collections with paging and $expand, logins, tasks (DSP0266). Knows no composition.

Everything that speaks Redfish is built on `Service`. Paths are those of the service (`/redfish/v1/...`), with or without a host.
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
    """A Redfish service with resource blocks. `hosts`: Id or Name of the compute block of a host; also of a block that does not
    say that it is a host."""

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
    """One service, asked through `client`. It logs in with the first request that is not the service root, and again once when
    the service no longer knows the session."""

    def __init__(self, client: Client, auth: Authentication = "session", *, poll_s: float = 1.0) -> None:
        """poll_s: seconds between two looks at a task that says nothing about it (Retry-After)."""
        self.client = client
        self._auth = auth
        self._open = False
        self._session: str | None = None
        self._poll_s = poll_s
        self._root: dict[str, Any] | None = None
        self._expands = 2

    def root(self) -> dict[str, Any]:
        """The service root, read once; the only resource that needs no session, except where a service wants one for it too."""
        if self._root is None:
            answer = meant(self.client.get(ROOT))
            if needs_login(answer) and not self._open:
                self._log_in({})
                answer = meant(self.client.get(ROOT))
            try:
                root = self._read(answer, ROOT)
            except Missing as error:
                raise Refused(f"{error}; no Redfish service is at this address (`fabric: url`)") from error
            self._root = {**mapping(root, "Links"), **root}  # where some services have their collections
        return self._root

    def get(self, path: str) -> dict[str, Any]:
        """A resource. Raises Missing (404), FabricError (any other refusal), ProtocolViolation (no JSON object)."""
        path = local(path)
        return self._read(self._get(path), path)

    def find(self, path: str) -> dict[str, Any] | None:
        """A resource, or None where the service has none of that name."""
        try:
            return self.get(path)
        except Missing:
            return None

    def collection(self, resource: Json, name: str) -> list[dict[str, Any]]:
        """The members of a collection that a property refers to; none where there is no such property, or nothing there."""
        path = uri(resource.get(name))
        with suppress(Missing):
            return self.members(path) if path else []
        return []

    def members(self, path: str, *, levels: int = 1) -> list[dict[str, Any]]:
        """Every member of a collection, whole, over all its pages; in one request where the service expands ($expand).

        levels: 2 also expands what the members refer to outside of `Links`, where the service can (it is not read one by one:
        what is not expanded stays a reference). Members may be at the top, or under `Links`, where some services have them.
        """
        query = self._expansion(levels)
        found: list[dict[str, Any]] = []
        page: str | None = local(path) + query
        for _ in range(PAGES_MAX):
            if page is None:
                return found
            answer = self._get(page)
            if query and not found and answer.status in (400, 501):
                # Advertised and not done; less deep may be, and plain reading always is.
                self._expands = 1 if "levels" in query else 0
                return self.members(path, levels=levels)
            body = self._read(answer, page)
            found.extend(whole for member in listed(body) if (whole := self._whole(member)) is not None)
            page = next_page(body)
        raise ProtocolViolation(f"{self.client.base}{path}: the collection has no end after {PAGES_MAX} pages")

    def _whole(self, member: Json) -> dict[str, Any] | None:
        """A member as it is when the service expanded it, else read; None when it is gone since it was listed."""
        path = uri(member)
        if path is None:
            raise ProtocolViolation(f"a member without @odata.id: {str(member)[:200]}")
        if set(member) - {"@odata.id", "@odata.type"}:
            return dict(member)
        return self.find(path)

    def _expansion(self, levels: int) -> str:
        """The query that makes this service expand members; empty where it does not say that it can."""
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
        return self._asked(lambda: self.client.get(path))

    def _asked(self, send: Callable[[], Answer]) -> Answer:
        if not self._open:
            self._log_in(self.root())
        answer = meant(send())
        if needs_login(answer):
            self._log_in(self.root())
            answer = meant(send())
        return answer

    def _read(self, answer: Answer, path: str) -> dict[str, Any]:
        what = f"GET {self.client.base}{path}"
        if not answer.ok:
            raise not_changed(answer, what)
        body = answer.members()
        if "error" in body and uri(body) is None:
            raise Missing(f"{what}: {answer.words()}")
        return body

    def change(self, method: str, path: str, body: Any = None, *, assumed: Any = None) -> Answer:
        """Send a change and wait until it is done: a 2xx answer, that of the operation itself where it ran as a task.

        A service that wants a version of what is deleted (428) is told that any will do. A 2xx is no evidence that anything was
        done. Raises what `answers.refusal` makes of the answer, OutcomeUnknown when it was lost, or when the task was.
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
        return self._asked(lambda: self.client.change(method, path, body, headers=headers, assumed=assumed))

    def _wait(self, accepted: Answer, what: str) -> Answer:
        """Follow a task to its end. The operation was accepted, so that whatever is lost from here on is OutcomeUnknown."""
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
                # A request that ends at the limit of the operation says nothing against the service.
                ending = "cannot be followed" if self.client.left_s() > 0 else "was not done in time (operation_s)"
                raise OutcomeUnknown(f"{what}: its task {monitor} {ending} ({error})") from error
            done = outcome(answer, what, monitor)
            if done is not None:
                return done

    def _log_in(self, root: Json) -> None:
        """Log in; anew when a session was open, as the service no longer knows it. root: the service root, which tells where.

        Raises ConfigError for missing credentials, Busy when the service has no session left, FabricError when it refuses.
        """
        found = None if self._auth == "none" else login(self.client.connection)
        if found is not None:  # else there is nobody to log in as: some services have no authentication, others say 401
            if self._auth == "basic":
                word = b64encode(f"{found.user}:{found.password}".encode()).decode()
                self.client.authorization = {"Authorization": f"Basic {word}"}
            else:
                self._begin_session(found, root)
        self._open = True

    def _begin_session(self, found: Login, root: Json) -> None:
        where = self.client.base
        if self.client.rehearses:
            raise FabricError(f"{where}: the session has ended during the rehearsal; start it again")
        self.client.authorization = {}
        path = at(root, "Links", "Sessions", "@odata.id")
        try:
            body = {"UserName": found.user, "Password": found.password}
            answer = self.client.change("POST", path if isinstance(path, str) else SESSIONS, body, secret=True)
        except OutcomeUnknown as error:
            # Not the outcome of what was asked for: nobody was logged in to ask for it.
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
        """End the session, of which services have few; never raises. A service that is gone ends it by its own time-out."""
        session, self._session, self._open = self._session, None, False
        if session is not None and not self.client.rehearses:
            with suppress(FabricError):
                self.client.change("DELETE", session)
        self.client.authorization = {}
