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
from campaign.fabrics.http.options import ConnectionOptions
from campaign.fabrics.http.redaction import AUTHENTICATION_HEADERS, SecretRedactor
from campaign.fabrics.http.response import (
    Answer,
    ExchangeError,
    RequestNotSentError,
    is_shallow,
    make_printable,
    merge_headers,
    parse_json,
)
from campaign.fabrics.operations import OperationAnswer, time_operation
from campaign.fabrics.protocol import OutgoingRequest, RecordedRequest

__all__ = ["Answer", "HttpClient"]

RETRY_DELAYS_S = (0.1, 0.2, 0.4, 0.8)
"""Longest waits before each retry of a read. Each wait is shortened at random, so that campaigns do not send at the same time."""
MAX_RETRY_AFTER_S = 60.0
UNAVAILABLE_STATUSES = (429, 502, 503, 504)
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 2
MAX_IDLE_BEFORE_READ_S = 30.0
MAX_IDLE_BEFORE_CHANGE_S = 2.0
"""Services close idle connections at any time, some of them after 5 s. A change sent at this moment is lost without a
trace of whether it was done. Changes are therefore sent only over recently used connections; a read is simply sent again."""


@dataclass
class _ClientState:
    """State shared by the clients of one control plane.

    deadline_s: deadline of the running operation on the monotonic clock, or None outside operations.
    """

    request_count: int = 0
    retry_count: int = 0
    redactor: SecretRedactor = field(default_factory=SecretRedactor)
    rehearsed_requests: list[OutgoingRequest] | None = None
    recorded_requests: list[RecordedRequest] | None = None
    deadline_s: float | None = None


class HttpClient:
    """HTTP client for one address of a control plane.

    authorization: headers that authenticate, set by the adapter after its login.
    """

    def __init__(self, connection: ConnectionOptions, sibling: HttpClient | None = None) -> None:
        """Create a client without opening a connection or reading a file.

        Plans are made on machines that lack the certificates of the site.

        Args:
            connection: address, certificates and time limits.
            sibling: client of another address of the same control plane; time limit, rehearsal, recording and secrets are
                shared.
        """
        self.connection = connection
        self._address = ServiceAddress(connection.url)
        self.base = self._address.text
        self.authorization: dict[str, str] = {}
        self._state: _ClientState = _ClientState() if sibling is None else sibling._state

    @property
    def request_count(self) -> int:
        """Number of requests sent, including retries."""
        return self._state.request_count

    @property
    def retry_count(self) -> int:
        """Number of requests sent again because a previous attempt failed."""
        return self._state.retry_count

    @cached_property
    def _wire(self) -> HttpConnection:
        """Connection to the control plane, opened by the first request.

        Raises ConfigError if `ca_file` has no certificates.
        """
        address = self._address
        return HttpConnection(
            address.host, address.port, self.connection.create_tls_context() if address.uses_tls else None
        )

    @contextmanager
    def limit_time(self, timeout_s: float | None = None) -> Iterator[None]:
        """Limit the total time of all requests within the `with` block.

        In nested blocks the outermost limit applies. Secrets and control characters are removed from the messages of all errors
        that leave the block.

        Args:
            timeout_s: limit in seconds; default: `operation_s` of the connection.
        """
        outer_deadline_s = self._state.deadline_s
        if outer_deadline_s is None:
            self._state.deadline_s = time.monotonic() + (timeout_s or self.connection.operation_s)
        try:
            yield
        except CampaignError as error:
            error.args = tuple(
                make_printable(self.redact_secrets(argument)) if isinstance(argument, str) else argument
                for argument in error.args
            )
            raise
        finally:
            self._state.deadline_s = outer_deadline_s

    def compute_remaining_s(self) -> float:
        """Return the seconds that remain for the current operation, or its full time limit outside an operation."""
        return (
            self.connection.operation_s if self._state.deadline_s is None else self._state.deadline_s - time.monotonic()
        )

    def sleep(self, delay_s: float) -> None:
        """Wait before the next request. Raises FabricError if the operation would exceed its time limit."""
        if self.compute_remaining_s() <= delay_s:
            raise FabricError(
                f"{self.base}: the operation was not completed within {self.connection.operation_s:g} s (operation_s)"
            )
        time.sleep(max(0.0, delay_s))

    def add_secret(self, secret: str) -> None:
        """Register a password or token that must never appear in a message, trace or rehearsal.

        Servers echo secrets in their answers.
        """
        self._state.redactor.add_secret(secret)

    def redact_secrets(self, text: str) -> str:
        """Return the text with every registered secret masked."""
        return self._state.redactor.redact_secrets(text)

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Answer:
        """Send a GET request and return the answer. Failed requests are retried.

        A request is retried if it gets no answer or the service is temporarily unavailable. If the service stays unavailable,
        its last answer is returned. Redirects within the control plane are followed. Raises FabricError if there is no answer,
        ProtocolViolation if the answer is not valid HTTP or never ends.

        Args:
            path: path below the url of the connection. If a service gave an address with a host, only its path is used.
            params: query parameters.
        """
        with self.limit_time():
            target = self._address.build_target(path, params)
            answer = self._read_with_retries(target, path)
            for _ in range(MAX_REDIRECTS):
                location = answer.get_header("Location") if answer.status in REDIRECT_STATUSES else None
                next_target = self._address.resolve_redirect(target, location) if location else None
                if next_target is None:
                    break
                target, answer = next_target, self._read_with_retries(next_target, path)
            return answer

    def send_change(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        rehearsal_body: Any = None,
        secret: bool = False,
    ) -> Answer:
        """Send an HTTP request that changes something, without retries, and return its answer, whatever its status.

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
        with self.limit_time():
            target = self._address.build_target(path, params)
            content, content_type = _encode_body(body, form)
            self._state.redactor.add_named_secrets(form or body)
            if self._state.rehearsed_requests is not None:
                visible_body = MASK if secret else self._state.redactor.mask_secrets(form or _decode_body(body))
                secret_names = AUTHENTICATION_HEADERS | {name.lower() for name in self.authorization}
                visible_headers = {
                    name: self.redact_secrets(value)
                    for name, value in (headers or {}).items()
                    if name.lower() not in secret_names
                }
                self._state.rehearsed_requests.append(
                    OutgoingRequest(method, self._address.build_url(target), visible_body, visible_headers)
                )
                return Answer(200, {}, rehearsal_body, json.dumps(rehearsal_body), path, self.redact_secrets)
            try:
                with nullcontext(OperationAnswer()) if secret else time_operation("request") as measurement:
                    answer = self._send_once(method, target, path, content, content_type, headers)
                    measurement.answer = str(answer.status)
            except ExchangeError as error:
                raise self._build_error(method, target, error, is_change=True) from None
            if secret:
                self._state.redactor.add_named_secrets(answer.body, min_length=8)
                self._state.redactor.add_secret(answer.get_header("X-Auth-Token"))
            return answer

    @property
    def is_rehearsing(self) -> bool:
        """True while changes are recorded and not sent."""
        return self._state.rehearsed_requests is not None

    @contextmanager
    def rehearse_changes(self) -> Iterator[list[OutgoingRequest]]:
        """Record requests that change something within the `with` block instead of sending them. Reads are still sent."""
        self._state.rehearsed_requests = []
        try:
            yield self._state.rehearsed_requests
        finally:
            self._state.rehearsed_requests = None

    @contextmanager
    def record_requests(self) -> Iterator[list[RecordedRequest]]:
        """Record every request within the `with` block, together with its answer.

        Recorded requests are unchanged: anonymize them (`recording.Anonymizer`) before they are shown.
        """
        self._state.recorded_requests = []
        try:
            yield self._state.recorded_requests
        finally:
            self._state.recorded_requests = None

    def _record_request(self, method: str, target: str, content: bytes, start_s: float, **outcome: Any) -> None:
        """Append a request and its outcome to the recording, if one is active."""
        if self._state.recorded_requests is not None:
            seconds = time.monotonic() - start_s
            self._state.recorded_requests.append(
                RecordedRequest(self._address.build_url(""), method, target, content, seconds, **outcome)
            )

    def close(self) -> None:
        """Close the connection, if it is open."""
        if "_wire" in self.__dict__:  # A connection is not opened only to be closed.
            self._wire.close()

    def _read_with_retries(self, target: str, path: str) -> Answer:
        """Send a GET request, and retry it after failures that may be temporary.

        A service that does not answer in time gets only one more attempt.

        Args:
            target: path and query.
            path: path as the caller gave it, for messages.
        """
        retry_until_s = time.monotonic() + 2 * self.connection.request_s
        for wait_s in (*RETRY_DELAYS_S, None):
            try:
                result: Answer | ExchangeError = self._send_once("GET", target, path, is_read=True)
            except ExchangeError as error:
                result = error
            pause_s = (wait_s or 0.0) * random.uniform(0.5, 1.0)
            if isinstance(result, Answer):
                if result.status not in UNAVAILABLE_STATUSES:
                    return result
                pause_s = max(pause_s, min(result.retry_after_s or 0.0, MAX_RETRY_AFTER_S))
            elif result.is_permanent or time.monotonic() >= retry_until_s:
                break
            if wait_s is None or pause_s >= self.compute_remaining_s():
                break
            time.sleep(pause_s)
            self._state.retry_count += 1
        if isinstance(result, Answer):
            return result
        raise self._build_error("GET", target, result)

    def _build_error(self, method: str, target: str, error: ExchangeError, *, is_change: bool = False) -> FabricError:
        """Convert the failure of a request that got no answer into the matching FabricError."""
        request = f"{method} {self._address.build_url(target)}"
        if isinstance(error, RequestNotSentError):
            return FabricError(self.redact_secrets(f"{self.base}: the service cannot be reached ({error})"))
        if is_change:
            message = (
                f"{request}: the request was sent but not answered ({error}); read the state back to see its outcome"
            )
            return OutcomeUnknown(self.redact_secrets(message))
        return (ProtocolViolation if error.is_invalid_http else FabricError)(self.redact_secrets(f"{request}: {error}"))

    def _send_once(
        self,
        method: str,
        target: str,
        path: str,
        content: bytes = b"",
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_read: bool = False,
    ) -> Answer:
        """Send a request once and return the decoded answer. Raises ExchangeError if there is no complete answer."""
        sent_headers = self._build_headers(method, target, content, content_type, headers or {})
        timeout_s = min(self.connection.request_s, self.compute_remaining_s())
        if timeout_s <= 0:
            raise RequestNotSentError(
                f"the time limit of {self.connection.operation_s:g} s (operation_s) has passed", is_permanent=True
            )
        self._state.request_count += 1
        connection = self._wire  # It is opened before the time of the first request starts.
        max_idle_s = MAX_IDLE_BEFORE_READ_S if is_read else MAX_IDLE_BEFORE_CHANGE_S
        start_s = time.monotonic()
        try:
            raw_answer = connection.send_request(
                method, target, sent_headers, content, start_s + timeout_s, max_idle_s=max_idle_s
            )
        except ExchangeError as error:
            self._record_request(method, target, content, start_s, error=str(error))
            raise
        answer = Answer(
            raw_answer.status,
            merge_headers(raw_answer.headers),
            *parse_json(raw_answer.content),
            path,
            self.redact_secrets,
        )
        outcome = {"status": answer.status, "headers": answer.headers, "body": answer.body, "text": answer.text}
        self._record_request(method, target, content, start_s, **outcome)
        return answer

    def _build_headers(
        self, method: str, target: str, content: bytes, content_type: str | None, headers: Mapping[str, str]
    ) -> list[tuple[bytes, bytes]]:
        """Build the headers of a request, and register the values of authentication headers as secrets."""
        for name, value in (*self.authorization.items(), *headers.items()):
            if name in self.authorization or name.lower() in AUTHENTICATION_HEADERS:
                self._state.redactor.add_header_secrets(value)
        default_headers = {
            "Host": self._address.host_header,
            "User-Agent": "composable-campaign",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **({"Content-Type": content_type} if content_type else {}),
        }
        sources = (default_headers, self.authorization, headers)
        headers_by_name = {name.lower(): (name, value) for source in sources for name, value in source.items()}
        if content or method in ("POST", "PUT", "PATCH"):
            headers_by_name["content-length"] = ("Content-Length", str(len(content)))
        try:
            return _encode_headers(headers_by_name.values())
        except ValueError as error:
            raise ProtocolViolation(
                self.redact_secrets(f"{method} {self._address.build_url(target)}: the request is invalid: {error}")
            ) from None


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Encode headers as bytes.

    Raises ValueError if HTTP does not allow a name or value. The message does not quote the value.
    """
    encoded_headers = []
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("HTTP does not allow the name of a header")
        if (
            not isinstance(value, str)
            or not value.isascii()
            or any(ord(character) < 32 or ord(character) == 127 for character in value)
        ):
            raise ValueError(f"HTTP does not allow the value of the header {name}")
        encoded_headers.append((name.encode("ascii"), value.strip().encode("ascii")))
    return encoded_headers


def _decode_body(body: Any) -> Any:
    """Decode a body of bytes for display. Any other body is returned unchanged."""
    return body.decode(errors="replace") if isinstance(body, bytes) else body


def _encode_body(body: Any, form: Mapping[str, str] | None) -> tuple[bytes, str | None]:
    """Encode a body or form and return (bytes, content type).

    Raises ProtocolViolation if JSON cannot represent the body, which in this case came from the service.
    """
    if form:
        return urlencode(form).encode(), "application/x-www-form-urlencoded"
    if body is None or isinstance(body, bytes):
        return body or b"", None
    if not is_shallow(body):
        raise ProtocolViolation("the body of a request is nested too deeply for JSON")
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode(), "application/json"
    except (TypeError, ValueError) as error:
        raise ProtocolViolation(f"the body of a request cannot be encoded as JSON: {type(error).__name__}") from None


_UNQUOTED_CHARACTERS = "/%:@!$&'()*+,;=~-._"


class ServiceAddress:
    """Address of a control plane, from the `url` of a system file.

    A target is the path and query of a request line.
    """

    def __init__(self, url: str) -> None:
        """Parse the URL of a control plane."""
        parts = urlsplit(url.rstrip("/"))
        self.text = url.rstrip("/")
        self.uses_tls = parts.scheme.lower() == "https"
        self.host = (parts.hostname or "").encode("idna").decode()
        self.port = parts.port or (443 if self.uses_tls else 80)
        host_text = f"[{self.host}]" if ":" in self.host else self.host
        self.host_header = host_text if parts.port is None else f"{host_text}:{parts.port}"
        self._prefix = parts.path
        self._origin = _parse_origin(url)

    def build_url(self, target: str) -> str:
        """Return the complete URL of a target."""
        return self.text.removesuffix(self._prefix) + target

    def build_target(self, path: str, params: Mapping[str, Any] | None = None) -> str:
        """Build the target of a request from a path and query parameters.

        Raises ProtocolViolation if the path is not a string.

        Args:
            path: path below the url. For an address with a host, only the path is used, because services behind a tunnel use
                different host names.
            params: query parameters, added to those of the path.
        """
        if not isinstance(path, str):
            raise ProtocolViolation(f"{self.text}: the service sent an invalid address: {str(path)[:100]}")
        path, _, query = re.sub(r"^(?i:https?)://[^/?#]*", "", path).partition("#")[0].partition("?")
        path = "/" + path.lstrip("/")
        if self._prefix and not f"{path}/".startswith(self._prefix + "/"):
            path = self._prefix + (path if path != "/" else "")
        if params:
            values = {name: _format_parameter(value) for name, value in params.items()}
            encoded_params = urlencode(values, doseq=True, safe="$,:@/*()!;'=", quote_via=quote)
            query = f"{query}&{encoded_params}" if query else encoded_params
        return _quote_target(path, query)

    def resolve_redirect(self, target: str, location: str) -> str | None:
        """Return the target of a redirect, or None if it leads to another host or is invalid."""
        try:
            redirect_url = urljoin(self.build_url(target), location)
            if _parse_origin(redirect_url) != self._origin:
                return None
        except ValueError:
            return None
        parts = urlsplit(redirect_url)
        return _quote_target(parts.path or "/", parts.query)


def _parse_origin(url: str) -> tuple[str, str, int]:
    """Split a URL into (scheme, host, port)."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname or "", parts.port or (443 if scheme == "https" else 80)


def _quote_target(path: str, query: str) -> str:
    """Join path and query to a percent-encoded request target."""
    target = quote(path, safe=_UNQUOTED_CHARACTERS, errors="replace")
    return f"{target}?{quote(query, safe=_UNQUOTED_CHARACTERS + '?', errors='replace')}" if query else target


def _format_parameter(value: Any) -> Any:
    """Convert the value of a query parameter: booleans to `true` or `false`, None to an empty string."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
