"""Logging in to a Redfish service (DSP0266, "Security"): a session that is ended at close, or Basic authentication."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit

from campaign.errors import FabricError
from campaign.fabrics.dialects.redfish.error_messages import refusal
from campaign.fabrics.errors import OutcomeUnknown
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.login import login

Authentication = Literal["session", "basic", "none"]
SESSIONS = "/redfish/v1/SessionService/Sessions"


class Session:
    """Who we are to one service. Nothing is sent before `open`; `close` ends the session, of which services have few."""

    def __init__(self, client: Client, kind: Authentication) -> None:
        self._client = client
        self._kind = kind
        self._uri: str | None = None
        self.is_open = False

    def open(self, root: Mapping[str, Any]) -> None:
        """Log in; anew when a session was open, as the service no longer knows it. root: the service root, which tells where.

        Raises ConfigError for credentials that are named and not there, Busy when the service has no session left, FabricError when
        it refuses.
        """
        found = None if self._kind == "none" else login(self._client.connection)
        if found is None:  # nobody to log in as: there are services without authentication, and others say 401
            self.is_open = True
            return
        if self._kind == "basic":
            word = b64encode(f"{found.user}:{found.password}".encode()).decode()
            self._client.authorization = {"Authorization": f"Basic {word}"}
            self.is_open = True
            return
        if self._client.rehearses:
            raise FabricError(f"{self._client.base}: the session has ended during the rehearsal; start it again")
        self._client.authorization = {}
        path = _sessions(root)
        try:
            answer = self._client.change(
                "POST", path, {"UserName": found.user, "Password": found.password}, secret=True
            )
        except OutcomeUnknown as error:
            # Not the outcome of what was asked for: nobody was logged in to ask for it.
            raise FabricError(f"{self._client.base}: cannot log in ({error})") from error
        token = header(answer, "X-Auth-Token")
        if not answer.ok or not token:
            raise self._refused(answer)
        self._uri = session_uri(answer)
        self._client.authorization = {"X-Auth-Token": token}
        self.is_open = True

    def _refused(self, answer: Answer) -> FabricError:
        what = f"{self._client.base}: logging in as a session"
        if answer.ok:
            return FabricError(f"{what}: the answer has no X-Auth-Token; try `auth: basic`")
        if answer.status in (401, 403):
            return FabricError(f"{what}: user or password is refused (HTTP {answer.status}); see `credentials`")
        error = refusal(answer, what)
        return FabricError(str(error)) if isinstance(error, OutcomeUnknown) else error

    def close(self) -> None:
        """End the session; never raises. A service that is gone ends it by its own time-out."""
        uri, self._uri, self.is_open = self._uri, None, False
        if uri is not None and not self._client.rehearses:
            with suppress(FabricError):
                self._client.change("DELETE", uri)
        self._client.authorization = {}


def _sessions(root: Mapping[str, Any]) -> str:
    links = root.get("Links")
    sessions = links.get("Sessions") if isinstance(links, Mapping) else None
    uri = sessions.get("@odata.id") if isinstance(sessions, Mapping) else None
    return uri if isinstance(uri, str) else SESSIONS


def session_uri(answer: Answer) -> str | None:
    """Where the session is, as a path."""
    uri = header(answer, "Location")
    if uri is None and isinstance(answer.body, Mapping):
        uri = answer.body.get("@odata.id")
    return local(uri) if isinstance(uri, str) else None


def local(uri: str) -> str:
    """An address without its scheme and host: services name themselves as they please, and the token goes to nobody else."""
    split = urlsplit(uri)
    return split.path + (f"?{split.query}" if split.query else "")


def header(answer: Answer, name: str) -> str | None:
    return next((value for key, value in answer.headers.items() if key.lower() == name.lower()), None)
