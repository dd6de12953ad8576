"""Sends the requests of a load at their times, and notes what each met.

One connection a request, as independent users have it: its set-up is part of the latency, and no request waits for another's. The
loop's clock is the only one, so that a loop with a simulated clock runs a load in no time. Prompts have a length
without a tokenizer; lengths are drawn from their distribution, or stand in a file.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from campaign.files import parse_json, read_text
from campaign.workloads.load.load_file import Lengths, Load, Lognormal, Uniform
from campaign.workloads.load.request_latencies import SentRequest
from campaign.workloads.load.streaming_client import ServerAddress, model_of, stream

_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


async def apply(
    load: Load,
    base_url: str,
    model: str | None = None,
    *,
    on_request: Callable[[SentRequest], None] | None = None,
) -> list[SentRequest]:
    """All requests of the load, in the order of their intended start. Failed ones are among them, with their error.

    load: as `Load.for_run` gives it; model: None asks the server for the first one that it has; on_request: called when one ends.
    """
    server = ServerAddress.at(urlsplit(base_url))
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
        self, load: Load, server: ServerAddress, model: str | None, on_request: Callable[[SentRequest], None] | None
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
        self.done: list[SentRequest] = []

    async def run(self) -> list[SentRequest]:
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
        request = SentRequest(
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


# Common short words: most tokenizers have a token for each with the space before it.
_WORDS_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you "
    "were all her she there would their we him been has when who will no more if out so up said what its about than into them "
    "can only other time new some could these two may first then do any like my now over such our man me even most made after"
)
_WORDS = _WORDS_TEXT.split()


@dataclass(frozen=True)
class Prompt:
    text: str
    prompt_tokens: int
    output_tokens: int


def prompts(load: Load, draw: random.Random) -> Iterator[Prompt]:
    """Prompts without end. They begin differently, so that a cache of prefixes does not answer them. ValueError: of its file."""
    return _drawn(load, draw) if load.prompts is None else _of(read_prompts(Path(load.prompts)), draw)


def _drawn(load: Load, draw: random.Random) -> Iterator[Prompt]:
    while True:
        count = length(load.prompt_tokens, draw)
        yield Prompt(words(count, draw), count, length(load.output_tokens, draw))


def _of(rows: Sequence[Prompt], draw: random.Random) -> Iterator[Prompt]:
    while True:
        for row in draw.sample(rows, len(rows)):
            yield Prompt(row.text or words(row.prompt_tokens, draw), row.prompt_tokens, row.output_tokens)


def words(count: int, draw: random.Random) -> str:
    """A text of `count` words."""
    return " ".join(draw.choices(_WORDS, k=count))


def length(lengths: Lengths, draw: random.Random) -> int:
    """A length in tokens."""
    if isinstance(lengths, Uniform):
        return draw.randint(*lengths.uniform)
    if isinstance(lengths, Lognormal):
        return min(lengths.max, max(1, round(draw.lognormvariate(math.log(lengths.median), lengths.sigma))))
    return lengths


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file; ValueError says which line is wrong."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    try:
        if text.lstrip().startswith("["):
            found = [prompt for entry in parse_json(text) if (prompt := _conversation(entry))]
        else:
            found = [_row(path, at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error
    if not found:
        raise ValueError(f"{path}: has no prompt")
    return found


def _row(path: Path, at: int, line: str) -> Prompt:
    row = parse_json(line) if line.lstrip().startswith("{") else None
    if not isinstance(row, dict):
        raise ValueError(f"{path}:{at}: is not a JSON object with 'prompt_tokens' and 'output_tokens'")
    text, output_tokens = row.get("prompt", ""), row.get("output_tokens")
    prompt_tokens = row.get("prompt_tokens", len(str(text).split()))
    if isinstance(text, str) and _is_count(prompt_tokens) and _is_count(output_tokens):
        return Prompt(text, prompt_tokens, output_tokens)
    raise ValueError(
        f"{path}:{at}: 'prompt_tokens' and 'output_tokens' are whole numbers above 0, and 'prompt' is a text, if given"
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _conversation(entry: Any) -> Prompt | None:
    """The first question of a conversation, with as many tokens as it and its answer have words; None without an answer."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    counts = [len(text.split()) if isinstance(text, str) else 0 for text in texts]
    return Prompt(str(texts[0]), counts[0], counts[1]) if all(counts) else None
