"""Handling of signals that end a process, by an exception or by a delay until a critical block is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInterrupt(BaseException):
    """Request to stop, release what is held, and exit, after Ctrl-C, SIGTERM or a hang-up.

    Attributes:
        number: number of the signal.
        is_from_terminal: True for Ctrl-C.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.is_from_terminal = number == signal.SIGINT


def list_ending_signals() -> list[signal.Signals]:
    """Return the signals that terminate this process. SIGHUP is omitted if the process ignores it, as under `nohup`."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [name for name in ENDING_SIGNALS if name != signal.SIGHUP or not is_ignored]


_later_interrupts: list[int] = []
"""Signals of Ctrl-C after the first SignalInterrupt."""


def _discard_signal(*_: object) -> None:
    """Do nothing. With SIG_IGN, Python would print a traceback for a signal that is under way at that moment."""


@contextmanager
def raise_on_ending_signal() -> Iterator[None]:
    """Raise SignalInterrupt at the first ending signal, so that `finally` blocks release what is held.

    Further signals end nothing. A hang-up that the process ignores from its start (`nohup`) stays ignored.
    """

    def interrupt(number: int, _: object) -> None:
        """Raise SignalInterrupt, and make further signals harmless."""
        for name in previous_handlers:  # A second Ctrl-C must not interrupt the release.
            signal.signal(name, _discard_signal)
        # A second Ctrl-C may arrive before this process, one of several that receive it, waits for one.
        signal.signal(signal.SIGINT, lambda signal_number, _: _later_interrupts.append(signal_number))
        raise SignalInterrupt(number)

    previous_handlers = {name: signal.signal(name, interrupt) for name in list_ending_signals()}
    try:
        yield
    finally:
        for name, handler in previous_handlers.items():
            signal.signal(name, handler)
        _later_interrupts.clear()


def wait_for_repeated_interrupt(timeout_s: float) -> bool:
    """Wait for another Ctrl-C up to a timeout, and return True if one came since the first SignalInterrupt."""
    deadline_s = time.monotonic() + timeout_s
    while not _later_interrupts and time.monotonic() < deadline_s:
        time.sleep(0.05)
    signal.signal(signal.SIGINT, _discard_signal)
    return bool(_later_interrupts)


@contextmanager
def defer_ending_signals() -> Iterator[None]:
    """Defer termination signals until the end of the block."""
    pending: list[int] = []
    previous_handlers = {
        name: signal.signal(name, lambda number, _: pending.append(number)) for name in list_ending_signals()
    }
    try:
        yield
    finally:
        for name, handler in previous_handlers.items():
            signal.signal(name, handler)
        if pending:
            signal.raise_signal(pending[0])
