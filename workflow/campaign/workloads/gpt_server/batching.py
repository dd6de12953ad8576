"""Continuous batching: one iteration computes the next tokens of many sequences, and sequences join and leave between iterations.

In an iteration each running sequence feeds its newest token, and prompts are fed in pieces as far as room is left. Without torch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_TOKENS = 256
"""Tokens of an iteration."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one sequence, from position `start` on; its keys and values are cached in `slot`."""

    slot: int
    start: int
    tokens: Sequence[int]


@dataclass(eq=False, slots=True)
class Generation:
    """A sequence on its way to its `last` length. emit: called with each new token, and with None when the server has ended."""

    tokens: list[int]
    last: int
    emit: Callable[[int | None], None]
    slot: int = -1
    cached: int = 0
    cancelled: bool = False


@dataclass(slots=True)
class Counts:
    """Of a batcher so far."""

    requests: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    fed_sequences: int = 0


class Batcher:
    """Decodes all generations that are submitted, in the thread that calls `run`.

    next_tokens: the token that follows each feed. slots: how many sequences are decoded at the same time; others wait.
    """

    def __init__(self, next_tokens: Callable[[Sequence[Feed]], Sequence[int]], slots: int) -> None:
        self._next_tokens = next_tokens
        self._free = list(range(slots))
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._changed = threading.Condition()
        self._ended = False
        self.counts = Counts()

    def submit(self, tokens: Sequence[int], output_tokens: int, emit: Callable[[int | None], None]) -> Generation:
        """Begin to generate as soon as a slot is free. `emit` is called in the thread of `run`."""
        generation = Generation(list(tokens), len(tokens) + output_tokens, emit)
        with self._changed:
            self.counts.requests += 1
            if self._ended:
                emit(None)
            else:
                self._waiting.append(generation)
                self._changed.notify()
        return generation

    def cancel(self, generation: Generation) -> None:
        """Generate nothing more, and free the slot; nothing happens to a generation that has ended."""
        with self._changed:
            if generation in self._waiting:
                self._waiting.remove(generation)
            elif generation not in self._running:
                return
            generation.cancelled = True
            self.counts.cancelled += 1

    def stop(self) -> None:
        """End `run` after the iteration that it is in."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def ended(self) -> bool:
        return self._ended

    def run(self) -> None:
        """Decode until `stop`; raises what `next_tokens` raises. What has not ended by then has failed."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or self._waiting or self._running)
                    if self._ended:
                        return
                    fed = self._feeds()
                if fed:
                    self._iterate(fed)
        finally:
            with self._changed:
                self._ended = True
                for generation in (*self._running, *self._waiting):
                    generation.emit(None)

    def _feeds(self) -> list[tuple[Generation, Feed]]:
        """What the next iteration computes."""
        for generation in [each for each in self._running if each.cancelled]:
            self._leave(generation)
        while self._waiting and self._free:
            generation = self._waiting.popleft()
            generation.slot = self._free.pop()
            self._running.append(generation)
        room, found = MOST_TOKENS, []
        # A running sequence has one token to feed, so that no prompt makes it wait for more than one iteration.
        for generation in sorted(self._running, key=lambda each: len(each.tokens) - each.cached > 1):
            start = generation.cached
            if tokens := generation.tokens[start : start + room]:
                room -= len(tokens)
                found.append((generation, Feed(generation.slot, start, tokens)))
        return found

    def _iterate(self, fed: Sequence[tuple[Generation, Feed]]) -> None:
        following = self._next_tokens([feed for _, feed in fed])
        self.counts.iterations += 1
        self.counts.fed_sequences += len(fed)
        for (generation, feed), token in zip(fed, following, strict=True):
            if feed.start == 0:
                self.counts.prompt_tokens += len(generation.tokens)
            generation.cached += len(feed.tokens)
            if generation.cached < len(generation.tokens) or generation.cancelled:
                continue
            generation.tokens.append(token)
            self.counts.output_tokens += 1
            if len(generation.tokens) == generation.last:
                with self._changed:
                    self._leave(generation)
            generation.emit(token)

    def _leave(self, generation: Generation) -> None:
        self._running.remove(generation)
        self._free.append(generation.slot)
