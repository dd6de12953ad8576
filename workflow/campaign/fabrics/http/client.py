"""HTTP client for control planes, with hard time limits per request and per operation.

Reads are retried. A change is sent once; if its answer is lost, OutcomeUnknown is raised. Every answer is data: HTML, bare
numbers, empty bodies and text that is not JSON are returned as `Answer`, and the adapter interprets them. Proxies of the
environment are not used, and encodings are declined. Credentials are sent to the control plane only.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from campaign.common.credentials import MASK
from campaign.common.errors import CampaignError, FabricError
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation
from campaign.fabrics.http.connection import HttpConnection
from campaign.fabrics.http.options import Connection
from campaign.fabrics.http.redaction import AUTHENTICATING, Hidden
from campaign.fabrics.http.response import Answer, Unanswered, Unsent, joined, parsed, printable, shallow
from campaign.fabrics.operations import Answered, timing
from campaign.fabrics.protocol import RecordedRequest, Sent

__all__ = ["Answer", "Client"]

RETRY_S = (0.1, 0.2, 0.4, 0.8)
"""Longest waits before each retry of a read. Each wait is shortened at random, so that campaigns do not send at the same time."""
RETRY_AFTER_MAX_S = 60.0
UNAVAILABLE = (429, 502, 503, 504)
REDIRECTED = (301, 302, 303, 307, 308)
REDIRECTS_MAX = 2
IDLE_READ_S = 30.0
IDLE_CHANGE_S = 2.0
"""Services close idle connections at any time, some of them after 5 s. A change sent at this moment is lost without a
trace of whether it was done. Changes are therefore sent only over recently used connections; a read is simply sent again."""


@dataclass
class _Shared:
    """State shared by the clients of one control plane.

    deadline_s: deadline of the running operation on the monotonic clock, or None outside operations.
    """

    requests: int = 0
    retries: int = 0
    hidden: Hidden = field(default_factory=Hidden)
    rehearsed: list[Sent] | None = None
    recorded: list[RecordedRequest] | None = None
    until: float | None = None


class Client:
    """HTTP client for one address of a control plane.

    authorization: headers that authenticate, set by the adapter after its login.
    """

    def __init__(self, connection: Connection, beside: Client | None = None) -> None:
        """Create a client without opening a connection or reading a file.

        Plans are made on machines that lack the certificates of the site.

        Args:
            connection: address, certificates and time limits.
            sibling: client of another address of the same control plane; time limit, rehearsal, recording and secrets are
                shared.
        """
        self.connection = connection
        self._address = Address(connection.url)
        self.base = self._address.text
        self.authorization: dict[str, str] = {}
        self._shared: _Shared = _Shared() if beside is None else beside._shared

    @property
    def requests(self) -> int:
        """Number of requests sent, including retries."""
        return self._shared.requests

    @property
    def retries(self) -> int:
        """Number of requests sent again because a previous attempt failed."""
        return self._shared.retries

    @cached_property
    def _wire(self) -> HttpConnection:
        """Connection to the control plane, opened by the first request.

        Raises ConfigError if `ca_file` has no certificates.
        """
        at = self._address
        return HttpConnection(at.host, at.port, self.connection.tls() if at.secure else None)

    @contextmanager
    def operation(self, seconds: float | None = None) -> Iterator[None]:
        """Limit the total time of all requests within the `with` block.

        In nested blocks the outermost limit applies. Secrets and control characters are removed from the messages of all errors
        that leave the block.

        Args:
            timeout_s: limit in seconds; default: `operation_s` of the connection.
        """
        outer = self._shared.until
        if outer is None:
            self._shared.until = time.monotonic() + (seconds or self.connection.operation_s)
        try:
            yield
        except CampaignError as error:
            error.args = tuple(printable(self.scrub(one)) if isinstance(one, str) else one for one in error.args)
            raise
        finally:
            self._shared.until = outer

    def left_s(self) -> float:
        """Return the seconds that remain for the current operation, or its full time limit outside an operation."""
        return self.connection.operation_s if self._shared.until is None else self._shared.until - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait before the next request. Raises FabricError if the operation would exceed its time limit."""
        if self.left_s() <= seconds:
            raise FabricError(f"{self.base}: not done after {self.connection.operation_s:g} s (operation_s)")
        time.sleep(max(0.0, seconds))

    def hide(self, secret: str) -> None:
        """Register a password or token that must never appear in a message, trace or rehearsal.

        Servers echo secrets in their answers.
        """
        self._shared.hidden.add(secret)

    def scrub(self, text: str) -> str:
        """Return the text with every registered secret masked."""
        return self._shared.hidden.scrub(text)

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Answer:
        """Send a GET request and return the answer. Failed requests are retried.

        A request is retried if it gets no answer or the service is temporarily unavailable. If the service stays unavailable,
        its last answer is returned. Redirects within the control plane are followed. Raises FabricError if there is no answer,
        ProtocolViolation if the answer is invalid or endless HTTP.

        Args:
            path: path below the url of the connection. Of an address with a host, which some services give, only the path is
                used.
            params: query parameters.
        """
        with self.operation():
            target = self._address.target(path, params)
            answer = self._ask(target, path)
            for _ in range(REDIRECTS_MAX):
                location = answer.header("Location") if answer.status in REDIRECTED else None
                onward = self._address.onward(target, location) if location else None
                if onward is None:
                    break
                target, answer = onward, self._ask(onward, path)
            return answer

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
        secret: bool = False,
    ) -> Answer:
        """Send a changing HTTP request once, without retries, and return its answer for any status.

        In a rehearsal nothing is sent: the request is recorded, and the answer is a 200 with `rehearsal_body`. Raises
        OutcomeUnknown if the request was sent and no complete answer came back, FabricError if nothing was sent.

        Args:
            method: HTTP method.
            path: path below the url of the connection.
            body: JSON value, or bytes that are sent unchanged; `headers` then has their content type.
            headers: additional headers.
            form: fields of a form, sent in place of `body`.
            params: query parameters.
            rehearsal_body: body of the answer in a rehearsal.
            secret: True for a login; neither its body nor the tokens in its answer are ever shown.
        """
        with self.operation():
            target = self._address.target(path, params)
            content, kind = _content(body, form)
            self._shared.hidden.add_from(form or body)
            if self._shared.rehearsed is not None:
                shown = MASK if secret else self._shared.hidden.masked(form or _shown(body))
                secrets = AUTHENTICATING | {name.lower() for name in self.authorization}
                told = {
                    name: self.scrub(value) for name, value in (headers or {}).items() if name.lower() not in secrets
                }
                self._shared.rehearsed.append(Sent(method, self._address.url(target), shown, told))
                return Answer(200, {}, assumed, json.dumps(assumed), path, self.scrub)
            try:
                with nullcontext(Answered()) if secret else timing("request") as timed:
                    answer = self._exchange(method, target, path, content, kind, headers)
                    timed.answer = str(answer.status)
            except Unanswered as error:
                raise self._failure(method, target, error, changes=True) from None
            if secret:
                self._shared.hidden.add_from(answer.body, shortest=8)
                self._shared.hidden.add(answer.header("X-Auth-Token"))
            return answer

    @property
    def rehearses(self) -> bool:
        """True while changes are recorded and not sent."""
        return self._shared.rehearsed is not None

    @contextmanager
    def rehearsal(self) -> Iterator[list[Sent]]:
        """Record changing requests within the `with` block instead of sending them. Reads are still sent."""
        self._shared.rehearsed = []
        try:
            yield self._shared.rehearsed
        finally:
            self._shared.rehearsed = None

    @contextmanager
    def recording(self) -> Iterator[list[RecordedRequest]]:
        """Record every request within the `with` block, together with its answer.

        Recorded requests are unchanged: anonymize them (`recording.Anonymizer`) before they are shown.
        """
        self._shared.recorded = []
        try:
            yield self._shared.recorded
        finally:
            self._shared.recorded = None

    def _record(self, method: str, target: str, sent: bytes, began: float, **came: Any) -> None:
        """Append a request and its outcome to the recording, if one is active."""
        if self._shared.recorded is not None:
            seconds = time.monotonic() - began
            self._shared.recorded.append(RecordedRequest(self._address.url(""), method, target, sent, seconds, **came))

    def close(self) -> None:
        """Close the connection, if it is open."""
        if "_wire" in self.__dict__:  # do not open a connection only to close it
            self._wire.close()

    def _ask(self, target: str, path: str) -> Answer:
        """Send a GET request, and retry it after failures that may be temporary.

        A service that does not answer in time gets only one more attempt.

        Args:
            target: path and query.
            path: path as the caller gave it, for messages.
        """
        give_up = time.monotonic() + 2 * self.connection.request_s
        for wait_s in (*RETRY_S, None):
            try:
                got: Answer | Unanswered = self._exchange("GET", target, path, reads=True)
            except Unanswered as error:
                got = error
            pause_s = (wait_s or 0.0) * random.uniform(0.5, 1.0)
            if isinstance(got, Answer):
                if got.status not in UNAVAILABLE:
                    return got
                pause_s = max(pause_s, min(got.retry_after_s or 0.0, RETRY_AFTER_MAX_S))
            elif got.permanent or time.monotonic() >= give_up:
                break
            if wait_s is None or pause_s >= self.left_s():
                break
            time.sleep(pause_s)
            self._shared.retries += 1
        if isinstance(got, Answer):
            return got
        raise self._failure("GET", target, got)

    def _failure(self, method: str, target: str, error: Unanswered, *, changes: bool = False) -> FabricError:
        """Convert a request without an answer into the matching FabricError."""
        where = f"{method} {self._address.url(target)}"
        if isinstance(error, Unsent):
            return FabricError(self.scrub(f"{self.base}: cannot be reached ({error})"))
        if changes:
            words = f"{where}: sent, and not answered ({error}); reading back tells its outcome"
            return OutcomeUnknown(self.scrub(words))
        return (ProtocolViolation if error.garbled else FabricError)(self.scrub(f"{where}: {error}"))

    def _exchange(
        self,
        method: str,
        target: str,
        path: str,
        content: bytes = b"",
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        reads: bool = False,
    ) -> Answer:
        """Send a request once and return the decoded answer. Raises ExchangeError if there is no complete answer."""
        sent_headers = self._headers(method, target, content, kind, headers or {})
        left_s = min(self.connection.request_s, self.left_s())
        if left_s <= 0:
            raise Unsent(f"{self.connection.operation_s:g} s (operation_s) have passed", permanent=True)
        self._shared.requests += 1
        wire = self._wire  # opened before the time of the first request starts
        idle_max_s = IDLE_READ_S if reads else IDLE_CHANGE_S
        began = time.monotonic()
        try:
            received = wire.exchange(method, target, sent_headers, content, began + left_s, idle_max_s=idle_max_s)
        except Unanswered as error:
            self._record(method, target, content, began, error=str(error))
            raise
        answer = Answer(received.status, joined(received.headers), *parsed(received.content), path, self.scrub)
        came = {"status": answer.status, "headers": answer.headers, "body": answer.body, "text": answer.text}
        self._record(method, target, content, began, **came)
        return answer

    def _headers(
        self, method: str, target: str, content: bytes, kind: str | None, headers: Mapping[str, str]
    ) -> list[tuple[bytes, bytes]]:
        """Build the headers of a request, and register the values of authentication headers as secrets."""
        for name, value in (*self.authorization.items(), *headers.items()):
            if name in self.authorization or name.lower() in AUTHENTICATING:
                self._shared.hidden.add_header(value)
        own = {
            "Host": self._address.host_header,
            "User-Agent": "composable-campaign",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **({"Content-Type": kind} if kind else {}),
        }
        sources = (own, self.authorization, headers)
        chosen = {name.lower(): (name, value) for source in sources for name, value in source.items()}
        if content or method in ("POST", "PUT", "PATCH"):
            chosen["content-length"] = ("Content-Length", str(len(content)))
        try:
            return _encode_headers(chosen.values())
        except ValueError as error:
            raise ProtocolViolation(
                self.scrub(f"{method} {self._address.url(target)}: not a valid request: {error}")
            ) from None


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Encode headers as bytes.

    Raises ValueError if HTTP does not allow a name or value. The message does not quote the value.
    """
    encoded = []
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("the name of a header is not one that HTTP allows")
        if not isinstance(value, str) or not value.isascii() or any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise ValueError(f"the header {name} has a value that HTTP does not allow")
        encoded.append((name.encode("ascii"), value.strip().encode("ascii")))
    return encoded


def _shown(body: Any) -> Any:
    """Decode a body of bytes for display. Any other body is returned unchanged."""
    return body.decode(errors="replace") if isinstance(body, bytes) else body


def _content(body: Any, form: Mapping[str, str] | None) -> tuple[bytes, str | None]:
    """Encode a body or form and return (bytes, content type).

    Raises ProtocolViolation if JSON cannot represent the body, which in this case came from the service.
    """
    if form:
        return urlencode(form).encode(), "application/x-www-form-urlencoded"
    if body is None or isinstance(body, bytes):
        return body or b"", None
    if not shallow(body):
        raise ProtocolViolation("a request's body is nested too deeply for JSON")
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode(), "application/json"
    except (TypeError, ValueError) as error:
        raise ProtocolViolation(f"a request's body cannot be written as JSON: {type(error).__name__}") from None


_SAFE = "/%:@!$&'()*+,;=~-._"


class Address:
    """Address of a control plane, from the `url` of a system file.

    A target is the path and query of a request line.
    """

    def __init__(self, url: str) -> None:
        """Parse the URL of a control plane."""
        split = urlsplit(url.rstrip("/"))
        self.text = url.rstrip("/")
        self.secure = split.scheme.lower() == "https"
        self.host = (split.hostname or "").encode("idna").decode()
        self.port = split.port or (443 if self.secure else 80)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.host_header = shown if split.port is None else f"{shown}:{split.port}"
        self._prefix = split.path
        self._origin = _origin(url)

    def url(self, target: str) -> str:
        """Return the complete URL of a target."""
        return self.text.removesuffix(self._prefix) + target

    def target(self, path: str, params: Mapping[str, Any] | None = None) -> str:
        """Build the target of a request from a path and query parameters.

        Raises ProtocolViolation if the path is not a text.

        Args:
            path: path below the url. Of an address with a host only the path is used, because services behind a tunnel use names
                of their own.
            params: query parameters, added to those of the path.
        """
        if not isinstance(path, str):
            raise ProtocolViolation(f"{self.text}: an address was expected, got: {str(path)[:100]}")
        path, _, query = re.sub(r"^(?i:https?)://[^/?#]*", "", path).partition("#")[0].partition("?")
        path = "/" + path.lstrip("/")
        if self._prefix and not f"{path}/".startswith(self._prefix + "/"):
            path = self._prefix + (path if path != "/" else "")
        if params:
            plain = {name: _plain(value) for name, value in params.items()}
            added = urlencode(plain, doseq=True, safe="$,:@/*()!;'=", quote_via=quote)
            query = f"{query}&{added}" if query else added
        return _quoted(path, query)

    def onward(self, target: str, location: str) -> str | None:
        """Return the target of a redirect, or None if it leads to another host or is invalid."""
        try:
            joined = urljoin(self.url(target), location)
            if _origin(joined) != self._origin:
                return None
        except ValueError:
            return None
        split = urlsplit(joined)
        return _quoted(split.path or "/", split.query)


def _origin(url: str) -> tuple[str, str, int]:
    """Split a URL into (scheme, host, port)."""
    split = urlsplit(url)
    scheme = split.scheme.lower()
    return scheme, split.hostname or "", split.port or (443 if scheme == "https" else 80)


def _quoted(path: str, query: str) -> str:
    """Join path and query to a percent-encoded request target."""
    target = quote(path, safe=_SAFE, errors="replace")
    return f"{target}?{quote(query, safe=_SAFE + '?', errors='replace')}" if query else target


def _plain(value: Any) -> Any:
    """Convert the value of a query parameter: booleans to `true` or `false`, None to an empty text."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
