"""Sends the requests of a load at their times, and notes what each met.

One connection a request, as independent users have it: its set-up is part of the latency, and no request waits for another's. The
loop's clock is the only one, so that a loop with a simulated clock runs a load in no time.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from campaign.workloads.load.load_file import Load
from campaign.workloads.load.prompts import Prompt, prompts
from campaign.workloads.load.request_latencies import Request
from campaign.workloads.load.streaming_client import Server, model_of, stream

_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


async def apply(
    load: Load,
    base_url: str,
    model: str | None = None,
    *,
    on_request: Callable[[Request], None] | None = None,
) -> list[Request]:
    """All requests of the load, in the order of their intended start. Failed ones are among them, with their error.

    load: as `Load.for_run` gives it; model: None asks the server for the first one that it has; on_request: called when one ends.
    """
    server = Server.at(urlsplit(base_url))
    return await _Generator(load, server, model or await model_of(server), on_request).run()


def arrivals(load: Load, draw: random.Random) -> Iterator[float]:
    """Intended starts of an open loop, in seconds."""
    at, sent = 0.0, 0
    while not (load.duration_s and at >= load.duration_s) and not (load.requests and sent >= load.requests):
        yield at
        sent += 1
        at = at + draw.expovariate(load.rate_per_s) if load.arrivals == "poisson" else sent / load.rate_per_s


class _Generator:
    def __init__(
        self, load: Load, server: Server, model: str | None, on_request: Callable[[Request], None] | None
    ) -> None:
        self.load = load
        self.server = server
        self.on_request = on_request
        self.fixed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, **load.body}
        if model is not None:
            self.fixed["model"] = model
        self.path = _PATHS[load.endpoint]
        # Times and texts are drawn apart, so that other lengths leave the arrivals as they are.
        self.times = random.Random(f"{load.seed} arrivals")
        self.prompts = prompts(load, random.Random(f"{load.seed} prompts"))
        self.loop = asyncio.get_running_loop()
        self.begin = self.loop.time()
        self.done: list[Request] = []

    async def run(self) -> list[Request]:
        await (self.open_loop() if self.load.rate_per_s else self.closed_loop())
        return sorted(self.done, key=lambda request: request.intended_s)

    async def open_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for intended_s in arrivals(self.load, self.times):
                prompt = next(self.prompts)
                body = self.body(prompt)  # before the wait, so that a long prompt makes nothing late
                await asyncio.sleep(max(0.0, self.begin + intended_s - self.loop.time()))
                group.create_task(self.send(intended_s, prompt, body))

    async def closed_loop(self) -> None:
        left = iter(range(self.load.requests)) if self.load.requests else iter(int, 1)

        async def user() -> None:
            for _ in left:
                intended_s = self.loop.time() - self.begin
                if self.load.duration_s and intended_s >= self.load.duration_s:
                    return
                prompt = next(self.prompts)
                await self.send(intended_s, prompt, self.body(prompt))

        async with asyncio.TaskGroup() as group:
            for _ in range(self.load.concurrency):
                group.create_task(user())

    def body(self, prompt: Prompt) -> bytes:
        chat = self.load.endpoint == "chat"
        said = {"messages": [{"role": "user", "content": prompt.text}]} if chat else {"prompt": prompt.text}
        return json.dumps({**said, "max_tokens": prompt.output_tokens, **self.fixed}).encode()

    async def send(self, intended_s: float, prompt: Prompt, body: bytes) -> None:
        sent_s = self.loop.time() - self.begin
        answer = await stream(self.server, self.path, body, self.begin + intended_s + self.load.timeout_s)
        usage = answer.usage
        request = Request(
            intended_s=intended_s,
            sent_s=sent_s,
            first_s=None if answer.first is None else answer.first - self.begin,
            last_s=None if answer.last is None else answer.last - self.begin,
            prompt_tokens=usage[0] if usage else prompt.prompt_tokens,
            output_tokens=usage[1] if usage else answer.pieces,
            error=answer.error,
            requested_prompt_tokens=prompt.prompt_tokens,
            requested_output_tokens=prompt.output_tokens,
            reported=usage is not None,
        )
        self.done.append(request)
        if self.on_request:
            self.on_request(request)
