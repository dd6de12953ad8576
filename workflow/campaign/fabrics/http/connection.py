"""HTTP/1.1 over one connection, with one deadline for the whole exchange. Handles bytes only, independently of control planes.

httpcore, the transport of httpx, reads and writes the HTTP. The sockets below it are opened and bounded here, for two reasons.
Timeouts of httpcore are per read, so a peer that sends one byte at a time would block it for hours. And httpcore does not report
whether any part of a request was sent. httpx itself accepts no other sockets; it would also rewrite addresses, keep cookies and
unpack bodies.
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
"""Maximum number of bytes received per byte of content. Chunks of one byte would otherwise hide how much has to be read."""


class HttpConnection:
    """Connection to one origin that is kept open between requests. It carries one request at a time."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, *, content_max: int = CONTENT_MAX) -> None:
        """Prepare a connection, which is opened by the first request.

        Args:
            host: host name or address.
            port: TCP port.
            tls: TLS context that verifies the certificate, or None for plain HTTP.
            max_content_bytes: maximum size of the content of an answer.
        """
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
        """Send an HTTP request and receive the whole answer before a deadline.

        Resolving the host name is left to the operating system, which has its own timeouts. Raises RequestNotSentError or
        AnswerLostError.

        Args:
            method: HTTP method.
            target: path and query.
            headers: names and values.
            content: body of the request.
            deadline_s: deadline on the monotonic clock.
            max_idle_s: longest idle time after which a kept connection is still used.
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
        """Close the kept connection, if there is one."""
        with self._lock:
            self._drop()

    def _send(
        self, request: httpcore.Request, deadline: _Deadline, idle_max_s: float
    ) -> tuple[_Http11, httpcore.Response]:
        """Send an HTTP request over the kept connection or a new one, and receive status and headers of the answer."""
        kept = self._open_connection
        if kept is not None and time.monotonic() - self._idle_since <= idle_max_s and not kept.has_expired():
            with suppress(Unsent):  # the peer has just closed it, and nothing was sent
                return kept, kept.exchange(request, deadline)
        self._drop()
        stream = _BoundedStream(_open(self._host, self._port, self._tls, deadline), _FRAMING_MAX * self._content_max)
        opened = self._open_connection = _Http11(request.url.origin, stream)
        return opened, opened.exchange(request, deadline)

    def _drop(self) -> None:
        """Close the kept connection, if there is one."""
        if self._open_connection is not None:
            self._open_connection.close()
            self._open_connection = None


@dataclass(frozen=True, slots=True)
class _Deadline:
    """Deadline of one exchange.

    monotonic_s: the deadline on the monotonic clock. allowed_s: time from the start of the exchange to its deadline.
    """

    until: float
    allowed_s: float

    def left_s(self) -> float:
        """Return the seconds that remain. Raises TimeoutError if there are none."""
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no time is left")
        return left_s


class _Http11(httpcore.HTTP11Connection):
    """HTTP/1.1 connection of httpcore over a stream with a deadline."""

    def __init__(self, origin: httpcore.Origin, stream: _BoundedStream) -> None:
        """Create an HTTP/1.1 connection to an origin over an open stream."""
        super().__init__(origin, stream)
        self._stream = stream

    def exchange(self, request: httpcore.Request, deadline: _Deadline) -> httpcore.Response:
        """Send an HTTP request and receive status and headers of the answer.

        The deadline also applies to the content, which is read later.
        """
        self._stream.begin(deadline)
        return self.handle_request(request)

    @property
    def has_surplus(self) -> bool:
        """True if more data arrived than the answer. httpcore would take it for the next answer."""
        return self._h11_state.trailing_data != (b"", False)


class _BoundedStream(httpcore.NetworkStream):
    """Socket with one deadline and one size limit for everything read and written in an exchange."""

    def __init__(self, opened: socket.socket, received_max: int) -> None:
        """Wrap a connected socket. No more than `max_received_bytes` are accepted per exchange."""
        self._socket = opened
        self._received_max = received_max

    def begin(self, deadline: _Deadline) -> None:
        """Set the deadline of the next exchange and reset the byte counts."""
        self._deadline = deadline
        self._sent = self._received = 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the whole buffer before the deadline of the exchange.

        Raises RequestNotSentError if nothing of the request was sent, AnswerLostError if time ran out after a part of it.
        """
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
                # The peer may have answered already, with the reason. httpcore then reads the answer.
                raise httpcore.WriteError(str(error)) from error
            self._sent += count
            left = left[count:]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Receive at most `max_bytes` before the deadline of the exchange.

        Raises AnswerLostError if time runs out, the connection is closed before an answer, or the answer is too large.
        """
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
        """Close the socket."""
        with suppress(OSError):
            self._socket.close()

    def get_extra_info(self, info: str) -> bool | None:
        """Return True for `is_readable` if data is waiting, None for any other `info`.

        On an idle connection, the only thing that can be read is its end.
        """
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()) or bool(poll.poll(0))


def _open(host: str, port: int, tls: ssl.SSLContext | None, deadline: _Deadline) -> socket.socket:
    """Connect to a host and verify its certificate.

    Raises RequestNotSentError, because nothing of a request was sent.
    """
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
    """Connect to the first address of a host that answers. The remaining time is divided equally among the addresses."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return socket.create_connection((host, port), deadline.left_s() / len(addresses))


def _reason(error: Exception, deadline: _Deadline) -> str:
    """Describe a connection error in a few words, for messages."""
    if isinstance(error, TimeoutError):
        return f"no connection within {deadline.allowed_s:.3g} s"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _too_large(content_max: int) -> Lost:
    """Build the error for an answer that exceeds the maximum size."""
    return Lost(f"the answer is larger than {content_max} bytes", garbled=True, permanent=True)


def _promises_body(received: Received) -> bool:
    """Return True if the headers of an answer without content announce a body.

    A service that does so may send the body later.
    """
    declared = {name.lower(): value for name, value in received.headers}
    return not received.content and (
        b"transfer-encoding" in declared or declared.get(b"content-length", b"0").strip(b"0") != b""
    )
