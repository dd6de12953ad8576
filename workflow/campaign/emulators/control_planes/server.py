"""HTTP server of an emulated control plane, with TLS, a log of requests, and injected faults."""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl, urlsplit

from campaign.common.errors import require_extra
from campaign.emulators.control_planes.hardware import Rack

_HOST = "127.0.0.1"
_ERROR_PAGE = "<html><body><h1>Internal Server Error</h1></body></html>"
_MAX_BODY_BYTES = 8 * 1024 * 1024
HOSTS_PATH = "/_hosts/"
"""Path of the devices that hosts list, for host agents of kind `http`: GET `/_hosts/NAME/devices`."""


@dataclass(frozen=True)
class HttpRequest:
    """One HTTP request.

    Attributes:
        method: HTTP method.
        path: path of the URL.
        query: last value of each query parameter.
        headers: headers by name.
        body: parsed JSON, or None if the body is not JSON.
        text: body as received.
        time_s: Unix time of the request (seconds).
        scheme: `http` or `https`.
        part: address of the emulator that received the request (`WireSettings.parts`).
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    text: str
    time_s: float = field(default_factory=time.time)
    scheme: str = "http"
    part: str = ""

    def find_header(self, name: str) -> str | None:
        """Return the value of a header (case-insensitive), or None if it is missing."""
        return next((text for key, text in self.headers.items() if key.lower() == name.lower()), None)

    @property
    def basic_credentials(self) -> tuple[str, str] | None:
        """User and password of Basic authentication, or None if the request has none."""
        kind, _, word = (self.find_header("Authorization") or "").partition(" ")
        try:
            user, colon, password = b64decode(word).decode().partition(":")
        except ValueError:
            return None
        return (user, password) if kind.lower() == "basic" and colon else None


@dataclass(frozen=True)
class Reply:
    """Answer to a request.

    Attributes:
        status: HTTP status.
        body: dict or list to send as JSON, text to send unchanged (with the content type in `headers`), or None for no body.
        headers: headers by name.
        raw: text to send instead of an HTTP answer, before the connection is closed.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str = ""


@dataclass(frozen=True)
class WireSettings:
    """Settings for serving an emulator.

    Attributes:
        parts: names of the parts that are served at separate addresses.
        tls: serve with TLS.
        concurrent: the emulator answers several requests at once and does its own locking, for example because it is slow.
    """

    parts: tuple[str, ...] = ("",)
    tls: bool = True
    concurrent: bool = False


class Emulator(Protocol):
    """One emulated protocol over a rack, called by one thread at a time.

    An emulator with special needs also has an attribute `wire: WireSettings`.
    """

    rack: Rack

    def answer(self, request: HttpRequest) -> Reply | None:
        """Return the answer of the real service, or None to close the connection.

        Never raises an error, even for invalid requests.
        """


class ControlPlaneServer:
    """Server of an emulated control plane, running until it is closed.

    Attributes:
        log: all requests in order.
        url: address of the emulator.
        ca_file: certificate that a client needs for TLS, or None.
        urls: address of each part.
    """

    def __init__(self, emulator: Emulator, directory: Path | None = None, *, port: int = 0, tls: bool = True) -> None:
        """Start the server.

        Args:
            emulator: emulated protocol.
            directory: directory of the certificate of the server's authority (`ca.pem`); required for TLS.
            port: port of the first part; the other parts use the following ports. 0: any free ports.
            tls: serve with TLS, if the emulator supports it.
        """
        self.emulator = emulator  # A test may replace it.
        self.original_emulator = emulator
        self.wire: WireSettings = getattr(emulator, "wire", WireSettings())
        self.faults = FaultQueue()
        self.log: list[HttpRequest] = []
        self._lock = threading.Lock()
        self._last_replies: dict[tuple[str, str], Reply] = {}
        ports = (port + number if port else 0 for number in range(len(self.wire.parts)))
        self._http = {
            part: _TlsHttpServer((_HOST, port_number), _make_handler(self, part))
            for part, port_number in zip(self.wire.parts, ports, strict=True)
        }
        self.ca_file: Path | None = None
        if tls and self.wire.tls:
            if directory is None:
                raise ValueError("TLS requires a directory for the certificate")
            self.ca_file = self._enable_tls(directory)
        scheme = "https" if self.ca_file else "http"
        self.urls = {part: f"{scheme}://{_HOST}:{http.server_address[1]}" for part, http in self._http.items()}
        self.url = next(iter(self.urls.values()))
        self._threads = [
            threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            for http in self._http.values()
        ]
        for thread in self._threads:
            thread.start()

    def _enable_tls(self, directory: Path) -> Path:
        """Create a certificate for the server, and return the path of its authority's certificate."""
        with require_extra("emulate"):
            import trustme

        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(_HOST, "localhost").configure_cert(context)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(path))
        # The handler thread does the handshake, so that a client that never completes it cannot block other clients.
        for http in self._http.values():
            http.tls = context
        return path

    def close(self) -> None:
        """Stop the server and its threads."""
        for http in self._http.values():
            http.shutdown()
            http.server_close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> ControlPlaneServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def list_changes(self) -> list[HttpRequest]:
        """Return the received requests that change state."""
        return [request for request in self.log if request.method not in ("GET", "HEAD", "OPTIONS")]

    def respond(self, request: HttpRequest) -> tuple[Reply | None, WireFault | None]:
        """Return the answer to a request, and the fault to apply while it is sent.

        The answer is None if the connection ends without one.
        """
        self.log.append(request)
        if request.path.startswith(HOSTS_PATH):
            with self.emulator.rack.lock:
                return self._answer_host_inventory(request), None
        with ExitStack() as stack:
            if not self.wire.concurrent:
                stack.enter_context(self._lock)
                stack.enter_context(self.emulator.rack.lock)
            fault = self.faults.take_fault(request.method, request.path)
            fault_reply = Reply(fault.status, fault.body) if fault else None
            match fault and fault.kind:
                case "drop_before":
                    return None, None
                case "status":
                    return fault_reply, None
                case "lie" if fault:
                    return Reply(fault.status if fault.status != 500 else 200, fault.body or None), None
                case "html":
                    return Reply(500, _ERROR_PAGE, {"Content-Type": "text/html"}), None
                case "stale" if (last_reply := self._last_replies.get((request.part, request.path))) is not None:
                    return last_reply, None
            reply = self.emulator.answer(request)
            if request.method == "GET" and reply is not None:
                self._last_replies[request.part, request.path] = reply
            match fault and fault.kind:
                case "drop_after":
                    return None, None
                case "status_after":
                    return fault_reply, None
            return reply, fault

    def _answer_host_inventory(self, request: HttpRequest) -> Reply:
        """Answer a request of a host agent of kind `http` with the devices that the host lists."""
        name, _, subject = request.path.removeprefix(HOSTS_PATH).partition("/")
        rack = self.emulator.rack
        if name not in rack.hosts or (request.method, subject) != ("GET", "devices"):
            return Reply(
                404, {"error": f"cannot answer {request.method} {request.path}; the hosts are {', '.join(rack.hosts)}"}
            )
        return Reply(200, rack.list_visible_devices(name))


class _TlsHttpServer(ThreadingHTTPServer):
    """HTTP server that serves each connection in a thread, with TLS if a context is set."""

    daemon_threads = True
    request_queue_size = 64
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Complete the TLS handshake, then serve the connection."""
        if self.tls is not None:
            request.settimeout(30)
            try:
                request = self.tls.wrap_socket(request, server_side=True)
                request.settimeout(None)
            except (OSError, ssl.SSLError):
                return
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


def _make_handler(server: ControlPlaneServer, part: str) -> type[BaseHTTPRequestHandler]:
    """Build the request handler class for one part of the server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "campaign-emulator"
        sys_version = ""
        # Headers and body are two writes; with Nagle's algorithm the second waits 40 ms for the client's delayed acknowledgement.
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Do nothing, because the server keeps its own log."""

        def _serve(self) -> None:
            """Read a request, and send the answer of the emulator."""
            length = min(int(self.headers.get("Content-Length") or 0), _MAX_BODY_BYTES)
            text = self.rfile.read(length).decode(errors="replace")
            split = urlsplit(self.path)
            try:
                body = json.loads(text) if text else None
            except ValueError:
                body = None
            query = dict(parse_qsl(split.query, keep_blank_values=True))
            scheme = "https" if server.ca_file else "http"
            request = HttpRequest(
                self.command, split.path, query, dict(self.headers.items()), body, text, scheme=scheme, part=part
            )
            reply, fault = server.respond(request)
            if reply is None or reply.raw:
                self.close_connection = True
                self.wfile.write((reply.raw if reply else "").encode())
                return
            self._send(reply, fault)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

        def _send(self, reply: Reply, fault: WireFault | None) -> None:
            """Send a reply, applying the fault if there is one."""
            if fault is not None and fault.kind == "delay":
                time.sleep(fault.delay_s)
            body = reply.body
            content = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(reply.status)
            kind = "text/plain" if isinstance(body, str) else "application/json"
            headers = {"Content-Type": kind, **reply.headers} if content else dict(reply.headers)
            for name, value in headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(content)))
            if self.close_connection:
                # A client may forget that it requested this, and would reuse the connection.
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command == "HEAD" or reply.status == 204:
                return
            with suppress(OSError):
                if fault is not None and fault.kind == "garbage":
                    self.wfile.write(content[: len(content) // 2])
                    self.close_connection = True
                elif fault is not None and fault.kind == "slow":
                    for index in range(len(content)):
                        self.wfile.write(content[index : index + 1])
                        self.wfile.flush()
                        time.sleep(fault.delay_s)
                else:
                    self.wfile.write(content)

    return Handler


HttpFaultKind = Literal[
    "drop_before",  # the request has no effect, and the connection ends
    "drop_after",  # the request takes effect, and the connection ends without an answer
    "status",  # the request has no effect; the answer has `status` and `body`
    "status_after",  # the request takes effect; the answer has `status` and `body`
    "lie",  # the request has no effect; the answer reports success (`body` or empty, with `status` or 200)
    "garbage",  # the request takes effect; the body is cut in half, with the length of the whole body
    "html",  # the request has no effect; the answer is an HTML page with status 500
    "slow",  # the request takes effect; the answer is sent byte by byte, every `delay_s`
    "delay",  # the request takes effect; the answer comes after `delay_s`
    "stale",  # reads only: the last answer of this address is repeated, without later changes
]


@dataclass
class WireFault:
    """One kind of fault for requests whose method and path match shell patterns.

    Attributes:
        kind: kind of the fault.
        method: pattern of the method.
        path: pattern of the path.
        times: number of occurrences; -1 for always.
        after: number of matching requests that succeed first.
        status: HTTP status of the answer.
        body: body of the answer.
        delay_s: delay in seconds.
    """

    kind: HttpFaultKind
    method: str = "*"
    path: str = "*"
    times: int = 1
    after: int = 0
    status: int = 500
    body: str = ""
    delay_s: float = 1.0


class FaultQueue:
    """Faults of one server. Each request uses up at most one occurrence."""

    def __init__(self) -> None:
        self._faults: list[WireFault] = []
        self._lock = threading.Lock()

    def add_fault(self, fault: WireFault) -> None:
        """Add a fault."""
        self._faults.append(fault)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def take_fault(self, method: str, path: str) -> WireFault | None:
        """Return the fault that applies to a request and count it as used, or return None if no fault applies."""
        with self._lock:
            for fault in list(self._faults):
                if fault.times == 0 or not (fnmatchcase(method, fault.method) and fnmatchcase(path, fault.path)):
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault
            return None
