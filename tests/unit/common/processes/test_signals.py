"""Signals that end a process: once is enough, a second Ctrl-C is heard where it is asked for, and some moments are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from campaign.common.processes.signals import (
    ENDING_SIGNALS,
    SignalInterrupt,
    defer_ending_signals,
    raise_on_ending_signal,
    wait_for_repeated_interrupt,
)

SLOW = 30.0  # only spent when something is broken

ASK = """\
import signal, sys
from campaign.common.processes.signals import SignalInterrupt, wait_for_repeated_interrupt, raise_on_ending_signal
with raise_on_ending_signal():
    try:
        print('ready', flush=True)
        signal.pause()
    except SignalInterrupt as interrupted:
        print('again?' if interrupted.is_from_terminal else 'told', flush=True)
        print(wait_for_repeated_interrupt(float(sys.argv[1])), flush=True)
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {name: signal.getsignal(name) for name in ENDING_SIGNALS}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def _asking(seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", ASK, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_an_ending_signal_says_which_it_was(number: signal.Signals) -> None:
    with pytest.raises(SignalInterrupt, match=number.name) as caught, raise_on_ending_signal():
        os.kill(os.getpid(), number)
    assert caught.value.is_from_terminal == (number == signal.SIGINT)


@pytest.mark.parametrize("context", [raise_on_ending_signal, defer_ending_signals])
def test_a_hang_up_that_is_ignored_stays_ignored(context: Callable[[], AbstractContextManager[None]]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with context():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_only_the_first_one_interrupts() -> None:
    reached: list[str] = []

    def told_to_end() -> None:
        with raise_on_ending_signal():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGHUP)
                reached.append("the end")

    with pytest.raises(SignalInterrupt, match="SIGTERM"):
        told_to_end()
    assert reached == ["the end"]


def test_a_second_ctrl_c_is_heard_while_it_is_asked_for() -> None:
    process = _asking(SLOW)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "again?\n"
    while process.poll() is None:  # it may not listen yet
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    assert process.communicate()[0] == "True\n"


def test_a_second_ctrl_c_is_heard_that_came_before_it_is_asked_for() -> None:
    asked: list[bool] = []

    def pressed_twice() -> None:
        with raise_on_ending_signal():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                asked.append(wait_for_repeated_interrupt(SLOW))

    with pytest.raises(SignalInterrupt):
        pressed_twice()
    assert asked == [True]
    assert not wait_for_repeated_interrupt(0.0)


def test_without_a_second_one_the_answer_is_no_and_signals_of_other_kinds_are_none() -> None:
    process = _asking(0.3)
    assert process.stdout is not None
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "told\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=SLOW)[0] == "False\n"


def test_a_third_ctrl_c_does_not_disturb_what_is_left_to_do() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not wait_for_repeated_interrupt(0.0)
        os.kill(os.getpid(), signal.SIGINT)
        # One that was ignored could come in the moment before, of which Python makes a traceback.
        assert callable(signal.getsignal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_deferred_signal_comes_when_the_block_is_over() -> None:
    reached: list[str] = []

    def told_to_end() -> None:
        with raise_on_ending_signal():
            with defer_ending_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                reached.append("inside")
            reached.append("behind")

    with pytest.raises(SignalInterrupt):
        told_to_end()
    assert reached == ["inside"]
