"""Handling of signals that end a process, by an exception or by a delay until a critical block is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Request to stop, release what is held, and exit, after Ctrl-C, SIGTERM or a hang-up.

    Attributes:
        number: number of the signal.
        is_from_terminal: True for Ctrl-C.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.by_terminal = number == signal.SIGINT


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end this process. SIGHUP is left out if the process ignores it, as under `nohup`."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [name for name in ENDING if name != signal.SIGHUP or not is_ignored]


_pressed: list[int] = []  # Ctrl-C after the first SignalInterrupt


def _pass_over(*_: object) -> None:
    """Do nothing. With SIG_IGN, Python would print a traceback for a signal that is under way at that moment."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise SignalInterrupt at the first ending signal, so that `finally` blocks release what is held.

    Further signals end nothing. A hang-up that the process ignores from its start (`nohup`) stays ignored.
    """

    def interrupt(number: int, _: object) -> None:
        """Raise SignalInterrupt, and make further signals harmless."""
        for name in before:  # a second Ctrl-C must not interrupt the release
            signal.signal(name, _pass_over)
        # A second Ctrl-C may arrive before this process, one of several that receive it, waits for one.
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
    """Wait for another Ctrl-C up to a timeout, and return True if one came since the first SignalInterrupt."""
    until = time.monotonic() + seconds
    while not _pressed and time.monotonic() < until:
        time.sleep(0.05)
    signal.signal(signal.SIGINT, _pass_over)
    return bool(_pressed)


@contextmanager
def deferred() -> Iterator[None]:
    """Defer ending signals until the block is over."""
    arrived: list[int] = []
    before = {name: signal.signal(name, lambda number, _: arrived.append(number)) for name in ending_signals()}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        if arrived:
            signal.raise_signal(arrived[0])
