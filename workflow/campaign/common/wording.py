"""Formatting of numbers, axes and protocols as text, the same in figures, captions, tables and sentences."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

NO_VALUE = "–"

_AXIS_FORMATS = {"batch": "batch {}", "storage": "storage {}"}
# Descriptions of record.Status. Tables and CSV files keep the names themselves.
_STATUS_DESCRIPTIONS = {
    "ok": "valid",
    "oom_device": "out of memory",
    "oom_host": "out of host memory",
    "time_limit": "time limit reached",
    "nan": "loss not a number",
    "unsupported": "not supported",
    "comm_timeout": "communication timed out",
    "comm_error": "communication failed",
    "crashed": "crashed",
    "invalid": "invalid result",
    "implied": "implied, not run",
    "incomplete": "output incomplete",
}
_MAX_ALT_TEXT_FINDINGS = 2  # A screen reader cannot skim, and the page has all findings as text.


_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def escape_control_characters(text: str) -> str:
    r"""Replace control characters in a foreign text by escapes such as \x1b.

    In a terminal they could move the cursor or hide lines.
    """
    return "".join(
        char
        if char.isprintable() or char in "\n\t" or not unicodedata.category(char).startswith("C")
        else ascii(char)[1:-1]
        for char in text
    )


def neutralize_formula(text: str) -> str:
    """Prefix a text with an apostrophe if a spreadsheet would evaluate it as a formula. Numbers are unchanged."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def format_number(value: float | None, digits: int = 3) -> str:
    """Format a number with a fixed number of significant digits, or '–' if there is no number.

    Numbers from 0.0001 up are never in exponent form.
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    rounded_value = float(f"{value:.{digits}g}")
    if abs(rounded_value) >= 10 ** (digits - 1):
        return use_minus_signs(f"{value:,.0f}")
    if rounded_value and abs(rounded_value) < 1e-4:
        return use_minus_signs(f"{rounded_value:.{digits}g}")
    decimals = digits - 1 - (math.floor(math.log10(abs(rounded_value))) if rounded_value else 0)
    return use_minus_signs(f"{value:.{decimals}f}")


def format_count(value: float) -> str:
    """Format a count with thousands separators and without decimals, such as '1,024'."""
    return f"{int(value):,}"


def format_rate(value: float | None) -> str:
    """Format a throughput with four digits.

    Intervals of careful runs differ from their mean in the third digit.
    """
    return format_number(value, 4)


def format_percent(value: float | None, decimals: int = 1) -> str:
    """Format a percentage such as '8.1 %', with a true minus sign and no negative zero."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return use_minus_signs(f"{round(value, decimals) + 0.0:.{decimals}f}\u202f%")


def use_minus_signs(text: str) -> str:
    """Replace the hyphens in a formatted number by minus signs."""
    return text.replace("-", "−")


def format_ratio(value: float | None) -> str:
    """Format a ratio such as '2.91×'."""
    return NO_VALUE if value is None or not math.isfinite(value) else f"{value:.2f}×"


def format_seconds(value: float | None) -> str:
    """Format a duration with one unit, such as '0.42 s', '95 s', '12 min' or '3.4 h'."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if abs(value) < 120:
        return f"{format_number(value, 2 if abs(value) < 100 else 3)}\u202fs"
    if abs(value) < 7200:
        return f"{value / 60:.0f}\u202fmin"
    return f"{value / 3600:.1f}\u202fh"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds with up to two units, such as '45 s', '3 min 20 s' or '2 h 5 min'."""
    if seconds < 0.5:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, remaining_s = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {remaining_s} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_range(low: float, high: float, format_value: Any = format_number) -> str:
    """Format an interval such as '7.6 to 8.6', or '–' if there is no interval.

    Args:
        low: lower bound.
        high: upper bound.
        format_value: function that formats a bound.
    """
    return f"{format_value(low)} to {format_value(high)}" if math.isfinite(low) and math.isfinite(high) else NO_VALUE


def format_with_interval(
    value: float,
    low: float,
    high: float,
    format_value: Any = format_number,
    context: str = "",
    no_interval_text: str = "one run, no interval",
) -> str:
    """Format a value with its 95 % interval, such as '8.1 % [7.6 % to 8.6 %] (bert, fp32)'.

    Args:
        value: the value.
        low: lower bound of the interval.
        high: upper bound of the interval.
        format_value: function that formats the value and the bounds.
        context: text in parentheses after the interval.
        no_interval_text: text that replaces a missing interval.
    """
    if math.isfinite(low) and math.isfinite(high):
        return f"{format_value(value)} [{format_range(low, high, format_value)}]" + (f" ({context})" if context else "")
    return (
        f"{format_value(value)} ({no_interval_text}; {context})"
        if context
        else f"{format_value(value)} ({no_interval_text})"
    )


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun, such as '1 run' or '3 runs'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shorten_names(names: Collection[str], max_names: int = 3) -> str:
    """Join the first names of a collection, and append the number of the remaining ones."""
    ending = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(list(names)[:max_names]) + ending


def format_axis_value(column: str, value: Any) -> str:
    """Format one axis value, such as '2 hosts', 'batch 8', 'fp32' or 'seq_len 64'."""
    if column in ("hosts", "devices", "ranks"):
        return pluralize(int(value), "host" if column == "hosts" else "device")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if column.startswith("option_"):
        return f"{column.removeprefix('option_')} {text}" if text else f"no {column.removeprefix('option_')}"
    return _AXIS_FORMATS.get(column, "{}").format(text)


def format_device_counts(row: Mapping[Any, Any]) -> str:
    """Format the device counts of a composition, such as '4 devices', '2 of 4 devices' or '2 hosts × 4 devices'."""
    used_devices, composed_devices = int(row["devices_used"]), int(row["devices_per_host"])
    devices_text = (
        pluralize(composed_devices, "device")
        if used_devices == composed_devices
        else f"{used_devices} of {pluralize(composed_devices, 'device')}"
    )
    return devices_text if row["hosts"] == 1 else f"{row['hosts']} hosts × {devices_text}"


def describe_attachment(row: Mapping[Any, Any]) -> str:
    """Describe the attachment of devices: 'local', 'fabric', 'fabric, peer-to-peer' or 'hybrid (2 of 4 local)'."""
    kind, _, p2p = str(row["attach"]).partition("-")
    local = f" ({row['local_devices_per_host']} of {row['devices_per_host']} local)" if kind == "hybrid" else ""
    return f"{kind}{', peer-to-peer' if p2p else ''}{local}"


def describe_attachment_and_storage(row: Mapping[Any, Any], include_storage: bool) -> str:
    """Describe the attachment of devices, and the storage if there are several kinds, such as 'fabric, storage local-nvme'.

    Args:
        row: row with the columns `attached` and `storage` in words.
        include_storage: adds the storage.
    """
    return f"{row['attached']}, storage {row['storage']}" if include_storage else str(row["attached"])


def format_axes(row: Mapping[str, Any] | Any, columns: Iterable[str]) -> str:
    """Format the named axes of a row, such as 'bert-nano, fp32, batch 8'."""
    return ", ".join(format_axis_value(column, row[column]) for column in columns)


def format_run_counts(counts: Sequence[int]) -> str:
    """Format the numbers of runs behind the cells of a figure, such as 'n = 3 runs' or 'n = 2 to 5 runs'."""
    present = [int(count) for count in counts if count > 0]
    if not present:
        return "no runs"
    low, high = min(present), max(present)
    return f"n = {pluralize(low, 'run')}" if low == high else f"n = {low} to {high} runs"


def format_status_counts(tally: str) -> str:
    """Describe counted statuses in words.

    For example, 'oom_device x3, nan' becomes 'out of memory, 3 runs; loss not a number, 1 run'.
    """
    parts = []
    for status_count in tally.split(", "):
        status, _, run_count = status_count.partition(" x")
        words = _STATUS_DESCRIPTIONS.get(status, status)
        # Runs that were not started and texts that are not a status have no count.
        is_uncounted = status == "implied" or status not in _STATUS_DESCRIPTIONS
        parts.append(words if is_uncounted else f"{words}, {pluralize(int(run_count or 1), 'run')}")
    return "; ".join(parts)


def format_interval_methods(methods: Iterable[str]) -> str:
    """Format interval methods as a suffix in parentheses, such as ' (Student t)' or ' (Student t; BCa bootstrap)'.

    The result is empty if no interval was made.
    """
    short_names = {name.removesuffix(", 95 %"): None for name in methods if name and not name.startswith("none")}
    return f" ({'; '.join(short_names)})" if short_names else ""


def list_interval_methods(counts: Iterable[float], method: str = "Student t, 95 %") -> list[str]:
    """Return the interval method of each cell with runs, where all cells with two or more runs use the same method.

    The result is input for `describe_intervals`.

    Args:
        counts: number of runs per cell.
        method: method of cells with two or more runs.
    """
    return [method if count > 1 else "none: one run" for count in counts if count > 0]


def describe_intervals(methods: Iterable[str], description: str = "mean with 95 % interval") -> str:
    """Describe intervals for a caption, such as 'mean with 95 % interval' or 'one run each, so no interval'.

    Args:
        methods: name of the interval method of each row.
        description: text if at least one row has an interval.
    """
    method_names = list(methods)
    if format_interval_methods(method_names):
        return description
    return "one run each, so no interval" if any("one run" in name for name in method_names) else "no interval"


def write_alt_text(findings: Sequence[str]) -> str:
    """Compose the alternative text of a figure from its first findings.

    All findings are on the page as text, and a screen reader cannot skim.
    """
    return " ".join(findings[:_MAX_ALT_TEXT_FINDINGS])


_ORDER_DESCRIPTIONS = {
    "lease_order": {
        "blocks": "leases in randomised blocks",
        "random-blocks": "leases in randomised blocks",
        "least-recomposition": "leases in the order of the file",
    },
    "order": {"blocks": "runs in randomised blocks", "sequential": "runs cell after cell"},
}


def describe_protocol(settings: Mapping[str, Any]) -> str:
    """Describe the protocol as a part of a sentence, such as '3 compositions, runs in randomised blocks, seed 1'."""
    parts = [_describe_setting(name, value) for name, value in settings.items() if not isinstance(value, dict | list)]
    return ", ".join(parts) if parts else "not recorded"


def _describe_setting(name: str, value: Any) -> str:
    if name in ("compositions", "repetitions"):
        return pluralize(value, name[:-1])
    return _ORDER_DESCRIPTIONS.get(name, {}).get(value, f"{name.replace('_', ' ')} {value}")
