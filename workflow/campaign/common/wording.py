"""How numbers, axes and protocols are put into words: the same in figures, captions, tables and sentences."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

NONE = "–"

_AXIS_WORDS = {"batch": "batch {}", "storage": "storage {}"}
# Of record.Status; tables and CSV files keep the names themselves.
_STATUS_WORDS = {
    "ok": "valid",
    "oom_device": "out of memory",
    "oom_host": "out of host memory",
    "time_limit": "out of time",
    "nan": "loss not a number",
    "unsupported": "not supported",
    "comm_timeout": "communication timed out",
    "comm_error": "communication failed",
    "crashed": "crashed",
    "invalid": "result not valid",
    "implied": "implied, not run",
    "incomplete": "output incomplete",
}
_ALTERNATIVE = 2  # findings; a screen reader cannot skim, and the page has all of them as text


_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def printable(text: str) -> str:
    """A text from elsewhere for a terminal: control characters, which could move the cursor or hide lines, as \\x1b."""
    return "".join(
        char
        if char.isprintable() or char in "\n\t" or not unicodedata.category(char).startswith("C")
        else ascii(char)[1:-1]
        for char in text
    )


def neutralize_formula(text: str) -> str:
    """Return the text with an apostrophe before it if a spreadsheet would run it as a formula; numbers stay numbers."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, never in exponent form from 0.0001 up; '–' for none."""
    if value is None or not math.isfinite(value):
        return NONE
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) >= 10 ** (digits - 1):
        return minus(f"{value:,.0f}")
    if rounded and abs(rounded) < 1e-4:
        return minus(f"{rounded:.{digits}g}")
    decimals = digits - 1 - (math.floor(math.log10(abs(rounded))) if rounded else 0)
    return minus(f"{value:.{decimals}f}")


def count(value: float) -> str:
    """How many: '1,024', without decimals."""
    return f"{int(value):,}"


def rate(value: float | None) -> str:
    """A throughput: four digits, because intervals of careful runs differ from their mean in the third."""
    return number(value, 4)


def percent(value: float | None, decimals: int = 1) -> str:
    """'8.1 %', with a true minus sign and no negative zero."""
    if value is None or not math.isfinite(value):
        return NONE
    return minus(f"{round(value, decimals) + 0.0:.{decimals}f}\u202f%")


def minus(text: str) -> str:
    return text.replace("-", "−")


def times(value: float | None) -> str:
    """A ratio: '2.91×'."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.2f}×"


def seconds(value: float | None) -> str:
    """A duration for people: '0.42 s', '95 s', '12 min', '3.4 h'."""
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) < 120:
        return f"{number(value, 2 if abs(value) < 100 else 3)}\u202fs"
    if abs(value) < 7200:
        return f"{value / 60:.0f}\u202fmin"
    return f"{value / 3600:.1f}\u202fh"


def duration(seconds: float) -> str:
    """Seconds for people: '45 s', '3 min 20 s', '2 h 5 min'."""
    if seconds < 0.5:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def between(low: float, high: float, say: Any = number) -> str:
    """'7.6 to 8.6', or '–' without an interval."""
    return f"{say(low)} to {say(high)}" if math.isfinite(low) and math.isfinite(high) else NONE


def with_interval(
    value: float, low: float, high: float, say: Any = number, about: str = "", none: str = "one run, no interval"
) -> str:
    """'8.1 % [7.6 % to 8.6 %] (bert, fp32)': the value with its 95 % interval; `none` where there is no interval."""
    if math.isfinite(low) and math.isfinite(high):
        return f"{say(value)} [{between(low, high, say)}]" + (f" ({about})" if about else "")
    return f"{say(value)} ({none}; {about})" if about else f"{say(value)} ({none})"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def some(names: Collection[str], most: int = 3) -> str:
    """Names for a line: the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(list(names)[:most]) + more


def axis(column: str, value: Any) -> str:
    """One axis value in words: '2 hosts', 'batch 8', 'fp32', 'seq_len 64'."""
    if column in ("hosts", "devices", "ranks"):
        return plural(int(value), "host" if column == "hosts" else "device")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if column.startswith("option_"):
        return f"{column.removeprefix('option_')} {text}" if text else f"no {column.removeprefix('option_')}"
    return _AXIS_WORDS.get(column, "{}").format(text)


def shape(row: Mapping[Any, Any]) -> str:
    """The devices of a composition: '4 devices', '2 of 4 devices', '2 hosts × 4 devices'."""
    used, composed = int(row["devices_used"]), int(row["devices_per_host"])
    each = plural(composed, "device") if used == composed else f"{used} of {plural(composed, 'device')}"
    return each if row["hosts"] == 1 else f"{row['hosts']} hosts × {each}"


def attached(row: Mapping[Any, Any]) -> str:
    """How the devices are attached: 'local', 'fabric', 'fabric, peer-to-peer', 'hybrid (2 of 4 local)'."""
    kind, _, p2p = str(row["attach"]).partition("-")
    local = f" ({row['local_devices_per_host']} of {row['devices_per_host']} local)" if kind == "hybrid" else ""
    return f"{kind}{', peer-to-peer' if p2p else ''}{local}"


def treatment(row: Mapping[Any, Any], of_storage: bool) -> str:
    """How devices of a row of words are attached, and storage where there are several kinds: 'fabric, storage local-nvme'."""
    return f"{row['attached']}, storage {row['storage']}" if of_storage else str(row["attached"])


def describe(row: Mapping[str, Any] | Any, columns: Iterable[str]) -> str:
    """The named axes of a row: 'bert-nano, fp32, batch 8'."""
    return ", ".join(axis(column, row[column]) for column in columns)


def runs_behind(counts: Sequence[int]) -> str:
    """'n = 3 runs' or 'n = 2 to 5 runs' for the cells of a figure."""
    present = [int(count) for count in counts if count > 0]
    if not present:
        return "no runs"
    low, high = min(present), max(present)
    return f"n = {plural(low, 'run')}" if low == high else f"n = {low} to {high} runs"


def statuses(tally: str) -> str:
    """Counted statuses in words: 'oom_device x3, nan' is 'out of memory, 3 runs; loss not a number, 1 run'."""
    said = []
    for each in tally.split(", "):
        status, _, times = each.partition(" x")
        words = _STATUS_WORDS.get(status, status)
        # What was not run, and what is no status, is counted nowhere.
        uncounted = status == "implied" or status not in _STATUS_WORDS
        said.append(words if uncounted else f"{words}, {plural(int(times or 1), 'run')}")
    return "; ".join(said)


def made_by(methods: Iterable[str]) -> str:
    """How intervals were made, in brackets after the word: ' (Student t)', ' (Student t; BCa bootstrap)'; '' for none at all."""
    known = {name.removesuffix(", 95 %"): None for name in methods if name and not name.startswith("none")}
    return f" ({'; '.join(known)})" if known else ""


def by_runs(counts: Iterable[float], method: str = "Student t, 95 %") -> list[str]:
    """How the interval of each of so many runs was made, where that is one way for all of two and more: for `interval_of`."""
    return [method if count > 1 else "none: one run" for count in counts if count > 0]


def interval_of(methods: Iterable[str], said: str = "mean with 95 % interval") -> str:
    """Of intervals, for a caption: 'mean with 95 % interval'; 'one run each, so no interval' where no row has one."""
    known = list(methods)
    if made_by(known):
        return said
    return "one run each, so no interval" if any("one run" in name for name in known) else "no interval"


def alternative(findings: Sequence[str]) -> str:
    """The words that stand for a picture where it cannot be seen: its first findings; all of them stand beside it."""
    return " ".join(findings[:_ALTERNATIVE])


_ORDERS = {
    "lease_order": {
        "blocks": "leases in randomised blocks",
        "random-blocks": "leases in randomised blocks",
        "least-recomposition": "leases in the order of the file",
    },
    "order": {"blocks": "runs in randomised blocks", "sequential": "runs cell after cell"},
}


def protocol(settings: Mapping[str, Any]) -> str:
    """The protocol as one sentence part: '3 compositions, runs in randomised blocks, seed 1'."""
    said = [_setting(name, value) for name, value in settings.items() if not isinstance(value, dict | list)]
    return ", ".join(said) if said else "not recorded"


def _setting(name: str, value: Any) -> str:
    if name in ("compositions", "repetitions"):
        return plural(value, name[:-1])
    return _ORDERS.get(name, {}).get(value, f"{name.replace('_', ' ')} {value}")
