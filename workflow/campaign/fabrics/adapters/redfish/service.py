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
    ResourceMissingError,
    apply_status_in_body,
    build_error,
    build_read_error,
    check_task,
    choose_poll_interval,
    find_next_page,
    find_task_monitor,
    get_collection_members,
    get_reference_path,
    needs_login,
    strip_origin,
)
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation, Refused
from campaign.fabrics.http.client import Answer, HttpClient
from campaign.fabrics.http.options import Login, read_login
from campaign.fabrics.http.response import Json, get_mapping, get_nested

ROOT_PATH = "/redfish/v1/"
SESSIONS_PATH = "/redfish/v1/SessionService/Sessions"
MAX_PAGES = 10_000
Authentication = Literal["session", "basic", "none"]


class RedfishOptions(ControlPlaneOptions):
    """Options of a Redfish service with resource blocks.

    `hosts`: Id or Name of the compute block of a host. It may also be a block that is not marked as a host.
    """

    auth: Literal["session", "basic"] = Field(
        default="session",
        description="kind of login: `session` opens a session and ends it at close, `basic` sends the login with every request",
    )
    attach_mode: Literal["hot", "powered_off"] = Field(
        default="hot",
        description="`hot`: hosts keep running; `powered_off`: hosts are forced off before their devices change, and switched on "
        "afterwards (ComputerSystem.Reset)",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="poll interval of a task or power state in seconds, if the service does not specify one",
    )


class RedfishService:
    """Client of one Redfish service.

    It logs in before the first request other than the service root, and once more when the session is no longer valid.
    """

    def __init__(self, client: HttpClient, auth: Authentication = "session", *, poll_s: float = 1.0) -> None:
        """Create the client without sending a request.

        Args:
            client: HTTP client of the service.
            auth: kind of login.
            poll_s: poll interval of a task in seconds, if the service sends no Retry-After header.
        """
        self.client = client
        self._auth = auth
        self._is_logged_in = False
        self._session_path: str | None = None
        self._poll_s = poll_s
        self._root: dict[str, Any] | None = None
        self._max_expand_levels = 2

    def read_root(self) -> dict[str, Any]:
        """Return the Redfish service root, which is read only once.

        It is the only resource that needs no session, except on services that demand one for it too.
        """
        if self._root is None:
            answer = apply_status_in_body(self.client.get(ROOT_PATH))
            if needs_login(answer) and not self._is_logged_in:
                self._log_in({})
                answer = apply_status_in_body(self.client.get(ROOT_PATH))
            try:
                root = self._parse_resource(answer, ROOT_PATH)
            except ResourceMissingError as error:
                raise Refused(f"{error}; there is no Redfish service at this address (`fabric: url`)") from error
            self._root = {**get_mapping(root, "Links"), **root}  # Some services have their collections under Links.
        return self._root

    def get_resource(self, path: str) -> dict[str, Any]:
        """Return a Redfish resource as a JSON object.

        Raises ResourceMissingError (404), FabricError for any other refusal, ProtocolViolation if the answer is not a JSON
        object.
        """
        path = strip_origin(path)
        return self._parse_resource(self._get_answer(path), path)

    def find_resource(self, path: str) -> dict[str, Any] | None:
        """Return a Redfish resource as a JSON object, or None if the service does not have it."""
        try:
            return self.get_resource(path)
        except ResourceMissingError:
            return None

    def read_collection(self, resource: Json, name: str) -> list[dict[str, Any]]:
        """Return the members of the Redfish collection that a property of a resource refers to.

        The list is empty if the property or the collection is missing.

        Args:
            resource: resource with the property.
            name: name of the property.
        """
        path = get_reference_path(resource.get(name))
        with suppress(ResourceMissingError):
            return self.read_members(path) if path else []
        return []

    def read_members(self, path: str, *, levels: int = 1) -> list[dict[str, Any]]:
        """Return the complete members of a Redfish collection, from all its pages.

        If the service supports $expand, one request reads a whole page. Members may be at the top of a page or under `Links`, as
        on some services. Raises ProtocolViolation if the collection has too many pages.

        Args:
            path: path of the collection.
            levels: 2 also expands references of the members outside of `Links`, if the service can; otherwise they stay
                references.
        """
        query = self._build_expand_query(levels)
        members: list[dict[str, Any]] = []
        page: str | None = strip_origin(path) + query
        for _ in range(MAX_PAGES):
            if page is None:
                return members
            answer = self._get_answer(page)
            if query and not members and answer.status in (400, 501):
                # $expand is advertised but refused. Fewer levels may work, and a plain read always does.
                self._max_expand_levels = 1 if "levels" in query else 0
                return self.read_members(path, levels=levels)
            body = self._parse_resource(answer, page)
            members.extend(
                resource
                for member in get_collection_members(body)
                if (resource := self._read_member(member)) is not None
            )
            page = find_next_page(body)
        raise ProtocolViolation(f"{self.client.base}{path}: the collection has more than {MAX_PAGES} pages")

    def _read_member(self, member: Json) -> dict[str, Any] | None:
        """Return a complete member of a Redfish collection, or None if it was deleted since the collection was read.

        A member that the service did not expand is read.
        """
        path = get_reference_path(member)
        if path is None:
            raise ProtocolViolation(f"a member of a collection has no @odata.id: {str(member)[:200]}")
        if set(member) - {"@odata.id", "@odata.type"}:
            return dict(member)
        return self.find_resource(path)

    def _build_expand_query(self, levels: int) -> str:
        """Build the query that makes the service expand members, or "" if the service does not advertise it."""
        features = get_mapping(self.read_root(), "ProtocolFeaturesSupported", "ExpandQuery")
        option = "." if features.get("NoLinks") is True else "*" if features.get("ExpandAll") is True else None
        if not self._max_expand_levels or option is None:
            return ""
        max_levels = features.get("MaxLevels")
        supports_levels = (
            features.get("Levels") is True
            and min(levels, self._max_expand_levels) > 1
            and (not isinstance(max_levels, int) or max_levels >= levels)
        )
        return f"?$expand={option}($levels={levels})" if supports_levels else f"?$expand={option}"

    def _get_answer(self, path: str) -> Answer:
        """Send a GET request, logging in if necessary, and return the answer."""
        return self._send_with_login(lambda: self.client.get(path))

    def _send_with_login(self, send: Callable[[], Answer]) -> Answer:
        """Send a request, logging in first if necessary, and repeat it after a new login if the session is not valid."""
        if not self._is_logged_in:
            self._log_in(self.read_root())
        answer = apply_status_in_body(send())
        if needs_login(answer):
            self._log_in(self.read_root())
            answer = apply_status_in_body(send())
        return answer

    def _parse_resource(self, answer: Answer, path: str) -> dict[str, Any]:
        """Return the JSON object in the answer to a GET request.

        Raises ResourceMissingError if the object describes an error, or the error that matches a refusal.
        """
        operation = f"GET {self.client.base}{path}"
        if not answer.is_success:
            raise build_read_error(answer, operation)
        body = answer.require_object()
        if "error" in body and get_reference_path(body) is None:
            raise ResourceMissingError(f"{operation}: {answer.summarize()}")
        return body

    def send_change(self, method: str, path: str, body: Any = None, *, rehearsal_body: Any = None) -> Answer:
        """Send a change to the Redfish service, wait until it is done, and return its final answer (2xx).

        If the operation ran as a task, the final answer is that of the operation, not of the task. A service that demands a
        version for a deletion (428) is sent `If-Match: *`. A 2xx is no evidence of a change. Raises the error that matches a
        refusal (see `answers`), or OutcomeUnknown if the answer or the task was lost.

        Args:
            method: HTTP method.
            path: path of the resource.
            body: JSON value.
            rehearsal_body: body of the answer in a rehearsal.
        """
        path = strip_origin(path)
        answer = self._send_change_once(method, path, body, {}, rehearsal_body)
        if answer.status == 428:
            answer = self._send_change_once(method, path, body, {"If-Match": "*"}, rehearsal_body)
        if answer.status == 202:
            return self._wait_for_task(answer, f"{method} {self.client.base}{path}")
        if not answer.is_success:
            raise build_error(answer, f"{method} {self.client.base}{path}")
        return answer

    def _send_change_once(
        self, method: str, path: str, body: Any, headers: dict[str, str], rehearsal_body: Any
    ) -> Answer:
        """Send a single request that changes something, logging in if necessary, and return the answer."""
        return self._send_with_login(
            lambda: self.client.send_change(method, path, body, headers=headers, rehearsal_body=rehearsal_body)
        )

    def _wait_for_task(self, first_answer: Answer, operation: str) -> Answer:
        """Follow a Redfish task to its end and return the final answer of the operation.

        The operation was accepted, so every problem from here on is OutcomeUnknown.

        Args:
            first_answer: answer that accepted the operation (202).
            operation: method and address of the request, for messages.
        """
        monitor = find_task_monitor(first_answer)
        if monitor is None:
            raise OutcomeUnknown(
                f"{operation}: the service accepted the request (202), but the answer has no address of its task"
            )
        answer = first_answer
        while True:
            poll_interval_s = choose_poll_interval(answer, self._poll_s)
            if self.client.compute_remaining_s() <= poll_interval_s:
                raise OutcomeUnknown(f"{operation}: task {monitor} was not completed in time (operation_s)")
            self.client.sleep(poll_interval_s)
            try:
                answer = self._get_answer(monitor)
            except FabricError as error:
                # A request that ends at the time limit of the operation is no fault of the service.
                problem = (
                    "cannot be polled"
                    if self.client.compute_remaining_s() > 0
                    else "was not completed in time (operation_s)"
                )
                raise OutcomeUnknown(f"{operation}: task {monitor} {problem} ({error})") from error
            final_answer = check_task(answer, operation, monitor)
            if final_answer is not None:
                return final_answer

    def _log_in(self, root: Json) -> None:
        """Log in to the Redfish service with the configured kind of authentication. An earlier session is replaced.

        Raises ConfigError if credentials are missing, Busy if the service has no session left, FabricError if it refuses the
        login.

        Args:
            root: service root, which has the address of the sessions.
        """
        account = None if self._auth == "none" else read_login(self.client.connection)
        # Without an account, services that have no authentication work, and others answer 401.
        if account is not None:
            if self._auth == "basic":
                encoded_login = b64encode(f"{account.user}:{account.password}".encode()).decode()
                self.client.authorization = {"Authorization": f"Basic {encoded_login}"}
            else:
                self._open_session(account, root)
        self._is_logged_in = True

    def _open_session(self, account: Login, root: Json) -> None:
        """Open a Redfish session and use its token from now on. Raises FabricError if the service refuses the login."""
        base_url = self.client.base
        if self.client.is_rehearsing:
            raise FabricError(f"{base_url}: the session ended during the dry run; start the dry run again")
        self.client.authorization = {}
        path = get_nested(root, "Links", "Sessions", "@odata.id")
        try:
            body = {"UserName": account.user, "Password": account.password}
            answer = self.client.send_change(
                "POST", path if isinstance(path, str) else SESSIONS_PATH, body, secret=True
            )
        except OutcomeUnknown as error:
            # The outcome of the change is not unknown: it was not sent, because there was no session.
            raise FabricError(f"{base_url}: login failed ({error})") from error
        token, operation = answer.get_header("X-Auth-Token"), f"{base_url}: session login"
        if answer.is_success and not token:
            raise FabricError(f"{operation}: the answer has no X-Auth-Token; try `auth: basic`")
        if answer.status in (401, 403):
            raise Refused(
                f"{operation}: the service refuses the user or password (HTTP {answer.status}); correct `credentials`"
            )
        if not answer.is_success or not token:
            raise build_read_error(answer, operation)
        location = answer.get_header("Location")
        session_address = get_nested(answer.body, "@odata.id") if location is None else location
        self._session_path = strip_origin(session_address) if isinstance(session_address, str) else None
        self.client.authorization = {"X-Auth-Token": token}

    def close(self) -> None:
        """End the Redfish session, because services have few of them. Never raises an error.

        A service that cannot be reached ends the session by its own timeout.
        """
        session_path, self._session_path, self._is_logged_in = self._session_path, None, False
        if session_path is not None and not self.client.is_rehearsing:
            with suppress(FabricError):
                self.client.send_change("DELETE", session_path)
        self.client.authorization = {}
