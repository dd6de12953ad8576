"""A TCP server that says exactly the bytes that it is told to, and a client for it."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from campaign.fabrics.http import client as http_client
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.http.options import ConnectionOptions

Talk = Callable[[socket.socket, bytes], None]
"""What a server does with one request (its head and body, as they came); it closes the connection by raising OSError."""


class RawServer:
    """A TCP server that says exactly what it is told, to each request in turn; the last of `talks` again and again."""

    def __init__(self, *talks: Talk, tls: ssl.SSLContext | None = None, greeting: bytes = b"") -> None:
        self.talks = list(talks)
        self.asked: list[bytes] = []
        self.connections = 0
        self._tls, self._greeting = tls, greeting
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with suppress(OSError):
            peer.settimeout(10)
            if self._tls is not None:
                peer = self._tls.wrap_socket(peer, server_side=True)
            peer.sendall(self._greeting)
            while request := _request(peer):
                self.asked.append(request)
                talk = self.talks.pop(0) if len(self.talks) > 1 else self.talks[0]
                talk(peer, request)
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)
        peer.close()


def _request(peer: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        if not (more := peer.recv(65536)):
            return b""
        found += more
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    while len(body) < int(length[1] if length else 0):
        body += peer.recv(65536)
    return head + b"\r\n\r\n" + body


def says(answer: bytes, *, close: bool = False) -> Talk:
    def talk(peer: socket.socket, request: bytes) -> None:
        peer.sendall(answer)
        if close:
            raise OSError

    return talk


def reply(status: int = 200, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def hangs_up(peer: socket.socket, request: bytes) -> None:
    raise OSError


def drips(answer: bytes, pause_s: float = 0.02) -> Talk:
    def talk(peer: socket.socket, request: bytes) -> None:
        for index in range(len(answer)):
            peer.sendall(answer[index : index + 1])
            time.sleep(pause_s)

    return talk


OK = says(reply())


def client(server: RawServer, **options: Any) -> HttpClient:
    return HttpClient(ConnectionOptions(url=options.pop("url", server.url), **({"request_s": 5.0} | options)))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait long before a read is tried again; for all tests of a module that imports it."""
    monkeypatch.setattr(http_client, "RETRY_DELAYS_S", (0.01, 0.01))
