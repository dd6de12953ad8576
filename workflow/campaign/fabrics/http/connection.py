"""HTTP/1.1 over one connection, where the whole exchange has one deadline. Bytes in, bytes out; knows nothing of control planes.

httpcore, the transport of httpx, reads and writes the HTTP. The sockets below it are opened and bounded here: timeouts of httpcore
are per read, so a peer that sends one byte at a time would hold it for hours, and it does not say whether any of a request was
sent. httpx itself accepts no other sockets; it would also rewrite addresses, keep cookies and unpack bodies.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpcore

from campaign.fabrics.http.response import Lost, Received, Unsent

CONTENT_MAX = 64 * 1024 * 1024
_FRAMING_MAX = 16
"""Bytes received per byte of content: chunks of one byte would hide the length of what has to be read."""


class HttpConnection:
    """One origin, and the one connection to it that is kept between requests; one request at a time."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, *, content_max: int = CONTENT_MAX) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._content_max = content_max
        self._lock = threading.Lock()
        self._open_connection: _Http11 | None = None
        self._idle_since = 0.0

    def exchange(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes,
        until: float,
        *,
        idle_max_s: float,
    ) -> Received:
        """Send a request, and receive the whole answer before `until` (monotonic clock). Raises Unsent or Lost.

        idle_max_s: a kept connection that was idle for longer is not used. Resolving the host's name is the system's, and has its
        own timeouts.
        """
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise Unsent("another request on this connection did not end in time")
        deadline = _Deadline(until, max(0.0, until - time.monotonic()))
        url = httpcore.URL(scheme="http", host=self._host, port=self._port, target=target)
        request = httpcore.Request(method, url, headers=headers, content=content)
        try:
            connection, response = self._send(request, deadline, idle_max_s)
            body = bytearray()
            for part in response.iter_stream():
                body += part
                if len(body) > self._content_max:
                    raise _too_large(self._content_max)
            response.close()
            received = Received(response.status, tuple(response.headers), bytes(body))
            self._idle_since = time.monotonic()
            if not connection.is_idle() or connection.has_surplus or _promises_body(received):
                self._drop()
            return received
        except httpcore.RemoteProtocolError as error:
            self._drop()
            raise Lost(f"invalid HTTP in the answer: {error}", garbled=True) from error
        except BaseException:
            self._drop()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _send(
        self, request: httpcore.Request, deadline: _Deadline, idle_max_s: float
    ) -> tuple[_Http11, httpcore.Response]:
        """Send on the kept connection or a new one, and receive the head of the answer."""
        kept = self._open_connection
        if kept is not None and time.monotonic() - self._idle_since <= idle_max_s and not kept.has_expired():
            with suppress(Unsent):  # it was closed just now, and nothing was sent
                return kept, kept.exchange(request, deadline)
        self._drop()
        stream = _BoundedStream(_open(self._host, self._port, self._tls, deadline), _FRAMING_MAX * self._content_max)
        opened = self._open_connection = _Http11(request.url.origin, stream)
        return opened, opened.exchange(request, deadline)

    def _drop(self) -> None:
        if self._open_connection is not None:
            self._open_connection.close()
            self._open_connection = None


@dataclass(frozen=True, slots=True)
class _Deadline:
    """until: monotonic clock; allowed_s: time from the beginning of the exchange to its deadline."""

    until: float
    allowed_s: float

    def left_s(self) -> float:
        """Return the seconds that are left. Raises TimeoutError if there are none."""
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no time is left")
        return left_s


class _Http11(httpcore.HTTP11Connection):
    """A connection of httpcore over a bounded stream."""

    def __init__(self, origin: httpcore.Origin, stream: _BoundedStream) -> None:
        super().__init__(origin, stream)
        self._stream = stream

    def exchange(self, request: httpcore.Request, deadline: _Deadline) -> httpcore.Response:
        """Send a request, and receive the head of its answer; the deadline also holds for the content, which is read later."""
        self._stream.begin(deadline)
        return self.handle_request(request)

    @property
    def has_surplus(self) -> bool:
        """Whether more came than the answer, which httpcore would take for the next one."""
        return self._h11_state.trailing_data != (b"", False)


class _BoundedStream(httpcore.NetworkStream):
    """A socket with one deadline for all that is read and written in an exchange."""

    def __init__(self, opened: socket.socket, received_max: int) -> None:
        self._socket = opened
        self._received_max = received_max

    def begin(self, deadline: _Deadline) -> None:
        self._deadline = deadline
        self._sent = self._received = 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = memoryview(buffer)
        while left:
            try:
                self._socket.settimeout(self._deadline.left_s())
                count = self._socket.send(left)
            except TimeoutError as error:
                words = f"the request could not be sent within {self._deadline.allowed_s:.3g} s"
                raise (Lost if self._sent else Unsent)(words) from error
            except OSError as error:
                if not self._sent:
                    raise Unsent(_reason(error, self._deadline)) from error
                # The peer may have answered already, and why: httpcore then reads the answer.
                raise httpcore.WriteError(str(error)) from error
            self._sent += count
            left = left[count:]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._socket.settimeout(self._deadline.left_s())
            data = self._socket.recv(max_bytes)
        except TimeoutError as error:
            raise Lost(f"no complete answer within {self._deadline.allowed_s:.3g} s") from error
        except OSError as error:
            raise Lost(_reason(error, self._deadline)) from error
        self._received += len(data)
        if not self._received:
            raise Lost("the connection was closed before the answer")
        if self._received > self._received_max:
            raise _too_large(self._received_max // _FRAMING_MAX)
        return data

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def get_extra_info(self, info: str) -> bool | None:
        """Return whether there is something to read (`is_readable`): on an idle connection that can only be its end."""
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()) or bool(poll.poll(0))


def _open(host: str, port: int, tls: ssl.SSLContext | None, deadline: _Deadline) -> socket.socket:
    """Connect, and verify the certificate. Raises Unsent."""
    try:
        plain = _connect(host, port, deadline)
    except OSError as error:
        raise Unsent(_reason(error, deadline)) from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return plain
        plain.settimeout(deadline.left_s())
        return tls.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise Unsent(
            f"its certificate cannot be verified: {error.verify_message}; give the certificate of the authority that signed "
            "it as `ca_file` (or set `verify_tls: false`; anybody can then impersonate it)",
            permanent=True,
        ) from error
    except (OSError, ValueError) as error:
        plain.close()
        hint = "; check that this port serves TLS" if isinstance(error, ssl.SSLError) else ""
        raise Unsent(f"TLS handshake failed: {_reason(error, deadline)}{hint}") from error


def _connect(host: str, port: int, deadline: _Deadline) -> socket.socket:
    """Connect to the first of the host's addresses that answers; each has its share of the time."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return socket.create_connection((host, port), deadline.left_s() / len(addresses))


def _reason(error: Exception, deadline: _Deadline) -> str:
    if isinstance(error, TimeoutError):
        return f"no connection within {deadline.allowed_s:.3g} s"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _too_large(content_max: int) -> Lost:
    return Lost(f"the answer is larger than {content_max} bytes", garbled=True, permanent=True)


def _promises_body(received: Received) -> bool:
    """Return whether an answer without content declares some: a service that does so may send it later."""
    declared = {name.lower(): value for name, value in received.headers}
    return not received.content and (
        b"transfer-encoding" in declared or declared.get(b"content-length", b"0").strip(b"0") != b""
    )
