"""What the text of a log says beside its numbers: names that the map looks for, times, and how the run ended."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from campaign.config.import_file import LogPattern, LogTimes
from campaign.workloads.log_reader import Log


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
    if start is not None and end is None and duration is not None:
        end = start + duration
    if end is None:
        end = written_s if start is None or written_s >= start else start
        known_end = False
    else:
        known_end = True
    if start is None and duration is not None:
        return end - duration, end, True
    if start is None or not known_end or start > end:
        return end, end, False
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
