"""What one log says: names that the map looks for, times, how the run ended, and its outcome.

It is read as runs are read that were just measured, but for what only their launcher knows.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from campaign.config.import_file import LogPattern, LogTimes
from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.errors import LaunchError
from campaign.fabrics.hardware import ComposedHost, Composition
from campaign.workloads.failures import classify
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run


class Unread(Exception):
    """Why a file becomes no record."""


@dataclass(frozen=True)
class Found:
    """values: name -> text; several different ones joined by commas. Times in Unix seconds, None where the log says nothing."""

    values: Mapping[str, str] = field(default_factory=dict)
    start_s: float | None = None
    end_s: float | None = None
    duration_s: float | None = None
    exit_code: int | None = None
    timed_out: bool = False
    problems: tuple[str, ...] = ()
    """Times that cannot be read."""


def look(pattern: LogPattern, log: Log) -> Found:
    """One way through the log for everything that its pattern looks for."""
    times = pattern.times
    names: dict[str, str | None] = {f"read.{name}": regex for name, regex in pattern.read.items()}
    names |= {"start": times.start, "end": times.end, "duration_s": times.duration_s}
    names |= {"exit_code": pattern.exit_code, "timed_out": pattern.timed_out}
    regexes = {name: re.compile(regex) for name, regex in names.items() if regex is not None}
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in log.lines() if regexes else ():
        for name, regex in regexes.items():
            for match in regex.finditer(line):
                text = match[1] if regex.groups else match[0]
                if text is not None and (not found[name] or text != found[name][-1]):
                    found[name].append(text.strip())
    problems: list[str] = []
    start_s = _moment(found["start"][:1], times, problems)
    end_s = _moment(found["end"][-1:], times, problems)
    duration_s = _number(found["duration_s"], "duration_s", problems)
    exit_code = _number(found["exit_code"], "exit_code", problems)
    return Found(
        {name: ",".join(dict.fromkeys(found[f"read.{name}"])) for name in pattern.read if found[f"read.{name}"]},
        start_s,
        end_s,
        duration_s if duration_s is None or duration_s >= 0 else None,
        None if exit_code is None else int(exit_code),
        bool(found["timed_out"]),
        tuple(problems),
    )


def span(found: Found, written_s: float) -> tuple[float, float, bool]:
    """(start, end, whether both are known) of a run; written_s: when its log was last written, which stands for an unknown end."""
    start, end, duration = found.start_s, found.end_s, found.duration_s
    if end is None and start is not None and duration is not None:
        end = start + duration
    last = max(written_s, start or written_s) if end is None else end
    if start is None and duration is not None:
        return last - duration, last, True
    if start is None or end is None or start > end:
        return last, last, False
    return start, end, True


def _moment(texts: list[str], times: LogTimes, problems: list[str]) -> float | None:
    if not texts:
        return None
    try:
        if times.form == "unix":
            return float(texts[0])
        read = (
            datetime.datetime.fromisoformat(texts[0])
            if times.form == "iso"
            else datetime.datetime.strptime(texts[0], times.form)
        )
    except (ValueError, OverflowError):
        problems.append(f"the time '{texts[0]}' is not written as {times.form}")
        return None
    return (read if read.tzinfo else read.replace(tzinfo=ZoneInfo(times.timezone))).timestamp()


def _number(texts: list[str], name: str, problems: list[str]) -> float | None:
    if not texts:
        return None
    try:
        return float(texts[-1])
    except ValueError:
        problems.append(f"{name} is '{texts[-1]}', which is no number")
        return None


def digest(path: Path) -> str:
    """SHA-256 of a log; Unread for what is empty, is no text or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
            if not head.strip():
                raise Unread("is empty")
            if b"\0" in head or head.startswith(b"\x1f\x8b"):
                raise Unread("is not a text file; decompress it first")
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unread(f"cannot be read ({error.strerror or error})") from error


def outcome_of(campaign: Campaign, cell: Cell, path: Path, found: Found) -> Outcome:
    """What the log of a run of this cell says; Unread where it was the apparatus that failed, which is no result."""
    composition = Composition(tuple(ComposedHost(f"host{n + 1}", 1, 1.0, ()) for n in range(cell.configuration.hosts)))
    run = Run(cell, 1, composition, path.parent, campaign.device_of(cell.configuration).runs_on)
    workload, log = campaign.workloads[cell.workload], Log(path)
    try:
        if found.timed_out or found.exit_code is not None:
            return workload.outcome(run, Ended((found.exit_code,), 0.0, 0.0, timed_out=found.timed_out), log)
        outcome = workload.outcome(run, Ended((0,), 0.0, 0.0), log)
        if outcome.status != "incomplete":
            return outcome
        # How it ended was not kept: only what the log itself says of a failure counts.
        cause = classify(log, (None,), timed_out=False, killed_by_us=False)
    except LaunchError as error:
        told = str(error).partition("; run the same command")[0]
        raise Unread(f"host, network or scheduler failed, so the log has no result: {told}") from error
    if cause is None or cause[1].evidence.startswith("exit codes by rank"):
        return outcome
    return replace(outcome, status=cause[0], failure=cause[1])
