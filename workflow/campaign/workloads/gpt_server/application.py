"""The server's requests: continuous batching behind /v1/completions, /v1/models, /health and /metrics. Without torch.

Tokens are words, so that a prompt of N words has N tokens. The most probable token always follows; no text ends by itself. One
iteration computes the next tokens of many sequences, and sequences join and leave between iterations: each running sequence feeds
its newest token, and prompts are fed in pieces as far as room is left.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.errors import first_problem

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MOST_TOKENS = 256
"""Tokens of an iteration."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one sequence, from position `start` on; its keys and values are cached in `slot`."""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(eq=False, slots=True)
class _Sequence:
    """A sequence on its way to its `last` length. ready: each new token, and None when the server has ended."""

    tokens: list[int]
    last: int
    ready: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    slot: int = -1
    cached: int = 0


class Batcher:
    """Generates the tokens of all sequences together. counts: what it did so far, by the name of the metric.

    next_tokens: the token that follows each feed, called in a thread of its own. slots: how many sequences are decoded at the same
    time; others wait.
    """

    def __init__(self, next_tokens: Callable[[Sequence[Feed]], Sequence[int]], slots: int) -> None:
        self._next_tokens = next_tokens
        self._free = list(range(slots))
        self._changed = asyncio.Event()
        self.waiting: deque[_Sequence] = deque()
        self.running: list[_Sequence] = []
        self.ended = False
        self.counts: Counter[str] = Counter()

    async def generate(self, tokens: Sequence[int], count: int) -> AsyncIterator[int]:
        """The tokens that follow; nothing more is generated as soon as nobody takes them. EOFError: the server has ended."""
        self.counts["requests"] += 1
        sequence = _Sequence(list(tokens), len(tokens) + count)
        self.waiting.append(sequence)
        self._changed.set()
        try:
            for _ in range(count):
                if self.ended or (token := await sequence.ready.get()) is None:
                    raise EOFError
                yield token
        finally:
            if sequence in self.waiting or sequence in self.running:
                self.counts["requests_cancelled"] += 1
                sequence.last = 0
            if sequence in self.waiting:
                self.waiting.remove(sequence)

    async def run(self) -> None:
        """Decode until it is cancelled; raises what `next_tokens` raises. What has not ended by then has failed."""
        loop = asyncio.get_running_loop()
        try:
            with ThreadPoolExecutor(1) as thread:
                while True:
                    if fed := self._feeds():
                        feeds = [feed for _, feed in fed]
                        self._take(fed, await loop.run_in_executor(thread, self._next_tokens, feeds))
                    else:
                        self._changed.clear()
                        await self._changed.wait()
        finally:
            self.ended = True
            for sequence in (*self.running, *self.waiting):
                sequence.ready.put_nowait(None)

    def _feeds(self) -> list[tuple[_Sequence, Feed]]:
        """What the next iteration computes."""
        for sequence in [each for each in self.running if len(each.tokens) >= each.last]:
            self._leave(sequence)
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.slot = self._free.pop()
            self.running.append(sequence)
        room, found = MOST_TOKENS, []
        # A running sequence has one token to feed, so that no prompt makes it wait for more than one iteration.
        for sequence in sorted(self.running, key=lambda each: len(each.tokens) - each.cached > 1):
            if tokens := sequence.tokens[sequence.cached : sequence.cached + room]:
                room -= len(tokens)
                found.append((sequence, Feed(sequence.slot, sequence.cached, tokens)))
        return found

    def _take(self, fed: Sequence[tuple[_Sequence, Feed]], following: Sequence[int]) -> None:
        self.counts.update(iterations=1, batched_sequences=len(fed))
        for (sequence, feed), token in zip(fed, following, strict=True):
            if feed.start == 0:
                self.counts["prompt_tokens"] += len(sequence.tokens)
            sequence.cached += len(feed.tokens)
            if sequence.cached == len(sequence.tokens) < sequence.last:
                sequence.tokens.append(token)
                self.counts["output_tokens"] += 1
                sequence.ready.put_nowait(token)
                if len(sequence.tokens) == sequence.last:
                    self._leave(sequence)

    def _leave(self, sequence: _Sequence) -> None:
        self.running.remove(sequence)
        self._free.append(sequence.slot)


class _Refused(Exception):
    """An error as OpenAI's interface answers it."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status, self.body = status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Completion(BaseModel):
    """A request. What would change the answer and cannot be honoured is refused; temperature is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt: str | tuple[int, ...]
    max_tokens: int = Field(default=16, ge=1)
    model: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: Literal[1, None] = None
    best_of: Literal[1, None] = None
    echo: Literal[False, None] = None
    logprobs: Literal[False, None] = None
    stop: None = None
    suffix: None = None

    def tokens(self, vocabulary: int) -> list[int]:
        """One token a word; a word of an answer is the token that it stands for."""
        if isinstance(self.prompt, str):
            return [_token(word, vocabulary) for word in self.prompt.split()]
        if wrong := [token for token in self.prompt if not 0 <= token < vocabulary]:
            raise _Refused(400, f"prompt: token {wrong[0]} is not from 0 to {vocabulary - 1}", param="prompt")
        return list(self.prompt)


def _token(word: str, vocabulary: int) -> int:
    known = word[:1] == "w" and word[1:].isdecimal() and int(word[1:]) < vocabulary
    return int(word[1:]) if known else zlib.crc32(word.encode()) % vocabulary


def application(
    batcher: Batcher, model: str, vocabulary: int, context: int, lost_s: Callable[[], float] = float
) -> Starlette:
    """The application over a batcher that runs in the same loop. lost_s: how far the processes fell behind their devices."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

    started = int(time.time())

    async def health(_: Request) -> Response:
        return Response(status_code=503 if batcher.ended else 200)

    async def models(_: Request) -> Response:
        own = {"id": model, "object": "model", "created": started, "owned_by": "composable-campaign"}
        return JSONResponse({"object": "list", "data": [{**own, "max_model_len": context}]})

    async def metrics(_: Request) -> Response:
        counters = "requests requests_cancelled prompt_tokens output_tokens iterations batched_sequences"
        values = [(f"{name}_total", "counter", float(batcher.counts[name])) for name in counters.split()]
        values += [("pace_lost_seconds_total", "counter", lost_s())]
        values += [(f"requests_{name}", "gauge", len(getattr(batcher, name))) for name in ("waiting", "running")]
        lines = [f"# TYPE gpt_{name} {kind}\ngpt_{name} {value:.10g}\n" for name, kind, value in values]
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    async def complete(http: Request) -> Response:
        try:
            request = _Completion.model_validate_json(await http.body())
        except ValidationError as error:
            raise _Refused(400, first_problem(error, "the body")) from error
        if request.model not in (None, model):
            message = f"The model `{request.model}` does not exist; this server has `{model}`"
            raise _Refused(404, message, "model_not_found", "model")
        tokens, limit = request.tokens(vocabulary), request.max_tokens
        if not tokens:
            raise _Refused(400, "the prompt has no token", param="prompt")
        if len(tokens) + limit > context:
            message = (
                f"This model's maximum context length is {context} tokens. However, you requested {len(tokens) + limit} "
                f"tokens ({len(tokens)} in the prompt, {limit} in the completion). Reduce the length of either."
            )
            raise _Refused(400, message, "context_length_exceeded")
        following = batcher.generate(tokens, limit)
        if request.stream:
            return StreamingResponse(_events(request, model, len(tokens), following), media_type="text/event-stream")
        text = ""
        try:
            async for token in following:
                text += f" w{token}"
                if await http.is_disconnected():
                    await following.aclose()  # type: ignore[attr-defined]
                    return Response(status_code=499)
        except EOFError:
            raise _Refused(500, "the server has ended") from None
        choices = {"choices": [_choice(text, last=True)], "usage": _usage(len(tokens), limit)}
        return JSONResponse({**_head(model), **choices})

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, _Refused)
        return JSONResponse(error.body, error.status)

    app = Starlette(exception_handlers={_Refused: refused})
    for path, answer in (("/health", health), ("/metrics", metrics), ("/v1/models", models)):
        app.add_route(path, answer)
    app.add_route("/v1/completions", complete, ["POST"])
    return app


async def _events(request: _Completion, model: str, prompt: int, following: AsyncIterator[int]) -> AsyncIterator[str]:
    """Server-sent events: one for each token, and what ends the stream after the last one."""
    usage = request.stream_options is not None and request.stream_options.include_usage
    head, sent = _head(model), 0
    async for token in following:
        sent += 1
        chunk = {"choices": [_choice(f" w{token}", last=sent == request.max_tokens)]} | (
            {"usage": None} if usage else {}
        )
        yield f"data: {json.dumps(head | chunk)}\n\n"
    if usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': _usage(prompt, sent)})}\n\n"
    yield "data: [DONE]\n\n"


def _head(model: str) -> dict[str, Any]:
    return {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": model}


def _choice(text: str, *, last: bool) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": "length" if last else None}


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
