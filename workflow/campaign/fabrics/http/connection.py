"""HTTP/1.1 over one connection, where the whole exchange has one deadline. Bytes in, bytes out; knows nothing of control planes.

Written on h11 and sockets because time-outs of the usual clients are per read: a peer that sends one byte at a time holds them for
hours. It also tells apart what they do not: whether any of a request was sent. On the same hostile answers, httpx 0.28 took what
followed an answer for the next one, and urllib3 2.8 accepted headers without a colon, a negative length and a switch of protocols.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import h11

CONTENT_MAX = 64 * 1024 * 1024
_HEADERS_MAX = 128 * 1024
_READ = 64 * 1024


class Unanswered(Exception):
    """permanent: trying again would be the same. garbled: what came is not HTTP."""

    def __init__(self, message: str, *, garbled: bool = False, permanent: bool = False) -> None:
        super().__init__(message)
        self.garbled = garbled
        self.permanent = permanent


class Unsent(Unanswered):
    """Nothing of the request was sent."""


class Lost(Unanswered):
    """The request, or a part of it, was sent, and no whole answer came back."""


@dataclass(frozen=True, slots=True)
class Received:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes


class HttpConnection:
    """One origin, and the one connection to it that is kept between requests; one request at a time."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, *, content_max: int = CONTENT_MAX) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._content_max = content_max
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)
        self._idle_since = 0.0
        self._allowed_s = 0.0

    def exchange(self, request: h11.Request, content: bytes, until: float, *, idle_max_s: float) -> Received:
        """Send, and receive the whole answer before `until` (monotonic clock); raises Unsent or Lost.

        idle_max_s: a kept connection that was idle for longer is not used. Resolving the host's name is the system's, and has its
        time-outs.
        """
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise Unsent("another request on this connection did not end in time")
        try:
            self._allowed_s = max(0.0, until - time.monotonic())
            whole = self._send(request, content, until, idle_max_s)
            received = self._receive(until)
            self._settle(whole and not _promised(received))
            return received
        except BaseException:
            self._drop()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _usable(self, idle_max_s: float) -> bool:
        """True when the kept connection can be believed to be open still: something to read on it can only be its end."""
        if self._socket is None or time.monotonic() - self._idle_since > idle_max_s:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        return not pending and not poll.poll(0)

    def _open(self, until: float) -> None:
        self._drop()
        try:
            plain = self._connect(until)
        except OSError as error:
            raise Unsent(self._reason(error)) from error
        self._socket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                plain.settimeout(_left(until))
                self._socket = self._tls.wrap_socket(plain, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            self._drop()
            raise Unsent(
                f"its certificate cannot be verified: {error.verify_message}; give the certificate of the authority that signed "
                "it as `ca_file` (or set `verify_tls: false`; anybody can then impersonate it)",
                permanent=True,
            ) from error
        except (OSError, ValueError) as error:
            self._drop()
            hint = "; check that this port serves TLS" if isinstance(error, ssl.SSLError) else ""
            raise Unsent(f"TLS handshake failed: {self._reason(error)}{hint}") from error
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEADERS_MAX)

    def _connect(self, until: float) -> socket.socket:
        """Connect to the first of the host's addresses that answers; each has its share of the time."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"not a host name: {error}") from error
        for number, (family, kind, protocol, _, address) in enumerate(found):
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(_left(until) / (len(found) - number))
                opened.connect(address)
                return opened
            except OSError:
                opened.close()
                if number == len(found) - 1:
                    raise
            except BaseException:
                opened.close()
                raise
        raise OSError("the name has no address")

    def _drop(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None

    def _send(self, request: h11.Request, content: bytes, until: float, idle_max_s: float) -> bool:
        """Send it on the kept connection or a new one; False when the peer stopped listening before the end."""
        if self._usable(idle_max_s):
            try:
                return self._write(self._encoded(request, content), until)
            except Unsent:
                pass  # it was closed just now, and nothing was sent
        self._open(until)
        return self._write(self._encoded(request, content), until)

    def _encoded(self, request: h11.Request, content: bytes) -> bytes:
        events: list[h11.Event] = [request, *([h11.Data(data=content)] if content else []), h11.EndOfMessage()]
        return b"".join(self._http.send(event) or b"" for event in events)

    def _write(self, content: bytes, until: float) -> bool:
        left = memoryview(content)
        while left:
            sent_any = len(left) < len(content)
            try:
                self._opened.settimeout(_left(until))
                left = left[self._opened.send(left) :]
            except TimeoutError as error:
                raise (Lost if sent_any else Unsent)(
                    f"the request could not be sent within {self._allowed_s:.3g} s"
                ) from error
            except OSError as error:
                if not sent_any:
                    raise Unsent(self._reason(error)) from error
                return False  # it may have answered already, and why
        return True

    def _receive(self, until: float) -> Received:
        head: h11.Response | None = None
        content = bytearray()
        total = 0
        try:
            while True:
                left_s = _left(until)
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._opened.settimeout(left_s)
                    data = self._opened.recv(_READ)
                    total += len(data)
                    if not data and head is None:
                        raise Lost(
                            f"the connection was closed {'in the middle of' if total else 'before'} the answer",
                            garbled=total > 0,
                        )
                    self._http.receive_data(data)
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    content += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                elif not isinstance(event, h11.InformationalResponse):
                    raise Lost("the connection was closed before the answer")
                # Framing counts too: chunks of one byte would hide the length of what has to be read.
                if max(len(content), total // 16) > self._content_max:
                    raise Lost(f"the answer is larger than {self._content_max} bytes", garbled=True, permanent=True)
        except TimeoutError as error:
            raise Lost(f"no complete answer within {self._allowed_s:.3g} s") from error
        except OSError as error:
            raise Lost(self._reason(error)) from error
        except h11.RemoteProtocolError as error:
            raise Lost(f"invalid HTTP in the answer: {error}", garbled=True) from error
        assert head is not None
        return Received(head.status_code, tuple(head.headers), bytes(content))

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no connection within {self._allowed_s:.3g} s"
        if isinstance(error, ssl.SSLError):
            return str(error.reason or error)
        return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")

    @property
    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise OSError("closed meanwhile")
        return self._socket

    def _settle(self, whole: bool) -> None:
        """Keep the connection when both sides are done: bytes beyond the answer would pass for the next one, also those to come."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not whole or not done or self._http.trailing_data != (b"", False):
            self._drop()
            return
        self._http.start_next_cycle()
        self._idle_since = time.monotonic()


def _left(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no time is left")
    return left_s


def _promised(received: Received) -> bool:
    """True for an answer that tells of a body where there can be none: a service that does so may well send it."""
    told = dict(received.headers)
    return not received.content and (
        b"transfer-encoding" in told or told.get(b"content-length", b"0").strip(b"0") != b""
    )


def wire_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as bytes; ValueError for a name or value that HTTP cannot carry (its message does not quote it)."""
    found = []
    for name, value in headers:
        if not isinstance(value, str) or not value.isascii() or any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise ValueError(f"the header {name} has a value that HTTP does not allow")
        found.append((name.encode("ascii"), value.strip().encode("ascii")))
    return found
