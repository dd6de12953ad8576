"""HTTP to a control plane: hard time limits per request and per operation, retries of what is safe, and nothing believed.

Reads are tried again; a change is sent once, and when its answer is lost that is OutcomeUnknown. Every answer is data: HTML, bare
numbers, empty bodies and text that is no JSON arrive as `Answer`, and the adapter says what they mean. Proxies of the environment
are not used, encodings are declined, and nobody but the control plane itself is ever told who we are.
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
"""Waits before a read is tried again; a bit less, at random, so that not all campaigns ask at once."""
RETRY_AFTER_MAX_S = 60.0
UNAVAILABLE = (429, 502, 503, 504)
REDIRECTED = (301, 302, 303, 307, 308)
REDIRECTS_MAX = 2
IDLE_READ_S = 30.0
IDLE_CHANGE_S = 2.0
"""A service closes idle connections when it likes, the impatient ones after 5 s: a change that meets this moment is lost without a
trace of whether it was done. So changes go only over connections that were used just now; a read would simply be sent again."""


@dataclass
class _Shared:
    """What the clients of one control plane have in common."""

    requests: int = 0
    retries: int = 0
    hidden: Hidden = field(default_factory=Hidden)
    rehearsed: list[Sent] | None = None
    recorded: list[RecordedRequest] | None = None
    until: float | None = None


class Client:
    """One control plane. `authorization`: headers that authenticate, set by the adapter after it has logged in."""

    def __init__(self, connection: Connection, beside: Client | None = None) -> None:
        """Opens no connection, and reads no file: a plan is made where the site's certificates are not.

        beside: the client of another address of the same control plane, whose time limit, rehearsal and secrets count here too.
        """
        self.connection = connection
        self._address = Address(connection.url)
        self.base = self._address.text
        self.authorization: dict[str, str] = {}
        self._shared: _Shared = _Shared() if beside is None else beside._shared

    @property
    def requests(self) -> int:
        """Requests put on the wire, `retries` of them because one before had failed."""
        return self._shared.requests

    @property
    def retries(self) -> int:
        return self._shared.retries

    @cached_property
    def _wire(self) -> HttpConnection:
        """Raises ConfigError for a `ca_file` that is none."""
        at = self._address
        return HttpConnection(at.host, at.port, self.connection.tls() if at.secure else None)

    @contextmanager
    def operation(self, seconds: float | None = None) -> Iterator[None]:
        """Everything asked within takes at most so long (default: the connection's `operation_s`); the outermost counts.

        The messages of errors that leave it have neither secrets in them nor what a terminal would obey, whoever wrote them.
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
        """Seconds left of the operation; of one request outside any."""
        return self.connection.operation_s if self._shared.until is None else self._shared.until - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait before asking again. Raises FabricError when the operation's time is over before that."""
        if self.left_s() <= seconds:
            raise FabricError(f"{self.base}: not done after {self.connection.operation_s:g} s (operation_s)")
        time.sleep(max(0.0, seconds))

    def hide(self, secret: str) -> None:
        """Never show this text (a password, a token) in a message, trace or rehearsal: servers echo what they are told."""
        self._shared.hidden.add(secret)

    def scrub(self, text: str) -> str:
        """The text without what is hidden."""
        return self._shared.hidden.scrub(text)

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Answer:
        """Ask; tried again when nobody answers, or the service says that it is unavailable for now (then its last answer is given).

        path: below the connection's url; of an address with a host, which some services give, only the path is used. Redirections
        within the control plane are followed. Raises FabricError, ProtocolViolation for what is no HTTP or no end of it.
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
        """Send a change, once, whatever the answer. Raises OutcomeUnknown when it was sent and no whole answer came; FabricError
        when nothing of it was sent.

        body: JSON, or bytes that are sent as they are; `headers` then say what they are. secret: it logs in; its body is never
        shown, nor the tokens in its answer. In a rehearsal nothing is sent: the request is written down, and the answer is a 200
        with `assumed` as its body.
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
        return self._shared.rehearsed is not None

    @contextmanager
    def rehearsal(self) -> Iterator[list[Sent]]:
        """Within, changes are written down and not sent; reads are sent."""
        self._shared.rehearsed = []
        try:
            yield self._shared.rehearsed
        finally:
            self._shared.rehearsed = None

    @contextmanager
    def recording(self) -> Iterator[list[RecordedRequest]]:
        """Within, every request is kept with its answer, as they were: see `recording.StandIns` before they are shown."""
        self._shared.recorded = []
        try:
            yield self._shared.recorded
        finally:
            self._shared.recorded = None

    def _record(self, method: str, target: str, sent: bytes, began: float, **came: Any) -> None:
        if self._shared.recorded is not None:
            seconds = time.monotonic() - began
            self._shared.recorded.append(RecordedRequest(self._address.url(""), method, target, sent, seconds, **came))

    def close(self) -> None:
        if "_wire" in self.__dict__:  # nothing is opened for being closed
            self._wire.close()

    def _ask(self, target: str, path: str) -> Answer:
        """One read, tried again where that can help; a service that does not answer in time gets one more chance only."""
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
        sent_headers = self._headers(method, target, content, kind, headers or {})
        left_s = min(self.connection.request_s, self.left_s())
        if left_s <= 0:
            raise Unsent(f"{self.connection.operation_s:g} s (operation_s) have passed", permanent=True)
        self._shared.requests += 1
        wire = self._wire  # made at the first request, and not within its time
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
    """Headers as bytes. ValueError: HTTP cannot carry a name or value (the message does not quote the value)."""
    encoded = []
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("the name of a header is not one that HTTP allows")
        if not isinstance(value, str) or not value.isascii() or any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise ValueError(f"the header {name} has a value that HTTP does not allow")
        encoded.append((name.encode("ascii"), value.strip().encode("ascii")))
    return encoded


def _shown(body: Any) -> Any:
    return body.decode(errors="replace") if isinstance(body, bytes) else body


def _content(body: Any, form: Mapping[str, str] | None) -> tuple[bytes, str | None]:
    """(bytes, content type). Raises ProtocolViolation for what JSON cannot say: it came from the service in the first place."""
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
    """The url of a system file. `target`: what stands in a request line, path and query."""

    def __init__(self, url: str) -> None:
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
        return self.text.removesuffix(self._prefix) + target

    def target(self, path: str, params: Mapping[str, Any] | None = None) -> str:
        """path: below the url; of an address with a host only the path counts, as services behind a tunnel give names of their own.

        Raises ProtocolViolation for what is no text.
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
        """The target that a redirection of `target` names; None for one to another host, or to nowhere."""
        try:
            joined = urljoin(self.url(target), location)
            if _origin(joined) != self._origin:
                return None
        except ValueError:
            return None
        split = urlsplit(joined)
        return _quoted(split.path or "/", split.query)


def _origin(url: str) -> tuple[str, str, int]:
    split = urlsplit(url)
    scheme = split.scheme.lower()
    return scheme, split.hostname or "", split.port or (443 if scheme == "https" else 80)


def _quoted(path: str, query: str) -> str:
    target = quote(path, safe=_SAFE, errors="replace")
    return f"{target}?{quote(query, safe=_SAFE + '?', errors='replace')}" if query else target


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
