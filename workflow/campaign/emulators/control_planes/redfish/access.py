"""Access to an emulated service: one account, a limited number of sessions, and Basic authentication."""

from __future__ import annotations

import secrets
from typing import Any

from campaign.emulators.control_planes.redfish.documents import (
    ROOT_PATH,
    Document,
    RedfishRefusal,
    build_collection,
    build_resource,
    make_reference,
)
from campaign.emulators.control_planes.server import HttpRequest

SESSION_SERVICE_PATH = f"{ROOT_PATH}/SessionService"
SESSIONS_PATH = f"{SESSION_SERVICE_PATH}/Sessions"


class SessionAccess:
    """Account and sessions of the service.

    `sessions` holds the token of each session by its id.
    """

    def __init__(self, user: str, password: str, sessions_max: int) -> None:
        self.sessions: dict[str, str] = {}
        self._account = (user, password)
        self._sessions_max = sessions_max
        self._number = 0

    def is_authorized(self, request: HttpRequest) -> bool:
        """Return True if the request has a valid session token or the Basic credentials of the account."""
        if (token := request.find_header("X-Auth-Token")) is not None:
            return any(secrets.compare_digest(session_token, token) for session_token in self.sessions.values())
        return request.basic_credentials == self._account

    def log_in(self, body: dict[str, Any]) -> str:
        """Open a session and return its id.

        Raises RedfishRefusal if the password is wrong, or if the maximum number of sessions is open.
        """
        for name in ("UserName", "Password"):
            if name not in body:
                raise RedfishRefusal(400, "PropertyMissing", f"{name} is missing", (name,))
            if not isinstance(body[name], str):
                raise RedfishRefusal(400, "PropertyValueTypeError", f"{name}: wrong type", (str(body[name]), name))
        if (body["UserName"], body["Password"]) != self._account:
            raise RedfishRefusal(
                401, "ResourceAtUriUnauthorized", "the user name or the password is wrong", (SESSIONS_PATH,)
            )
        if len(self.sessions) >= self._sessions_max:
            raise RedfishRefusal(503, "SessionLimitExceeded", "there are as many sessions as there may be")
        self._number += 1
        self.sessions[str(self._number)] = secrets.token_hex(16)
        return str(self._number)

    def find_resource(self, path: str) -> Document | None:
        """Return the resource of a session path, or None for any other path."""
        parent, _, name = path.rpartition("/")
        if path == SESSION_SERVICE_PATH:
            return build_resource(
                path,
                "SessionService",
                "v1_1_9",
                ServiceEnabled=True,
                SessionTimeout=600,
                Sessions=make_reference(SESSIONS_PATH),
            )
        if path == SESSIONS_PATH:
            return build_collection(path, "Session", self.sessions)
        if parent == SESSIONS_PATH and name in self.sessions:
            return build_resource(path, "Session", "v1_7_0", UserName=self._account[0], Password=None)
        return None
