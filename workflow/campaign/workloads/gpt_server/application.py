"""The HTTP side of the server: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from campaign.workloads.gpt_server.batching import Batcher
from campaign.workloads.gpt_server.completions import Answer, Chat, Completion, Refused, Request, fitting, parsed


def application(
    batcher: Batcher, model: str, vocabulary: int, context: int, lost_s: Callable[[], float] = float
) -> Starlette:
    """The application over a batcher that runs in another thread. lost_s: how far the processes fell behind their devices."""
    site = _Site(batcher, model, vocabulary, context, lost_s)
    routes = [
        Route("/health", site.health),
        Route("/metrics", site.metrics),
        Route("/v1/models", site.models),
        Route(Completion.path, site.complete(Completion), methods=["POST"]),
        Route(Chat.path, site.complete(Chat), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={Refused: _refused})


def _refused(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.body, error.status)


class _Site:
    def __init__(
        self, batcher: Batcher, model: str, vocabulary: int, context: int, lost_s: Callable[[], float]
    ) -> None:
        self._batcher, self._model, self._lost_s = batcher, model, lost_s
        self._vocabulary, self._context = vocabulary, context
        self._started = int(time.time())

    async def health(self, _: HttpRequest) -> Response:
        return Response(status_code=503 if self._batcher.ended else 200)

    async def models(self, _: HttpRequest) -> Response:
        own = {"id": self._model, "object": "model", "created": self._started, "owned_by": "composable-campaign"}
        return JSONResponse({"object": "list", "data": [{**own, "max_model_len": self._context}]})

    async def metrics(self, _: HttpRequest) -> Response:
        counts = self._batcher.counts
        values: list[tuple[str, str, str, float]] = [
            ("requests_total", "counter", "Requests that were accepted.", counts.requests),
            ("requests_cancelled_total", "counter", "Requests whose client has gone.", counts.cancelled),
            ("prompt_tokens_total", "counter", "Tokens of prompts whose computation has begun.", counts.prompt_tokens),
            ("output_tokens_total", "counter", "Tokens that were generated.", counts.output_tokens),
            ("iterations_total", "counter", "Iterations of the network.", counts.iterations),
            ("batched_sequences_total", "counter", "Sequences, summed over iterations.", counts.fed_sequences),
            ("pace_lost_seconds_total", "counter", "Time behind the pace of emulated devices.", self._lost_s()),
            ("requests_waiting", "gauge", "Requests without a slot.", self._batcher.waiting),
            ("requests_running", "gauge", "Requests that are decoded.", self._batcher.running),
        ]
        lines = [
            f"# HELP gpt_{name} {meaning}\n# TYPE gpt_{name} {kind}\ngpt_{name} {value:.10g}\n"
            for name, kind, meaning, value in values
        ]
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    def complete(self, kind: type[Request]) -> Callable[[HttpRequest], Any]:
        async def completed(http: HttpRequest) -> Response:
            request = parsed(kind, await http.body(), self._model)
            prompt, limit = fitting(request, self._vocabulary, self._context)
            answer = Answer(request, self._model, len(prompt), limit)
            if request.stream:
                return StreamingResponse(self._events(answer, prompt, limit), media_type="text/event-stream")
            gathering = asyncio.ensure_future(_all(self._tokens(prompt, limit)))
            gone = asyncio.ensure_future(_disconnected(http))
            await asyncio.wait((gathering, gone), return_when=asyncio.FIRST_COMPLETED)
            for task in (gathering, gone):
                task.cancel()
            # Its generation ends with it, so that the slot of a client that has gone is free.
            await asyncio.gather(gone, return_exceptions=True)
            return Response(status_code=499) if not gathering.done() else JSONResponse(answer.whole(await gathering))

        return completed

    async def _events(self, answer: Answer, prompt: list[int], limit: int) -> AsyncIterator[str]:
        async for token in self._tokens(prompt, limit):
            yield answer.event(token)

    async def _tokens(self, prompt: list[int], limit: int) -> AsyncIterator[int]:
        """The tokens that follow; nothing more is generated as soon as nobody takes them."""
        queue: asyncio.Queue[int | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(token: int | None) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, token)

        generation = self._batcher.submit(prompt, limit, take)
        try:
            for _ in range(limit):
                token = await queue.get()
                if token is None:
                    raise Refused(500, "the server has ended")
                yield token
        finally:
            self._batcher.cancel(generation)


async def _all(tokens: AsyncIterator[int]) -> list[int]:
    return [token async for token in tokens]


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
