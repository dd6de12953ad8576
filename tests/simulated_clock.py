"""An event loop whose clock jumps to the next timer, and connections in memory: seconds of a load pass in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")
Handler = Callable[[asyncio.StreamReader, Any], Awaitable[None]]


class _Selector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        self.now += timeout
        return super().select(0)


class Clock(asyncio.SelectorEventLoop):
    """A loop on a simulated clock."""

    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now

    def pause(self, seconds: float) -> None:
        """Time passes in which nothing in this process runs."""
        self.selector.now += seconds


class Pipe:
    """The writing end of a connection in memory."""

    def __init__(self, to: asyncio.StreamReader) -> None:
        self.to = to
        self.closed = False

    def write(self, data: bytes) -> None:
        if data and not self.closed:
            self.to.feed_data(data)

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.to.feed_eof()


def run_simulated(program: Callable[[], Coroutine[Any, Any, T]], handler: Handler) -> T:
    """The program's result; every connection that it opens leads to `handler`, as those of asyncio.start_server do."""
    handlers: set[asyncio.Task[Any]] = set()

    async def connect(*_: Any, **__: Any) -> tuple[asyncio.StreamReader, Pipe]:
        here, there = asyncio.StreamReader(), asyncio.StreamReader()

        async def handled() -> None:
            await handler(there, Pipe(here))

        task = asyncio.get_running_loop().create_task(handled())
        handlers.add(task)
        task.add_done_callback(handlers.discard)
        return here, Pipe(there)

    with mock.patch("asyncio.open_connection", connect), asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(program())
