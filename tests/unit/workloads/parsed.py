"""Saved logs of foreign programs, read with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import LogReading, RunContext, read_log

LOGS = Path(__file__).parents[2] / "data" / "logs"


def text_of(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


def read(name: str, *changes: tuple[str, str], **scope: Any) -> LogReading:
    """A saved log, with changes."""
    text = text_of(name)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return read_log(name.partition("/")[0], Log.from_text(text), RunContext(**scope))


def flagged(found: LogReading, *words: str) -> bool:
    return all(any(word in flag for flag in found.flags) for word in words)
