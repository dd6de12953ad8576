"""One request to an OpenAI-compatible server, its answer read token by token (server-sent events).

On h11 and the streams of asyncio: a hundred streams at once cost 0.8 ms of CPU time each, server included, and with httpx 4.9 ms.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult

import h11

from campaign.files import parse_json

_PIECE_BYTES = 1 << 16
_LINE_MAX = 16 << 20
_MESSAGE_MAX = 300


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server. path: what the server's address has before its own paths."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def at(cls, url: SplitResult) -> ServerAddress:
        """The server at a URL, such as http://127.0.0.1:8000; ValueError for another kind."""
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{url.geturl()}: is no address of a server; write http://HOST:PORT")
        tls = url.scheme == "https"
        path = url.path.rstrip("/").removesuffix("/v1")
        return cls(url.hostname, url.port or (443 if tls else 80), path, tls)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context)

    def request(self, method: str, path: str, body: bytes) -> h11.Request:
        host = f"[{self.host}]" if ":" in self.host else self.host
        headers = [("host", f"{host}:{self.port}"), ("accept", "text/event-stream, application/json")]
        headers += [("connection", "close"), ("content-type", "application/json"), ("content-length", str(len(body)))]
        return h11.Request(method=method, target=self.path + path, headers=headers)


class StreamedAnswer:
    """What came. first, last: the loop's time of the first and last token; pieces: with text; usage: tokens of prompt, output."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.pieces = 0
        self.usage: tuple[int, int] | None = None
        self.error: str | None = None
        self.ended = False
        self._choice: list[float] = []

    def event(self, data: bytes, now: float) -> None:
        """A server-sent event."""
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            event = parse_json(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.fail(f"an event is no JSON object: {_shown(data)}")
        elif event.get("error"):
            self.fail(f"error in the stream: {_message(event)}")
        else:
            self._chunk(event, now)

    def _chunk(self, event: dict[str, Any], now: float) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
            if all(type(count) is int and count >= 0 for count in counts):
                self.usage = counts  # type: ignore[assignment]
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        self._choice = [*self._choice[:1], now]
        if choice.get("finish_reason"):
            self.ended = True
        if _has_text(choice):
            self.first = now if self.first is None else self.first
            self.last = now
            self.pieces += 1

    def fail(self, error: str) -> None:
        self.error = self.error or error

    def finish(self) -> None:
        """The stream is over: is it a whole answer?"""
        if self.first is None and self.usage and self.usage[1] and self._choice:
            # Tokens without text: parts of a character, or special ones.
            self.first, self.last = self._choice[0], self._choice[-1]
        if self.first is None:
            self.fail("no token came")
        elif not self.ended:
            self.fail("the stream ended before the answer was complete")


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return bool(choice.get("text"))


async def stream(server: ServerAddress, path: str, body: bytes, until: float) -> StreamedAnswer:
    """The answer to a request that streams; it has an error and nothing is raised where it fails. until: the loop's time."""
    answer = StreamedAnswer()
    try:
        async with asyncio.timeout_at(until):
            await _exchange(server, path, body, answer)
    except TimeoutError:
        answer.fail("time-out")
    except (OSError, h11.RemoteProtocolError) as error:
        answer.fail(f"{type(error).__name__}: {error}")
    return answer


async def _exchange(server: ServerAddress, path: str, body: bytes, answer: StreamedAnswer) -> None:
    loop = asyncio.get_running_loop()
    reader, writer = await server.connect()
    try:
        http = h11.Connection(h11.CLIENT)
        for event in (server.request("POST", path, body), h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        status, streams, held = 0, False, b""
        while True:
            found = http.next_event()
            if found is h11.NEED_DATA:
                http.receive_data(await reader.read(_PIECE_BYTES))
                now = loop.time()
            elif isinstance(found, h11.Response):
                status = found.status_code
                kinds = [value for name, value in found.headers if name == b"content-type"]
                streams = bool(kinds) and kinds[0].startswith(b"text/event-stream")
            elif isinstance(found, h11.Data):
                held += found.data
                if status == 200 and streams:
                    *lines, held = held.split(b"\n")
                    for line in lines:
                        if line.startswith(b"data:"):
                            answer.event(line[5:].strip(), now)
                if len(held) > _LINE_MAX:
                    return answer.fail(f"a line of the answer has more than {_LINE_MAX >> 20} MiB")
            elif not isinstance(found, h11.InformationalResponse):
                break
        if status != 200:
            return answer.fail(f"HTTP {status}: {_message(held)}")
        if not streams:
            return answer.fail(f"the answer is no event stream: {_shown(held)}")
        answer.finish()
    finally:
        writer.close()


async def model_of(server: ServerAddress) -> str | None:
    """The first model that the server says it has (GET /v1/models); None where it says nothing of the kind."""
    try:
        async with asyncio.timeout(10):
            reader, writer = await server.connect()
            try:
                http = h11.Connection(h11.CLIENT)
                writer.write(http.send(server.request("GET", "/v1/models", b"")) or b"")
                writer.write(http.send(h11.EndOfMessage()) or b"")
                content = b""
                while not isinstance(found := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                    if found is h11.NEED_DATA:
                        http.receive_data(await reader.read(_PIECE_BYTES))
                    elif isinstance(found, h11.Data):
                        content += found.data
            finally:
                writer.close()
        name = parse_json(content)["data"][0]["id"]
    except (OSError, TimeoutError, h11.RemoteProtocolError, ValueError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _message(said: bytes | dict[str, Any]) -> str:
    """What an error says, in OpenAI's form or another."""
    try:
        document = parse_json(said) if isinstance(said, bytes) else said
        error = document.get("error", document)
        return str(error["message"] if isinstance(error, dict) else error)[:_MESSAGE_MAX]
    except (ValueError, LookupError, AttributeError, RecursionError):
        return _shown(said if isinstance(said, bytes) else json.dumps(said).encode())


def _shown(said: bytes) -> str:
    return said[:_MESSAGE_MAX].decode(errors="replace").strip()
