"""Signals that end a process: turned into an exception, or put off while something must not be left half done."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or a hang-up: stop, give back what is held, and go."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.by_terminal = number == signal.SIGINT


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end this process: without SIGHUP where it is ignored, as `nohup` asks."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [name for name in ENDING if name != signal.SIGHUP or not is_ignored]


_pressed: list[int] = []  # Ctrl-C since the Interrupted


def _pass_over(*_: object) -> None:
    """Not SIG_IGN: of a signal that is under way when it is set, Python then prints a traceback."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted at the first ending signal, so that `finally` gives back what is held; further ones end nothing.

    A hang-up that the process was started to ignore (`nohup`) stays ignored.
    """

    def interrupt(number: int, _: object) -> None:
        for name in before:  # a second Ctrl-C must not stop the releasing
            signal.signal(name, _pass_over)
        # It may come before this process, of several that it is for, has come to ask for it.
        signal.signal(signal.SIGINT, lambda again, _: _pressed.append(again))
        raise Interrupted(number)

    before = {name: signal.signal(name, interrupt) for name in ending_signals()}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        _pressed.clear()


def asked_again(seconds: float) -> bool:
    """Whether Ctrl-C comes (again) within so many seconds, or has come since the Interrupted after which this is asked."""
    until = time.monotonic() + seconds
    while not _pressed and time.monotonic() < until:
        time.sleep(0.05)
    signal.signal(signal.SIGINT, _pass_over)
    return bool(_pressed)


@contextmanager
def deferred() -> Iterator[None]:
    """An ending signal takes effect when the block is over."""
    arrived: list[int] = []
    before = {name: signal.signal(name, lambda number, _: arrived.append(number)) for name in ending_signals()}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        if arrived:
            signal.raise_signal(arrived[0])
