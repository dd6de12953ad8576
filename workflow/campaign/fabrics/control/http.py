"""HTTP to a control plane: time-outs per request and per operation, retries of what is safe, and nothing believed.

Reads are tried again; a change is sent once, and when its answer is lost that is OutcomeUnknown. Every answer is data: HTML, bare
numbers, empty bodies and half of a JSON document arrive as `Answer`, and the dialect says what they mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from campaign.errors import FabricError
from campaign.fabrics.control.options import Connection
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. body: parsed JSON of any kind, else None; text: as it came (decoded with replacement)."""

    status: int
    headers: Mapping[str, str]
    body: Any
    text: str
    url: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def members(self) -> dict[str, Any]:
        """The body as a JSON object. Raises ProtocolViolation quoting what it is instead."""
        if not isinstance(self.body, dict):
            raise ProtocolViolation(f"{self.url}: a JSON object was expected, got: {self.words()}")
        return self.body

    def words(self) -> str:
        """The answer in a few words, for messages."""
        text = " ".join(self.text.split())
        return f"HTTP {self.status} {text[:200] or '(empty)'}"


@dataclass(frozen=True, slots=True)
class Sent:
    """One changing request, as it is put on the wire (its headers without what authenticates)."""

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Client:
    """One control plane. `authorization`: headers that authenticate, set by the dialect after it has logged in."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.base = connection.url.rstrip("/")
        self.authorization: dict[str, str] = {}
        self.requests = 0
        self.retries = 0
        self._rehearsed: list[Sent] | None = None
        self._until: float | None = None
        self._http = httpx.Client(base_url=self.base, verify=connection.tls(), trust_env=False, follow_redirects=False)

    @contextmanager
    def operation(self, seconds: float | None = None) -> Iterator[None]:
        """Everything asked within takes at most so long (default: the connection's `operation_s`); the outermost counts."""
        outer = self._until
        if outer is None:
            self._until = time.monotonic() + (seconds or self.connection.operation_s)
        try:
            yield
        finally:
            self._until = outer

    def left_s(self) -> float:
        """Seconds left of the operation; of one request outside any."""
        return self.connection.operation_s if self._until is None else self._until - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait before asking again. Raises FabricError when the operation's time is over before that."""
        if self.left_s() <= seconds:
            raise FabricError(f"{self.base}: not done after {self.connection.operation_s:g} s (operation_s)")
        time.sleep(seconds)

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Answer:
        """Ask; tried again when nobody answers or the service says that it is unavailable for now."""
        return self._send("GET", path, params=params)

    def change(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        assumed: Any = None,
    ) -> Answer:
        """Send a change, once. Raises OutcomeUnknown when it was sent and no answer came.

        In a rehearsal nothing is sent: the request is written down, and the answer is a 200 with `assumed` as its body.
        """
        if self._rehearsed is not None:
            self._rehearsed.append(Sent(method, self.base + path, form or body, headers or {}))
            return Answer(200, {}, assumed, json.dumps(assumed), path)
        return self._send(method, path, body=body, headers=headers, form=form, params=params)

    @property
    def rehearses(self) -> bool:
        return self._rehearsed is not None

    @contextmanager
    def rehearsal(self) -> Iterator[list[Sent]]:
        """Within, changes are written down and not sent; reads are sent."""
        self._rehearsed = []
        try:
            yield self._rehearsed
        finally:
            self._rehearsed = None

    def close(self) -> None:
        self._http.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> Answer:
        self.requests += 1
        timeout_s = max(0.001, min(self.connection.request_s, self.left_s()))
        try:
            reply = self._http.request(
                method,
                path,
                params=dict(params) if params else None,
                json=body,
                data=form,
                headers={**self.authorization, **(headers or {})},
                timeout=timeout_s,
            )
        except httpx.ConnectError as error:
            raise FabricError(f"{self.base}: cannot be reached ({error})") from error
        except httpx.HTTPError as error:
            kind = FabricError if method == "GET" else OutcomeUnknown
            raise kind(f"{method} {self.base}{path}: no answer ({type(error).__name__}: {error})") from error
        try:
            parsed = reply.json()
        except ValueError:
            parsed = None
        return Answer(reply.status_code, reply.headers, parsed, reply.text, path)
