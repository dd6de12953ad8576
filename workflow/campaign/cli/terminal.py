"""Terminal output of the commands: tables, text, warnings, and the status line of a running process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from campaign.cli.source import replace_scratch_path
from campaign.common.files import open_regular
from campaign.common.wording import escape_control_characters
from campaign.workloads.log_reader import strip_terminal_codes

MAX_TERMINAL_ROWS = 60
"""Maximum number of rows printed per table. Other formats hold all rows."""
_LOG_WIDTH_CHARS = 140  # Used if the output is not a terminal. It fits a plan and is still readable in a log.
_MAX_WIDTH_CHARS = 1000
_TAIL_BYTES = 4096
_MAX_STATUS_CHARS = 70

_console = Console(highlight=False, width=None if sys.stdout.isatty() else _LOG_WIDTH_CHARS)


@dataclass(frozen=True)
class TextTable:
    """A table to print: a title, columns, and rows of cells.

    Attributes:
        title: heading above the table; empty for none.
        columns: headings of the columns.
        rows: cells of each row, in the order of the columns.
        right_aligned: columns that are aligned to the right.
        has_row_lines: whether lines separate the rows.
        optional_columns: columns to leave out if the terminal is too narrow for all, the first one first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    right_aligned: Sequence[str] = ()
    has_row_lines: bool = False
    optional_columns: Sequence[str] = ()

    def without_column(self, column: str) -> TextTable:
        """Return a copy of the table without one column."""
        index = list(self.columns).index(column)
        rows = [[*row[:index], *row[index + 1 :]] for row in self.rows]
        columns = [name for name in self.columns if name != column]
        return replace(
            self,
            columns=columns,
            rows=rows,
            optional_columns=[name for name in self.optional_columns if name != column],
        )


def build_table_from_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Build a table from rows that all have the same keys; the keys become the columns."""
    return TextTable(title, list(rows[0]) if rows else (), [list(row.values()) for row in rows])


def print_tables(*tables: TextTable, max_rows: int | None = MAX_TERMINAL_ROWS) -> None:
    """Print the tables that have rows. Optional columns are left out where the terminal is too narrow.

    Args:
        *tables: tables to print, in order.
        max_rows: maximum number of rows printed per table; None for all.
    """
    for table in tables:
        if not table.rows:
            continue
        rich_table = _build_rich_table(table, max_rows)
        wide_options = _console.options.update(max_width=_MAX_WIDTH_CHARS)
        while table.optional_columns and Measurement.get(_console, wide_options, rich_table).maximum > _console.width:
            table = table.without_column(table.optional_columns[0])
            rich_table = _build_rich_table(table, max_rows)
        _console.print(rich_table, "")


def _build_rich_table(table: TextTable, max_rows: int | None) -> RichTable:
    """Convert a table to a Rich table of at most `max_rows` rows. A last line gives the number of rows that are not shown."""
    rich_table = RichTable(
        title=Text(table.title, style="bold") if table.title else None, title_justify="left", header_style="bold",
        pad_edge=table.has_row_lines, show_lines=table.has_row_lines, box=box.HEAVY_HEAD if table.has_row_lines else None,
    )  # fmt: skip
    for column in table.columns:
        rich_table.add_column(
            Text(column), justify="right" if column in table.right_aligned else "left", overflow="fold"
        )
    for row in table.rows[:max_rows]:
        rich_table.add_row(*(Text(_format_cell(value)) for value in row))
    if max_rows is not None and len(table.rows) > max_rows:
        rich_table.add_row(Text(f"... and {len(table.rows) - max_rows} more"))
    return rich_table


def print_json(document: object) -> None:
    """Print a JSON document. Values that JSON cannot represent are printed as text."""
    print(json.dumps(document, indent=1, default=str))


def print_rows(title: str, rows: Sequence[Mapping[str, Any]], style: str = "table") -> None:
    """Print rows that all have the same keys as a table, or '(none)' if there are no rows.

    Args:
        title: heading of the table.
        rows: values by column name, one mapping per row.
        style: `table`, or `json` for a JSON document.
    """
    if style == "json":
        print_json(rows)
    elif rows:
        print_tables(build_table_from_rows(title, rows))
    else:
        print_text(f"{title}: (none)")


def print_text(text: str, style: str = "") -> None:
    """Print text without interpreting markup. The terminal wraps long lines, so that they can be copied whole."""
    _console.print(Text(replace_scratch_path(escape_control_characters(text)), style=style), soft_wrap=True)


def clear_screen() -> None:
    """Clear the screen. Has no effect if the output is not a terminal."""
    _console.clear()


def print_warnings(messages: Iterable[str]) -> None:
    """Print warnings to standard error, one per line, so that standard output stays machine-readable."""
    for message in messages:
        click.secho(f"warning: {escape_control_characters(message)}", err=True, fg="yellow")


def _format_cell(value: object) -> str:
    """Format a cell: numbers with six significant digits, and nothing for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else escape_control_characters(str(value))


@dataclass(frozen=True)
class _LogStatusLine:
    """Status line of a running process: its name, the seconds since its start, and the last line of its log.

    Attributes:
        name: name of the process.
        log: file that the process writes.
        started_s: start time in seconds, on the monotonic clock.
    """

    name: str
    log: Path
    started_s: float

    def __rich__(self) -> Text:
        """Read the end of the log and format the status line. Rich calls this at each refresh."""
        try:
            with open_regular(self.log) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                lines = strip_terminal_codes(file.read()).decode(errors="replace").split("\n")
        except OSError:
            lines = []
        last_line = next((line.strip()[:_MAX_STATUS_CHARS] for line in reversed(lines) if line.strip()), "")
        return Text(f"{self.name}: {time.monotonic() - self.started_s:.0f} s  {last_line}")


def show_log_status(name: str, log: Path) -> AbstractContextManager[object]:
    """Show a status line with the last line of a log while the returned context manager is entered.

    Nothing is shown if standard error is not a terminal.

    Args:
        name: name of the process, which begins the status line.
        log: file that the process writes.
    """
    if not sys.stderr.isatty():
        return nullcontext()
    return Console(stderr=True).status(_LogStatusLine(name, log, time.monotonic()), refresh_per_second=2)
