"""An emulated control plane as a real HTTP server, with TLS, a log of what it was asked, and faults on the wire."""

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

from campaign.common.errors import needs_extra
from campaign.emulators.control_planes.hardware import Rack

_HOST = "127.0.0.1"
_PAGE = "<html><body><h1>Internal Server Error</h1></body></html>"
_BODY_MAX = 8 * 1024 * 1024
HOSTS_PATH = "/_hosts/"
"""What hosts enumerate, for host agents of kind `http`: GET `/_hosts/NAME/devices`."""


@dataclass(frozen=True)
class HttpRequest:
    """One request. body: parsed JSON, None where there is none; text: as it came; query: the last value of each name;
    scheme: how it came; part: at which of the emulator's addresses (`Wire.parts`)."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    text: str
    time_s: float = field(default_factory=time.time)
    scheme: str = "http"
    part: str = ""

    def header(self, name: str) -> str | None:
        """Whatever the case of its name."""
        return next((text for key, text in self.headers.items() if key.lower() == name.lower()), None)

    @property
    def basic(self) -> tuple[str, str] | None:
        """User and password of a Basic authentication; None where there is none."""
        kind, _, word = (self.header("Authorization") or "").partition(" ")
        try:
            user, colon, password = b64decode(word).decode().partition(":")
        except ValueError:
            return None
        return (user, password) if kind.lower() == "basic" and colon else None


@dataclass(frozen=True)
class Reply:
    """body: dict or list is sent as JSON, str as it is (with `headers`' content type), None as nothing. raw: sent in place of all
    of this, no HTTP around it, before the connection ends."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str = ""


@dataclass(frozen=True)
class Wire:
    """How an emulator is served. parts: names of what has an address of its own. concurrent: it answers several requests at
    once, and locks what it must itself, such as one that takes its time."""

    parts: tuple[str, ...] = ("",)
    tls: bool = True
    concurrent: bool = False


class Emulator(Protocol):
    """One emulated protocol over a rack; called by one thread at a time. `wire: Wire` where it is not served as most are."""

    rack: Rack

    def answer(self, asked: HttpRequest) -> Reply | None:
        """Whatever the real service would say (None: it ends the connection); never raises for anything that a client can send."""


class ControlPlaneServer:
    """An emulated control plane, served until closed.

    log: every request in its order; url, ca_file: what a client needs; urls: by part.
    """

    def __init__(self, emulator: Emulator, directory: Path | None = None, *, port: int = 0, tls: bool = True) -> None:
        """directory: where the certificate of the server's own authority is written (`ca.pem`); needed for TLS. port: the first
        part's; the others have those after it."""
        self.emulator = emulator  # may be replaced by one that answers in its place
        self.opened = emulator
        self.wire: Wire = getattr(emulator, "wire", Wire())
        self.faults = Faults()
        self.log: list[HttpRequest] = []
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], Reply] = {}
        ports = (port + number if port else 0 for number in range(len(self.wire.parts)))
        self._http = {
            part: _Http((_HOST, at), _handler(self, part)) for part, at in zip(self.wire.parts, ports, strict=True)
        }
        self.ca_file: Path | None = None
        if tls and self.wire.tls:
            if directory is None:
                raise ValueError("a directory for the certificate is needed")
            self.ca_file = self._secure(directory)
        scheme = "https" if self.ca_file else "http"
        self.urls = {part: f"{scheme}://{_HOST}:{http.server_address[1]}" for part, http in self._http.items()}
        self.url = next(iter(self.urls.values()))
        self._threads = [
            threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            for http in self._http.values()
        ]
        for thread in self._threads:
            thread.start()

    def _secure(self, directory: Path) -> Path:
        with needs_extra("emulate"):
            import trustme

        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(_HOST, "localhost").configure_cert(context)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(path))
        # The handshake is the handler thread's: a client that does not shake hands must not stop the others.
        for http in self._http.values():
            http.tls = context
        return path

    def close(self) -> None:
        for http in self._http.values():
            http.shutdown()
            http.server_close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> ControlPlaneServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def changing(self) -> list[HttpRequest]:
        """The requests that were not reads."""
        return [asked for asked in self.log if asked.method not in ("GET", "HEAD", "OPTIONS")]

    def respond(self, asked: HttpRequest) -> tuple[Reply | None, WireFault | None]:
        """The answer, None for a connection that just ends, and the fault that is still to be committed while it is sent."""
        self.log.append(asked)
        if asked.path.startswith(HOSTS_PATH):
            with self.emulator.rack.lock:
                return self._host(asked), None
        with ExitStack() as stack:
            if not self.wire.concurrent:
                stack.enter_context(self._lock)
                stack.enter_context(self.emulator.rack.lock)
            fault = self.faults.strike(asked.method, asked.path)
            told = Reply(fault.status, fault.body) if fault else None
            match fault and fault.kind:
                case "drop_before":
                    return None, None
                case "status":
                    return told, None
                case "lie" if fault:
                    return Reply(fault.status if fault.status != 500 else 200, fault.body or None), None
                case "html":
                    return Reply(500, _PAGE, {"Content-Type": "text/html"}), None
                case "stale" if (old := self._last.get((asked.part, asked.path))) is not None:
                    return old, None
            reply = self.emulator.answer(asked)
            if asked.method == "GET" and reply is not None:
                self._last[asked.part, asked.path] = reply
            match fault and fault.kind:
                case "drop_after":
                    return None, None
                case "status_after":
                    return told, None
            return reply, fault

    def _host(self, asked: HttpRequest) -> Reply:
        name, _, what = asked.path.removeprefix(HOSTS_PATH).partition("/")
        rack = self.emulator.rack
        if name not in rack.hosts or (asked.method, what) != ("GET", "devices"):
            return Reply(404, {"error": f"no {asked.method} {asked.path}; hosts are {', '.join(rack.hosts)}"})
        return Reply(200, rack.enumerated(name))


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is not None:
            request.settimeout(30)
            try:
                request = self.tls.wrap_socket(request, server_side=True)
                request.settimeout(None)
            except (OSError, ssl.SSLError):
                return
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nothing to report."""


def _handler(server: ControlPlaneServer, part: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "campaign-emulator"
        sys_version = ""
        # Headers and body are two writes; with Nagle's algorithm the second waits 40 ms for the client's delayed acknowledgement.
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """The server keeps a log of its own."""

        def _serve(self) -> None:
            length = min(int(self.headers.get("Content-Length") or 0), _BODY_MAX)
            text = self.rfile.read(length).decode(errors="replace")
            split = urlsplit(self.path)
            try:
                body = json.loads(text) if text else None
            except ValueError:
                body = None
            query = dict(parse_qsl(split.query, keep_blank_values=True))
            scheme = "https" if server.ca_file else "http"
            asked = HttpRequest(
                self.command, split.path, query, dict(self.headers.items()), body, text, scheme=scheme, part=part
            )
            reply, fault = server.respond(asked)
            if reply is None or reply.raw:
                self.close_connection = True
                self.wfile.write((reply.raw if reply else "").encode())
                return
            self._send(reply, fault)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

        def _send(self, reply: Reply, fault: WireFault | None) -> None:
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
                # A client that asked for it need not remember that it did, and would use the connection again.
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
    "drop_before",  # the connection ends and nothing was done
    "drop_after",  # it is done, and the connection ends without an answer
    "status",  # nothing is done; the answer has `status` and `body`
    "status_after",  # it is done; the answer has `status` and `body`
    "lie",  # nothing is done; the answer is that of success (`body`, else empty, with `status`, else 200)
    "garbage",  # it is done; the answer's body is cut in its middle, its length is that of the whole
    "html",  # nothing is done; a page of HTML with status 500
    "slow",  # it is done; the answer is sent one byte at a time, `delay_s` between two
    "delay",  # it is done; the answer comes after `delay_s`
    "stale",  # reads only: the answer is the last one that this address gave, whatever was changed since
]


@dataclass
class WireFault:
    """One kind of fault, for requests that match: method and path, as shell patterns. times: how often (-1: always); after: so many
    matching requests go well before."""

    kind: HttpFaultKind
    method: str = "*"
    path: str = "*"
    times: int = 1
    after: int = 0
    status: int = 500
    body: str = ""
    delay_s: float = 1.0


class Faults:
    """The faults of one server, counted down by one request at a time."""

    def __init__(self) -> None:
        self._faults: list[WireFault] = []
        self._lock = threading.Lock()

    def add(self, fault: WireFault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def strike(self, method: str, path: str) -> WireFault | None:
        """The fault that happens to this request; None when all goes well."""
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
