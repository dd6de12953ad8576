"""A reference server with a known queue: it answers as an OpenAI-compatible server does, and queueing theory says when.

Requests wait in one queue for `servers` servers. A request takes an exponentially distributed time (M/M/c under Poisson arrivals),
a constant one (M/D/c), or a constant one for each of its tokens. Its tokens come at equal gaps, the last at its end. Times follow
from the arrivals alone, so that a late timer delays an answer, and not the queue.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from dataclasses import dataclass
from typing import Any, Literal

import click
import h11

Law = Literal["exponential", "constant", "per_token"]


@dataclass(frozen=True)
class QueuedRequest:
    """A request, in the loop's seconds: when it came, when a server took it, when its answer was complete."""

    arrival: float
    start: float
    end: float


class QueueingServer:
    """service_s: mean time of a request, or of a token; stall: seconds after the first request and how long no server works."""

    def __init__(
        self,
        law: Law,
        service_s: float,
        *,
        servers: int = 1,
        seed: int = 1,
        stall: tuple[float, float] | None = None,
    ) -> None:
        self.law = law
        self.service_s = service_s
        self.free = [float("-inf")] * servers
        self.draw = random.Random(seed)
        self.stall = stall
        self.served: list[QueuedRequest] = []

    def serve(self, arrival: float, tokens: int) -> QueuedRequest:
        """A request's place in the queue."""
        service_s = self.service_s * (tokens if self.law == "per_token" else 1)
        if self.law == "exponential":
            service_s = self.draw.expovariate(1 / service_s)
        start = max(arrival, heapq.heappop(self.free))
        end = start + service_s
        if self.stall:
            first = self.served[0].arrival if self.served else arrival
            begin, until = first + self.stall[0], first + sum(self.stall)
            if start < until and end > begin:
                start, end = (until, until + service_s) if start >= begin else (start, end + self.stall[1])
        heapq.heappush(self.free, end)
        self.served.append(QueuedRequest(arrival, start, end))
        return self.served[-1]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection with one request."""
        http = h11.Connection(h11.SERVER)
        try:
            head, body = await _request(http, reader)
            loop = asyncio.get_running_loop()
            arrival = loop.time()
            path = head.target.decode()
            if path.endswith("completions"):
                asked = json.loads(body)
                tokens = int(asked.get("max_tokens", 16))
                await self._answer(http, writer, asked, tokens, self.serve(arrival, tokens))
            elif path in ("/health", "/v1/models"):
                document = {"object": "list", "data": [{"id": "queue", "object": "model"}]}
                _send(http, writer, 200, "application/json", json.dumps(document).encode())
            else:
                _send(http, writer, 404, "application/json", b'{"error": {"message": "no such path"}}')
        except (h11.RemoteProtocolError, ConnectionError, ValueError):
            pass  # a client that is gone, or none
        finally:
            writer.close()

    async def _answer(
        self,
        http: h11.Connection,
        writer: asyncio.StreamWriter,
        asked: dict[str, Any],
        tokens: int,
        served: QueuedRequest,
    ) -> None:
        loop = asyncio.get_running_loop()
        chat = "messages" in asked
        prompt = asked["messages"][-1]["content"] if chat else asked["prompt"]
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": tokens}
        streams = asked.get("stream", False)
        if streams:
            _send(http, writer, 200, "text/event-stream", None)
        for number in range(1, tokens + 1):
            due = served.start + (served.end - served.start) * number / tokens
            await asyncio.sleep(due - loop.time())
            if streams:
                text: dict[str, Any] = {"delta": {"content": " word"}} if chat else {"text": " word"}
                _event(http, writer, {"choices": [text | {"finish_reason": "length" if number == tokens else None}]})
        if streams:
            _event(http, writer, {"choices": [], "usage": usage})
            writer.write(http.send(h11.Data(data=b"data: [DONE]\n\n")) or b"")
            writer.write(http.send(h11.EndOfMessage()) or b"")
        else:
            text = {"message": {"content": " word" * tokens}} if chat else {"text": " word" * tokens}
            document = {"choices": [text | {"finish_reason": "length"}], "usage": usage}
            _send(http, writer, 200, "application/json", json.dumps(document).encode())
        await writer.drain()


async def _request(http: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request, bytes]:
    head, body = None, b""
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            break
    if head is None:
        raise ConnectionError("no request")
    return head, body


def _send(http: h11.Connection, writer: asyncio.StreamWriter, status: int, kind: str, body: bytes | None) -> None:
    """A response; body None: its content follows in pieces."""
    headers = [("content-type", kind), ("connection", "close")]
    headers.append(("transfer-encoding", "chunked") if body is None else ("content-length", str(len(body))))
    writer.write(http.send(h11.Response(status_code=status, headers=headers)) or b"")
    if body is not None:
        writer.write(http.send(h11.Data(data=body)) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")


def _event(http: h11.Connection, writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
    writer.write(http.send(h11.Data(data=b"data: " + json.dumps(document).encode() + b"\n\n")) or b"")


@click.command()
@click.option("--port", type=int, default=8000, show_default=True)
@click.option(
    "--law", type=click.Choice(["exponential", "constant", "per_token"]), default="exponential", show_default=True
)
@click.option("--service-s", type=float, default=0.05, show_default=True, help="Mean time of a request, or of a token.")
@click.option("--servers", type=int, default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(port: int, law: Law, service_s: float, servers: int, seed: int) -> None:
    """Serve until interrupted: a server of which theory says how long its answers take."""

    async def serve() -> None:
        queue = QueueingServer(law, service_s, servers=servers, seed=seed)
        server = await asyncio.start_server(queue.handle, "127.0.0.1", port, backlog=1024)
        async with server:
            await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
