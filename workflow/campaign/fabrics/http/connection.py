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

from campaign.fabrics.http.response import AnswerLostError, RawAnswer, RequestNotSentError

MAX_CONTENT_BYTES = 64 * 1024 * 1024
_MAX_FRAMING_RATIO = 16
"""Maximum number of bytes received per byte of content. Chunks of one byte would otherwise hide how much has to be read."""


class HttpConnection:
    """Connection to one origin that is kept open between requests. It carries one request at a time."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, max_content_bytes: int = MAX_CONTENT_BYTES
    ) -> None:
        """Prepare a connection, which is opened by the first request.

        Args:
            host: host name or address.
            port: TCP port.
            tls: TLS context that verifies the certificate, or None for plain HTTP.
            max_content_bytes: maximum size of the content of an answer.
        """
        self._host, self._port, self._tls = host, port, tls
        self._max_content_bytes = max_content_bytes
        self._lock = threading.Lock()
        self._kept_connection: _Http11Connection | None = None
        self._idle_since_s = 0.0

    def send_request(
        self,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes,
        deadline_s: float,
        *,
        max_idle_s: float,
    ) -> RawAnswer:
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
        if not self._lock.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise RequestNotSentError("another request on this connection did not end in time")
        deadline = _Deadline(deadline_s, max(0.0, deadline_s - time.monotonic()))
        url = httpcore.URL(scheme="http", host=self._host, port=self._port, target=target)
        request = httpcore.Request(method, url, headers=headers, content=content)
        try:
            connection, response = self._receive_head(request, deadline, max_idle_s)
            body = bytearray()
            for chunk in response.iter_stream():
                body += chunk
                if len(body) > self._max_content_bytes:
                    raise _build_size_error(self._max_content_bytes)
            response.close()
            answer = RawAnswer(response.status, tuple(response.headers), bytes(body))
            self._idle_since_s = time.monotonic()
            if not connection.is_idle() or connection.has_trailing_data or _announces_later_body(answer):
                self._close_kept_connection()
            return answer
        except httpcore.RemoteProtocolError as error:
            self._close_kept_connection()
            raise AnswerLostError(f"the answer is not valid HTTP: {error}", is_invalid_http=True) from error
        except BaseException:
            self._close_kept_connection()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the kept connection, if there is one."""
        with self._lock:
            self._close_kept_connection()

    def _receive_head(
        self, request: httpcore.Request, deadline: _Deadline, max_idle_s: float
    ) -> tuple[_Http11Connection, httpcore.Response]:
        """Send an HTTP request over the kept connection or a new one, and receive the status and headers of the answer."""
        idle_connection = self._kept_connection
        if (
            idle_connection is not None
            and time.monotonic() - self._idle_since_s <= max_idle_s
            and not idle_connection.has_expired()
        ):
            with suppress(RequestNotSentError):  # The peer has just closed the connection, so nothing was sent.
                return idle_connection, idle_connection.receive_head(request, deadline)
        self._close_kept_connection()
        stream = _BoundedStream(
            _open_socket(self._host, self._port, self._tls, deadline), _MAX_FRAMING_RATIO * self._max_content_bytes
        )
        new_connection = self._kept_connection = _Http11Connection(request.url.origin, stream)
        return new_connection, new_connection.receive_head(request, deadline)

    def _close_kept_connection(self) -> None:
        """Close the kept connection, if there is one."""
        if self._kept_connection is not None:
            self._kept_connection.close()
            self._kept_connection = None


@dataclass(frozen=True, slots=True)
class _Deadline:
    """Deadline of one exchange.

    monotonic_s: the deadline on the monotonic clock. allowed_s: time from the start of the exchange to its deadline.
    """

    monotonic_s: float
    allowed_s: float

    def compute_remaining_s(self) -> float:
        """Return the remaining seconds. Raises TimeoutError if none remain."""
        seconds = self.monotonic_s - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the time limit has passed")
        return seconds


class _Http11Connection(httpcore.HTTP11Connection):
    """HTTP/1.1 connection of httpcore over a stream with a deadline."""

    def __init__(self, origin: httpcore.Origin, stream: _BoundedStream) -> None:
        """Create an HTTP/1.1 connection to an origin over an open stream."""
        super().__init__(origin, stream)
        self._stream = stream

    def receive_head(self, request: httpcore.Request, deadline: _Deadline) -> httpcore.Response:
        """Send an HTTP request and receive the status and headers of the answer.

        The deadline also applies to the content, which is read later.
        """
        self._stream.start_exchange(deadline)
        return self.handle_request(request)

    @property
    def has_trailing_data(self) -> bool:
        """True if data arrived after the end of the answer, which httpcore would take for the next answer."""
        return self._h11_state.trailing_data != (b"", False)


class _BoundedStream(httpcore.NetworkStream):
    """Socket with one deadline and one size limit for everything read and written in an exchange."""

    def __init__(self, connected_socket: socket.socket, max_received_bytes: int) -> None:
        """Wrap a connected socket. No more than `max_received_bytes` are accepted per exchange."""
        self._socket = connected_socket
        self._max_received_bytes = max_received_bytes

    def start_exchange(self, deadline: _Deadline) -> None:
        """Set the deadline of the next exchange and reset the byte counts."""
        self._deadline = deadline
        self._sent_bytes = self._received_bytes = 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the whole buffer before the deadline of the exchange.

        Raises RequestNotSentError if no part of the request was sent, and AnswerLostError if time ran out after a part was
        sent.
        """
        remaining = memoryview(buffer)
        while remaining:
            try:
                self._socket.settimeout(self._deadline.compute_remaining_s())
                count = self._socket.send(remaining)
            except TimeoutError as error:
                message = f"the request could not be sent within {self._deadline.allowed_s:.3g} s"
                raise (AnswerLostError if self._sent_bytes else RequestNotSentError)(message) from error
            except OSError as error:
                if not self._sent_bytes:
                    raise RequestNotSentError(_describe_error(error, self._deadline)) from error
                # The peer may have answered already, with the reason. httpcore then reads the answer.
                raise httpcore.WriteError(str(error)) from error
            self._sent_bytes += count
            remaining = remaining[count:]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Receive at most `max_bytes` before the deadline of the exchange.

        Raises AnswerLostError if time runs out, the connection is closed before an answer, or the answer is too large.
        """
        try:
            self._socket.settimeout(self._deadline.compute_remaining_s())
            data = self._socket.recv(max_bytes)
        except TimeoutError as error:
            raise AnswerLostError(f"no complete answer arrived within {self._deadline.allowed_s:.3g} s") from error
        except OSError as error:
            raise AnswerLostError(_describe_error(error, self._deadline)) from error
        self._received_bytes += len(data)
        if not self._received_bytes:
            raise AnswerLostError("the connection was closed before an answer arrived")
        if self._received_bytes > self._max_received_bytes:
            raise _build_size_error(self._max_received_bytes // _MAX_FRAMING_RATIO)
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


def _open_socket(host: str, port: int, tls: ssl.SSLContext | None, deadline: _Deadline) -> socket.socket:
    """Connect to a host and verify its certificate.

    Raises RequestNotSentError on failure, because no part of a request has been sent yet.
    """
    try:
        tcp_socket = _connect_tcp(host, port, deadline)
    except OSError as error:
        raise RequestNotSentError(_describe_error(error, deadline)) from error
    try:
        tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return tcp_socket
        tcp_socket.settimeout(deadline.compute_remaining_s())
        return tls.wrap_socket(tcp_socket, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        tcp_socket.close()
        raise RequestNotSentError(
            f"the certificate cannot be verified: {error.verify_message}; set `ca_file` to the certificate of the authority "
            "that signed it (with `verify_tls: false`, other machines can impersonate the service)",
            is_permanent=True,
        ) from error
    except (OSError, ValueError) as error:
        tcp_socket.close()
        hint = "; check that this port serves TLS" if isinstance(error, ssl.SSLError) else ""
        raise RequestNotSentError(f"the TLS handshake failed: {_describe_error(error, deadline)}{hint}") from error


def _connect_tcp(host: str, port: int, deadline: _Deadline) -> socket.socket:
    """Connect to the first address of a host that answers. The remaining time is divided equally among the addresses."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"the host name is invalid: {error}") from error
    return socket.create_connection((host, port), deadline.compute_remaining_s() / len(addresses))


def _describe_error(error: Exception, deadline: _Deadline) -> str:
    """Describe a connection error in a few words, for messages."""
    if isinstance(error, TimeoutError):
        return f"no connection was established within {deadline.allowed_s:.3g} s"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _build_size_error(max_content_bytes: int) -> AnswerLostError:
    """Build the error for an answer that exceeds the maximum size."""
    return AnswerLostError(
        f"the answer is larger than {max_content_bytes} bytes", is_invalid_http=True, is_permanent=True
    )


def _announces_later_body(answer: RawAnswer) -> bool:
    """Return True if the headers of an answer without content announce a body.

    A service that does so may send the body later.
    """
    headers = {name.lower(): value for name, value in answer.headers}
    return not answer.content and (
        b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""
    )
